"""The settings of a scalar reward model as a judge. Imports no torch."""

from __future__ import annotations

from typing import ClassVar, Literal

from mmrm.eval.judges.judging_config import JudgeConfig
from mmrm.models.config import Read


class ScalarJudgeConfig(JudgeConfig):
    """A scalar reward model that another trainer saved (ms-swift, LLaMA-Factory).

    type: scalar
    checkpoint: /models/their-reward-model
    """

    implementation: ClassVar[str] = "mmrm.eval.judges.scalar.judge:load_scalar_judge"

    type: Literal["scalar"]
    checkpoint: str
    """A checkpoint folder or a hub id."""
    read: Read = "last_token"
    """The token at which the head was trained to read. Such checkpoints do not record it."""

    def checkpoints(self) -> tuple[str, ...]:
        """Return the checkpoint that the judge loads."""
        return (self.checkpoint,)
