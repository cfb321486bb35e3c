"""The settings of an ensemble of judges. Imports no torch.

The scores of several judges are combined into one.

    type: ensemble
    # Paths count from the working directory. The backbones may differ.
    members: [runs/a/checkpoint-300, runs/b/checkpoint-200]
    combine: margin                      # mean (default), standardised, accuracy, margin
    validation: runs/a/validation.jsonl  # preference records, for all but `mean`

BaseReward's table (arXiv 2509.16127) finds the plain mean better (83.4 on VL-RewardBench) than
weights by validation accuracy or by validation margin (81.4 both), which it takes from 1,000 pairs
drawn from the training sets.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from mmrm.eval.judges.judging_config import JudgeConfig

Combine = Literal["mean", "standardised", "accuracy", "margin"]


class EnsembleConfig(JudgeConfig):
    """The settings of an ensemble, which are the keys of its YAML file."""

    implementation: ClassVar[str] = "mmrm.eval.judges.ensemble.judge:load_ensemble"

    type: Literal["ensemble"]
    members: list[str] = Field(min_length=2)
    """Checkpoints, each as `eval/run.py` takes it; every member encodes for its own backbone."""
    combine: Combine = "mean"
    """`mean`: the mean of the unchanged scores. `standardised`: the mean of scores brought to mean
    0 and deviation 1 on the validation data. `accuracy`, `margin`: a sum with weights in proportion
    to the validation accuracy, or to the mean of score(chosen) - score(rejected)."""
    validation: str | None = None
    """A file or folder of preference records (data/sources/project.py)."""

    @model_validator(mode="after")
    def _validation_where_needed(self) -> EnsembleConfig:
        if self.combine != "mean" and self.validation is None:
            raise ValueError(
                f"combine: {self.combine} takes its numbers from preference records: give their "
                "path as `validation`"
            )
        if self.combine == "mean" and self.validation is not None:
            raise ValueError(
                "combine: mean uses no validation data: remove `validation`, or choose "
                "standardised, accuracy or margin"
            )
        return self

    def member_judges(self) -> tuple[str, ...]:
        """Return the paths of the members."""
        return tuple(self.members)

    def validation_records(self) -> str | None:
        """Return the path of the preference records that decide weights or scales, or None."""
        return self.validation

    def deciding_settings(self, is_file: bool) -> list[str]:
        """Return the settings that decide the combined score, as texts for the judge's digest.

        They are the same for a YAML file and for defaults, so that `is_file` is not used.
        """
        return [self.type, self.combine]
