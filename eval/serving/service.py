"""Answer requests: read the body, check its groups, have them judged, and write the answer.

A group is a prompt with the responses to it. A request holds one or more groups.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.requests import ClientDisconnect

from mmrm.data.errors import CheckpointError, NonFiniteError, RecordError
from mmrm.data.storage.strict_json import count_values, parse_json
from mmrm.eval.judges.checkpoint import Runtime
from mmrm.eval.judges.loading import load_judge
from mmrm.eval.judges.packed_judge import PackedJudge
from mmrm.eval.judges.registry import judge_config, reference_of
from mmrm.eval.serving.batcher import Batcher, ScoredGroup
from mmrm.eval.serving.dialects import Failure, ScoreRequest, ServedCheckpoint
from mmrm.eval.serving.metrics import Metrics
from mmrm.eval.serving.request_limits import RequestLimits
from mmrm.eval.serving.request_reader import Intake, problems
from mmrm.eval.suite.fingerprint import judge_digest

LOGGER = logging.getLogger("reward_server")
READ_SECONDS = 60
"""Seconds within which a request's body has to arrive."""
RETRY_SECONDS = "1"
"""Seconds after which a client may repeat a refused request, as text for the header Retry-After."""


class RequestError(Exception):
    """Raised if a whole request is answered with an error, by its HTTP status and kind of error."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind

    def response(self) -> JSONResponse:
        """Return the HTTP response for this error."""
        headers: dict[str, str] = {}
        if self.status in (429, 503):
            headers["Retry-After"] = RETRY_SECONDS
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        content = {"error": {"message": str(self), "type": self.kind}}
        return JSONResponse(content, self.status, headers)


@dataclass(frozen=True, slots=True)
class JudgeToServe:
    """A loaded judge, with its name, kind and fingerprint for clients."""

    judge: PackedJudge
    served: ServedCheckpoint


@dataclass(frozen=True, slots=True)
class LoadedService:
    """The parts of a service that need the loaded judge."""

    batcher: Batcher
    intake: Intake
    served: ServedCheckpoint


@dataclass(slots=True)
class Service:
    """The settings and the state of a server.

    `load` loads the judge. It runs in the model's thread once the server listens.
    """

    load: Callable[[], JudgeToServe]
    limits: RequestLimits = field(default_factory=RequestLimits)
    media_root: Path | None = None
    key: str | None = field(default=None, repr=False)
    metrics: Metrics = field(default_factory=Metrics)
    draining: bool = False
    requests: int = 0
    """Number of requests that are accepted and not answered yet."""
    groups: int = 0
    """Number of groups in these requests, as far as the requests were read."""
    running: LoadedService | None = None
    held: int = 0
    """Number of bytes in the bodies of these requests."""
    out_of_time: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once draining has taken `limits.drain` seconds. Requests without an answer are then given up."""
    failed: BaseException | None = None
    """The error that ended loading or computing. The server then ends as well."""

    @asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        """Load the judge and compute scores in a task, as long as the server runs."""
        task = asyncio.create_task(self._run())
        task.add_done_callback(self._ended)
        yield
        task.cancel()

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self.failed = None if task.cancelled() else task.exception()

    async def _run(self) -> None:
        model = ThreadPoolExecutor(1, "model")
        judging = await asyncio.get_running_loop().run_in_executor(model, self.load)
        batcher = Batcher(judging.judge, model, self.limits, self.metrics)
        intake = Intake(self.limits, self.media_root, judging.served.kind == "generative")
        self.running = LoadedService(batcher, intake, judging.served)
        await batcher.run()

    async def answer(
        self, request: Request, read: Callable[[Any, ServedCheckpoint], ScoreRequest]
    ) -> JSONResponse:
        """Return the answer to a request.

        Args:
            request: The request.
            read: The function that reads the body of a request of this route, as parsed JSON.

        Raises:
            RequestError: If the whole request is refused, or the client went away.
        """
        body = bytearray()
        try:
            await self._receive(request, body)
            return await self._answered(request, bytes(body), read)
        finally:
            self.held -= len(body)

    async def _answered(
        self, request: Request, body: bytes, read: Callable[[Any, ServedCheckpoint], ScoreRequest]
    ) -> JSONResponse:
        running = self.loaded()
        try:
            asked = await running.batcher.in_pool(
                _asked, body, read, running.served, self.limits.values
            )
        except ValidationError as error:
            raise RequestError(422, "invalid_request", problems(error)) from error
        except RecordError as error:
            raise RequestError(422, "invalid_request", str(error)) from error
        count = len(asked.groups)
        if count > self.limits.groups:
            raise RequestError(
                422,
                "invalid_request",
                f"{count} groups; this server allows {self.limits.groups} in a request.",
            )
        if self.groups + count > self.limits.queue:
            raise RequestError(
                429,
                "overloaded",
                f"{self.groups} groups wait, and this server allows {self.limits.queue}; try again.",
            )
        self.groups += count
        lane = running.batcher.new_lane()
        work = asyncio.gather(
            *(self._group(running, number, one, lane) for number, one in enumerate(asked.groups))
        )
        # After the body, the next message of a connection is that the client went away.
        gone = asyncio.ensure_future(request.receive())
        out_of_time = asyncio.ensure_future(self.out_of_time.wait())
        either: set[asyncio.Future[Any]] = {work, gone, out_of_time}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not work.done() and out_of_time.done():
                raise RequestError(
                    503,
                    "draining",
                    f"the server is being shut down, and {self.limits.drain} seconds did not suffice "
                    "for this request; ask another one.",
                )
            if not work.done():
                raise RequestError(400, "disconnected", "the client went away.")
            found = work.result()
        finally:
            work.cancel()
            gone.cancel()
            out_of_time.cancel()
            await asyncio.gather(work, gone, out_of_time, return_exceptions=True)
            self.groups -= count
        failures = [one for one in found if isinstance(one, Failure)]
        for failure in failures:
            self.metrics.errors.labels(failure.type).inc()
        if not failures or (asked.partial and len(failures) < count):
            return JSONResponse(asked.write(found))
        worst = max(failures, key=lambda failure: failure.status)
        said = "\n".join(dict.fromkeys(failure.message for failure in failures))
        answer = asked.write(found) if asked.partial else {}
        return JSONResponse(
            {**answer, "error": {"message": said, "type": worst.type}}, worst.status
        )

    async def _receive(self, request: Request, content: bytearray) -> None:
        """Append a request's body to `content`, and add its size to `held`.

        Raises:
            RequestError: If the body is too large or too slow, or too many bytes are held already.
        """
        length = int(request.headers.get("content-length", "0"))
        try:
            async with asyncio.timeout(READ_SECONDS):
                async for piece in request.stream():
                    content += piece
                    self.held += len(piece)
                    length = max(length, len(content))
                    if self.held > self.limits.held:
                        raise RequestError(
                            429,
                            "overloaded",
                            f"the requests that are being answered hold {self.held:,} bytes, and "
                            f"this server allows {self.limits.held:,}; try again.",
                        )
                    if length > self.limits.body:
                        raise RequestError(
                            413,
                            "too_large",
                            f"the request has more than the {self.limits.body:,} bytes allowed.",
                        )
        except TimeoutError:
            raise RequestError(
                408, "timeout", f"the body did not arrive within {READ_SECONDS} seconds."
            ) from None
        except ClientDisconnect:
            raise RequestError(400, "disconnected", "the client went away.") from None

    async def _group(
        self, running: LoadedService, number: int, written: Any, lane: asyncio.Semaphore
    ) -> ScoredGroup | Failure:
        async def scored() -> ScoredGroup:
            batcher = running.batcher
            async with lane:
                candidates = await batcher.in_pool(running.intake, written, f"group {number}")
            return await batcher.score(candidates, lane)

        [found] = await asyncio.gather(scored(), return_exceptions=True)
        if isinstance(found, RecordError):
            return Failure(str(found), "invalid_request", 422)
        if isinstance(found, NonFiniteError):
            return Failure(str(found), "non_finite_score", 500)
        if isinstance(found, BaseException):
            LOGGER.error("a group failed", exc_info=found)
            return Failure(
                f"group {number}: the server failed ({type(found).__name__}); its log says why.",
                "internal",
                500,
            )
        self.metrics.scores.extend(found.scores.values)
        return found

    def loaded(self) -> LoadedService:
        """Return the loaded parts of the service; raise RequestError if the judge is not loaded yet."""
        if self.running is None:
            raise RequestError(503, "loading", "the model is being loaded; ask /ready.")
        return self.running

    def models(self) -> dict[str, Any]:
        """Return the list of the served models in OpenAI's form, with fingerprint and limits."""
        served = self.loaded().served
        about = {
            "kind": served.kind,
            "fingerprint": served.fingerprint,
            "reference_scores": served.reference,
        }
        own = {"id": served.name, "object": "model", "owned_by": "multimodal-reward-models"}
        return {"object": "list", "data": [{**own, **about, "limits": self.limits.model_dump()}]}


