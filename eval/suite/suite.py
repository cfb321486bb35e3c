"""Evaluate a judge on benchmarks: score the rows, and compute the results from the scores.

A result holds accuracies with intervals, the same figures for baselines that ignore the content,
figures about votes, length and calibration, and the figures of the scores by the published rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from rich.console import Console

from mmrm.data.arrays import Ints
from mmrm.data.errors import PredictionsError
from mmrm.data.storage.files import write_json
from mmrm.eval.benchmarks.benchmark import Benchmark, LoadedBenchmark, Origin, macro
from mmrm.eval.benchmarks.registry import BENCHMARKS, BenchmarkConfig, load
from mmrm.eval.candidates import (
    BenchmarkRow,
    Scores,
    Vote,
    best_indices,
    is_tied,
    other_indices,
)
from mmrm.eval.journal import JOURNAL, SILENT, Journal
from mmrm.eval.judges.judge import Judge
from mmrm.eval.protocol import ProtocolConfig, with_presentations
from mmrm.eval.results.predictions import write_predictions
from mmrm.eval.results.ranking import ranking_figures
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
from mmrm.eval.results.shortcut_figures import shortcut_figures
from mmrm.eval.results.soft_figures import soft_calibration, soft_figures
from mmrm.eval.results.statistics import (
    agreement,
    calibration,
    length_bias,
    margin_histogram,
    order_consistency,
)
from mmrm.eval.results.uncertainty import uncertainty
from mmrm.eval.suite.baselines import BASELINES, baseline_scores
from mmrm.eval.suite.image_ablation import with_ablated_images
from mmrm.models.distributed import barrier, rank


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A judge's result on a benchmark, and the scores from which it is computed."""

    result: Result
    scores: Sequence[Scores]


@dataclass(frozen=True, slots=True)
class Suite:
    """The benchmarks of an evaluation with their rows, and the protocol.

    The protocol decides how often and in which order a judge sees responses, and what a tie counts.
    """

    benchmarks: Mapping[str, tuple[Benchmark, LoadedBenchmark]]
    """The benchmarks with their rows, by name."""
    protocol: ProtocolConfig

    @classmethod
    def load(cls, benchmarks: Sequence[BenchmarkConfig], protocol: ProtocolConfig) -> Suite:
        """Load the rows of the benchmarks; all ranks must call together.

        The first rank loads before the others, so that a benchmark is downloaded or generated once.

        Raises:
            UserError: If a benchmark cannot be loaded, as in `Benchmark.load`.
        """
        is_first_rank = rank() == 0
        if not is_first_rank:
            barrier()  # wait until the first rank has loaded
        loaded = {config.name: (BENCHMARKS[config.name], load(config)) for config in benchmarks}
        if is_first_rank:
            barrier()  # let the other ranks load
        return cls(loaded, protocol)

    def run(
        self, judge: Judge, folder: Path, console: Console | None = None
    ) -> tuple[dict[str, Result], list[Scores]]:
        """Evaluate `judge` on every benchmark, and return the results and the scores of all rows.

        All ranks must call together.

        Args:
            judge: A judge as it was loaded. It is evaluated under the suite's protocol.
            folder: The folder for the files, which `evaluate` describes.
            console: The console that shows the progress; None shows none.
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
        """Evaluate `judge` on one benchmark, and return the result and the scores.

        All ranks must call together. The first rank writes the result to `<benchmark>.json`, and
        the predictions to `<benchmark>/predictions.jsonl`.

        Args:
            name: The name of the benchmark.
            judge: A judge as it was loaded. It is evaluated under the suite's protocol.
            folder: The folder for the files.
            with_notes: True adds the judge's notes to those of the result.
            journal: Shows the progress. A journal from `journal_in` also keeps the judgements, so
                that a killed evaluation continues.
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
        if benchmark_judge.info.joint:
            result = result.model_copy(update={"joint": True})
        is_first_rank = rank() == 0
        if is_first_rank:
            write_predictions(rows.examples, scores, benchmark, protocol, folder / name)
            write_result(result, folder / f"{name}.json")
        return Evaluation(result, scores)


def journal_in(folder: Path, name: str, mark: str, console: Console) -> Journal:
    """Return the journal of a judge's evaluation on one benchmark.

    The journal is a file of JSON lines with the judgements so far, and shows the progress.

    Args:
        folder: The folder for the results. The journal is in its subfolder `name`.
        name: The name of the benchmark.
        mark: The fingerprint of the evaluation. A journal with another fingerprint is not used.
        console: The console for the progress.
    """
    return Journal(name, console, folder / name / JOURNAL, mark)


