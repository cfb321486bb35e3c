"""How judges whose checkpoints do not say it all are asked; imports no torch, so that a recipe is checked in a moment.

How a critic judges; imports no torch, so that a judge's YAML file is checked in a moment.

A checkpoint folder given as a judge writes one greedy critique of each response, as its config.json says. A YAML file asks for
something else:

    type: critic
    checkpoint: runs/critic/best
    samples: 8              # critiques of each response, their scores averaged
    temperature: 0.7

The YAML file of a judge behind an OpenAI-compatible endpoint, and what asking it has cost.

type: endpoint
url: http://127.0.0.1:8000/v1              # a vLLM server, or a provider
model: Qwen/Qwen2.5-VL-72B-Instruct
key_variable: OPENAI_API_KEY               # where the key is; it is never written anywhere
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass
from typing import Any, Literal

from pydantic import Field, model_validator

from data.config.section import Section
from data.prompts import JudgeTemplate
from models.config import Read


class JudgingConfig(Section):
    """Sampling of judgements in an evaluation. How many are asked for, and in which orders, is the protocol's."""

    temperature: float = Field(default=0.0, ge=0.0)
    """0 is greedy; several votes need more, as greedy ones are all alike."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    max_new_tokens: int = Field(default=1024, ge=1)
    """A judgement that is longer is cut off; without an answer it then counts as unreadable."""


class GenerativeJudgeConfig(JudgingConfig):
    """A generative judge and how it is asked, as a YAML file says it.

    type: generative
    checkpoint: runs/r1_reward_rl/best      # or a hub id, such as yifanzhang114/R1-Reward
    temperature: 1.0                        # with votes: 5 in the protocol
    """

    type: Literal["generative"]
    checkpoint: str
    template: JudgeTemplate | Literal["benchmark"] | None = None
    """None takes the one of the checkpoint's own training, `benchmark` the benchmark's own prompt and parser."""


class ScalarJudgeConfig(Section):
    """A scalar reward model that another trainer saved (ms-swift, LLaMA-Factory), as a YAML file says it.

    type: scalar
    checkpoint: /models/their-reward-model
    """

    type: Literal["scalar"]
    checkpoint: str
    read: Read = "last_token"
    """Where it was trained to read; nothing in such a checkpoint says so."""


class CriticJudgeConfig(Section):
    """A critic and how it is asked; the defaults are the paper's inference (arXiv 2502.10391): one greedy critique."""

    type: Literal["critic"]
    checkpoint: str
    critiques: Literal["own", "none"] = "own"
    """`none` scores the bare response: what remains without a critique."""
    samples: int = Field(default=1, ge=1, le=64)
    """Critiques of each response; their scores are averaged."""
    temperature: float = Field(default=0.0, ge=0.0)
    """0 is greedy."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    max_new_tokens: int | None = Field(default=None, ge=1)
    """None takes the checkpoint's own limit."""
    seed: int = 0
    """Of the sampling; together with a response's place it alone decides the draws."""

    @model_validator(mode="after")
    def _samples_differ(self) -> CriticJudgeConfig:
        if self.samples > 1 and not self.temperature:
            raise ValueError(f"{self.samples} greedy critiques are all alike: set a temperature above 0, or samples to 1")
        return self


NotNegative = Field(default=None, ge=0.0, allow_inf_nan=False)


class EndpointConfig(Section):
    """Who is asked, how, and at what price."""

    type: Literal["endpoint"]
    url: str = Field(pattern=r"^https?://.+")
    """The base of the interface; `/chat/completions` is added."""
    model: str
    key_variable: str | None = None
    """The environment variable that holds the API key; None sends none."""
    request: dict[str, Any] = Field(default={})
    """Laid over every request, for what a provider names otherwise: `{max_tokens: null, max_completion_tokens: 4096}`;
    null takes a key out."""
    concurrency: int = Field(default=8, ge=1)
    """Requests under way at one time, over all ranks."""
    timeout_seconds: float = Field(default=300.0, gt=0.0)
    """How long an answer may take."""
    retries: int = Field(default=6, ge=0)
    """After a time-out, a broken connection, an unreadable answer, or HTTP 408, 425, 429 and 5xx."""
    first_delay_seconds: float = Field(default=1.0, gt=0.0)
    """Before the first retry; doubled before each further one up to a minute, and drawn between half and whole."""
    cache: str = ".cache/endpoint"
    """Folder of the answers, by a digest of the request; what it holds is not asked again."""
    dollars_per_million_input: float | None = NotNegative
    dollars_per_million_output: float | None = NotNegative


@dataclass(frozen=True, slots=True)
class Usage:
    """What a number of requests came to. Tokens as the endpoint counts them."""

    judgements: int = 0
    from_cache: int = 0
    refused: int = 0
    """Requests that the endpoint would not answer (HTTP 400, 413, 422): votes that nobody can read."""
    cut_off: int = 0
    """Judgements that ended at the limit of new tokens."""
    input_tokens: int = 0
    output_tokens: int = 0
    asked_input_tokens: int = 0
    """Of these, what was not in the cache."""
    asked_output_tokens: int = 0

    @classmethod
    def total(cls, parts: Iterable[Usage]) -> Usage:
        """Return the sum."""
        return cls(*(sum(column) for column in zip(*(astuple(part) for part in (cls(), *parts)), strict=True)))

    def lines(self, config: EndpointConfig, first_refusal: str) -> tuple[str, ...]:
        """Say it in words."""
        found = [
            f"{config.model}: {self.judgements} judgements ({self.from_cache} from the cache), "
            f"{self.input_tokens:,} tokens in and {self.output_tokens:,} out; asked now: {self.asked_input_tokens:,} and "
            f"{self.asked_output_tokens:,}{self._dollars(config)}."
        ]
        if self.refused:
            found.append(f"{self.refused} requests were refused and count as unreadable votes; the first: {first_refusal}")
        if self.cut_off:
            found.append(f"{self.cut_off} judgements were cut off at the limit of new tokens.")
        return tuple(found)

    def _dollars(self, config: EndpointConfig) -> str:
        prices = config.dollars_per_million_input, config.dollars_per_million_output
        if None in prices:
            return ""
        whole, now = (
            sum(n * (price or 0.0) / 1e6 for n, price in zip(tokens, prices, strict=True))
            for tokens in ((self.input_tokens, self.output_tokens), (self.asked_input_tokens, self.asked_output_tokens))
        )
        return f"; {whole:.4f} dollars in all, {now:.4f} of them now"
