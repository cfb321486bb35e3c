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
from pathlib import Path

import numpy as np

from mmrm.data.arrays import Floats
from mmrm.data.errors import CheckpointError
from mmrm.eval.benchmarks.benchmark import Location
from mmrm.eval.benchmarks.preference_folder import PREFERENCE_FOLDER
from mmrm.eval.candidates import Candidates, Example, Ranking, Verdict
from mmrm.eval.journal import SILENT, Journal
from mmrm.eval.judges.checkpoint import Runtime
from mmrm.eval.judges.ensemble.config import EnsembleConfig
from mmrm.eval.judges.judge import Judge, NotedJudge, Ranker
from mmrm.eval.judges.loaded import LoadedJudge
from mmrm.eval.judges.loading import load_judge
from mmrm.eval.judges.registry import judge_config
from mmrm.eval.protocol import ProtocolConfig


@dataclass(frozen=True, slots=True)
class Combination:
    """score = sum of weight * (member's score - offset) / scale; arrays of shape (members,) fp64."""

    weights: Floats
    offsets: Floats
    scales: Floats
    standings: tuple[str, ...]
    """How each member does on the validation data; empty strings without any."""


@dataclass(frozen=True, slots=True)
class EnsembleJudge:
    """Several judges that score, as one."""

    config: EnsembleConfig
    members: Sequence[NotedJudge]
    combination: Combination

    def judge(self, examples: Sequence[Example], journal: Journal = SILENT) -> list[Verdict]:
        """Return the combined scores of every example; what is not finite stays so."""
        ways, scores = self.combination, _scores(self.members, examples, journal)
        weights, offsets, scales = (
            column[:, None, None] for column in (ways.weights, ways.offsets, ways.scales)
        )
        combined = (weights * (scores - offsets) / scales).sum(axis=0)
        return [Verdict(scores=(one, two)) for one, two in combined.tolist()]

    def notes(self) -> tuple[str, ...]:
        """Say how the members are combined, and what must be said of each."""
        parts = zip(
            self.combination.weights, self.config.members, self.combination.standings, strict=True
        )
        sum_of = " + ".join(f"{weight:.3f} x {name}{standing}" for weight, name, standing in parts)
        return f"Ensemble, {self.config.combine}: {sum_of}.", *(
            note for member in self.members for note in member.notes()
        )


@dataclass(frozen=True, slots=True)
class EnsembleRanker:
    """Ranks by the combined scores of its members."""

    members: Sequence[Ranker]
    combination: Combination

    def rank(self, candidates: Sequence[Candidates], journal: Journal = SILENT) -> list[Ranking]:
        """Return a ranking for each, in order; all ranks must call together."""
        ways = self.combination
        parts = [
            journal.of(f"member {number} of {len(self.members)}")
            for number in range(1, len(self.members) + 1)
        ]
        each = [
            member.rank(candidates, part) for member, part in zip(self.members, parts, strict=True)
        ]
        scores = [
            np.array([ranking.scores for ranking in found], dtype=np.float64)
            for found in zip(*each, strict=True)
        ]
        weights, offsets, scales = (
            column[:, None] for column in (ways.weights, ways.offsets, ways.scales)
        )
        return [
            Ranking(tuple((weights * (found - offsets) / scales).sum(axis=0).tolist()))
            for found in scores
        ]


def combination(config: EnsembleConfig, members: Sequence[Judge]) -> Combination:
    """Return how `members` are combined, judging the validation data where `config` asks for it; all ranks call together.

    Raises: CheckpointError for members that the validation data give no usable number; UserError for unusable records.
    """
    n = len(members)
    worth, offsets, scales = np.ones(n), np.zeros(n), np.ones(n)
    if config.validation is None:
        return Combination(worth / n, offsets, scales, ("",) * n)
    examples = PREFERENCE_FOLDER.load(Location(location=config.validation)).examples
    scores, rows = _scores(members, examples, SILENT), np.arange(len(examples))
    for name, found in zip(config.members, scores, strict=True):
        unusable = int((~np.isfinite(found)).any(axis=1).sum())
        if unusable or found.std() == 0:
            what = (
                f"{unusable} of {len(rows)} pairs get no finite scores"
                if unusable
                else "all scores are equal"
            )
            raise CheckpointError(
                f"{name}: on the validation data {what}; the checkpoint is broken or the wrong one."
            )
    better = np.array([example.better for example in examples])
    margins = scores[:, rows, better] - scores[:, rows, 1 - better]
    accuracy, margin = (margins > 0).mean(axis=1), margins.mean(axis=1)  # a tie is wrong
    each = zip(accuracy, margin, strict=True)
    standings = tuple(
        f" (validation: {right:.3f} right, margin {mean:.4g}, {len(rows)} pairs)"
        for right, mean in each
    )
    if config.combine == "standardised":
        offsets, scales = scores.mean(axis=(1, 2)), scores.std(axis=(1, 2))
    else:
        worth = accuracy if config.combine == "accuracy" else margin
    for name, value in zip(config.members, worth, strict=True):
        if value <= 0:
            raise CheckpointError(
                f"{name}: its validation {config.combine} is {value:.4g}; weights in proportion to it need more than 0. "
                "Leave this member out, or choose `combine: mean`."
            )
    return Combination(worth / worth.sum(), offsets, scales, standings)


def _scores(members: Sequence[Judge], examples: Sequence[Example], journal: Journal) -> Floats:
    """Return the members' scores, (members, examples, 2) fp64."""
    parts = [
        journal.of(f"member {number} of {len(members)}") for number in range(1, len(members) + 1)
    ]
    judged = (member.judge(examples, part) for member, part in zip(members, parts, strict=True))
    found = [[verdict.scores for verdict in verdicts] for verdicts in judged]
    return np.array(found, dtype=np.float64).reshape(len(members), len(examples), 2)


def load_ensemble(path: Path, runtime: Runtime, config: EnsembleConfig) -> LoadedJudge:
    """Return the ensemble that `config` names, with its members loaded."""
    places = [Path(member).expanduser() for member in config.members]
    for place in places:
        member = judge_config(place)
        if member.compares:
            raise CheckpointError(
                f"{path}: {place} compares responses and gives no scores, so that it cannot be a member."
            )
    members = [load_judge(place, runtime) for place in places]
    combined = combination(
        config, [member.benchmark(PREFERENCE_FOLDER, ProtocolConfig()) for member in members]
    )
    return LoadedJudge(
        EnsembleRanker([member.ranker for member in members], combined),
        lambda benchmark, protocol: EnsembleJudge(
            config, [one.benchmark(benchmark, protocol) for one in members], combined
        ),
    )