def write_result(result: Result, path: Path) -> None:
    """Write a result as JSON. If writing fails, an earlier file stays unchanged."""
    write_json(path, result.model_dump(mode="json"))


def headline_figures(results: Mapping[str, Result]) -> dict[str, float]:
    """Return the figures to log, by which the best checkpoint is chosen.

    Each benchmark has the figures `BENCHMARK/accuracy`, `BENCHMARK/macro`, `BENCHMARK/ties` and
    `BENCHMARK/unparsable`, and each of its groups `BENCHMARK/GROUP/accuracy`. A benchmark of
    rankings also has `BENCHMARK/best_of_n`. All are fractions of 1. Accuracies without rows are left
    out. A judge with soft verdicts also has `BENCHMARK/auc`, `BENCHMARK/brier`, and
    `BENCHMARK/hard_accuracy`, the accuracy of the words that it wrote.
    """
    figures: dict[str, float | None] = {}
    for benchmark, result in results.items():
        overall = result.micro
        num_rows = max(overall.n, 1)
        figures[f"{benchmark}/accuracy"] = overall.accuracy
        figures[f"{benchmark}/macro"] = result.macro
        figures[f"{benchmark}/ties"] = overall.ties / num_rows
        figures[f"{benchmark}/unparsable"] = overall.unparsable / num_rows
        if result.ranking is not None:
            figures[f"{benchmark}/best_of_n"] = result.ranking.best.accuracy
        if result.soft is not None:
            figures[f"{benchmark}/auc"] = result.soft.auc
            figures[f"{benchmark}/brier"] = result.soft.brier
            figures[f"{benchmark}/hard_accuracy"] = result.soft.hard.accuracy
        for group, accuracy in result.groups.items():
            figures[f"{benchmark}/{group}/accuracy"] = accuracy.accuracy
    return {name: value for name, value in figures.items() if value is not None}


def evaluate(
    examples: Sequence[BenchmarkRow],
    scores: Sequence[Scores],
    benchmark: Benchmark,
    protocol: ProtocolConfig,
    origin: Origin,
) -> Result:
    """Return the result of a judge's scores on a benchmark, with all its figures.

    Args:
        examples: The rows of the benchmark.
        scores: The judge's scores of each row, in the same order.
        benchmark: The benchmark.
        protocol: The protocol under which the rows were judged.
        origin: The origin of the rows, which `benchmark.load` returned together with them.

    Raises: UserError if the scores do not fit the examples or the protocol.
    """
    outcome = outcomes(examples, scores, protocol)
    items = items_of(examples, benchmark.item)  # equal codes for rows that depend on each other
    accuracies = _accuracies(examples, outcome, protocol, items)
    item_accuracy, item_accuracy_by_group = _item_accuracies(examples, outcome, benchmark, items)
    sources = [example.source for example in examples]

    baselines: dict[str, Baseline] = {}
    for name in BASELINES:
        scores_of_baseline = baseline_scores(name, examples, protocol.seed)
        baseline_outcome = outcomes(examples, scores_of_baseline, protocol)
        baselines[name] = _accuracies(examples, baseline_outcome, protocol, items)

    votes = None
    if any(row_scores.votes for row_scores in scores):
        votes = _votes(examples, scores, benchmark, protocol, items)

    ranking = None
    if benchmark.ranked and not all(map(is_tied, examples)):
        ranking = ranking_figures(examples, scores, protocol.ties, items)

    # Judges that only vote, by hard verdicts, have no margins.
    has_margin = np.isfinite(outcome.margin)
    margins = outcome.margin[has_margin]
    # The logistic function of a margin is the probability of an order of two responses only.
    confidence = None if benchmark.ranked else calibration(margins, items[has_margin])
    soft = None
    if any(row_scores.is_soft for row_scores in scores):
        soft = soft_figures(examples, scores, protocol, items)
        confidence = soft_calibration(examples, scores, items)

    # Only rows with a better and another response show whether the judge prefers longer ones.
    is_ranked = np.array([not is_tied(example) for example in examples], dtype=np.bool_)
    compared_rows = np.flatnonzero(~outcome.unparsable & is_ranked)
    compared = [examples[row] for row in compared_rows.tolist()]
    bias = length_bias(
        _longest_lengths(compared, map(best_indices, compared)),
        _longest_lengths(compared, map(other_indices, compared)),
        outcome.credit("half")[compared_rows],
        items[compared_rows],
    )
    return Result(
        benchmark=benchmark.name,
        origin=origin.location,
        label=protocol.label,
        protocol=protocol.model_dump(),
        notes=(*origin.notes, *_notes(examples, benchmark, protocol)),
        unavailable=origin.unavailable,
        micro=accuracies.micro,
        macro=accuracies.macro,
        groups=accuracies.groups,
        sources=figures(outcome, protocol.ties, sources, items),
        clusters=item_accuracy,
        cluster_groups=item_accuracy_by_group,
        baselines=baselines,
        votes=votes,
        calibration=confidence,
        margins=margin_histogram(margins),
        length=bias,
        worst=tuple(examples[row].key for row in worst_mistakes(outcome)),
        published=published_figures(examples, scores, benchmark),
        uncertainty=uncertainty(examples, scores, items),
        ranking=ranking,
        soft=soft,
        shortcuts=shortcut_figures(
            compared, outcome.credit("half")[compared_rows], items[compared_rows]
        ),
    )


