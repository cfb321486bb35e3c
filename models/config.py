"""Settings of the backbone and of the reward head; imports no torch, so that a recipe is checked in a moment."""

from typing import Literal

from pydantic import Field, NonNegativeFloat

from data.config.section import Count, Section
from data.prompts import CRITIQUE_REQUEST

Read = Literal["end_of_turn", "last_token", "mean"]
"""The place of a score: the end-of-turn token after the response; the last token of the conversation as the chat template
writes it, the newline after the end of turn (where ms-swift and LLaMA-Factory read); or the mean over the response."""
StoredRead = Read | Literal["last_response_token"]
"""And the response's last own token: what `last_token` means in a config.json that names no `assistant_turn`."""


class BackboneConfig(Section):
    """Which Qwen2.5-VL checkpoint to start from, and how it sees."""

    path: str
    """A hub id or a folder; `embedded` is the tiny backbone in this repository."""
    revision: str | None = None
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    min_pixels: int = Field(default=3136, ge=784)
    max_pixels: int = Field(default=1003520, ge=784)
    system_prompt: str | None = None
    """Used where a record has no system turn; None leaves the chat template's own."""
    freeze: list[Literal["vision_tower", "projector", "language_model"]] = Field(default=[])
    attention: Literal["auto", "sdpa", "varlen"] = "auto"
    """`auto` takes the varlen kernel on CUDA in bf16 or fp16 and SDPA elsewhere."""


class HeadConfig(Section):
    """The reward head; the defaults are BaseReward's (arXiv 2509.16127, table 3: two layers with SiLU)."""

    layers: int = Field(default=2, ge=1, le=8)
    activation: Literal["none", "tanh", "relu", "silu", "gelu"] = "silu"
    width: Count | None = None
    """Width of the hidden layers; None takes the backbone's hidden size (the paper does not say; default ours)."""
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    read: Read = "end_of_turn"


class CritiqueConfig(Section):
    """How a critic is asked for a critique; it is kept in a critic's config.json, so that a checkpoint brings it along."""

    request: str = CRITIQUE_REQUEST
    max_new_tokens: Count = 512
    """Longest critique that it may write."""


class SamplingConfig(Section):
    """How tokens are chosen; the default is greedy."""

    temperature: NonNegativeFloat = 0.0
    """0 takes the likeliest token."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Only the likeliest tokens that together hold this probability."""
    max_new_tokens: Count = 512
