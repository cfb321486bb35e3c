"""The settings of a judge that is asked for the score of one response. Imports no torch."""

from __future__ import annotations

from typing import ClassVar, Literal

from mmrm.data.point_prompt import PointPrompt
from mmrm.eval.judges.judging_config import JudgeConfig, JudgingConfig

Reading = Literal["expected", "written"]
"""How a judge's score of a response is read; see `PointsJudgeConfig.reading`."""


class PointsJudgeConfig(JudgeConfig, JudgingConfig):
    """A language model that is asked for the score of each response by itself.

    type: points
    checkpoint: runs/points/best            # or any language model, such as Qwen/Qwen2.5-VL-7B-Instruct
    prompt: {scores: 1-10, rationale: true}
    """

    implementation: ClassVar[str] = "mmrm.eval.judges.points.judge:load_points_judge"

    type: Literal["points"]
    checkpoint: str
    """A checkpoint folder or a hub id of a language model."""
    prompt: PointPrompt | None = None
    """The question, the beginning of the answer, and the scores. Null takes those of the
    checkpoint's training, or asks for a score from 1 to 5 if it has none."""
    reading: Reading = "expected"
    """`expected`: the expected value of the score, from its distribution at its place. Without a
    rationale, no text is written. `written`: the score that the judge writes, which is the
    likeliest one at temperature 0. Many responses then have equal scores."""

    def checkpoints(self) -> tuple[str, ...]:
        """Return the checkpoint that the judge loads."""
        return (self.checkpoint,)
