"""A judge behind an OpenAI-compatible endpoint, asked with the benchmark's own prompt and read with its own parser."""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from PIL import Image

from data.decoding import orientation
from data.images import FORMATS, decode
from data.preference import EncodedImage, Message
from eval.benchmarks.benchmark import Benchmark, PairwisePrompt
from eval.benchmarks.general_prompt import GENERAL_PROMPT
from eval.endpoint_client import Answer, open_client
from eval.endpoint_config import EndpointConfig, EndpointError, Usage
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
