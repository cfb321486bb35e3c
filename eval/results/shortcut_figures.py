"""How far the verdicts of a judge go along with shortcuts, next to how far the labels do.

A shortcut is a property of a response that says nothing about its quality, such as its length
(`mmrm.data.text_shortcuts`). A judge that learned it prefers the response with more of it more often
than the labels do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mmrm.data.arrays import Floats, Ints
from mmrm.data.display.format import (
    interval,
    percent,
    signed_points,
    whole_percent,
    with_minus_signs,
)
from mmrm.data.display.table import Column, Table
from mmrm.data.preference import texts
from mmrm.data.text_shortcuts import (
    SHORTCUTS,
    UNKNOWN,
    MeasuredResponse,
    Shortcut,
    compare,
    words_of,
)
from mmrm.eval.candidates import BenchmarkRow, best_indices, other_indices
from mmrm.eval.results.intervals import Estimate, paired_difference, share_interval


@dataclass(frozen=True, slots=True)
class ShortcutFigures:
    """The figures that say how far labels and a judge prefer the response with more of a property.

    A row whose responses have equally much of the property, or that the judge scores equally, counts
    half. All intervals are at 95 %, over the items of the benchmark.
    """

    name: str
    """A key of SHORTCUTS."""
    n: int
    """Number of rows with a better and another response, and a readable verdict."""
    equal: float
    """Share of these rows whose responses have equally much of the property."""
    labels: float
    """Share of these rows in which the better response has more."""
    labels_low: float
    labels_high: float
    judge: float
    """Share of these rows in which the judge prefers the response with more."""
    judge_low: float
    judge_high: float
    excess: float
    """`judge` minus `labels`. It is positive for a judge that prefers the response with more of the
    property more often than the labels do."""
    excess_low: float | None
    excess_high: float | None

    @property
    def line(self) -> str:
        """The figures as a sentence for people."""
        labels = share_text(self.labels, self.labels_low, self.labels_high)
        judge = share_text(self.judge, self.judge_low, self.judge_high)
        return (
            f"The judge prefers {SHORTCUTS[self.name].description} in {judge}, and it is better in "
            f"{labels} ({whole_percent(round(self.equal, 3))} equal; difference "
            f"{self.excess_text} points)."
        )

    @property
    def excess_text(self) -> str:
        """The difference of judge and labels in points, with its interval."""
        text = interval(self.excess, self.excess_low, self.excess_high, signed_points)
        return with_minus_signs(text)

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells of a row of `shortcuts_table`."""
        return (
            self.name,
            interval(self.labels, self.labels_low, self.labels_high),
            interval(self.judge, self.judge_low, self.judge_high),
            self.excess_text,
            percent(self.equal),
            f"{self.n:,}",
        )


HEADS = ("labels [95 %]", "judge [95 %]", "judge minus labels", "equal", "n")
"""Headings of the columns after the name of the shortcut."""


def share_text(share: float, low: float, high: float) -> str:
    """Return a share in percent with its interval, such as "63.1 % [61.0, 65.2]"."""
    return f"{percent(share)} % [{percent(low)}, {percent(high)}]"


def shortcuts_table(title: str, figures: Sequence[ShortcutFigures]) -> Table:
    """Return a table of the shortcuts in which the responses of some rows differ."""
    columns = (Column("shortcut"), *(Column(head, is_number=True) for head in HEADS))
    rows = tuple(shortcut.cells for shortcut in figures if shortcut.equal < 1)
    equal = [shortcut.name for shortcut in figures if shortcut.equal == 1]
    notes: tuple[str, ...] = ()
    if equal:
        notes = (f"equal in all rows: {', '.join(equal)}",)
    return Table(title, columns, rows, notes)


def shortcut_figures(
    rows: Sequence[BenchmarkRow], credit: Floats, items: Ints
) -> tuple[ShortcutFigures, ...]:
    """Return the figures of each shortcut, without shortcuts that are known in no row.

    Of several best responses the one with most counts, and of several other ones likewise.

    Args:
        rows: Rows with a better and another response.
        credit: Credit of the judge's verdict on each row: 1 if it prefers the better response, 0 if
            it prefers the other, 0.5 for a tie, shape (rows,).
        items: Index of each row's item, shape (rows,).
    """
    if not len(rows):
        return ()
    measured_rows = [measured(row) for row in rows]
    figures = []
    for name, shortcut in SHORTCUTS.items():
        signs = []
        for row, responses in zip(rows, measured_rows, strict=True):
            signs.append(sign_of_row(shortcut, row, responses))
        sign = np.array(signs, dtype=np.int64)
        is_known = sign != UNKNOWN
        if is_known.any():
            figures.append(_figures(name, sign[is_known], credit[is_known], items[is_known]))
    return tuple(figures)


def measured(row: BenchmarkRow) -> list[MeasuredResponse]:
    """Return the responses of a row, as shortcuts measure them."""
    words_of_prompt = words_of("\n".join(texts(row.prompt)))
    responses = []
    for position, response in enumerate(row.responses):
        text = response.text
        responses.append(MeasuredResponse(text, words_of(text), words_of_prompt, position))
    return responses


def sign_of_row(
    shortcut: Shortcut, row: BenchmarkRow, responses: Sequence[MeasuredResponse]
) -> int:
    """Return 1 if the best response of a row has more of a shortcut, -1 for less, 0 for equal.

    The result is UNKNOWN if the amount of a response is not known.
    """
    amounts = [shortcut.measure(response) for response in responses]
    known = [amount for amount in amounts if amount is not None]
    if len(known) < len(amounts):
        return UNKNOWN
    most_of_best = max(known[index] for index in best_indices(row))
    most_of_others = max(known[index] for index in other_indices(row))
    return compare(most_of_best, most_of_others)


def _figures(name: str, sign: Ints, credit: Floats, items: Ints) -> ShortcutFigures:
    """Return the figures of one shortcut.

    Args:
        name: A key of SHORTCUTS.
        sign: 1, 0 or -1 for each row, shape (rows,).
        credit: Credit of the judge's verdict on each row, shape (rows,).
        items: Index of each row's item, shape (rows,).
    """
    of_labels = (sign + 1) / 2
    # The judge prefers the response with more if it is right about it, or wrong about the other.
    of_judge = np.where(sign > 0, credit, np.where(sign < 0, 1 - credit, 0.5))
    labels_low, labels_high = _ends(share_interval(of_labels, items))
    judge_low, judge_high = _ends(share_interval(of_judge, items))
    excess = paired_difference(of_judge, of_labels, items)
    return ShortcutFigures(
        name=name,
        n=len(sign),
        equal=float((sign == 0).mean()),
        labels=float(of_labels.mean()),
        labels_low=labels_low,
        labels_high=labels_high,
        judge=float(of_judge.mean()),
        judge_low=judge_low,
        judge_high=judge_high,
        excess=excess.mean,
        excess_low=excess.low,
        excess_high=excess.high,
    )


def _ends(estimate: Estimate) -> tuple[float, float]:
    """Return the ends of an interval of a share, which always has one."""
    assert estimate.low is not None, "a share has an interval"
    assert estimate.high is not None, "a share has an interval"
    return estimate.low, estimate.high
