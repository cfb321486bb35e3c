"""The HTTP side of the server: its routes, the checks before a request is read, and the shutdown.

At SIGTERM (or Ctrl-C) the server drains: it answers the requests that it has accepted, refuses new
ones with status 503, and then ends with exit status 0. Accepted requests that are not answered
within the seconds of `--max-drain` get 503 as well. A second signal ends the process at once.
"""

import asyncio
import hmac
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from mmrm.eval.serving.api_description import openapi_document
from mmrm.eval.serving.dialects import (
    DIALECTS,
    REWARD_NAME,
    ScoreRequest,
    ServedCheckpoint,
)
from mmrm.eval.serving.service import LOGGER, REQUIRES_JSON, RequestError, Service
from mmrm.eval.serving.web_pages import reference_page, try_page

PROBE_PATHS = ("/health", "/ready")
"""Paths that load balancers request. They need no key, and are neither counted nor logged."""
PAGE_PATHS = ("/", "/docs", "/openapi.json")
"""Paths of the pages and the description of the routes. They need no key, because a browser sends
none when it opens a page, and what they answer depends on nothing but the key being required."""
METERED_PATHS = (*DIALECTS, *PAGE_PATHS, "/metrics", "/rewards", "/v1/models")
"""Paths whose requests are counted by their names in the metrics."""
PAGE_HEADERS = {
    "Content-Security-Policy": "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
"""Headers of pages. The policy that allows their style and their script is inside the pages, where
`frame-ancestors` has no effect."""
KEEP_ALIVE_SECONDS = 75
"""Seconds that an idle connection is kept open.

Clients and load balancers close theirs earlier, so that they never send a request while the server
closes.
"""
HEADER_SECONDS = 20
"""Seconds that a connection may take to send the headers of a request."""
CLOSE_SECONDS = 5
"""Seconds that the server waits at its end for answers that are still being sent."""


@dataclass(frozen=True, slots=True)
class Gate:
    """ASGI middleware that refuses requests before they are read, counts the others, and logs each.

    Requests of load balancers, to /health and /ready, are passed on without a check, a count or a line of the log.
    """

    app: ASGIApp
    service: Service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request with an error if it is refused, or pass it on to the app."""
        if scope["type"] != "http" or scope["path"] in PROBE_PATHS:
            await self.app(scope, receive, send)
            return
        service = self.service
        started = time.perf_counter()
        # Unknown paths share one name, so that clients cannot create any number of metrics.
        path = scope["path"] if scope["path"] in METERED_PATHS else "other"
        status = 500  # if the app fails before it sends a status

        async def send_and_note_status(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        refusal = self._refusal(scope)
        if refusal is not None:
            service.metrics.errors.labels(refusal.kind).inc()
        is_accepted_post = scope["method"] == "POST" and refusal is None
        if is_accepted_post:
            service.num_requests += 1
        try:
            answering_app = self.app if refusal is None else refusal.response()
            await answering_app(scope, receive, send_and_note_status)
        finally:
            if is_accepted_post:
                service.num_requests -= 1
            seconds = time.perf_counter() - started
            service.metrics.seconds.labels(path).observe(seconds)
            LOGGER.info("%s %s %d %.0f ms", scope["method"], path, status, 1000 * seconds)

    def _refusal(self, scope: Scope) -> RequestError | None:
        """Return the error for a request that is refused unread, or None if it is accepted."""
        service = self.service
        needs_key = service.key is not None and scope["path"] not in PAGE_PATHS
        sent_header = dict(scope["headers"]).get(b"authorization", b"")
        required_header = f"Bearer {service.key}".encode()
        if needs_key and not hmac.compare_digest(sent_header, required_header):
            return RequestError(
                401,
                "unauthorized",
                "required is the header `Authorization: Bearer KEY` with this server's key.",
            )
        if scope["method"] == "POST" and service.draining:
            return RequestError(503, "draining", "the server is being shut down; ask another one.")
        if scope["method"] == "POST" and service.num_requests >= service.limits.queue:
            return RequestError(
                429,
                "overloaded",
                f"{service.num_requests} requests wait, which is all this server allows; "
                "try again.",
            )
        return None


def application(service: Service) -> FastAPI:
    """Return a FastAPI app whose requests a service answers.

    The app has the routes that score responses, the routes for states and metrics, and pages for
    browsers. The service loads its judge when the app starts.
    """
    # FastAPI's own pages load their scripts from other servers.
    app = FastAPI(
        title="reward model",
        lifespan=service.lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    app.add_middleware(Gate, service=service)

    @app.exception_handler(RequestError)
    async def answer_error(_: Request, error: RequestError) -> JSONResponse:
        service.metrics.errors.labels(error.kind).inc()
        return error.response()

    @app.exception_handler(HTTPException)
    async def answer_unknown_route(request: Request, error: HTTPException) -> JSONResponse:
        # verl-omni's client posts pickles to the address alone, without the path of a route.
        if request.headers.get("content-type") == "application/octet-stream":
            return RequestError(415, "unsupported_media_type", REQUIRES_JSON).response()
        return RequestError(
            error.status_code, "not_found", f"{error.detail}; POST goes to {', '.join(DIALECTS)}."
        ).response()

    for path, read in DIALECTS.items():
        app.add_api_route(
            path, _route_handler(service, read), methods=["POST"], response_model=None
        )

    needs_key = service.key is not None
    document = openapi_document(needs_key)
    page_to_try = try_page(needs_key)
    page_of_routes = reference_page(document)

    @app.get("/", response_model=None)
    async def try_model() -> HTMLResponse:
        return HTMLResponse(page_to_try, headers=PAGE_HEADERS)

    @app.get("/docs", response_model=None)
    async def docs() -> HTMLResponse:
        return HTMLResponse(page_of_routes, headers=PAGE_HEADERS)

    @app.get("/openapi.json", response_model=None)
    async def openapi() -> JSONResponse:
        return JSONResponse(document, headers=PAGE_HEADERS)

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return {"status": "alive", "rewards": {REWARD_NAME: [service.status]}}

    @app.get("/ready", response_model=None)
    async def ready() -> JSONResponse:
        status = service.status
        return JSONResponse({"status": status}, 200 if status == "ready" else 503)

    @app.get("/rewards")
    async def rewards() -> dict[str, list[str]]:
        return {"rewards": [REWARD_NAME]}

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return service.models()

    @app.get("/metrics", response_model=None)
    async def metrics() -> Response:
        service.metrics.queue.set(service.num_groups)
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")

    return app


def _route_handler(
    service: Service, read: Callable[[Any, ServedCheckpoint], ScoreRequest]
) -> Callable[[Request], Any]:
    """Return the function that answers the requests to a route.

    Args:
        service: The service, which computes the answers.
        read: The function that reads the parsed body of a request to this route.
    """

    async def answer_request(request: Request) -> JSONResponse:
        return await service.answer(request, read)

    return answer_request


class TimedHeaders(H11Protocol):
    """A connection of uvicorn that is closed if a request's headers do not arrive in time.

    uvicorn waits without a limit for the headers. A client that sends one byte in a minute would
    keep a connection open, and thousands of such clients would use up all connections of the
    process.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer for the headers of the first request."""
        super().connection_made(transport)
        self.header_timer: asyncio.TimerHandle | None = None
        self._expect_headers()

    def data_received(self, data: bytes) -> None:
        """Parse `data`, and stop or start the timer for the headers of a request.

        The timer stops once the headers are complete. It starts again with the first byte of the
        connection's next request.
        """
        super().data_received(data)
        awaits_headers = self.conn.their_state is h11.IDLE
        if not awaits_headers and self.header_timer is not None:
            self.header_timer.cancel()
            self.header_timer = None
        unparsed_bytes, _ = self.conn.trailing_data
        if awaits_headers and self.header_timer is None and unparsed_bytes:
            self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer for the headers, because the connection is closed."""
        if self.header_timer is not None:
            self.header_timer.cancel()
        super().connection_lost(exc)

    def _expect_headers(self) -> None:
        """Start the timer that closes the connection unless headers arrive in time."""
        self.header_timer = self.loop.call_later(HEADER_SECONDS, self._close_as_too_slow)

    def _close_as_too_slow(self) -> None:
        """Close the connection if the headers of its request are still incomplete."""
        self.header_timer = None
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            LOGGER.info("closed a connection: no request within %d s", HEADER_SECONDS)
            self.transport.close()


class Server(uvicorn.Server):
    """A uvicorn server that answers its accepted requests before it ends.

    After the first signal it drains: it answers the requests that it has accepted, refuses new ones
    with status 503, and ends with exit status 0. uvicorn itself would refuse connections at once,
    and end with the status of the signal.
    """

    def __init__(self, service: Service) -> None:
        config = uvicorn.Config(
            application(service),
            log_level="warning",
            access_log=False,
            http=TimedHeaders,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=CLOSE_SECONDS,
            lifespan="on",
        )
        super().__init__(config)
        self.service = service
        self.drain_until = math.inf
        """The time of the monotonic clock at which draining ends."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to drain at the first signal, and end at once at the second one.

        uvicorn calls this method for SIGTERM and SIGINT.
        """
        is_second_signal = self.service.draining
        self.should_exit = is_second_signal
        self.force_exit = is_second_signal
        if not is_second_signal:
            self.drain_until = time.monotonic() + self.service.limits.drain
        self.service.draining = True

    async def on_tick(self, counter: int) -> bool:
        """Return True if the server has to end; uvicorn calls this ten times in a second.

        The server ends if all accepted requests are answered after a signal, if draining took too
        long, or if the model failed.
        """
        service = self.service
        if time.monotonic() > self.drain_until and not service.out_of_time.is_set():
            LOGGER.warning(
                "%d requests are not answered %d s after the signal and are given up",
                service.num_requests,
                service.limits.drain,
            )
            service.out_of_time.set()
        has_drained = service.draining and service.num_requests == 0
        has_failed = service.failed is not None
        if has_drained or has_failed or service.out_of_time.is_set():
            self.should_exit = True
        return await super().on_tick(counter)
