"""Answer requests: read the body, check its groups, have them judged, and write the answer.

A group is a prompt with the responses to it. A request holds one or more groups.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

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
from mmrm.eval.serving.api_models import ModelEntry, ModelsAnswer
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

FIRST_BYTE_OF_PICKLES = b"\x80"
"""The first byte of a pickle of protocol 2 or later. No text in UTF-8 begins with it."""
REQUIRES_JSON = (
    "the body is not JSON. verl-omni's and flow_grpo's HTTP scorer clients send pickles, and this "
    "server reads none, because a pickle can run any program. Send JSON to /v1/rewards. For "
    "verl-omni, copy eval/adapters/verl_omni_reward.py, which does so."
)


class RequestError(Exception):
    """The error with which a whole request is answered.

    Args:
        status: The HTTP status of the answer.
        kind: The `type` of the error in the answer, and its label in the metrics.
        message: The text for the client.
    """

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind

    def response(self) -> JSONResponse:
        """Return the HTTP response with this error's status and message."""
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
    """The parts of a `Service` that exist once the judge is loaded."""

    batcher: Batcher
    intake: Intake
    served: ServedCheckpoint


@dataclass(slots=True)
class Service:
    """A server of scores: its settings, its state, and its answers to requests.

    A request holds groups, each a prompt with the responses to it. `app.py` adds the HTTP side.
    """

    load: Callable[[], JudgeToServe]
    """Loads the judge. It is called in the model's thread once the server listens."""
    limits: RequestLimits = field(default_factory=RequestLimits)
    media_root: Path | None = None
    """The folder of images that are given as paths; None if paths are not allowed."""
    key: str | None = field(default=None, repr=False)
    """The key that requests must contain; None if they need no key."""
    metrics: Metrics = field(default_factory=Metrics)
    draining: bool = False
    """True once the server has to end: it answers its accepted requests and refuses new ones."""
    num_requests: int = 0
    """Number of requests that are accepted and not answered yet."""
    num_groups: int = 0
    """Number of groups in these requests, as far as the requests were read."""
    running: LoadedService | None = None
    """None until the judge is loaded."""
    num_held_bytes: int = 0
    """Number of bytes in the bodies of these requests."""
    out_of_time: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once draining has taken `limits.drain` seconds. Requests without an answer are then given
    up."""
    failed: BaseException | None = None
    """The error that ended loading or computing. The server then ends as well."""

    @property
    def status(self) -> Literal["ready", "loading", "draining"]:
        """The status for load balancers: only a server that is ready gives scores."""
        if self.draining:
            return "draining"
        return "loading" if self.running is None else "ready"

    @asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        """Load the judge and compute scores in a task of the event loop, as long as the app runs.

        FastAPI enters this context when the app starts, and leaves it when the app ends.
        """
        task = asyncio.create_task(self._load_and_compute())
        task.add_done_callback(self._note_failure)
        yield
        task.cancel()

    def _note_failure(self, task: "asyncio.Task[None]") -> None:
        """Note the error that ended the task, if there is one, so that the server ends as well."""
        self.failed = None if task.cancelled() else task.exception()

    async def _load_and_compute(self) -> None:
        """Load the judge, and compute scores for all requests until the task is cancelled."""
        model_thread = ThreadPoolExecutor(1, "model")
        to_serve = await asyncio.get_running_loop().run_in_executor(model_thread, self.load)
        batcher = Batcher(to_serve.judge, model_thread, self.limits, self.metrics)
        info = to_serve.judge.info
        compares_all = info.compares and info.compares_all
        intake = Intake(self.limits, self.media_root, compares_all)
        self.running = LoadedService(batcher, intake, to_serve.served)
        await batcher.run()

    async def answer(
        self, request: Request, read: Callable[[Any, ServedCheckpoint], ScoreRequest]
    ) -> JSONResponse:
        """Receive the body of a request, have its groups scored, and return the answer.

        Args:
            request: The request.
            read: The function that reads the parsed body of a request to this route.

        Raises:
            RequestError: If the whole request is refused, or the client went away.
        """
        body = bytearray()
        try:
            await self._receive(request, body)
            return await self._answer_body(request, bytes(body), read)
        finally:
            # `_receive` added them, also if it then refused the request.
            self.num_held_bytes -= len(body)

    async def _answer_body(
        self, request: Request, body: bytes, read: Callable[[Any, ServedCheckpoint], ScoreRequest]
    ) -> JSONResponse:
        """Read the body of a request, have its groups scored, and return the answer.

        Args:
            request: The request, for the message that the client went away.
            body: The whole body of the request.
            read: The function that reads the parsed body of a request to this route.

        Raises:
            RequestError: If the whole request is refused, or the client went away.
        """
        loaded = self.loaded()
        score_request = await self._read_body(loaded, body, read)
        num_groups = len(score_request.groups)
        self._refuse_too_many_groups(num_groups)
        self.num_groups += num_groups
        try:
            results = await self._score_groups(loaded, request, score_request.groups)
        finally:
            self.num_groups -= num_groups

        failures = [result for result in results if isinstance(result, Failure)]
        for failure in failures:
            self.metrics.errors.labels(failure.type).inc()
        # Some answers can hold scores of some groups and failures of others.
        is_partly_answered = score_request.holds_failures and len(failures) < num_groups
        if not failures or is_partly_answered:
            return JSONResponse(score_request.write_answer(results))

        messages = dict.fromkeys(failure.message for failure in failures)  # each of them once
        worst_failure = max(failures, key=lambda failure: failure.status)
        answer = score_request.write_answer(results) if score_request.holds_failures else {}
        answer["error"] = {"message": "\n".join(messages), "type": worst_failure.type}
        return JSONResponse(answer, worst_failure.status)

    async def _receive(self, request: Request, content: bytearray) -> None:
        """Append a request's body to `content`, and add its size to the bytes that are held.

        The bytes held are those of the bodies of all requests without an answer yet.

        Raises:
            RequestError: If the body is too large or too slow, or too many bytes are held already.
        """
        # The header may understate the length of the body, and is missing if the body is chunked.
        num_bytes = int(request.headers.get("content-length", "0"))
        try:
            async with asyncio.timeout(READ_SECONDS):
                async for chunk in request.stream():
                    content += chunk
                    self.num_held_bytes += len(chunk)
                    num_bytes = max(num_bytes, len(content))
                    if self.num_held_bytes > self.limits.held:
                        raise RequestError(
                            429,
                            "overloaded",
                            "the requests that are being answered hold "
                            f"{self.num_held_bytes:,} bytes, and this server allows "
                            f"{self.limits.held:,}; try again.",
                        )
                    if num_bytes > self.limits.body:
                        raise RequestError(
                            413,
                            "too_large",
                            f"the request has more than the {self.limits.body:,} bytes allowed. "
                            "Send fewer or smaller images, or start with `--max-body N`.",
                        )
        except TimeoutError:
            raise RequestError(
                408, "timeout", f"the body did not arrive within {READ_SECONDS} seconds."
            ) from None
        except ClientDisconnect:
            raise RequestError(400, "disconnected", "the client went away.") from None

    async def _read_body(
        self,
        loaded: LoadedService,
        body: bytes,
        read: Callable[[Any, ServedCheckpoint], ScoreRequest],
    ) -> ScoreRequest:
        """Parse the body of a request in a thread, and return its groups.

        Args:
            loaded: The loaded parts of the service.
            body: The body as it was sent.
            read: The function that reads the parsed body of a request to this route.

        Raises:
            RequestError: If the body is malformed or has too many values.
        """
        try:
            return await loaded.batcher.in_pool(
                read_request, body, read, loaded.served, self.limits.values
            )
        except ValidationError as error:
            raise RequestError(422, "invalid_request", problems(error)) from error
        except RecordError as error:
            raise RequestError(422, "invalid_request", str(error)) from error

    def _refuse_too_many_groups(self, num_groups: int) -> None:
        """Raise RequestError if a request has too many groups, or too many groups wait already."""
        if num_groups > self.limits.groups:
            raise RequestError(
                422,
                "invalid_request",
                f"{num_groups} groups; this server allows {self.limits.groups} in a request.",
            )
        if self.num_groups + num_groups > self.limits.queue:
            raise RequestError(
                429,
                "overloaded",
                f"{self.num_groups} groups wait, and this server allows {self.limits.queue}; "
                "try again.",
            )

    async def _score_groups(
        self, loaded: LoadedService, request: Request, groups: Sequence[Any]
    ) -> list[ScoredGroup | Failure]:
        """Return the scores or the failure of each group of a request.

        Raises:
            RequestError: If the client went away, or if draining took too long.
        """
        lane = loaded.batcher.new_lane()
        scoring = asyncio.gather(
            *(self._score_group(loaded, index, group, lane) for index, group in enumerate(groups))
        )
        # After the body, the only message that can follow is that the client went away.
        disconnected = asyncio.ensure_future(request.receive())
        out_of_time = asyncio.ensure_future(self.out_of_time.wait())
        events: set[asyncio.Future[Any]] = {scoring, disconnected, out_of_time}
        try:
            await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
            if scoring.done():
                return scoring.result()
            if out_of_time.done():
                raise RequestError(
                    503,
                    "draining",
                    f"the server is being shut down, and {self.limits.drain} seconds did not "
                    "suffice for this request; ask another one.",
                )
            raise RequestError(400, "disconnected", "the client went away.")
        finally:
            scoring.cancel()
            disconnected.cancel()
            out_of_time.cancel()
            await asyncio.gather(scoring, disconnected, out_of_time, return_exceptions=True)

    async def _score_group(
        self, loaded: LoadedService, index: int, group: Any, lane: asyncio.Semaphore
    ) -> ScoredGroup | Failure:
        """Return the scores of a group, or its failure. An error of the server itself is logged.

        Args:
            loaded: The loaded parts of the service.
            index: Index of the group in its request, for messages.
            group: The group as parsed JSON.
            lane: The semaphore of the request, from `Batcher.new_lane`.
        """

        async def check_and_score() -> ScoredGroup:
            async with lane:
                candidates = await loaded.batcher.in_pool(loaded.intake, group, f"group {index}")
            return await loaded.batcher.score(candidates, lane)

        # With return_exceptions, `gather` returns an error instead of raising it.
        [result] = await asyncio.gather(check_and_score(), return_exceptions=True)
        if isinstance(result, RecordError):
            return Failure(str(result), "invalid_request", 422)
        if isinstance(result, NonFiniteError):
            return Failure(str(result), "non_finite_score", 500)
        if isinstance(result, BaseException):
            LOGGER.error("a group failed", exc_info=result)
            return Failure(
                f"group {index}: the server failed ({type(result).__name__}); its log says why.",
                "internal",
                500,
            )
        self.metrics.scores.extend(result.scores.values)
        return result

    def loaded(self) -> LoadedService:
        """Return the loaded parts of the service.

        Raises:
            RequestError: If the judge is not loaded yet.
        """
        if self.running is None:
            raise RequestError(503, "loading", "the model is being loaded; ask /ready.")
        return self.running

    def models(self) -> dict[str, Any]:
        """Return the list of served models in OpenAI's form.

        It has one entry, with the model's fingerprint and the limits on requests.
        """
        served = self.loaded().served
        model = ModelEntry(
            id=served.name,
            kind=served.kind,
            fingerprint=served.fingerprint,
            reference_scores=served.reference,
            limits=self.limits.model_dump(),
        )
        return ModelsAnswer(data=[model]).model_dump()


def read_request(
    body: bytes,
    read: Callable[[Any, ServedCheckpoint], ScoreRequest],
    served: ServedCheckpoint,
    max_values: int,
) -> ScoreRequest:
    """Parse the body of a request and read its groups.

    Args:
        body: The body as it was sent.
        read: The function that reads the parsed body of a request of this route.
        served: The served checkpoint. A request may name it, and no other one.
        max_values: The largest number of JSON values that a body may hold.

    Raises:
        RequestError: If the body is a pickle, has too many values, is no JSON, or names another
            model.
        RecordError, ValidationError: If `read` refuses the parsed body.
    """
    if body.startswith(FIRST_BYTE_OF_PICKLES):
        raise RequestError(415, "unsupported_media_type", REQUIRES_JSON)
    num_values = count_values(body)
    if num_values > max_values:
        raise RequestError(
            422,
            "invalid_request",
            f"the request holds up to {num_values:,} JSON values; this server allows "
            f"{max_values:,}. Send several requests, or start with `--max-values N`.",
        )
    try:
        parsed = parse_json(body)
    except RecordError as error:
        raise RequestError(400, "invalid_request", str(error)) from error
    model = parsed.get("model") if isinstance(parsed, dict) else None
    if model not in (None, served.name):
        raise RequestError(
            404,
            "not_found",
            f"there is no model {str(model)[:200]!r} here; served is {served.name!r}.",
        )
    return read(parsed, served)


def load_served(path: Path, name: str, runtime: Runtime) -> JudgeToServe:
    """Load the judge at `path`, let it rank two responses as a test, and return it for a server.

    Args:
        path: A checkpoint folder or the YAML file of a judge.
        name: The name of the model for clients.
        runtime: The device and the token budget.

    Raises:
        CheckpointError: If the judge cannot be loaded, or has no checkpoint of its own.
    """
    config = judge_config(path)
    if not config.checkpoints():
        raise CheckpointError(
            f"{path} is of the type {config.type!r}; served are scalar, joint, critic, generative, "
            "rubric, points and released judges."
        )
    loaded = load_judge(path, runtime)
    assert isinstance(loaded.judge, PackedJudge), "a judge with a checkpoint runs in this process"
    # A judge that cannot compute fails now and not at a request.
    loaded.judge.score_batch([loaded.judge.trial])
    # A released judge that compares two responses is shown to clients as a generative one.
    kind = "generative" if config.compares else config.type
    served = ServedCheckpoint(name, kind, judge_digest(path), reference_of(path))
    return JudgeToServe(loaded.judge, served)
