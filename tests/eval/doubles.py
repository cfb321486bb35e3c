"""Stand-ins for generative judges, behind the interface of all judges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mmrm.eval.candidates import Example, Verdict, Vote
from mmrm.eval.journal import SILENT, Journal
from mmrm.eval.judges.checkpoint import Runtime
from mmrm.eval.judges.generative.config import GenerativeJudgeConfig
from mmrm.eval.judges.loaded import LoadedJudge
from mmrm.eval.judges.tournament import Tournament
from mmrm.eval.protocol import ProtocolConfig, presentations


@dataclass(frozen=True)
class PositionFollower:
    """Names the response shown first, whatever it says."""

    protocol: ProtocolConfig

    def judge(self, examples: Sequence[Example], journal: Journal = SILENT) -> list[Verdict]:
        """Return a vote for each presentation."""
        return [
            Verdict(
                votes=tuple(
                    Vote("Answer 1 is better", first, first)
                    for first in presentations(example, self.protocol)
                )
            )
            for example in examples
        ]

    def notes(self) -> tuple[str, ...]:
        """Say what it is."""
        return ("a double",)


def load_follower(path: Path, runtime: Runtime, config: GenerativeJudgeConfig) -> LoadedJudge:
    """Return a judge that always names the response shown first."""
    return LoadedJudge(
        Tournament(PositionFollower(ProtocolConfig())),
        lambda benchmark, protocol: PositionFollower(protocol),
    )
