"""The protocol of an evaluation: what a judge is shown, what it answers, and how answers become right, wrong or a tie.

The default protocol:

- every row of the benchmark counts; a row that cannot be shown (a video without frames, a control token in its text) is
  counted as unavailable;
- a scalar judge is right where it scores the better response higher. Equal scores are a tie. Scores are compared as they
  are (fp32 or wider), never rounded;
- a pairwise judge sees each row in both orders. A row is right where more votes name the better response than do not, a
  tie where the two are equal (a judge that follows the position, not the content), else wrong;
- a vote that cannot be read counts against the better response and is counted; a row without any readable vote is
  `unparsable`. A score that is not a finite number is unparsable too;
- a tie is wrong in the headline; the figure with half a point for a tie stands in a column of its own;
- K votes are K rounds (a round is one judgement, or one in each order); accuracy at 1..K uses the first rounds;
- everything drawn depends on the seed, the row's content and the round, not on the order in which rows are judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mmrm.eval.candidates import Candidates, Example, Ranking, Verdict
from mmrm.eval.journal import SILENT, Journal


class Ranker(Protocol):
    """Anything that ranks responses."""

    def rank(self, candidates: Sequence[Candidates], journal: Journal = SILENT) -> list[Ranking]:
        """Return a ranking for each, in order; all ranks must call together."""
        ...


class Judge(Protocol):
    """Anything that compares two responses."""

    def judge(self, examples: Sequence[Example], journal: Journal = SILENT) -> list[Verdict]:
        """Return one verdict for each example, in order; the journal shows the progress, and holds what need not be judged."""
        ...


class NotedJudge(Judge, Protocol):
    """A judge that knows what must be said beside its figures."""

    def notes(self) -> tuple[str, ...]:
        """Return it; asked after judging."""
        ...
