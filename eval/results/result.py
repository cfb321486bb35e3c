"""The result of one checkpoint on one benchmark: what is written to disk as JSON and read by sweep and report."""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from eval.protocol import Ints, Ties
from eval.results.diagnosis import Calibration, Histogram, LengthBias
from eval.results.intervals import OrderConsistency, wilson
from eval.results.outcomes import Outcomes


class Frozen(BaseModel):
    """A part of a result: written once, read back equal."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Accuracy(Frozen):
    """An accuracy with everything that is needed to judge it."""

    n: int
    right: int
    ties: int
    unparsable: int
    accuracy: float | None
    """Credits over all n rows, ties counted as the protocol says (by default wrong); None for n = 0."""
    low: float | None
    high: float | None
    """Wilson's 95 % interval of `accuracy`."""
    half: float | None
    """The accuracy with half a point for each tie."""


class Baseline(Frozen):
    """What a judge that ignores the content scores."""

    micro: Accuracy
    macro: float | None
    groups: dict[str, Accuracy]


class Votes(Frozen):
    """What the votes of a pairwise judge look like."""

    votes: int
    unparsable: int
    agreement: float | None
    """Mean share of a row's readable votes that its majority holds."""
    names_first: float | None
    """Share of readable votes that name the response shown first; 0.5 without position bias."""
    order: OrderConsistency | None
    """Only where the protocol shows both orders."""
    accuracy_at: dict[int, Accuracy]
    """The accuracy from the first 1..K rounds."""


class Result(Frozen):
    """Everything that is known of one checkpoint on one benchmark."""

    benchmark: str
    origin: str
    """Where the rows came from: hub and revision, `embedded`, or a path."""
    label: str
    """The protocol in one line."""
    protocol: dict[str, Any]
    notes: tuple[str, ...]
    """Differences from the published benchmark, ablations, anything a reader must know before comparing."""
    unavailable: tuple[str, ...]
    """Rows that could not be shown (videos without frames); they are in no figure."""
    micro: Accuracy
    macro: float | None
    """The plain mean of the groups' accuracies."""
    groups: dict[str, Accuracy]
    sources: dict[str, Accuracy]
    clusters: Accuracy | None
    """Share of items with every pair right (Acc+), where the benchmark has items of several pairs."""
    cluster_groups: dict[str, Accuracy]
    baselines: dict[str, Baseline]
    votes: Votes | None
    calibration: Calibration | None
    margins: Histogram | None
    length: LengthBias
    worst: tuple[str, ...]
    """Keys of the worst mistakes, worst first."""
    published: dict[str, dict[str, Any]]
    """The same verdicts under the official scorer's rules and under other published rules, each labelled by its name."""


def figure(found: Outcomes, ties: Ties, rows: Ints | None = None) -> Accuracy:
    """Return the figure of all rows, or of the rows whose indices are given."""
    inside = slice(None) if rows is None else rows
    credit = float(found.credit(ties)[inside].sum())
    half = float(found.credit("half")[inside].sum())
    n = len(found) if rows is None else len(rows)
    low, high = wilson(credit, n) if n else (None, None)
    return Accuracy(
        n=n,
        right=int(found.correct[inside].sum()),
        ties=int(found.tie[inside].sum()),
        unparsable=int(found.unparsable[inside].sum()),
        accuracy=credit / n if n else None,
        low=low,
        high=high,
        half=half / n if n else None,
    )


def figures(found: Outcomes, ties: Ties, labels: list[str]) -> dict[str, Accuracy]:
    """Return a figure for each label in `labels` (one label a row), in first-seen order."""
    names = np.array(labels, dtype=object)
    return {name: figure(found, ties, np.flatnonzero(names == name)) for name in dict.fromkeys(labels)}
