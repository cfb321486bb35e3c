"""The settings of a judge that compares two responses in writing. Imports no torch."""

from __future__ import annotations

from typing import ClassVar, Literal

from mmrm.data.prompts import JudgeTemplate
from mmrm.eval.judges.judging_config import ComparisonsConfig, JudgeConfig, JudgingConfig
from mmrm.eval.protocol import Verdicts


class GenerativeJudgeConfig(JudgeConfig, JudgingConfig, ComparisonsConfig):
    """A generative judge and its sampling settings, as in its YAML file.

    type: generative
    checkpoint: runs/r1_reward_rl/best      # or a hub id, such as yifanzhang114/R1-Reward
    temperature: 1.0                        # with votes: 5 in the protocol
    """

    implementation: ClassVar[str] = "mmrm.eval.judges.generative.judge:load_generative_judge"

    type: Literal["generative"]
    checkpoint: str
    """A checkpoint folder or a hub id."""
    template: JudgeTemplate | Literal["benchmark"] | None = None
    """The words with which the judge is asked. Null takes the template of the checkpoint's
    training, and `benchmark` the benchmark's own prompt and parser."""
    verdicts: Verdicts = "hard"
    """How verdicts on your own responses are read: the response that a judgement names (`hard`), or
    the probability of each verdict at the place where the verdict stands (`soft`). In a benchmark,
    its protocol decides instead."""

    @property
    def compares(self) -> bool:
        """True, because the judge names the better of two responses."""
        return True

    def checkpoints(self) -> tuple[str, ...]:
        """Return the checkpoint that the judge loads."""
        return (self.checkpoint,)

    def deciding_settings(self, is_file: bool) -> list[str]:
        """Return the settings that decide the judge's scores, as texts for its digest.

        Hard verdicts are left out, so that the digest of such a judge is that of earlier versions.
        """
        excluded = {"checkpoint"}
        if self.verdicts == "hard":
            excluded.add("verdicts")
        return [str(is_file), self.model_dump_json(exclude=excluded)]
