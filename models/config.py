"""Settings of the backbone and of the reward head; imports no torch, so that a recipe is checked in a moment."""

import re
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from mmrm.data.config.section import Section, Temperature, Tokens
from mmrm.data.display.console import say_on_first_rank
from mmrm.data.errors import CheckpointError
from mmrm.data.preference import control_token
from mmrm.data.prompts import CRITIQUE_REQUEST

Read = Literal["end_of_turn", "last_token", "mean"]
"""The place of a score: the end-of-turn token after the response; the last token of the conversation as the chat template
writes it, the newline after the end of turn (where ms-swift and LLaMA-Factory read); or the mean over the response."""
StoredRead = Read | Literal["last_response_token"]
"""And the response's last own token: what `last_token` means in a config.json that names no `assistant_turn`."""


MODELS = ("config.json", "adapter_config.json")
"""Files one of which every checkpoint has."""
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[\w.-]{1,96}")


def checkpoint_at(path: str) -> str:
    """Return `path`; of a run folder the path of its `best`, and say so on the error stream (of the first rank).

    Raises: CheckpointError for a run folder without one.
    """
    folder = Path(path).expanduser()
    inside = sorted(found.name for found in folder.glob("checkpoint-*"))
    if not (inside or (folder / "best").is_dir()) or any(
        (folder / name).is_file() for name in MODELS
    ):
        return path
    if not (folder / "best").is_dir():
        raise CheckpointError(
            f"{folder} is a run folder with {', '.join(inside)} and without a `best` (its recipe sets no evaluation.best_metric, "
            f"or nothing was evaluated yet): give one of these, such as {folder / inside[-1]}."
        )
    say_on_first_rank(f"{folder} is a run folder: taking its best checkpoint, {folder / 'best'}")
    return str(folder / "best")


class BackboneConfig(Section):
    """Which checkpoint to start from, and how it sees."""

    path: str
    """A hub id or a folder; `embedded` is the tiny backbone in this repository."""
    revision: str | None = None
    """Commit, tag or branch of a hub id; null takes the current one."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """What the model computes in; of what is trained in bfloat16 there are fp32 weights too."""
    min_pixels: int = Field(default=3136, ge=784, le=10**8)
    """A smaller image is enlarged to so many pixels; 784 pixels are one token, or 1,024 of Qwen3-VL, or 196 of VideoLLaMA3.
    InternVL takes whole tiles of 200,704 pixels, at least as many as hold these."""
    max_pixels: int = Field(default=1003520, ge=784, le=10**8)
    """A larger image is made smaller, to so many pixels; 784 pixels are one token, or 1,024 of Qwen3-VL, or 196 of VideoLLaMA3.
    InternVL takes as many tiles of 200,704 pixels as they allow, that of the whole image among them: 4 and 1 by default, 12 and 1
    as released by 2609152."""
    system_prompt: str | None = None
    """Used where a record has no system turn; null leaves the chat template's own."""
    freeze: list[Literal["vision_tower", "projector", "language_model"]] = Field(default=[])
    """Parts whose weights stay as they are; the projector maps the tower's patches to tokens."""
    attention: Literal["auto", "sdpa", "varlen"] = "auto"
    """`auto` takes the varlen kernel on CUDA in bf16 or fp16 and SDPA elsewhere."""

    @field_validator("system_prompt")
    @classmethod
    def _no_control_token(cls, prompt: str | None) -> str | None:
        if prompt is not None and (token := control_token(prompt)):
            raise ValueError(
                f"holds {token!r}, which the tokenizer reads as a control token and not as text: remove it"
            )
        return prompt


class HeadConfig(Section):
    """The reward head; the defaults are BaseReward's (arXiv 2509.16127, table 3: two layers with SiLU)."""

    layers: int = Field(default=2, ge=1, le=8)
    """Linear layers, the last of which gives the score."""
    activation: Literal["none", "tanh", "relu", "silu", "gelu"] = "silu"
    """Between the layers."""
    width: int | None = Field(default=None, ge=1, le=2**17)
    """Width of the hidden layers; null takes the backbone's hidden size (the paper does not say; default ours)."""
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Probability with which an input of a layer is set to 0 in training."""
    read: Read = "end_of_turn"
    """Where the score is read: at the end-of-turn token after the response, at the newline after that token (as ms-swift and
    LLaMA-Factory do), or as the mean over the response."""


class CritiqueConfig(Section):
    """How a critic is asked for a critique; it is kept in a critic's config.json, so that a checkpoint brings it along."""

    request: str = CRITIQUE_REQUEST
    """What the critic is asked after the response."""
    max_new_tokens: Tokens = 512
    """Longest critique that it may write."""


class SamplingConfig(Section):
    """How tokens are chosen; the default is greedy."""

    temperature: Temperature = 0.0
    """0 takes the likeliest token."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Only the likeliest tokens that together hold this probability."""
    max_new_tokens: Tokens = 512
    """Longest text that may be written, in tokens."""
