"""Counts of an annotation by source: how many pairs a model judged rightly, and why it failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from mmrm.data.display.table import Column, Table


@dataclass(frozen=True, slots=True)
class AnnotationCounts:
    """The outcomes of the pairs of one source.

    `asked` is the sum of `right_at_once`, `right_later` and `never_right`.
    """

    asked: int = 0
    """The number of pairs that the model was asked about."""
    right_at_once: int = 0
    """The number of pairs that it got right at the first try."""
    right_later: int = 0
    never_right: int = 0
    tries: int = 0
    """The number of tries on all pairs."""
    disagreeing: int = 0
    """The number of tries whose two orders name different responses."""
    unreadable: int = 0
    """The number of judgements without a readable verdict. A try in both orders has two."""
    unusable: int = 0
    """The number of tries that were right, without a reasoning that can be learned."""

    def __add__(self, other: AnnotationCounts) -> AnnotationCounts:
        """Return the sums of all counts."""
        sums = [one + more for one, more in zip(astuple(self), astuple(other), strict=True)]
        return AnnotationCounts(*sums)


def counts_of_line(line: Mapping[str, Any]) -> AnnotationCounts:
    """Return the counts of one pair, from its line of the journal."""
    is_right_at_once = line["right"] and line["tries"] == 1
    is_right_later = line["right"] and line["tries"] > 1
    return AnnotationCounts(
        asked=1,
        right_at_once=int(is_right_at_once),
        right_later=int(is_right_later),
        never_right=int(not line["right"]),
        tries=line["tries"],
        disagreeing=line["disagreeing"],
        unreadable=line["unreadable"],
        unusable=line["unusable"],
    )


def counts_by_source(lines: Sequence[Mapping[str, Any]]) -> dict[str, AnnotationCounts]:
    """Return the counts of the pairs of each source, from the lines of the journal."""
    counts: dict[str, AnnotationCounts] = {}
    for line in lines:
        source = line["source"]
        counts[source] = counts.get(source, AnnotationCounts()) + counts_of_line(line)
    return counts


def table_of_counts(counts: Mapping[str, AnnotationCounts], *, agree: bool) -> Table:
    """Return the counts by source as a table.

    Args:
        counts: The counts of each source.
        agree: Whether each try had two judgements, which could disagree.
    """
    names = ("asked", "right at once", "right later", "never right", "tries", "orders disagree")
    headings = (*names, "unreadable", "unusable")
    columns = (Column("source"), *(Column(name, is_number=True) for name in headings))
    rows = []
    for source, of_source in counts.items():
        cells = [f"{count:,}" for count in astuple(of_source)]
        rows.append((source, *cells))
    note = (
        "pairs: asked to never right; tries: tries, orders disagree, unusable (right, without a "
        "reasoning that can be learned); judgements: unreadable"
    )
    table = Table("Annotated pairs", columns, tuple(rows), notes=(note,))
    return table if agree else table.without("orders disagree")
