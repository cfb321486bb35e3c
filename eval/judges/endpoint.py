"""A judge behind an OpenAI-compatible endpoint, asked with the benchmark's own prompt and read with its own parser.

Requests are repeated where that helps, and answers are kept on disk.
"""

import asyncio
import hashlib
import json
import os
import random
import ssl
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx

from data.errors import EndpointError
from data.images import data_uri
from data.preference import EncodedImage, Message
from data.storage.files import write_whole
from eval.benchmarks.benchmark import Benchmark, PairwisePrompt
from eval.benchmarks.multimodal_rewardbench import GENERAL_PROMPT
from eval.journal import SILENT, Journal, Judging
from eval.judges.config import EndpointConfig
from eval.protocol import Example, ProtocolConfig, Side, Verdict, Vote, presentations
from models.distributed import gather, rank, world_size

AGAIN = (408, 425, 429)
"""Statuses that may pass; so may 500 and above."""
REFUSED = (400, 413, 422)
"""Statuses that are about one request (a content filter, too long a prompt), not about the caller."""
LONGEST_DELAY = 60.0
CONNECT_SECONDS = 20.0
LARGEST = 2**24
"""Bytes of an answer, which is read whole; one of 100,000 tokens has a thirtieth of them."""
QUOTED = 300

Body = Mapping[str, Any]
Question = tuple[Example, Side, int]
"""An example, the response shown first, and the place among the votes."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the endpoint said to one request."""

    text: str
    cut_off: bool
    """It ended at the limit of new tokens."""
    input_tokens: int
    """As the endpoint counts them."""
    output_tokens: int
    refusal: str = ""
    """Why the endpoint would not answer; the text is then empty."""
    cached: bool = False


@dataclass(frozen=True, slots=True)
class Client:
    """Asks one endpoint; any number of threads may share it."""

    config: EndpointConfig
    cache: Path
    key: str = field(default="", repr=False)
    trust: ssl.SSLContext = field(default_factory=httpx.create_ssl_context, repr=False)

    def answer(self, body: Body) -> Answer:
        """Return the answer to a request, from the cache if it is there; what fails or is refused is not kept.

        Raises: EndpointError once no retry is left, or for a status that no retry can help (a wrong key, model or path).
        """
        request = json.dumps({"url": self.config.url, "body": body}, sort_keys=True)
        digest = hashlib.sha256(request.encode()).hexdigest()
        file = self.cache / digest[:2] / f"{digest}.json"
        if file.is_file():
            return Answer(**json.loads(file.read_text(encoding="utf-8")) | {"cached": True})
        answer = self._asked(body)
        if not answer.refusal:
            write_whole(file, json.dumps(asdict(answer), ensure_ascii=False))
        return answer

    def _asked(self, body: Body) -> Answer:
        for attempt in range(self.config.retries + 1):
            retry_after = ""
            try:
                status, retry_after, content = asyncio.run(self._post(body))
            except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
                reason = f"{type(error).__name__} {error}".strip()
            else:
                quoted = content.decode(errors="replace")
                reason = f"HTTP {status}: {quoted}"
                if status in REFUSED:
                    return Answer("", False, 0, 0, refusal=self._shown(reason))
                if status != 200 and status not in AGAIN and status < 500:
                    raise EndpointError(
                        f"{self.config.url} said {self._shown(reason)}. Check `url`, `model` and the key "
                        f"(`key_variable: {self.config.key_variable}`)."
                    )
                if status == 200 and (answer := read_answer(content)):
                    return answer
                if status == 200:
                    reason = f"an answer that is no chat completion: {quoted[:QUOTED]!r}"
            if attempt < self.config.retries:
                asked = (
                    int(retry_after) if retry_after.isdigit() else 0
                )  # seconds; a date is not read
                time.sleep(
                    max(min(LONGEST_DELAY, asked), delay(self.config.first_delay_seconds, attempt))
                )
        raise EndpointError(
            f"{self.config.url} failed {self.config.retries + 1} times for one request, the last time with: "
            f"{self._shown(reason)}. Nothing is scored from part of the answers. Those received are in the cache: run the same "
            "command again to go on."
        )

    def _shown(self, text: str) -> str:
        """Return the beginning of what the endpoint said, without the key that it may repeat."""
        return (text.replace(self.key, "***") if self.key else text)[:QUOTED]

    async def _post(self, body: Body) -> tuple[int, str, bytes]:
        """Return status, `retry-after` and the bytes of the answer.

        Raises: TimeoutError if not all of it is there in `timeout_seconds`, however lively it arrives.
        """
        config, content = self.config, bytearray()
        headers = {
            "Accept-Encoding": "identity",
            **({"Authorization": f"Bearer {self.key}"} if self.key else {}),
        }
        timeout = httpx.Timeout(
            config.timeout_seconds, connect=min(CONNECT_SECONDS, config.timeout_seconds)
        )
        client = httpx.AsyncClient(
            base_url=config.url, headers=headers, timeout=timeout, verify=self.trust
        )
        async with (
            asyncio.timeout(config.timeout_seconds),
            client as http,
            http.stream("POST", "chat/completions", json=body) as response,
        ):
            async for piece in response.aiter_raw():
                content += piece
                if len(content) > LARGEST:
                    raise EndpointError(
                        f"{config.url} sent an answer of more than {LARGEST:,} bytes, which is no judgement."
                    )
            return response.status_code, response.headers.get("retry-after", ""), bytes(content)


