"""The curriculum of a mixture: which pairs are trained on by their difficulty, and in which order.

The difficulty of a pair is the number of tries that an annotator needed until its judgement was
right (`Preference.difficulty`, which eval/annotate.py writes). R1-Reward (arXiv 2505.02835) trains
by reinforcement on the pairs that its annotator got right only at the second try or later, or
never: `least: 2`.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from mmrm.data.config.section import Section
from mmrm.data.preference import LARGEST_DIFFICULTY
from mmrm.data.preparation.row_index import REASONS
from mmrm.data.preparation.sampling import Indices

Difficulty = Annotated[int, Field(ge=1, le=LARGEST_DIFFICULTY)]
"""A number of tries."""
UNKNOWN_DIFFICULTY = 0
"""Stands for the difficulty of a pair that has none, in arrays of difficulties."""


class CurriculumConfig(Section):
    """The pairs that are trained on by their difficulty, and their order.

    The difficulty is the number of tries that an annotator needed (`difficulty` of a record, which
    eval/annotate.py writes).
    """

    least: Difficulty | None = None
    """Leave out pairs of a smaller difficulty. R1-Reward's reinforcement learning takes 2: the pairs
    that its annotator got right at the second try or later, or never. Pairs without a difficulty
    are left out too, and counted as `no_difficulty`."""
    most: Difficulty | None = None
    """Leave out pairs of a larger difficulty, and pairs without one. The number of tries of
    eval/annotate.py leaves out the pairs that it never got right."""
    order: Literal["shuffled", "easy_first"] = "shuffled"
    """`easy_first` trains on the pairs of each epoch (of each stage, if there are stages) in the
    order of their difficulty. Pairs of equal difficulty are shuffled. Pairs without a difficulty
    are spread evenly."""

    @model_validator(mode="after")
    def _some_difficulty_is_selected(self) -> CurriculumConfig:
        """Raise ValueError if no difficulty is at least `least` and at most `most`."""
        if self.least is not None and self.most is not None and self.least > self.most:
            raise ValueError(
                f"least is {self.least} and most is {self.most}, which no difficulty is between; "
                "correct one of them"
            )
        return self

    @property
    def selects(self) -> bool:
        """True if pairs are left out by their difficulty."""
        return self.least is not None or self.most is not None


def reasons_after_curriculum(
    config: CurriculumConfig,
    difficulties: npt.NDArray[np.integer],
    reasons: npt.NDArray[np.uint8],
) -> npt.NDArray[np.uint8]:
    """Return the reason for which each row is left out, or "kept", after the selection.

    The result is uint8 of shape (rows,), and its numbers are indices into REASONS. A row that was
    left out before keeps its reason.

    Args:
        config: The curriculum.
        difficulties: The difficulty of each row, UNKNOWN_DIFFICULTY if it has none, (rows,).
        reasons: Index into REASONS of each row before the selection, (rows,).
    """
    if not config.selects:
        return reasons
    is_kept = reasons == REASONS.index("kept")
    is_unknown = difficulties == UNKNOWN_DIFFICULTY
    selected = reasons.copy()
    selected[is_kept & is_unknown] = REASONS.index("no_difficulty")
    if config.least is not None:
        is_too_easy = ~is_unknown & (difficulties < config.least)
        selected[is_kept & is_too_easy] = REASONS.index("too_easy")
    if config.most is not None:
        is_too_hard = difficulties > config.most
        selected[is_kept & is_too_hard] = REASONS.index("too_hard")
    return selected


def easy_first(order: Indices, difficulties: npt.NDArray[np.integer]) -> Indices:
    """Return the entries of `order` by ascending difficulty.

    Entries of equal difficulty keep their order, and entries without a difficulty their positions.

    Example: the records 7, 2, 5, 9 with the difficulties 3, unknown, 1, 1 become 5, 2, 9, 7.

    Args:
        order: Indices of records, (n,).
        difficulties: The difficulty of each entry, UNKNOWN_DIFFICULTY if it has none, (n,).
    """
    positions = np.flatnonzero(difficulties != UNKNOWN_DIFFICULTY)
    easiest_first = np.argsort(difficulties[positions], kind="stable")
    ordered = order.copy()
    ordered[positions] = order[positions[easiest_first]]
    return ordered
