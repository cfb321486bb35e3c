"""Tables of judges' results for the console, and the comparison of two judges on the same rows."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from mmrm.data.display.format import MISSING, interval, percent, signed_points, with_minus_signs
from mmrm.data.display.table import Column, Table
from mmrm.data.errors import PredictionsError
from mmrm.data.storage.files import write_whole
from mmrm.eval.protocol import Images
from mmrm.eval.results.predictions import difference, predictions_in, read_predictions
from mmrm.eval.results.predictions_protocol import protocol_of, result_of_predictions
from mmrm.eval.results.result import Accuracy, Result, SoftFigures, Votes
from mmrm.eval.results.statistics import area_under_curve
from mmrm.eval.results.uncertainty import Uncertainty

ABLATIONS: dict[Images, str] = {
    "none": "without images",
    "grey": "grey images",
    "shuffled": "shuffled images",
}
"""Names of the rows with the accuracy without the images, by the replacement of the images."""
COMPARISON_WORDS = {"better": "the first is better", "worse": "the second is better"}
"""The words of a comparison of two judges, by `Difference.words`."""


def accuracy_text(accuracy: Accuracy) -> str:
    """Return an accuracy and its 95 % interval in percent, or a dash if there are no rows."""
    if accuracy.accuracy is None:
        return MISSING
    return interval(accuracy.accuracy, accuracy.low, accuracy.high)


def accuracy_cells(accuracy: Accuracy) -> tuple[str, ...]:
    """Return the five cells of an accuracy in a row of a table.

    These are the accuracy with its interval, the number of rows, the number of ties, the accuracy
    with half a point for a tie, and the number of unparsable judgements. With half a point for a
    tie, a judge that ties every pair has the accuracy of a coin.
    """
    return (
        accuracy_text(accuracy),
        str(accuracy.n),
        str(accuracy.ties),
        percent(accuracy.half),
        str(accuracy.unparsable),
    )


def uncertainty_cells(uncertainty: Uncertainty) -> tuple[str, ...]:
    """Return the six cells of a judge's stated deviations in a row of a table.

    These are the number of pairs, the comparison in words, predicted P(better) minus accuracy in
    points, the calibration error with the error that chance gives a calibrated judge, and the
    shares of true scores within one and two deviations in percent. The shares are those on the line
    of best fit, or a dash without true scores.
    """
    shares = [MISSING, MISSING]
    coverage = uncertainty.coverage
    if coverage is not None:
        shares = []
        for within in coverage.on_line or coverage.as_stated:
            shares.append(interval(within.share, within.low, within.high))
    return (
        str(uncertainty.n),
        uncertainty.words,
        _overconfidence_text(uncertainty),
        f"{_ece_text(uncertainty)} (chance {uncertainty.reliability.floor:.3f})",
        *shares,
    )


def uncertainty_sentence(uncertainty: Uncertainty) -> str:
    """Return a sentence on the calibration of the standard deviations that a judge states."""
    sentence = (
        f"Stated deviations on {uncertainty.n:,} pairs: {uncertainty.words}; predicted P(better) "
        f"minus accuracy is {_overconfidence_text(uncertainty)} points, ECE {_ece_text(uncertainty)}."
    )
    if uncertainty.left_out:
        sentence += f" {uncertainty.left_out:,} rows without finite deviations are left out."
    return sentence


def order_sentence(votes: Votes) -> str:
    """Return a sentence on the agreement of both orders in the words of the judge.

    The text is empty if the judge did not see the pairs in both orders, or if no pair can be read.
    """
    if votes.order is None or votes.order.rate is None:
        return ""
    return (
        f"Both orders name the same response in {percent(votes.order.rate)} % of "
        f"{votes.order.pairs:,} pairs of judgements."
    )


def soft_sentence(soft: SoftFigures) -> str:
    """Return a sentence on soft verdicts, and on the hard verdicts of the same judgements."""
    brier = interval(soft.brier, soft.brier_low, soft.brier_high, three_decimals)
    auc = interval(soft.auc, soft.auc_low, soft.auc_high, three_decimals)
    overconfidence = interval(
        soft.overconfidence, soft.overconfidence_low, soft.overconfidence_high, signed_points
    )
    facts = [
        f"AUC {auc}, of the words that were written {soft.hard_auc:.3f}",
        f"Brier score {brier} (one half for every pair: 0.250)",
        f"confidence minus accuracy {with_minus_signs(overconfidence)} points",
        f"mean probability of the response shown first {soft.first:.3f}",
    ]
    if soft.order is not None and soft.order.rate is not None:
        agreement = f"both orders prefer the same response in {percent(soft.order.rate)} %"
        facts.insert(0, f"{agreement} of {soft.order.pairs:,} pairs of judgements")
    hard = f"accuracy of the words {accuracy_text(soft.hard)}, with half {percent(soft.hard.half)}"
    reading = (
        f"{soft.judgements:,} judgements, {soft.opened:,} without a readable verdict (read where the "
        f"template begins one); both verdicts together have a probability of {soft.mass:.3f}"
    )
    sentence = f"Soft verdicts: {'; '.join([*facts, hard, reading])}."
    if soft.left_out:
        sentence += f" {soft.left_out:,} pairs without finite probabilities are left out."
    return sentence


def three_decimals(value: float) -> str:
    """Return a number with three decimals."""
    return f"{value:.3f}"


def _overconfidence_text(uncertainty: Uncertainty) -> str:
    """Return predicted P(better) minus accuracy in points, with its interval."""
    text = interval(
        uncertainty.overconfidence,
        uncertainty.overconfidence_low,
        uncertainty.overconfidence_high,
        signed_points,
    )
    return with_minus_signs(text)


def _ece_text(uncertainty: Uncertainty) -> str:
    """Return the calibration error of stated deviations as a share, with its interval."""
    reliability = uncertainty.reliability
    return interval(
        reliability.ece,
        reliability.low,
        reliability.high,
        format_number=three_decimals,
    )


def write_rows(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write rows of a table to a CSV file.

    The columns are those of all rows, in the order in which they first occur. The cells of columns
    that a row lacks are empty.

    Args:
        rows: Rows, each a mapping from the names of its columns to their values.
        path: The file, which is replaced if it exists.
    """
    columns: dict[str, None] = {}  # a set that keeps its order
    for row in rows:
        columns |= dict.fromkeys(row)
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(columns), restval="")
    writer.writeheader()
    writer.writerows(rows)
    write_whole(path, text.getvalue())


