"""Settings of the backbone, the reward head and sampling; imports no torch to load quickly."""

import re
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from mmrm.data.config.section import GrowingSection, Section, Temperature, Tokens
from mmrm.data.display.console import say_on_first_rank
from mmrm.data.encoded_video import VideoConfig
from mmrm.data.errors import CheckpointError
from mmrm.data.preference import control_token
from mmrm.data.prompts import CRITIQUE_REQUEST

Read = Literal["end_of_turn", "last_token", "mean"]
"""Where a score is read: at the end-of-turn token after the response; at the last token that the
chat template writes, which is the newline after the end of turn (as ms-swift and LLaMA-Factory do);
or as the mean over the response."""
StoredRead = Read | Literal["last_response_token"]
"""The same, or at the response's own last token. That is the meaning of `last_token` in a
config.json that has no `assistant_turn`."""

TESTED_TRANSFORMERS = "5.17 to 5.23"
"""Versions of transformers that this project is tested with."""
CheckpointingMode = Literal["none", "linear", "attention", "full", "offloaded"]
"""Which results the layers keep for the backward pass. What is not kept is computed again: with
`none` nothing, with `linear` all results but those of linear layers and of attention, with
`attention` all but those of attention, and with `full` all of them. The input of each layer is
always kept. `offloaded` is `full` with these inputs in host memory."""

Width = Annotated[int, Field(ge=1, le=2**17)]
"""Width of a hidden layer of a reward head."""
MODEL_CONFIGS = ("config.json", "adapter_config.json")
"""Every checkpoint folder has one of these files: of a whole model, or of LoRA adapters."""
HUB_ID = re.compile(
    r"(?!.*(?:--|\.\.))[A-Za-z0-9](?:[\w.-]{0,94}\w)?/\w(?:[\w.-]{0,94}\w)?(?<!\.git)", re.ASCII
)
"""`owner/name` of a model on the hub."""


def checkpoint_at(path: str) -> str:
    """Return the path of the checkpoint to load for a path that a user gave.

    If `path` is the folder of a training run, this is the best checkpoint inside it, and the first
    rank says so on the error stream. Any other path is returned unchanged.

    Raises:
        CheckpointError: `path` is the folder of a run that has no best checkpoint.
    """
    folder = Path(path).expanduser()
    is_checkpoint = any((folder / name).is_file() for name in MODEL_CONFIGS)
    if is_checkpoint:
        return path
    best = folder / "best"
    checkpoint_names = sorted(checkpoint.name for checkpoint in folder.glob("checkpoint-*"))
    is_run_folder = best.is_dir() or bool(checkpoint_names)
    if not is_run_folder:
        return path  # a hub id, or a folder that loading will refuse
    if not best.is_dir():
        raise CheckpointError(
            f"{folder} is a run folder with {', '.join(checkpoint_names)} and without a `best` "
            "(its recipe sets no evaluation.best_metric, or nothing was evaluated yet): give one "
            f"of these, such as {folder / checkpoint_names[-1]}."
        )
    say_on_first_rank(f"{folder} is a run folder: taking its best checkpoint, {best}")
    return str(best)


