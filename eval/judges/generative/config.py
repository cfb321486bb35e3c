"""The settings of a judge that compares two responses in writing. Imports no torch."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import model_validator

from mmrm.data.prompts import JudgeTemplate
from mmrm.eval.judges.judging_config import ComparisonsConfig, JudgeConfig, JudgingConfig
from mmrm.eval.protocol import Rationale, Verdicts


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
    verdicts: Verdicts | None = None
    """How verdicts on your own responses are read: the response that a judgement names (`hard`), or
    the probability of each verdict at the place where the verdict stands (`soft`). Null is `soft` for
    a judge that writes no rationale, and `hard` for the others. In a benchmark, its protocol decides
    instead."""
    rationale: Rationale | None = None
    """Whether the judge writes a rationale about your own responses before its verdict (`written`),
    or the verdict is read at once and nothing is written (`none`). Null takes the protocol by which
    the checkpoint was evaluated in its training, and `written` for other models. In a benchmark, its
    protocol decides instead."""

    @model_validator(mode="after")
    def _hard_verdicts_are_written(self) -> Self:
        """Raise ValueError for hard verdicts of a judge that writes nothing."""
        if self.rationale == "none" and self.verdicts == "hard":
            raise ValueError(
                "`rationale` is none, and a hard verdict is read from the text that the judge "
                "writes. Set `verdicts` to soft, or remove `rationale`."
            )
        return self

    @property
    def compares(self) -> bool:
        """True, because the judge names the better of two responses."""
        return True

    def checkpoints(self) -> tuple[str, ...]:
        """Return the checkpoint that the judge loads."""
        return (self.checkpoint,)

    def deciding_settings(self, is_file: bool) -> list[str]:
        """Return the settings that decide the judge's scores, as texts for its digest.

        Unset keys are left out, so that the digest of a judge without them is that of earlier
        versions. Set ones are not, even if they repeat the default: what null means depends on the
        checkpoint.
        """
        excluded = {"checkpoint"}
        if self.verdicts is None:
            excluded.add("verdicts")
        if self.rationale is None:
            excluded.add("rationale")
        return [str(is_file), self.model_dump_json(exclude=excluded)]
