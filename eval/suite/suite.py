"""Evaluate a judge on benchmarks: score the rows, and compute the results from the scores.

A result holds accuracies with intervals, the same figures for baselines that ignore the content, figures
about votes, length and calibration, and the figures of the scores by the published rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from rich.console import Console

from mmrm.data.arrays import Ints
from mmrm.data.errors import PredictionsError
from mmrm.data.storage.files import write_json
from mmrm.eval.benchmarks.benchmark import Benchmark, LoadedBenchmark, Origin, macro
from mmrm.eval.benchmarks.registry import BENCHMARKS, BenchmarkConfig, load
from mmrm.eval.candidates import Example, Scores, Vote
from mmrm.eval.journal import JOURNAL, SILENT, Journal
from mmrm.eval.judges.judge import Judge
from mmrm.eval.protocol import ProtocolConfig, with_presentations
from mmrm.eval.results.predictions import write_predictions
from mmrm.eval.results.result import (
    Accuracy,
    Baseline,
    Outcomes,
    Result,
    Votes,
    figure,
    figures,
    items_of,
    outcomes,
    worst_mistakes,
)
from mmrm.eval.results.statistics import (
    agreement,
    calibration,
    length_bias,
    margin_histogram,
    order_consistency,
)
from mmrm.eval.suite.baselines import BASELINES, baseline
from mmrm.eval.suite.image_ablation import with_ablated_images
from mmrm.models.distributed import barrier, rank


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A judge's result on a benchmark, and the scores from which it is computed."""

    result: Result
    scores: Sequence[Scores]


@dataclass(frozen=True, slots=True)
class Suite:
    """Benchmarks with their rows, under one protocol."""

    benchmarks: Mapping[str, tuple[Benchmark, LoadedBenchmark]]
    protocol: ProtocolConfig

    @classmethod
    def load(cls, benchmarks: Sequence[BenchmarkConfig], protocol: ProtocolConfig) -> Suite:
        """Load the rows of the benchmarks; all ranks must call together.

        The first rank loads before the others, so that a benchmark is downloaded or generated once.

        Raises:
            UserError: If a benchmark cannot be loaded, as in `Benchmark.load`.
        """
        if rank():
            barrier()
        loaded = {config.name: (BENCHMARKS[config.name], load(config)) for config in benchmarks}
        if not rank():
            barrier()
        return cls(loaded, protocol)

    def run(
        self, judge: Judge, folder: Path, console: Console | None = None
    ) -> tuple[dict[str, Result], list[Scores]]:
        """Evaluate `judge` on every benchmark, and return the results and all scores.

        All ranks must call together. `evaluate` describes the files in `folder`; `console` shows the
        progress.
        """
        results: dict[str, Result] = {}
        all_scores: list[Scores] = []
        for name in self.benchmarks:
            evaluation = self.evaluate(name, judge, folder, journal=Journal(name, console))
            results[name] = evaluation.result
            all_scores += evaluation.scores
        return results, all_scores

    def evaluate(
        self,
        name: str,
        judge: Judge,
        folder: Path,
        *,
        with_notes: bool = False,
        journal: Journal = SILENT,
    ) -> Evaluation:
        """Evaluate `judge` on one benchmark.

        The first rank writes `<benchmark>.json` and `<benchmark>/predictions.jsonl`.

        Args:
            name: The benchmark.
            judge: A judge as it was loaded; the suite puts it under its protocol.
            folder: Where the files go.
            with_notes: Add the judge's notes to those of the result.
            journal: Shows the progress; a journal of `journal_in` also keeps what was judged.
        """
        benchmark, rows = self.benchmarks[name]
        protocol = self.protocol
        benchmark_judge = judge.under(protocol, benchmark)
        examples = with_ablated_images(rows.examples, protocol.images, protocol.seed)
        scores = benchmark_judge.score_batch(with_presentations(examples, protocol), journal)
        origin = rows.origin
        if with_notes:
            origin = replace(origin, notes=(*origin.notes, *benchmark_judge.notes(scores)))
        result = evaluate(rows.examples, scores, benchmark, protocol, origin)
        if not rank():
            write_predictions(rows.examples, scores, benchmark, protocol, folder / name)
            write_result(result, folder / f"{name}.json")
        return Evaluation(result, scores)


