"""A judge behind an OpenAI-compatible endpoint, asked with the benchmark's own prompt and read with its own parser.

Requests to an OpenAI-compatible endpoint: repeated where that helps, answers kept on disk.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
from PIL import Image

from data.decoding import orientation
from data.errors import EndpointError
from data.images import FORMATS, decode
from data.preference import EncodedImage, Message
from data.storage.files import write_whole
from eval.benchmarks.benchmark import Benchmark, PairwisePrompt
from eval.benchmarks.multimodal_rewardbench import GENERAL_PROMPT
from eval.judges.config import EndpointConfig, Usage
from eval.protocol import Example, ProtocolConfig, Side, Verdict, Vote, presentations
from models.distributed import gather, rank, world_size

SENT_AS_IT_IS = {"JPEG": "image/jpeg", "PNG": "image/png", "WEBP": "image/webp", "GIF": "image/gif"}
"""What such endpoints read; other formats, and pictures that are stored turned, transparent or in 16 bits, are sent as PNG."""


@dataclass(frozen=True, slots=True)
class Question:
    """One judgement to ask for."""

    example: Example
    first: Side
    turn: int


@dataclass(slots=True)
class EndpointJudge:
    """Asks once for each presentation that the protocol names."""

    config: EndpointConfig
    prompt: PairwisePrompt
    protocol: ProtocolConfig
    unofficial: str = ""
    """What to say where the prompt is not the benchmark's own."""
    usage: Usage = field(default_factory=Usage)
    first_refusal: str = ""

    def judge(self, examples: Sequence[Example]) -> list[Verdict]:
        """Return the votes on every example, on every rank; ranks share the requests and must call together.

        Raises: EndpointError if a request fails for good on some rank, or all are refused.
        """
        mine = range(rank(), len(examples), world_size())
        asked = {index: self._questions(examples[index]) for index in mine}
        answers = iter(self._answers([question for questions in asked.values() for question in questions]))
        votes = {
            index: tuple(self._vote(question, next(answers)) for question in questions) for index, questions in asked.items()
        }
        whole = {index: cast for part in gather(votes) for index, cast in part.items()}
        return [Verdict(votes=whole[index]) for index in range(len(examples))]

    def notes(self) -> tuple[str, ...]:
        """Say what judging cost, and what else must stand beside the figures."""
        return (*([self.unofficial] if self.unofficial else []), *self.usage.lines(self.config, self.first_refusal))

    def body(self, question: Question) -> dict[str, Any]:
        """Return the request for one judgement; each has a seed of its own, so that votes differ and repeat."""
        example = question.example
        seed = hashlib.sha256(f"{self.protocol.seed}/{example.key}/{question.turn}".encode()).digest()
        request = {
            "model": self.config.model,
            "messages": messages(self.prompt.ask(example, question.first), example.images, example.identity),
            "max_tokens": self.prompt.max_new_tokens,
            "temperature": self.prompt.temperature,
            "top_p": self.prompt.top_p,
            "seed": int.from_bytes(seed[:4]) >> 1,
            **self.config.request,
        }
        return {name: value for name, value in request.items() if value is not None}

    def _questions(self, example: Example) -> list[Question]:
        return [Question(example, first, turn) for turn, first in enumerate(presentations(example, self.protocol))]

    def _answers(self, questions: Sequence[Question]) -> list[Answer]:
        """Ask, and count over all ranks; a rank that fails tells the others, so that none waits for it."""
        problem, answers = "", list[Answer]()
        try:
            with open_client(self.config) as client:
                answers = client.answers(questions, self.body, max(1, self.config.concurrency // world_size()))
        except EndpointError as error:
            problem = str(error)
        refusal = next((answer.refusal for answer in answers if answer.refusal), "")
        problems, usages, refusals = zip(*gather((problem, usage_of(answers), refusal)), strict=True)
        self.usage, self.first_refusal = Usage.total(usages), next(filter(None, refusals), "")
        if self.usage.judgements and self.usage.refused == self.usage.judgements:
            problems = (f"{self.config.url} refused every request; the first: {self.first_refusal}", *problems)
        if any(problems):
            raise EndpointError(next(filter(None, problems)))
        return answers

    def _vote(self, question: Question, answer: Answer) -> Vote:
        side = None if answer.refusal else self.prompt.read(answer.text)
        return Vote(answer.text, question.first, None if side is None else SHOWN[question.first][side])


SHOWN: tuple[tuple[Side, Side], tuple[Side, Side]] = ((0, 1), (1, 0))
"""By the response shown first, the response at each position."""


def endpoint_judge(config: EndpointConfig, benchmark: Benchmark, protocol: ProtocolConfig) -> EndpointJudge:
    """Return the judge for a benchmark."""
    if benchmark.prompt is not None:
        return EndpointJudge(config, benchmark.prompt, protocol)
    said = f"{benchmark.name} publishes no prompt that shows both responses; asked with the words of Multimodal RewardBench."
    return EndpointJudge(config, GENERAL_PROMPT, protocol, said)


def messages(conversation: Sequence[Message], images: Sequence[EncodedImage], record: str) -> list[dict[str, Any]]:
    """Return a conversation as chat completions take it, its image parts filled with `images` in order, as data URIs."""
    pictures = iter(images)
    return [
        {
            "role": turn["role"],
            "content": [
                {"type": "text", "text": part["text"]}
                if part["type"] == "text"
                else {"type": "image_url", "image_url": {"url": data_uri(next(pictures), record)}}
                for part in turn["content"]
            ],
        }
        for turn in conversation
    ]


def data_uri(image: EncodedImage, record: str) -> str:
    """Return an image as a data URI: its own file where an endpoint can read it, else PNG."""
    content = image if isinstance(image, bytes) else image.read_bytes()
    mime = _mime(content)
    if mime is None:
        buffer = io.BytesIO()
        decode(image, record).save(buffer, "PNG")
        mime, content = "image/png", buffer.getvalue()
    return f"data:{mime};base64,{base64.b64encode(content).decode()}"


def _mime(content: bytes) -> str | None:
    """Return the type of a file that every reader shows alike, None for any other."""
    with Image.open(io.BytesIO(content), formats=FORMATS) as opened:
        plain = opened.mode in ("L", "P", "RGB") and "transparency" not in opened.info and orientation(opened) == 1
        return SENT_AS_IT_IS.get(opened.format or "") if plain else None


def usage_of(answers: Sequence[Answer]) -> Usage:
    """Count what answers came to."""
    asked = [answer for answer in answers if not answer.cached]
    return Usage(
        judgements=len(answers),
        from_cache=len(answers) - len(asked),
        refused=sum(bool(answer.refusal) for answer in answers),
        cut_off=sum(answer.cut_off for answer in answers),
        input_tokens=sum(answer.input_tokens for answer in answers),
        output_tokens=sum(answer.output_tokens for answer in answers),
        asked_input_tokens=sum(answer.input_tokens for answer in asked),
        asked_output_tokens=sum(answer.output_tokens for answer in asked),
    )


Body = Mapping[str, Any]
Request = TypeVar("Request")

AGAIN = (408, 425, 429)
"""Statuses that may pass; so may 500 and above."""
REFUSED = (400, 413, 422)
"""Statuses that are about one request (a content filter, too long a prompt), not about the caller."""
LONGEST_DELAY = 60.0
CONNECT_SECONDS = 20.0
QUOTED = 300


@dataclass(frozen=True, slots=True)
class Answer:
    """What the endpoint said to one request."""

    text: str
    cut_off: bool
    """It ended at the limit of new tokens."""
    input_tokens: int
    output_tokens: int
    refusal: str = ""
    """Why the endpoint would not answer; the text is then empty."""
    cached: bool = False


@dataclass(frozen=True, slots=True)
class Failure:
    """What may be better next time."""

    reason: str
    wait: float = 0.0
    """Seconds that the endpoint asks for before the next try."""


@dataclass(frozen=True, slots=True)
class Client:
    """Asks one endpoint; any number of threads may share it."""

    config: EndpointConfig
    http: httpx.Client
    cache: Path
    sleep: Callable[[float], None] = time.sleep

    def answer(self, body: Body) -> Answer:
        """Return the answer to a request, from the cache if it is there; what fails or is refused is not kept.

        Raises: EndpointError once no retry is left, or for a status that no retry can help (a wrong key, model or path).
        """
        file = self._file(body)
        if file.is_file():
            return Answer(**json.loads(file.read_text(encoding="utf-8")), cached=True)
        answer = self._asked(body)
        if not answer.refusal:
            kept = {name: value for name, value in asdict(answer).items() if name not in ("refusal", "cached")}
            write_whole(file, json.dumps(kept, ensure_ascii=False))
        return answer

    def answers(self, questions: Sequence[Request], body: Callable[[Request], Body], threads: int) -> list[Answer]:
        """Return the answers in order; `body` makes a question's request when its turn comes.

        Raises: EndpointError as soon as one request fails for good. What is under way is finished (and cached), the rest
        is not asked.
        """
        failed: list[EndpointError] = []

        def ask(question: Request) -> Answer | None:
            if failed:
                return None
            try:
                return self.answer(body(question))
            except EndpointError as error:
                failed.append(error)
                return None

        with ThreadPoolExecutor(threads) as pool:
            found = list(pool.map(ask, questions))
        if failed:
            raise failed[0]
        return [answer for answer in found if answer is not None]

    def _file(self, body: Body) -> Path:
        request = json.dumps({"url": self.config.url, "body": body}, sort_keys=True)
        digest = hashlib.sha256(request.encode()).hexdigest()
        return self.cache / digest[:2] / f"{digest}.json"

    def _asked(self, body: Body) -> Answer:
        reason = ""
        for attempt in range(self.config.retries + 1):
            found = self._once(body)
            if isinstance(found, Answer):
                return found
            reason = found.reason
            if attempt < self.config.retries:
                self.sleep(max(found.wait, delay(self.config.first_delay_seconds, attempt)))
        raise EndpointError(
            f"{self.config.url} failed {self.config.retries + 1} times for one request, the last time with: {reason}. Nothing "
            "is scored from part of the answers. Those received are in the cache: run the same command again to go on."
        )

    def _once(self, body: Body) -> Answer | Failure:
        try:
            response = self.http.post("chat/completions", json=body)
        except httpx.TransportError as error:
            return Failure(f"{type(error).__name__} {error}".strip())
        said = f"HTTP {response.status_code}: {response.text[:QUOTED]}"
        if response.status_code in REFUSED:
            return Answer("", False, 0, 0, refusal=said)
        if response.status_code in AGAIN or response.status_code >= 500:
            return Failure(said, _seconds(response.headers.get("retry-after", "")))
        if response.status_code != 200:
            raise EndpointError(
                f"{self.config.url} said {said}. Check `url`, `model` and the key (`key_variable: {self.config.key_variable}`)."
            )
        return read_answer(response.content) or Failure(f"an answer that is no chat completion: {response.text[:QUOTED]!r}")


@contextmanager
def open_client(config: EndpointConfig) -> Iterator[Client]:
    """Give a client for `config`; raises EndpointError if the key's environment variable is not set."""
    headers = {}
    if config.key_variable is not None:
        key = os.environ.get(config.key_variable, "")
        if not key:
            raise EndpointError(f"the environment variable {config.key_variable} is not set; put the key of {config.url} there.")
        headers["Authorization"] = f"Bearer {key}"
    timeout = httpx.Timeout(config.timeout_seconds, connect=min(CONNECT_SECONDS, config.timeout_seconds), pool=None)
    limits = httpx.Limits(max_connections=config.concurrency)
    with httpx.Client(base_url=config.url, headers=headers, timeout=timeout, limits=limits) as http:
        yield Client(config, http, Path(config.cache).expanduser())


def delay(first: float, attempt: int) -> float:
    """Return the seconds before retry `attempt` (0, 1 …): doubled each time, and drawn between half and whole.

    Without the draw all requests that failed together would come back together.
    """
    return float(min(LONGEST_DELAY, first * 2.0**attempt) * random.uniform(0.5, 1.0))


def read_answer(content: bytes) -> Answer | None:
    """Return the answer that a chat completion holds, None for anything else. A message without text is an empty text."""
    try:
        found = json.loads(content)
        choice, usage = found["choices"][0], found.get("usage") or {}
        text = choice["message"].get("content") or ""
        cut_off = choice.get("finish_reason") == "length"
        answer = Answer(text, cut_off, int(usage.get("prompt_tokens", 0)), int(usage.get("completion_tokens", 0)))
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return None
    return answer if isinstance(text, str) else None


def _seconds(retry_after: str) -> float:
    """Return the seconds of a Retry-After header, 0 if it holds a date or nothing."""
    return min(LONGEST_DELAY, float(retry_after)) if retry_after.isdigit() else 0.0