def _longest_lengths(examples: Sequence[BenchmarkRow], indices: Iterable[Sequence[int]]) -> Ints:
    """Return the number of characters of the longest text of some responses, shape (rows,).

    Args:
        examples: The rows.
        indices: The indices of the responses of each row.
    """
    lengths = []
    for example, indices_of_row in zip(examples, indices, strict=True):
        lengths.append(max(len(example.responses[index].text) for index in indices_of_row))
    return np.array(lengths, dtype=np.int64)


def published_figures(
    examples: Sequence[BenchmarkRow], scores: Sequence[Scores], benchmark: Benchmark
) -> dict[str, dict[str, object]]:
    """Return the figures of the scores under each published rule, by the name of the rule.

    A published rule is the benchmark's official scoring script or another project's way to score.
    The scores are converted to the official predictions format and scored from there. The figures
    are therefore those that the script gives for the files of `write_predictions`. A rule that
    cannot score them has the reason under `not_computed` in place of figures.
    """
    records_by_format = {name: write(examples, scores) for name, write in benchmark.formats.items()}
    figures_by_rule: dict[str, dict[str, object]] = {}
    for name, rule in benchmark.rules.items():
        if rule.reads not in records_by_format:
            continue  # the rule scores the log of another framework
        try:
            figures_by_rule[name] = rule.figures(name, records_by_format[rule.reads])
        except PredictionsError as error:
            reason = str(error)
            figures_by_rule[name] = {"rules": name, "about": rule.about, "not_computed": reason}
    return figures_by_rule


def _accuracies(
    examples: Sequence[BenchmarkRow], outcome: Outcomes, protocol: ProtocolConfig, items: Ints
) -> Baseline:
    """Return the accuracy of all rows, the accuracy of each group, and the mean over groups.

    Args:
        examples: The rows of the benchmark.
        outcome: The outcomes of a judge or of a baseline.
        protocol: The protocol, which decides what a tie counts.
        items: The codes from `items_of`, which are equal for rows that depend on each other.
    """
    groups = figures(outcome, protocol.ties, [example.group for example in examples], items)
    return Baseline(
        micro=figure(outcome, protocol.ties, items=items),
        macro=macro([group.accuracy for group in groups.values()]),
        groups=groups,
    )


def _item_accuracies(
    examples: Sequence[BenchmarkRow], outcome: Outcomes, benchmark: Benchmark, items: Ints
) -> tuple[Accuracy | None, dict[str, Accuracy]]:
    """Return the share of the benchmark's items whose rows are all right, in all and by group.

    An item is a set of rows that the benchmark counts together, such as those about one image. It
    belongs to the group of its first row. Returns None and an empty mapping for a benchmark without
    items.

    Args:
        examples: The rows.
        outcome: The outcomes of the rows.
        benchmark: The benchmark.
        items: The codes from `items_of`, which are equal for rows that depend on each other.
    """
    if benchmark.item is None:
        return None, {}
    first_row_by_item: dict[str, int] = {}
    is_right_by_item: dict[str, bool] = {}
    for row, (example, is_right) in enumerate(zip(examples, outcome.correct, strict=True)):
        item = benchmark.item(example)
        first_row_by_item.setdefault(item, row)
        is_right_by_item[item] = is_right_by_item.get(item, True) and bool(is_right)
    right = np.array(list(is_right_by_item.values()), dtype=np.int64)
    unread = np.zeros_like(right)
    margin = np.full(len(right), np.nan)
    item_outcome = Outcomes(right=right, wrong=1 - right, unread=unread, margin=margin)
    first_rows = list(first_row_by_item.values())
    groups = [examples[row].group for row in first_rows]
    item_codes = items[first_rows]  # two of the benchmark's items may show one image
    accuracy = figure(item_outcome, ties="wrong", items=item_codes)
    accuracy_by_group = figures(item_outcome, ties="wrong", labels=groups, items=item_codes)
    return accuracy, accuracy_by_group


