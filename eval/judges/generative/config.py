"""How judges are asked, where a checkpoint does not say it all; imports no torch, so that a recipe is checked in a moment."""

from __future__ import annotations

from typing import Literal

from mmrm.data.prompts import JudgeTemplate
from mmrm.eval.judges.judging_config import JudgingConfig


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
