"""A server's app in this process, with a client on the same event loop."""

import asyncio
import base64
import io
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx

from mmrm.eval.serving.app import Server, application
from mmrm.eval.serving.request_limits import RequestLimits
from mmrm.eval.serving.service import JudgeToServe, Service
from tests.models import tiny


@asynccontextmanager
async def opened(
    judging: JudgeToServe, **settings: Any
) -> AsyncIterator[tuple[httpx.AsyncClient, Service]]:
    """Serve `judging`; the settings are those of `Service`."""
    service = Service(lambda: judging, **settings)
    app = application(service)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        service.lifespan(app),
        httpx.AsyncClient(transport=transport, base_url="http://server", timeout=60) as client,
    ):
        while service.running is None:
            await asyncio.sleep(0.001)
        yield client, service


def serving(
    judging: JudgeToServe,
    use: Callable[[httpx.AsyncClient, Service], Awaitable[None]],
    **settings: Any,
) -> None:
    """Call `use` with a client and the service."""

    async def main() -> None:
        async with opened(judging, **settings) as (client, service):
            await use(client, service)

    asyncio.run(main())


@contextmanager
def listening(
    judging: JudgeToServe, limits: RequestLimits | None = None, key: str | None = None
) -> Iterator[tuple[Server, int]]:
    """Run a server on a free port in a thread, and end it at last."""
    service = Service(lambda: judging, limits or RequestLimits(), key=key)
    server = Server(service)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            while service.running is None:
                time.sleep(0.01)
            yield server, port
        finally:
            server.handle_exit(15, None)
            thread.join(60)
            assert not thread.is_alive()


async def at_once(service: Service, requests: Sequence[Awaitable[Any]], parts: int) -> list[Any]:
    """Return what the requests give; the model begins when so many parts of them wait."""
    assert service.running is not None
    batcher, arrived = service.running.batcher, threading.Event()
    batcher.model.submit(arrived.wait)
    every = asyncio.gather(*requests)
    while len(batcher.waiting) < parts:
        await asyncio.sleep(0.005)
    arrived.set()
    return await every


def data_uri(seed: int = 0, width: int = 60, height: int = 80) -> str:
    """Return a picture of noise."""
    return f"data:image/png;base64,{base64.b64encode(png(seed, width, height)).decode()}"


def png(seed: int = 0, width: int = 60, height: int = 80) -> bytes:
    """Return the same as a file's bytes."""
    buffer = io.BytesIO()
    tiny.picture(width, height, seed).save(buffer, "PNG")
    return buffer.getvalue()


def group(question: str = "What is it?", *responses: str, images: int = 0) -> dict[str, Any]:
    """Return a group of a request."""
    return {
        "messages": question,
        "responses": list(responses or ("a", "b")),
        "images": [data_uri(n) for n in range(images)],
    }