def journal_in(folder: Path, name: str, mark: str, console: Console) -> Journal:
    """Return the journal of a judge's evaluation on one benchmark.

    Args:
        folder: The folder for the results. The journal is in its subfolder `name`.
        name: The benchmark.
        mark: The fingerprint of the evaluation. A journal with another mark is not used.
        console: The console for the progress.
    """
    return Journal(name, console, folder / name / JOURNAL, mark)


def write_result(result: Result, path: Path) -> None:
    """Write a result as JSON. If writing fails, an earlier file stays unchanged."""
    write_json(path, result.model_dump(mode="json"))


def headline_figures(results: Mapping[str, Result]) -> dict[str, float]:
    """Return the figures to log and to choose by: `benchmark/accuracy`, `/macro`, `/ties`, `/unparsable` and each group's.

    A group's figure is named `benchmark/group/accuracy`. Shares are fractions of 1; figures without rows are left out.
    """
    figures: dict[str, float | None] = {}
    for benchmark, result in results.items():
        overall = result.micro
        num_rows = max(overall.n, 1)
        figures[f"{benchmark}/accuracy"] = overall.accuracy
        figures[f"{benchmark}/macro"] = result.macro
        figures[f"{benchmark}/ties"] = overall.ties / num_rows
        figures[f"{benchmark}/unparsable"] = overall.unparsable / num_rows
        for group, accuracy in result.groups.items():
            figures[f"{benchmark}/{group}/accuracy"] = accuracy.accuracy
    return {name: value for name, value in figures.items() if value is not None}


def evaluate(
    examples: Sequence[Example],
    scores: Sequence[Scores],
    benchmark: Benchmark,
    protocol: ProtocolConfig,
    origin: Origin,
) -> Result:
    """Return the result of `scores` on `examples`, which `benchmark.load` returned together with `origin`.

    Raises: UserError if the scores do not fit the examples or the protocol.
    """
    found = outcomes(examples, scores, protocol)
    items = items_of(examples, benchmark.item)
    whole = _accuracies(examples, found, protocol, items)
    whole_items, item_groups = _clusters(examples, found, benchmark, items)
    has_margin = np.isfinite(found.margin)
    margins = found.margin[has_margin]
    read = np.flatnonzero(found.unparsable == 0)
    lengths = [
        (len(example.responses[example.better]), len(example.responses[1 - example.better]))
        for example in examples
    ]
    better, other = np.array(lengths, dtype=np.int64).reshape(-1, 2)[read].T
    return Result(
        benchmark=benchmark.name,
        origin=origin.location,
        label=protocol.label,
        protocol=protocol.model_dump(),
        notes=(*origin.notes, *_notes(examples, benchmark, protocol)),
        unavailable=origin.unavailable,
        micro=whole.micro,
        macro=whole.macro,
        groups=whole.groups,
        sources=figures(found, protocol.ties, [example.source for example in examples], items),
        clusters=whole_items,
        cluster_groups=item_groups,
        baselines={
            name: _accuracies(
                examples,
                outcomes(examples, baseline(name, examples, protocol.seed), protocol),
                protocol,
                items,
            )
            for name in BASELINES
        },
        votes=_votes(examples, scores, found, protocol, items)
        if any(score.votes for score in scores)
        else None,
        calibration=calibration(margins, items[has_margin]),
        margins=margin_histogram(margins),
        length=length_bias(better, other, found.credit("half")[read], items[read]),
        worst=tuple(examples[row].key for row in worst_mistakes(found)),
        published=published_figures(examples, scores, benchmark),
    )