def _asked(
    body: bytes,
    read: Callable[[Any, ServedCheckpoint], ScoreRequest],
    served: ServedCheckpoint,
    most_values: int,
) -> ScoreRequest:
    num_values = count_values(body)
    if num_values > most_values:
        raise RequestError(
            422,
            "invalid_request",
            f"the request holds up to {num_values:,} JSON values; this server allows {most_values:,}. Send "
            "several requests, or start with `--max-values N`.",
        )
    try:
        found = parse_json(body)
    except RecordError as error:
        raise RequestError(400, "invalid_request", str(error)) from error
    model = found.get("model") if isinstance(found, dict) else None
    if model not in (None, served.name):
        raise RequestError(
            404,
            "not_found",
            f"there is no model {str(model)[:200]!r} here; served is {served.name!r}.",
        )
    return read(found, served)


def load_served(path: Path, name: str, runtime: Runtime) -> JudgeToServe:
    """Load the judge at `path`, let it rank two responses as a test, and return it.

    Args:
        path: A checkpoint folder or the YAML file of a judge.
        name: The name of the model for clients.
        runtime: The device and the token budget.

    Raises:
        CheckpointError: If the judge cannot be loaded, does not run in this process, or has several
            models.
    """
    config = judge_config(path)
    if not config.checkpoints():
        raise CheckpointError(
            f"{path} is of the type {config.type!r}; served are scalar, critic, generative and released judges."
        )
    loaded = load_judge(path, runtime)
    loaded.rank("?", ["-", "."])
    assert isinstance(loaded.judge, PackedJudge), (
        "every judge of one checkpoint runs in this process"
    )
    kind = "generative" if config.compares else config.type
    served = ServedCheckpoint(name, kind, judge_digest(path), reference_of(path))
    return JudgeToServe(loaded.judge, served)
