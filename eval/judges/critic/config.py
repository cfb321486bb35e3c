"""The settings of a critic as a judge. Imports no torch."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from mmrm.data.config.section import Temperature, Tokens
from mmrm.eval.judges.judging_config import JudgeConfig


class CriticJudgeConfig(JudgeConfig):
    """A critic and its sampling settings.

    The defaults are the inference of the paper (arXiv 2502.10391), one greedy critique.

    type: critic
    checkpoint: runs/critic/best
    samples: 8              # critiques of each response, their scores averaged
    temperature: 0.7
    """

    implementation: ClassVar[str] = "mmrm.eval.judges.critic.judge:load_critic_judge"

    type: Literal["critic"]
    checkpoint: str
    """A checkpoint folder of `method: critic`."""
    critiques: Literal["own", "none"] = "own"
    """`none` scores responses without critiques, to measure what the critiques contribute."""
    samples: int = Field(default=1, ge=1, le=64)
    """Critiques of each response; their scores are averaged."""
    temperature: Temperature = 0.0
    """Temperature of the sampled critiques; 0 takes the likeliest token."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Only the likeliest tokens that together hold this probability."""
    max_new_tokens: Tokens | None = None
    """Null takes the checkpoint's own limit."""
    seed: int = 0
    """Seed of the sampling. The draws depend only on it and on the index of the response."""

    @model_validator(mode="after")
    def _samples_differ(self) -> CriticJudgeConfig:
        if self.samples > 1 and not self.temperature:
            raise ValueError(
                f"{self.samples} greedy critiques are all alike: set a temperature above 0, or "
                "samples to 1"
            )
        return self

    def checkpoints(self) -> tuple[str, ...]:
        """Return the checkpoint that the judge loads."""
        return (self.checkpoint,)
