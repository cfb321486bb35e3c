"""From verdicts to a result: figures with intervals, baselines, diagnosis, and the same verdicts under published rules."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from data.errors import PredictionsError
from eval.benchmarks.benchmark import Benchmark, Origin, macro
from eval.protocol import Example, ProtocolConfig, Verdict
from eval.results.result import Accuracy, Baseline, Outcomes, Result, Votes, figure, figures, outcomes, worst_mistakes
from eval.results.statistics import agreement, calibration, length_bias, margin_histogram, order_consistency
from eval.running.baselines import BASELINES, baseline


def evaluate(
    examples: Sequence[Example], verdicts: Sequence[Verdict], benchmark: Benchmark, protocol: ProtocolConfig, origin: Origin
) -> Result:
    """Return the result of `verdicts` on `examples`, which `benchmark.load` returned together with `origin`.

    Raises: UserError if the verdicts do not fit the examples or the protocol.
    """
    found = outcomes(examples, verdicts, protocol)
    groups = figures(found, protocol.ties, [example.group for example in examples])
    items, item_groups = _clusters(examples, found, benchmark)
    margins = found.margin[np.isfinite(found.margin)]
    read = np.flatnonzero(found.unparsable == 0)
    lengths = [(len(example.responses[example.better]), len(example.responses[1 - example.better])) for example in examples]
    better, other = np.array(lengths, dtype=np.int64).reshape(-1, 2)[read].T
    return Result(
        benchmark=benchmark.name,
        origin=origin.location,
        label=protocol.label,
        protocol=protocol.model_dump(),
        notes=(*origin.notes, *_notes(examples, benchmark, protocol)),
        unavailable=origin.unavailable,
        micro=figure(found, protocol.ties),
        macro=macro([group.accuracy for group in groups.values()]),
        groups=groups,
        sources=figures(found, protocol.ties, [example.source for example in examples]),
        clusters=items,
        cluster_groups=item_groups,
        baselines={name: _baseline(examples, protocol, name) for name in BASELINES},
        votes=_votes(examples, verdicts, protocol) if any(verdict.votes for verdict in verdicts) else None,
        calibration=calibration(margins),
        margins=margin_histogram(margins),
        length=length_bias(better, other, found.credit("half")[read]),
        worst=tuple(examples[row].key for row in worst_mistakes(found)),
        published=published(examples, verdicts, benchmark),
    )


def published(examples: Sequence[Example], verdicts: Sequence[Verdict], benchmark: Benchmark) -> dict[str, dict[str, object]]:
    """Return the verdicts' figures under every rule that the benchmark knows, by the rule's name.

    The verdicts are written in the official predictions format and scored from there, so that these are the figures
    that the official script gives for the files that `write_predictions` writes.
    """
    records = {name: write(examples, verdicts) for name, write in benchmark.formats.items()}
    found: dict[str, dict[str, object]] = {}
    for name, rule in benchmark.rules.items():
        try:
            found[name] = rule.figures(name, records[rule.reads])
        except PredictionsError as error:
            found[name] = {"rules": name, "about": rule.about, "not_computed": str(error)}
    return found


def _clusters(examples: Sequence[Example], found: Outcomes, benchmark: Benchmark) -> tuple[Accuracy | None, dict[str, Accuracy]]:
    """Return the share of items with all rows right, of all and by the group of an item's first row."""
    if benchmark.item is None:
        return None, {}
    items: dict[str, tuple[str, bool]] = {}
    for example, correct in zip(examples, found.correct, strict=True):
        group, right = items.get(name := benchmark.item(example), (example.group, True))
        items[name] = group, right and bool(correct)
    right_items = np.array([right for _, right in items.values()], dtype=np.int64)
    none = np.zeros_like(right_items)
    whole = Outcomes(right_items, 1 - right_items, none, none + np.nan)
    return figure(whole, "wrong"), figures(whole, "wrong", [group for group, _ in items.values()])


def _baseline(examples: Sequence[Example], protocol: ProtocolConfig, name: str) -> Baseline:
    found = outcomes(examples, baseline(name, examples, protocol.seed), protocol)
    groups = figures(found, protocol.ties, [example.group for example in examples])
    return Baseline(micro=figure(found, protocol.ties), macro=macro([group.accuracy for group in groups.values()]), groups=groups)


def _votes(examples: Sequence[Example], verdicts: Sequence[Verdict], protocol: ProtocolConfig) -> Votes:
    found = outcomes(examples, verdicts, protocol)
    cast = [vote for verdict in verdicts for vote in verdict.votes]
    read = [vote for vote in cast if vote.names is not None]
    order = None
    if protocol.order == "both":  # each round is a vote in either order; -1 is one that cannot be read
        named = np.array([-1 if vote.names is None else vote.names for vote in cast], dtype=np.int64)
        order = order_consistency(named[::2], named[1::2])
    rounds = range(1, protocol.votes + 1)
    return Votes(
        votes=len(cast),
        unparsable=len(cast) - len(read),
        agreement=agreement(found.right, found.wrong),
        names_first=sum(vote.names == vote.first for vote in read) / len(read) if read else None,
        order=order,
        accuracy_at={n: figure(outcomes(examples, verdicts, protocol, n), protocol.ties) for n in rounds},
    )


def _notes(examples: Sequence[Example], benchmark: Benchmark, protocol: ProtocolConfig) -> list[str]:
    notes = []
    if protocol.order == "winner_first":
        notes.append("The winner was shown first: a judge that always names the first response scores 100 %.")
    if protocol.images != "real":
        notes.append(f"Ablation: images {protocol.images}.")
    text_only = sum(not example.images for example in examples)
    if text_only and protocol.images != "none":
        notes.append(f"{text_only} of {len(examples)} rows carry no image.")
    if benchmark.official_note and protocol.order == "official":
        notes.append(benchmark.official_note)
    return notes