def results_table(
    results: Mapping[str, Result],
    *,
    title: str,
    baselines: bool,
    ablations: Mapping[Images, Mapping[str, Result]] = MappingProxyType({}),
) -> Table:
    """Return a table of a judge's results on all benchmarks.

    Each benchmark has rows for all its pairs, for its groups, for its items (Acc+, the share of
    items with every pair right), and for the accuracy without images. A benchmark of rankings has
    rows for best of N, the share of rows in which a best response has the highest score.

    Args:
        results: The result on each benchmark.
        title: The title of the table.
        baselines: True for a column for each baseline, a judge that sees no content.
        ablations: Results without images by the replacement of the images, then by benchmark.
    """
    baseline_names: list[str] = []
    if baselines:
        first_result = next(iter(results.values()))
        baseline_names = list(first_result.baselines)
    heads = ("accuracy [95 %]", "n", "ties", "half", "unparsable")
    columns = [Column("benchmark"), *(Column(head, is_number=True) for head in heads)]
    columns += [Column(name, is_number=True, style="dim") for name in baseline_names]
    rows: list[tuple[str, ...]] = []
    row_styles: list[str] = []
    section_ends: list[int] = []

    def add_row(
        label: str, accuracy: Accuracy, style: str, baseline_cells: Sequence[str] = ()
    ) -> None:
        rows.append((label, *accuracy_cells(accuracy), *baseline_cells))
        row_styles.append(style)

    for benchmark, result in results.items():
        baseline_results = [result.baselines[name] for name in baseline_names]
        baseline_cells = [percent(baseline.micro.half) for baseline in baseline_results]
        add_row(benchmark, result.micro, "bold", baseline_cells)
        for group, accuracy in result.groups.items():
            baseline_cells = [percent(baseline.groups[group].half) for baseline in baseline_results]
            add_row(f"  {group}", accuracy, "", baseline_cells)
        if result.clusters is not None:
            add_row("  whole items (Acc+)", result.clusters, "italic")
            for group, accuracy in result.cluster_groups.items():
                add_row(f"    {group} (Acc+)", accuracy, "italic")
        if result.ranking is not None:
            add_row("  best of N", result.ranking.best, "italic")
            for group, accuracy in result.ranking.best_groups.items():
                add_row(f"    {group} (best of N)", accuracy, "italic")
        for images, ablated_results in ablations.items():
            add_row(f"  {ABLATIONS[images]}", ablated_results[benchmark].micro, "italic")
        section_ends.append(len(rows) - 1)
    note = f"{_protocols(results)}; half: with half a point for a tie{_chances(results)}"
    notes = [note]
    for benchmark, result in results.items():
        if result.uncertainty is not None:
            notes.append(f"{benchmark}: {uncertainty_sentence(result.uncertainty)}")
    return Table(
        title,
        tuple(columns),
        tuple(rows),
        notes=(*notes, *_ranking_notes(results), *_verdict_notes(results)),
        section_ends=tuple(section_ends),
        row_styles=tuple(row_styles),
    )