def _votes(
    examples: Sequence[BenchmarkRow],
    scores: Sequence[Scores],
    benchmark: Benchmark,
    protocol: ProtocolConfig,
    items: Ints,
) -> Votes:
    """Return the statistics of the votes of a judge that compares two responses.

    They are about the verdicts that the texts name, except `accuracy_at`, which is the accuracy of
    the protocol's verdicts.
    """
    named_outcome = outcomes(examples, scores, protocol.with_hard_verdicts)
    votes: list[Vote] = []
    for row_scores in scores:
        votes += row_scores.votes
    readable_votes = [vote for vote in votes if vote.named is not None]
    order = None
    if protocol.order == "both" or benchmark.ranked:
        # The votes alternate: the listed order, then the reversed one.
        named = [_named_of_two(vote) for vote in votes]
        named_in_listed_order = np.array(named[::2], dtype=np.int64)
        named_in_reversed_order = np.array(named[1::2], dtype=np.int64)
        order = order_consistency(named_in_listed_order, named_in_reversed_order)
    accuracy_by_rounds: dict[int, Accuracy] = {}
    for num_rounds in range(1, protocol.votes + 1):
        outcome_of_rounds = outcomes(examples, scores, protocol, num_rounds)
        accuracy_by_rounds[num_rounds] = figure(outcome_of_rounds, protocol.ties, items=items)
    return Votes(
        votes=len(votes),
        unparsable=len(votes) - len(readable_votes),
        # The votes on a row with a ranking are about different pairs, so they have no majority.
        agreement=(
            None if benchmark.ranked else agreement(named_outcome.right, named_outcome.wrong)
        ),
        names_first=_share_named_first(readable_votes),
        order=order,
        accuracy_at=accuracy_by_rounds,
    )


def _named_of_two(vote: Vote) -> int:
    """Return 0 if a vote names the response of its two that is listed first, 1 for the other one.

    The result is -1 if the vote cannot be read.
    """
    return -1 if vote.named is None else sorted(vote.shown).index(vote.named)


def _share_named_first(votes: Sequence[Vote]) -> float | None:
    """Return the share of votes that name the response that was shown first; None without votes."""
    if not votes:
        return None
    return sum(vote.named == vote.shown[0] for vote in votes) / len(votes)


def _notes(
    examples: Sequence[BenchmarkRow], benchmark: Benchmark, protocol: ProtocolConfig
) -> list[str]:
    """Return notes on the protocol and the rows, to print with the figures."""
    notes = []
    if protocol.order == "winner_first":
        notes.append(
            "The winner was shown first: a judge that always names the first response scores 100 %."
        )
    if protocol.images != "real":
        notes.append(f"Ablation: images {protocol.images}.")
    text_only = sum(not example.all_images and not example.all_videos for example in examples)
    if text_only and protocol.images != "none":
        notes.append(f"{text_only} of {len(examples)} rows carry no image.")
    if benchmark.ranked and protocol.order != "both":
        notes.append(
            "A judge that compares was shown every two responses of a row in both orders, whatever "
            "the order of the protocol is, because rows may have more than two responses."
        )
    num_tied = sum(map(is_tied, examples))
    if num_tied:
        notes.append(
            f"The responses of {num_tied} of {len(examples)} rows are equally good. A judge is right "
            "on such a row if it scores them equally, without a threshold."
        )
    if protocol.verdicts == "soft":
        notes.append(
            "Verdicts are soft for a judge that compares in writing. Published rules that count its "
            "votes read the words that it wrote."
        )
    if benchmark.official_note and protocol.order == "official":
        notes.append(benchmark.official_note)
    return notes
