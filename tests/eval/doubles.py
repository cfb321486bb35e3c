"""Stand-ins for judges, behind the interface of all judges, and judges that a test listens to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from mmrm.eval.benchmarks.benchmark import Benchmark
from mmrm.eval.benchmarks.preference_folder import PREFERENCE_FOLDER
from mmrm.eval.candidates import Candidates, Example, Scores, Usage, Vote, total_usage
from mmrm.eval.journal import SILENT, Journal
from mmrm.eval.judges.checkpoint import Runtime
from mmrm.eval.judges.generative.config import GenerativeJudgeConfig
from mmrm.eval.judges.judge import Judge, JudgeInfo
from mmrm.eval.judges.packed_judge import Unit, UnitResult
from mmrm.eval.judges.scalar.judge import ScalarJudge
from mmrm.eval.judges.tournament import comparisons, scores_from_votes
from mmrm.eval.protocol import ProtocolConfig, with_presentations
from mmrm.models.packing.packed_batch import PackedBatch
from mmrm.models.packing.segments import SegmentTree


def scores_under(
    judge: Judge,
    examples: Sequence[Example],
    protocol: ProtocolConfig | None = None,
    benchmark: Benchmark = PREFERENCE_FOLDER,
) -> list[Scores]:
    """Return a judge's scores of a benchmark's rows."""
    return JudgeOfBenchmark(judge, protocol, benchmark).judge(examples)


class JudgeOfBenchmark:
    """A judge under a protocol, as an evaluation asks it: its scores, then its notes on them."""

    def __init__(
        self,
        judge: Judge,
        protocol: ProtocolConfig | None = None,
        benchmark: Benchmark = PREFERENCE_FOLDER,
    ) -> None:
        self.protocol = protocol or ProtocolConfig()
        self.judging: Any = judge.under(self.protocol, benchmark)
        self.scores: list[Scores] = []

    def judge(self, examples: Sequence[Example], journal: Journal = SILENT) -> list[Scores]:
        """Return the scores of a benchmark's rows, and remember them."""
        shown = with_presentations(examples, self.protocol)
        self.scores = self.judging.score_batch(shown, journal)
        return self.scores

    def notes(self) -> tuple[str, ...]:
        """Return what must be said next to the figures."""
        notes: tuple[str, ...] = self.judging.notes(self.scores)
        return notes

    @property
    def spent(self) -> Usage:
        """What judging cost."""
        return total_usage(self.scores)


class PositionFollower:
    """Names the response shown first, whatever it says."""

    info = JudgeInfo(compares=True)

    def score_batch(self, batch: Sequence[Candidates], journal: Journal = SILENT) -> list[Scores]:
        """Return a vote for each comparison."""
        scores: list[Scores] = []
        for candidates in batch:
            votes = [
                Vote(comparison.shown, comparison.shown[0], "Answer 1 is better")
                for comparison in comparisons(candidates)
            ]
            scores.append(scores_from_votes(candidates, votes))
        return scores

    def under(self, protocol: ProtocolConfig, benchmark: Benchmark) -> PositionFollower:
        """Return itself."""
        return self

    def notes(self, scores: Sequence[Scores]) -> tuple[str, ...]:
        """Say what it is."""
        return ("a double",)


def load_follower(path: Path, runtime: Runtime, config: GenerativeJudgeConfig) -> PositionFollower:
    """Return a judge that always names the response shown first."""
    return PositionFollower()


class LengthJudge:
    """Scores a response by its length, times `scale`, plus `offset`, and remembers what it was asked."""

    info = JudgeInfo()

    def __init__(self, scale: float = 1.0, offset: float = 0.0) -> None:
        self.scale = scale
        self.offset = offset
        self.asked: Sequence[Candidates] = ()

    def score_batch(self, batch: Sequence[Candidates], journal: Journal = SILENT) -> list[Scores]:
        """Return the scores of all responses."""
        self.asked = batch
        scores: list[Scores] = []
        for candidates in batch:
            lengths = [float(len(response.text)) for response in candidates.responses]
            scores.append(Scores(tuple(self.scale * length + self.offset for length in lengths)))
        return scores

    def under(self, protocol: ProtocolConfig, benchmark: Benchmark) -> LengthJudge:
        """Return itself."""
        return self

    def notes(self, scores: Sequence[Scores]) -> tuple[str, ...]:
        """Return nothing."""
        return ()


def _unchanged(units: Sequence[Unit], results: list[UnitResult]) -> list[UnitResult]:
    return results


def _ignored(unit: Unit) -> None:
    return None


@dataclass(frozen=True, kw_only=True)
class WatchedJudge(ScalarJudge):
    """A scalar judge whose units and results pass through functions of a test."""

    after_run: Callable[[Sequence[Unit], list[UnitResult]], list[UnitResult]] = _unchanged
    before_encode: Callable[[Unit], None] = _ignored

    def run(self, batch: PackedBatch, units: Sequence[Unit]) -> list[UnitResult]:
        """Return what the test makes of the results."""
        return self.after_run(units, super().run(batch, units))

    @property
    def encode(self) -> Callable[[Unit], SegmentTree]:
        """Call the test's function, then encode."""
        encode = super().encode

        def watched(unit: Unit) -> SegmentTree:
            self.before_encode(unit)
            return encode(unit)

        return watched


def watched(judge: Any, **functions: Any) -> WatchedJudge:
    """Return a scalar judge that calls `after_run` and `before_encode`."""
    assert isinstance(judge, ScalarJudge)
    settings = {field.name: getattr(judge, field.name) for field in fields(judge)}
    return WatchedJudge(**settings, **functions)