class BackboneConfig(GrowingSection):
    """The checkpoint to start from, and how it processes images and videos."""

    LATER_KEYS = frozenset({"videos"})

    path: str
    """A hub id or a folder; `embedded` is the tiny backbone in this repository."""
    revision: str | None = None
    """Commit, tag or branch of a hub id; null takes the current one."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Dtype in which the model computes. Trained parameters in bfloat16 also have fp32 weights."""
    min_pixels: int = Field(default=3136, ge=784, le=10**8)
    """Smaller images are enlarged to this number of pixels. A token covers 784 pixels, 1,024 in
    Qwen3-VL, Qwen3.5 and Cosmos3-Edge, 196 in VideoLLaMA3. InternVL uses whole tiles of 200,704
    pixels, at least as many as hold this number of pixels."""
    max_pixels: int = Field(default=1003520, ge=784, le=10**8)
    """Larger images are made smaller, to this number of pixels. A token covers 784 pixels, 1,024 in
    Qwen3-VL, Qwen3.5 and Cosmos3-Edge, 196 in VideoLLaMA3. InternVL uses as many tiles of 200,704
    pixels as fit, including the tile of the whole image: the default allows 4 and that tile, and
    2609152 allows 12 and that tile, as in the released models."""
    videos: VideoConfig = VideoConfig()
    """How videos are shown. Records with videos need PyAV: `pip install -e .[video]`."""
    system_prompt: str | None = None
    """System turn of records that have none. With null, the chat template decides."""
    freeze: list[Literal["vision_tower", "projector", "language_model"]] = Field(default=[])
    """Parts that are not trained. The projector maps the tower's patches to tokens."""
    attention: Literal["auto", "sdpa", "varlen"] = "auto"
    """Attention kernel. `auto` uses the varlen kernel on CUDA in bf16 or fp16, and SDPA
    elsewhere."""

    @field_validator("system_prompt")
    @classmethod
    def _no_control_token(cls, prompt: str | None) -> str | None:
        token = control_token(prompt or "")
        if token:
            raise ValueError(
                f"holds {token!r}, which the tokenizer reads as a control token and not as text: "
                "remove it"
            )
        return prompt


class HeadConfig(Section, ABC):
    """The keys that all reward heads share.

    A type of head is one subclass of this, and one row in `HEADS` of `models/heads/registry.py`.
    """

    # Declared here so that it is the first of all keys. The schema describes it by the docstring of
    # the subclass.
    type: str
    layers: int = Field(default=2, ge=1, le=8)
    """Number of linear layers; the last one computes the score."""
    activation: Literal["none", "tanh", "relu", "silu", "gelu"] = "silu"
    """Activation between the layers."""
    width: Width | list[Width] | None = None
    """Width of the hidden layers; a list has the width of each. null uses the backbone's hidden
    size; the paper does not give one."""
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Probability with which an input of a layer is set to 0 in training."""
    read: Read = "end_of_turn"
    """Where the score is read: at the end-of-turn token after the response, at the newline after
    that token (as ms-swift and LLaMA-Factory do), or as the mean over the response."""

    @field_validator("width")
    @classmethod
    def _every_hidden_layer_has_a_width(
        cls, width: int | list[int] | None, info: ValidationInfo
    ) -> int | list[int] | None:
        """Refuse a list that has not exactly one width for each hidden layer."""
        layers = info.data.get("layers")
        if not isinstance(width, list) or layers is None:  # None if `layers` itself is wrong
            return width
        if len(width) != layers - 1:
            raise ValueError(
                f"has {len(width)} widths, and a head of {layers} layers has {layers - 1} hidden "
                "layers. Give a width for each hidden layer, or one number for all of them"
            )
        return width

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """The names of the numbers that the head computes for each response, in their order.

        They are the names of the head's `HeadColumns` in models/portable/head_columns.py.
        """

    @property
    def attribute_names(self) -> tuple[str, ...]:
        """The names of the columns that are attributes of the data; empty if none is."""
        return ()

    @property
    @abstractmethod
    def summary(self) -> str:
        """A description of the head's numbers, for the plan and the model card."""


class CritiqueConfig(Section):
    """The request for a critique and its maximum length, saved in the config.json of a critic."""

    request: str = CRITIQUE_REQUEST
    """Text of the user's turn after the response, which asks for the critique."""
    max_new_tokens: Tokens = 512
    """Maximum length of a critique in tokens."""


class SamplingConfig(Section):
    """The choice of tokens when text is generated; the default is greedy."""

    temperature: Temperature = 0.0
    """Sampling temperature. 0 always takes the likeliest token."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Only the fewest likeliest tokens that together have this probability are drawn."""
    max_new_tokens: Tokens = 512
    """Maximum length of a generated text in tokens."""