def _protocols(results: Mapping[str, Result]) -> str:
    """Return the protocol under which the results were computed.

    It is one line if all benchmarks have the same protocol, else one entry for each benchmark.
    """
    protocol_by_benchmark = {benchmark: result.description for benchmark, result in results.items()}
    if len(set(protocol_by_benchmark.values())) == 1:
        return next(iter(protocol_by_benchmark.values()))
    return "; ".join(
        f"{benchmark}: {protocol}" for benchmark, protocol in protocol_by_benchmark.items()
    )


def _chances(results: Mapping[str, Result]) -> str:
    """Return a note on the accuracy of a judge that tosses coins, or an empty text if it is 50 %.

    It is 50 % for judges that score. For judges that vote it can be lower, if ties are wrong.
    """
    # The chance of a benchmark of rankings is in a note of its own. Each value is stated once.
    chances = dict.fromkeys(result.chance for result in results.values() if result.ranking is None)
    if list(chances) in ([], [0.5]):
        return ""
    return f"; chance: {', '.join(f'{100 * chance:.0f} %' for chance in chances)}, with half 50 %"


def _ranking_notes(results: Mapping[str, Result]) -> list[str]:
    """Return a note for each benchmark of rankings: its figures about whole rankings, and chance.

    It also has the leaderboard's score if the official rule of the benchmark computes one.
    """
    notes = []
    for benchmark, result in results.items():
        ranking = result.ranking
        if ranking is None:
            continue
        facts = [
            f"{benchmark}: right is a row whose best responses all beat the others, chance "
            f"{percent(ranking.chance)} %; best of N, chance {percent(ranking.best_chance)} %",
            f"pairs in the right order {percent(ranking.pairs)} %",
            f"Kendall's tau-b {ranking.kendall:.3f}",
        ]
        official = result.published.get("official", {})
        if official.get("macro") is not None:
            facts.append(f"official score (mean of the subsets) {percent(official['macro'])} %")
        notes.append("; ".join(facts))
    return notes


def _verdict_notes(results: Mapping[str, Result]) -> list[str]:
    """Return notes on the verdicts of judges that compare: soft ones, and both orders' agreement."""
    notes = []
    for benchmark, result in results.items():
        if result.soft is not None:
            notes.append(f"{benchmark}: {soft_sentence(result.soft)}")
        if result.votes is not None and order_sentence(result.votes):
            notes.append(f"{benchmark}: {order_sentence(result.votes)}")
    return notes


