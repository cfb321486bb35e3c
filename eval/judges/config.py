"""How judges are asked, where a checkpoint does not say it all; imports no torch, so that a recipe is checked in a moment."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from data.config.section import Processes, Seconds, Section, Temperature, Tokens
from data.prompts import JudgeTemplate
from models.config import Read, SamplingConfig


class JudgingConfig(SamplingConfig):
    """Sampling of judgements in an evaluation. How many are asked for, and in which orders, is the protocol's.

    Several votes need a temperature above 0, as greedy ones are all alike.
    """

    max_new_tokens: Tokens = 1024
    """A judgement that is longer is cut off; without an answer it then counts as unreadable."""


class GenerativeJudgeConfig(JudgingConfig):
    """A generative judge and how it is asked, as a YAML file says it.

    type: generative
    checkpoint: runs/r1_reward_rl/best      # or a hub id, such as yifanzhang114/R1-Reward
    temperature: 1.0                        # with votes: 5 in the protocol
    """

    type: Literal["generative"]
    checkpoint: str
    """A checkpoint folder or a hub id."""
    template: JudgeTemplate | Literal["benchmark"] | None = None
    """Null takes the one of the checkpoint's own training, `benchmark` the benchmark's own prompt and parser."""


ReleasedModel = Literal[
    "r1_reward",
    "unified_reward",
    "unified_reward_points",
    "unified_reward_think",
    "unified_reward_qwen3vl",
    "unified_reward_think_qwen3vl",
    "llava_critic_r1",
    "sophia_thinking_reward",
    "skywork_vl_reward",
]


class ReleasedJudgeConfig(Section):
    """A reward model that others released, asked and read as its authors do it; eval/judges/released.py says how.

    type: released
    model: r1_reward
    checkpoint: yifanzhang114/R1-Reward     # or a folder
    """

    type: Literal["released"]
    model: ReleasedModel
    """Whose prompt, reader, head and sizes of images."""
    checkpoint: str
    """A hub id or a checkpoint folder; other sizes of the same family are asked alike."""
    temperature: Temperature = 0.0
    """Of what it writes; 0 takes the likeliest token, and several votes need more."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Only the likeliest tokens that together hold this probability."""
    max_new_tokens: Tokens | None = None
    """What is longer is cut off, and without an answer unreadable; null takes the limit of the authors' script."""


class ScalarJudgeConfig(Section):
    """A scalar reward model that another trainer saved (ms-swift, LLaMA-Factory), as a YAML file says it.

    type: scalar
    checkpoint: /models/their-reward-model
    """

    type: Literal["scalar"]
    checkpoint: str
    """A checkpoint folder or a hub id."""
    read: Read = "last_token"
    """Where it was trained to read; nothing in such a checkpoint says so."""


class CriticJudgeConfig(Section):
    """A critic and how it is asked; the defaults are the paper's inference (arXiv 2502.10391): one greedy critique.

    type: critic
    checkpoint: runs/critic/best
    samples: 8              # critiques of each response, their scores averaged
    temperature: 0.7
    """

    type: Literal["critic"]
    checkpoint: str
    """A checkpoint folder of `method: critic`."""
    critiques: Literal["own", "none"] = "own"
    """`none` scores the bare response: what remains without a critique."""
    samples: int = Field(default=1, ge=1, le=64)
    """Critiques of each response; their scores are averaged."""
    temperature: Temperature = 0.0
    """Of the sampled critiques; 0 takes the likeliest token."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Only the likeliest tokens that together hold this probability."""
    max_new_tokens: Tokens | None = None
    """Null takes the checkpoint's own limit."""
    seed: int = 0
    """Of the sampling; together with a response's place it alone decides the draws."""

    @model_validator(mode="after")
    def _samples_differ(self) -> CriticJudgeConfig:
        if self.samples > 1 and not self.temperature:
            raise ValueError(
                f"{self.samples} greedy critiques are all alike: set a temperature above 0, or samples to 1"
            )
        return self


NotNegative = Field(default=None, ge=0.0, allow_inf_nan=False)


def _without_secrets(url: str) -> str:
    if "@" in url or "?" in url:
        raise ValueError(
            "an address is printed and kept beside results, so it may hold no user, password or query; a key belongs into an "
            "environment variable, which `key_variable` of an endpoint names"
        )
    return url


Url = Annotated[str, Field(pattern=r"^https?://[^\s/]"), AfterValidator(_without_secrets)]


class EndpointConfig(Section):
    """A judge behind an OpenAI-compatible endpoint: who is asked, how, and at what price.

    type: endpoint
    url: http://127.0.0.1:8000/v1              # a vLLM server, or a provider
    model: Qwen/Qwen2.5-VL-72B-Instruct
    key_variable: OPENAI_API_KEY               # where the key is; it is never written anywhere
    """

    type: Literal["endpoint"]
    url: Url
    """The base of the interface; `/chat/completions` is added."""
    model: str
    """The name that the server or the provider knows it by."""
    key_variable: str | None = None
    """The environment variable that holds the API key; null sends none."""
    request: dict[str, Any] = Field(default={})
    """Laid over every request, for what a provider names otherwise: `{max_tokens: null, max_completion_tokens: 4096}`;
    null takes a key out."""
    concurrency: Processes = 8
    """Requests under way at one time, over all ranks."""
    timeout_seconds: Seconds = 300.0
    """How long an answer may take."""
    retries: int = Field(default=6, ge=0, le=100)
    """After a time-out, a broken connection, an unreadable answer, or HTTP 408, 425, 429 and 5xx."""
    first_delay_seconds: Seconds = 1.0
    """Before the first retry; doubled before each further one up to a minute, and drawn between half and whole."""
    cache: str = ".cache/endpoint"
    """Folder of the answers, by a digest of the request; what it holds is not asked again."""
    dollars_per_million_input: float | None = NotNegative
    """Price of a million tokens sent, for the cost that is printed."""
    dollars_per_million_output: float | None = NotNegative
    """Price of a million tokens written."""


class ServerConfig(Section):
    """A reward model behind eval/serve.py, whose scores are taken as they are; REWARD_API_KEY_FILE names the file of its key.

    type: server
    url: http://127.0.0.1:8000
    """

    type: Literal["server"]
    url: Url
    """The server's address, without a path."""
    timeout_seconds: Seconds = 300.0
    """How long an answer may take."""