def open_client(config: EndpointConfig) -> Client:
    """Return a client for `config`; raises EndpointError if the key's environment variable holds none."""
    key = os.environ.get(config.key_variable, "").strip() if config.key_variable is not None else ""
    if config.key_variable is not None and not key:
        raise EndpointError(
            f"the environment variable {config.key_variable} is not set; put the key of {config.url} there."
        )
    if not (key.isascii() and key.isprintable()):
        raise EndpointError(
            f"the environment variable {config.key_variable} holds characters that no header can send; copy it anew."
        )
    return Client(config, Path(config.cache).expanduser(), key)


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
        answer = Answer(
            text,
            cut_off,
            int(usage.get("prompt_tokens", 0)),
            int(usage.get("completion_tokens", 0)),
        )
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return None
    return answer if isinstance(text, str) else None


@dataclass(slots=True)
class EndpointJudge:
    """Asks once for each presentation that the protocol names."""

    config: EndpointConfig
    prompt: PairwisePrompt
    protocol: ProtocolConfig
    about: tuple[str, ...] = ()
    """What must be said beside its figures, whatever judging costs."""
    answers: list[Answer] = field(default_factory=list)
    """Of the last call, all ranks together."""

    def judge(self, examples: Sequence[Example], journal: Journal = SILENT) -> list[Verdict]:
        """Return the votes on every example, on every rank; ranks share the requests and must call together.

        Raises: EndpointError on all ranks if a request fails for good on one of them, or all are refused.
        """
        shown = [presentations(example, self.protocol) for example in examples]
        questions = [
            (example, first, turn)
            for example, order in zip(examples, shown, strict=True)
            for turn, first in enumerate(order)
        ]
        own = questions[rank() :: world_size()]
        # the first rank's share stands for all in what is shown; answers are kept in the cache, not in the journal
        with replace(journal, file=None).judging([""] * len(own), Answer, len(examples)) as judging:
            gathered = gather(self._ask(own, judging))
        for _, problem in gathered:
            if problem:
                raise EndpointError(problem)
        parts = [part for part, _ in gathered]
        self.answers = [
            parts[number % len(parts)][number // len(parts)] for number in range(len(questions))
        ]
        if self.answers and all(answer.refusal for answer in self.answers):
            raise EndpointError(
                f"{self.config.url} refused every request; the first: {self.answers[0].refusal}"
            )
        answers = iter(self.answers)
        return [
            Verdict(votes=tuple(self._vote(next(answers), first) for first in order))
            for order in shown
        ]

    def _vote(self, answer: Answer, first: Side) -> Vote:
        return Vote.at(
            answer.text, first, None if answer.refusal else self.prompt.read(answer.text)
        )

    def _ask(
        self, questions: Sequence[Question], judging: Judging[Answer]
    ) -> tuple[list[Answer], str]:
        """Return the answers in order and "", or what is wrong as soon as one request fails for good.

        What is under way then is finished (and cached), the rest is not asked.
        """
        problems: list[str] = []

        def ask(question: Question) -> Answer | None:
            try:
                return None if problems else client.answer(self._body(question))
            except EndpointError as error:
                problems.append(str(error))
                return None

        threads = max(1, self.config.concurrency // world_size())
        try:
            client = open_client(self.config)
            with ThreadPoolExecutor(threads) as pool:
                for number, answer in enumerate(pool.map(ask, questions)):
                    if answer is not None:
                        judging.add({number: answer})
                return list(judging.found.values()), "".join(problems[:1])
        except EndpointError as error:
            return [], str(error)

    def notes(self) -> tuple[str, ...]:
        """Return what must be said beside the figures: also what judging cost."""
        config, asked = self.config, [answer for answer in self.answers if not answer.cached]
        whole, now = (
            (
                sum(answer.input_tokens for answer in part),
                sum(answer.output_tokens for answer in part),
            )
            for part in (self.answers, asked)
        )
        price_in, price_out, dollars = (
            config.dollars_per_million_input,
            config.dollars_per_million_output,
            "",
        )
        if price_in is not None and price_out is not None:
            paid = [
                (tokens_in * price_in + tokens_out * price_out) / 1e6
                for tokens_in, tokens_out in (whole, now)
            ]
            dollars = f"; {paid[0]:.4f} dollars in all, {paid[1]:.4f} of them now"
        refusals = [answer.refusal for answer in self.answers if answer.refusal]
        cut_off = sum(answer.cut_off for answer in self.answers)
        found = [
            f"{config.model}: {len(self.answers)} judgements ({len(self.answers) - len(asked)} from the cache), "
            f"{whole[0]:,} tokens in and {whole[1]:,} out; asked now: {now[0]:,} and {now[1]:,}{dollars}."
        ]
        if refusals:
            found.append(
                f"{len(refusals)} requests were refused and count as unreadable votes; the first: {refusals[0]}"
            )
        if cut_off:
            found.append(f"{cut_off} judgements were cut off at the limit of new tokens.")
        return (*self.about, *found)

    def _body(self, question: Question) -> dict[str, Any]:
        """Return the request for one judgement; each has a seed of its own, so that votes differ and repeat."""
        example, first, turn = question
        seed = hashlib.sha256(f"{self.protocol.seed}/{example.key}/{turn}".encode()).digest()
        request = {
            "model": self.config.model,
            "messages": messages(self.prompt.ask(example, first), example.images, example.identity),
            "max_tokens": self.prompt.max_new_tokens,
            "temperature": self.prompt.temperature,
            "top_p": self.prompt.top_p,
            "seed": int.from_bytes(seed[:4]) >> 1,
            **self.config.request,
        }
        return {name: value for name, value in request.items() if value is not None}


def endpoint_judge(
    config: EndpointConfig, benchmark: Benchmark, protocol: ProtocolConfig
) -> EndpointJudge:
    """Return the judge for a benchmark."""
    if benchmark.prompt is not None:
        return EndpointJudge(config, benchmark.prompt, protocol)
    note = f"{benchmark.name} publishes no prompt that shows both responses; asked with the words of Multimodal RewardBench."
    return EndpointJudge(config, GENERAL_PROMPT, protocol, (note,))


def messages(
    conversation: Sequence[Message], images: Sequence[EncodedImage], record: str
) -> list[dict[str, Any]]:
    """Return a conversation as chat completions take it, its image parts filled with `images` in order, as data URIs."""
    uris = (data_uri(image, record) for image in images)
    return [
        {
            **turn,
            "content": [
                part
                if part["type"] == "text"
                else {"type": "image_url", "image_url": {"url": next(uris)}}
                for part in turn["content"]
            ],
        }
        for turn in conversation
    ]