def comparison_table(first: Path, second: Path) -> Table:
    """Return a table of the differences between two judges' accuracies, a row for each benchmark.

    A difference is the accuracy of the first judge minus the accuracy of the second.

    Args:
        first: The predictions of the first judge: a checkpoint with its `eval/`, a run (its best
            checkpoint, else its last), a folder that `--output` named, or one predictions.jsonl.
        second: The predictions of the second judge, in the same forms. Two files are compared
            whatever their names are.

    Raises:
        PredictionsError: If there is no common benchmark, or the rows differ.
    """
    first_files = predictions_in(first)
    second_files = predictions_in(second)
    files_by_benchmark = {
        name: (file, second_files[name])
        for name, file in first_files.items()
        if name in second_files
    }
    if first.is_file() and second.is_file():
        # The user has chosen the pair, so the names of the two files do not matter.
        name_of_first = next(iter(first_files))
        files_by_benchmark = {name_of_first: (first, second)}
    if not files_by_benchmark:
        raise PredictionsError(
            f"{first} holds predictions for {', '.join(first_files) or 'nothing'}, {second} for "
            f"{', '.join(second_files) or 'nothing'}: no benchmark is in both. Evaluate both "
            "first: python eval/run.py CHECKPOINT --benchmarks …"
        )
    num_benchmarks = len(files_by_benchmark)
    together = f" for the {num_benchmarks} benchmarks together" if num_benchmarks > 1 else ""
    notes = [
        "the same rows of both, paired; rows that share an item are not independent; "
        f"95 %{together}, of these two checkpoints and not of their recipes"
    ]
    rows = []
    for name, (first_file, second_file) in files_by_benchmark.items():
        rows.append(_comparison_cells(name, first_file, second_file, num_benchmarks))
        notes += _auc_notes(name, first_file, second_file)
        # A run is represented by one of its checkpoints, which the table names.
        if first_file != first:
            notes.append(f"{first}: {first_file}")
        if second_file != second:
            notes.append(f"{second}: {second_file}")
    heads = ("rows", "points", "[95 %]")
    columns = (
        Column("benchmark"),
        *(Column(head, is_number=True) for head in heads),
        Column(""),
    )
    return Table(f"{first}  minus  {second}", columns, tuple(rows), tuple(notes))


def _auc_notes(name: str, first: Path, second: Path) -> list[str]:
    """Return a note on the AUC of two judges' margins; none if neither has soft verdicts.

    Args:
        name: Name of the benchmark.
        first: The predictions.jsonl of the first judge.
        second: The predictions.jsonl of the second judge.
    """
    records_by_judge = [read_predictions(file) for file in (first, second)]
    if not any("probabilities" in row for records in records_by_judge for row in records):
        return []
    texts = []
    for records in records_by_judge:
        margins = [row["margin"] for row in records if row.get("margin") is not None]
        if margins:
            area = area_under_curve(np.array(margins, dtype=np.float64)).mean
            texts.append(f"{area:.3f} ({len(margins):,} rows)")
        else:
            texts.append(f"{MISSING} (no margins)")
    return [f"{name}: AUC of the margins {texts[0]} and {texts[1]}"]


