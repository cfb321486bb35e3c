"""Ensembles of scalar reward models: one score from several, by a plain mean or by weights that validation data give.

    type: ensemble
    members: [runs/a/checkpoint-300, runs/b/checkpoint-200]     # from the working directory; backbones may differ
    combine: margin                                             # mean (default), standardised, accuracy, margin
    validation: runs/a/validation.jsonl                         # preference records, for all but `mean`

BaseReward's table (arXiv 2509.16127) finds the plain mean better (83.4 on VL-RewardBench) than weights by validation accuracy
or by validation margin (81.4 both), which it takes from 1,000 pairs drawn from the training sets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from data.config.section import Section
from data.errors import CheckpointError
from eval.benchmarks.benchmark import Location
from eval.benchmarks.preference_folder import PREFERENCE_FOLDER
from eval.protocol import Example, Floats, Ints, Judge, Verdict

Combine = Literal["mean", "standardised", "accuracy", "margin"]


class EnsembleConfig(Section):
    """The YAML file of an ensemble."""

    type: Literal["ensemble"]
    members: list[str] = Field(min_length=2)
    """Checkpoints, each as `eval/run.py` takes it; every member encodes for its own backbone."""
    combine: Combine = "mean"
    """`mean`: of the scores as they are. `standardised`: of scores brought to mean 0 and deviation 1 on the validation data.
    `accuracy`, `margin`: weights in proportion to the validation accuracy or the mean of score(chosen) - score(rejected)."""
    validation: str | None = None
    """A file or folder of preference records (data/sources/project.py)."""

    @model_validator(mode="after")
    def _validation_where_needed(self) -> EnsembleConfig:
        if self.combine != "mean" and self.validation is None:
            raise ValueError(
                f"combine: {self.combine} takes its numbers from preference records: give their path as `validation`"
            )
        if self.combine == "mean" and self.validation is not None:
            raise ValueError(
                "combine: mean uses no validation data: remove `validation`, or choose standardised, accuracy or margin"
            )
        return self


@dataclass(frozen=True, slots=True)
class MemberStanding:
    """How a member does on the validation data."""

    pairs: int
    accuracy: float
    """Ties are wrong."""
    margin: float
    """Mean of score(better) - score(other)."""
    mean: float
    deviation: float
    """Of all scores, both responses of every pair."""


@dataclass(frozen=True, slots=True)
class Combination:
    """score = sum of weight * (member's score - offset) / scale."""

    weights: tuple[float, ...]
    offsets: tuple[float, ...]
    scales: tuple[float, ...]
    standings: tuple[MemberStanding, ...] = ()

    def scores(self, members: Floats) -> Floats:
        """Combine members' scores (members, ...) fp64 into (...) fp64; what is not finite stays so."""
        each = zip(self.weights, members, self.offsets, self.scales, strict=True)
        total: Floats = np.sum([weight * (scores - offset) / scale for weight, scores, offset, scale in each], axis=0)
        return total

    def note(self, config: EnsembleConfig) -> str:
        """Say how the members are combined."""
        standing = [f" (validation: {s.accuracy:.3f} right, margin {s.margin:.4g}, {s.pairs} pairs)" for s in self.standings]
        parts = zip(self.weights, config.members, standing or [""] * len(self.weights), strict=True)
        return f"Ensemble, {config.combine}: " + " + ".join(f"{weight:.3f} x {name}{how}" for weight, name, how in parts) + "."


@dataclass(frozen=True, slots=True)
class EnsembleJudge:
    """Several judges that score, as one."""

    config: EnsembleConfig
    members: tuple[Judge, ...]
    combination: Combination

    def judge(self, examples: Sequence[Example]) -> list[Verdict]:
        """Return the combined scores of every example; raises CheckpointError for a member that casts votes instead."""
        each = [_scores(name, member, examples) for name, member in zip(self.config.members, self.members, strict=True)]
        combined = self.combination.scores(np.stack(each))
        return [Verdict(scores=(float(one), float(two))) for one, two in combined]


def combination(config: EnsembleConfig, members: Sequence[Judge]) -> Combination:
    """Return how `members` are combined, judging the validation data where `config` asks for it; all ranks call together.

    Raises: CheckpointError for members that the validation data give no usable number; UserError for unusable records.
    """
    n = len(members)
    if config.validation is None:
        return Combination((1 / n,) * n, (0.0,) * n, (1.0,) * n)
    examples = PREFERENCE_FOLDER.load(Location(location=config.validation)).examples
    scores = [_scores(name, member, examples) for name, member in zip(config.members, members, strict=True)]
    better = np.array([example.better for example in examples])
    standings = tuple(standing(name, found, better) for name, found in zip(config.members, scores, strict=True))
    return combined(config, standings)


def combined(config: EnsembleConfig, standings: tuple[MemberStanding, ...]) -> Combination:
    """Return the combination that the members' standings give; raises CheckpointError for a member that gets no weight."""
    n = len(standings)
    if config.combine == "standardised":
        means, deviations = (tuple(s.mean for s in standings), tuple(s.deviation for s in standings))
        return Combination((1 / n,) * n, means, deviations, standings)
    worth = [s.accuracy if config.combine == "accuracy" else s.margin for s in standings]
    for name, value in zip(config.members, worth, strict=True):
        if value <= 0:
            raise CheckpointError(
                f"{name}: its validation {config.combine} is {value:.4g}; weights in proportion to it need more than 0. "
                "Leave this member out, or choose `combine: mean`."
            )
    return Combination(tuple(value / sum(worth) for value in worth), (0.0,) * n, (1.0,) * n, standings)


def standing(name: str, scores: Floats, better: Ints) -> MemberStanding:
    """Return how a member's scores (pairs, 2) do where response `better` (pairs,) is the better one.

    Raises: CheckpointError for scores that are not finite, or all equal.
    """
    bad = int((~np.isfinite(scores)).any(axis=1).sum())
    deviation = float(scores.std())
    if bad or deviation == 0:
        what = f"{bad} of {len(scores)} pairs get no finite scores" if bad else "all scores are equal"
        raise CheckpointError(f"{name}: on the validation data {what}; the checkpoint is broken or the wrong one.")
    rows = np.arange(len(scores))
    margin = scores[rows, better] - scores[rows, 1 - better]
    return MemberStanding(len(scores), float((margin > 0).mean()), float(margin.mean()), float(scores.mean()), deviation)


def _scores(name: str, member: Judge, examples: Sequence[Example]) -> Floats:
    """Return a member's scores, (examples, 2) fp64."""
    verdicts = [verdict.scores for verdict in member.judge(examples)]
    if any(scores is None for scores in verdicts):
        raise CheckpointError(f"{name} compares responses and gives no scores; the members of an ensemble must be reward models.")
    return np.array(verdicts, dtype=np.float64).reshape(-1, 2)
