"""The sections of a recipe that belong to training itself: optimisation, LoRA and what is written where."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from data.config import Section

Rate = Annotated[float, Field(gt=0.0, lt=1.0)]
"""A learning rate at the peak of its schedule."""


class LoraConfig(Section):
    """Low-rank adapters on the language model's projections; the head, if there is one, is trained and saved in full."""

    rank: int = Field(default=64, ge=1)
    alpha: int = Field(default=128, ge=1)
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    quantise: Literal["none", "nf4"] = "none"
    """`nf4` keeps the frozen backbone in 4 bits (QLoRA); it needs CUDA and the `quantisation` extra."""


class OptimConfig(Section):
    """The optimizer, its schedule and the size of a step."""

    optimizer: Literal["adamw"] = "adamw"
    learning_rate: Rate
    head_learning_rate: Rate | None = None
    """Null takes `learning_rate`."""
    vision_learning_rate: Rate | None = None
    """For the vision tower and the projector; null takes `learning_rate`."""
    records_per_step: int = Field(ge=1)
    """The batch: preference pairs (or lessons of the language model) of one optimizer step on all ranks together."""
    epochs: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] | None = None
    """Passes over the data; give either this or `max_steps`."""
    max_steps: Annotated[int, Field(ge=1)] | None = None
    schedule: Literal["constant", "linear", "cosine"] = "cosine"
    """The way of the learning rate after the warm-up: to 0, or not at all."""
    warmup_ratio: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Share of the steps over which the learning rate rises from 0."""
    weight_decay: float = Field(default=0.0, ge=0.0, lt=1.0)
    """On matrices only: norms and biases are never decayed."""
    betas: tuple[Annotated[float, Field(ge=0.0, lt=1.0)], Annotated[float, Field(ge=0.0, lt=1.0)]] = (0.9, 0.999)
    max_grad_norm: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = 1.0
    token_budget: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    """What one packed row may hold, which bounds the memory of a forward: LM tokens, and a vision patch counted as 0.4 of one.
    `auto` finds what fits from the memory of the second step on CUDA, and takes 4096 on a CPU; under ZeRO-3 a number is reached
    in the same way. What is learnt stays the same."""
    activation_checkpointing: bool = True
    """Compute the layers anew in the backward pass instead of keeping their activations."""
    compile: Literal["none", "layers"] = "none"
    """`layers` has torch.compile fuse the MLPs and norms of both towers; it takes minutes at the start, and pays on CUDA."""
    lora: LoraConfig | None = None
    """Null trains every weight that `backbone.freeze` leaves free."""


class OutputConfig(Section):
    """Where a run writes, how often, and who else gets to see it."""

    folder: str
    """The run folder; a relative path starts at the working directory."""
    save_every_steps: int = Field(ge=1)
    keep_checkpoints: int = Field(default=2, ge=1)
    """Newest checkpoints that stay on disk; the best one always stays."""
    log_every_steps: int = Field(default=10, ge=1)
    resume: str = "never"
    """`never` starts anew and refuses a folder with checkpoints; `auto` continues from the last complete one, if there is
    any; a path continues from that checkpoint. Continuing with other settings than the checkpoint's own is refused."""
    push_to_hub: str | None = None
    """The hub repository that receives the best checkpoint at the end of the run; where there is none, a private one is made
    before the first step, so that a missing login is noticed then."""
    wandb_project: str | None = None
    """Null logs to the console and the run folder only; without a login the wandb run stays on disk."""