def _comparison_cells(name: str, first: Path, second: Path, comparisons: int) -> tuple[str, ...]:
    """Return the cells of one benchmark in the table of two judges' differences.

    The cells are its name, the number of rows, the difference in points, the ends of the interval,
    and the comparison in words.

    Args:
        name: Name of the benchmark.
        first: The predictions.jsonl of the first judge.
        second: The predictions.jsonl of the second judge.
        comparisons: Number of benchmarks in the table; intervals hold for all of them together.
    """
    first_records = read_predictions(first)
    second_records = read_predictions(second)
    try:
        change = difference(first_records, second_records, comparisons=comparisons)
    except PredictionsError as error:
        raise PredictionsError(f"{name}: {error}") from error
    mean, _, ends = change.points.partition(" ")  # such as "+1.2 [-0.3, 2.7]"
    words = COMPARISON_WORDS.get(change.words, change.words)
    first_label = _comparable_label(first, first_records)
    second_label = _comparable_label(second, second_records)
    if first_label != second_label:
        words += f"; PROTOCOLS DIFFER: {first_label} / {second_label}"
    return name, str(len(first_records)), mean, ends, words


def score_table(benchmark: str, figures: Mapping[str, Any]) -> Table:
    """Return a table of a predictions file's figures under published rules, in full precision.

    Some rules compute further figures: an accuracy over items with every pair right (`acc_plus`),
    or figures with K votes on an item (`k`).

    Args:
        benchmark: Name of the benchmark.
        figures: The figures from `official_scores.score_predictions_file`.
    """
    has_items = "acc_plus" in figures
    heads = ["right", "of", "accuracy"]
    if has_items:
        heads += ["items", "Acc+"]
    columns = (Column(""), *(Column(head, is_number=True) for head in heads))
    rows: list[tuple[str, ...]] = []
    for name, group in figures["groups"].items():
        # A group whose figure is no share of right rows has no number of them.
        num_right = MISSING if group["right"] is None else str(group["right"])
        cells = [name, num_right, str(group["n"]), str(group["accuracy"])]
        if has_items:
            cells += [str(group["items"]), str(group["acc_plus"])]
        rows.append(tuple(cells))
    section_ends = (len(rows) - 1,)
    rows.append(("n, rows in the file", "", str(figures["coverage"]["rows"]), ""))
    for name in ("k", "micro", "macro"):
        if name in figures:
            rows.append((name, "", "", str(figures[name])))
    if has_items:
        num_items = str(figures["detail"]["groups"])
        rows.append(("all items", "", "", "", num_items, str(figures["acc_plus"])))
    title = f"{benchmark}, rules {figures['rules']}, file format {figures['format']}"
    return Table(title, columns, tuple(rows), (_score_note(figures),), section_ends)


def _score_note(figures: Mapping[str, Any]) -> str:
    """Return the note under the table of a predictions file's figures.

    It describes the rules and, if they have a choice, the number of votes on an item that count
    (K). It warns if the file does not hold every row of the benchmark exactly once.
    """
    note = str(figures["about"])
    if "k" in figures:
        k = figures["k"]
        detail = figures["detail"][f"k={k}"]
        num_unreadable = detail["classes"]["doesntMatch"]
        num_split = detail["classes"]["other"]
        note += (
            f". K = {k}: of each item the first {k} votes in cal.py's shuffle, or as many as it "
            "has (--k 1, 3, 5, 7 or 9; else the largest that all have). "
            f"Of {detail['items']} items {num_unreadable} cannot be read and "
            f"{num_split} are split: `of` is without them"
        )
        if detail["fails"]:
            fails = ", ".join(detail["fails"])
            note += f". cal.py itself stops here: it divides by zero for {fails}"
    if figures["whole"]:
        return note
    return f"NOT THE WHOLE BENCHMARK, or more than it: see below. {note}"


def _comparable_label(predictions: Path, records: Sequence[dict[str, Any]]) -> str:
    """Return the label of the protocol under which a predictions file was made.

    The accuracies of two files can only be compared if their labels are equal. The label names
    orders and votes even if the judge scored and did not vote, so that it can be compared with a
    judge that voted. Without a result next to the file, only the order of its votes is known.

    Args:
        predictions: Path of the file.
        records: The lines of the file.

    Raises:
        PredictionsError: If the votes contradict the result next to the file.
    """
    protocol = protocol_of(predictions, records)
    result = result_of_predictions(predictions)
    return protocol.label if result is None else result.label