def published_figures(
    examples: Sequence[Example], scores: Sequence[Scores], benchmark: Benchmark
) -> dict[str, dict[str, object]]:
    """Return the figures of scores under every rule that the benchmark knows, by the rule's name.

    The scores are written in the official predictions format and scored from there, so that these are the figures
    that the official script gives for the files that `write_predictions` writes.
    """
    records = {name: write(examples, scores) for name, write in benchmark.formats.items()}
    found: dict[str, dict[str, object]] = {}
    for name, rule in benchmark.rules.items():
        if rule.reads not in records:  # a log of another framework
            continue
        try:
            found[name] = rule.figures(name, records[rule.reads])
        except PredictionsError as error:
            found[name] = {"rules": name, "about": rule.about, "not_computed": str(error)}
    return found


def _accuracies(
    examples: Sequence[Example], found: Outcomes, protocol: ProtocolConfig, items: Ints
) -> Baseline:
    groups = figures(found, protocol.ties, [example.group for example in examples], items)
    return Baseline(
        micro=figure(found, protocol.ties, items=items),
        macro=macro([group.accuracy for group in groups.values()]),
        groups=groups,
    )


def _clusters(
    examples: Sequence[Example], found: Outcomes, benchmark: Benchmark, items: Ints
) -> tuple[Accuracy | None, dict[str, Accuracy]]:
    """Return the share of items whose rows are all right: overall, and by the group of an item's first row.

    An item is a set of rows that the benchmark counts together. Returns None and an empty mapping for a
    benchmark without items.
    """
    if benchmark.item is None:
        return None, {}
    first_rows: dict[str, int] = {}
    right_by_item: dict[str, bool] = {}
    for row, (example, is_right) in enumerate(zip(examples, found.correct, strict=True)):
        name = benchmark.item(example)
        first_rows.setdefault(name, row)
        right_by_item[name] = right_by_item.get(name, True) and bool(is_right)
    right = np.array(list(right_by_item.values()), dtype=np.int64)
    none = np.zeros_like(right)
    whole = Outcomes(right, 1 - right, none, none + np.nan)
    groups = [examples[row].group for row in first_rows.values()]
    shared = items[list(first_rows.values())]  # two of the benchmark's items may show one image
    return figure(whole, "wrong", items=shared), figures(whole, "wrong", groups, shared)


def _votes(
    examples: Sequence[Example],
    scores: Sequence[Scores],
    found: Outcomes,
    protocol: ProtocolConfig,
    items: Ints,
) -> Votes:
    cast: list[Vote] = []
    for row_scores in scores:
        cast += row_scores.votes
    read = [vote for vote in cast if vote.named is not None]
    order = None
    if (
        protocol.order == "both"
    ):  # each round is a vote in either order; -1 is one that cannot be read
        named = np.array(
            [-1 if vote.named is None else vote.named for vote in cast], dtype=np.int64
        )
        order = order_consistency(named[::2], named[1::2])
    rounds = range(1, protocol.votes + 1)
    return Votes(
        votes=len(cast),
        unparsable=len(cast) - len(read),
        agreement=agreement(found.right, found.wrong),
        names_first=_share_named_first(read),
        order=order,
        accuracy_at={
            n: figure(outcomes(examples, scores, protocol, n), protocol.ties, items=items)
            for n in rounds
        },
    )


def _share_named_first(votes: Sequence[Vote]) -> float | None:
    """Return the share of votes that name the response that was shown first, or None without votes."""
    if not votes:
        return None
    return sum(vote.named == vote.shown[0] for vote in votes) / len(votes)


def _notes(
    examples: Sequence[Example], benchmark: Benchmark, protocol: ProtocolConfig
) -> list[str]:
    notes = []
    if protocol.order == "winner_first":
        notes.append(
            "The winner was shown first: a judge that always names the first response scores 100 %."
        )
    if protocol.images != "real":
        notes.append(f"Ablation: images {protocol.images}.")
    text_only = sum(not example.images for example in examples)
    if text_only and protocol.images != "none":
        notes.append(f"{text_only} of {len(examples)} rows carry no image.")
    if benchmark.official_note and protocol.order == "official":
        notes.append(benchmark.official_note)
    return notes
