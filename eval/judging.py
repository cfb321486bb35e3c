"""How judges whose checkpoints do not say it all are asked; imports no torch, so that a recipe is checked in a moment."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from data.config import Section
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
