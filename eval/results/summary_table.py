"""Tables of judges' results for the console, and the comparison of two judges on the same rows."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from mmrm.data.display.format import MISSING, interval, percent
from mmrm.data.display.table import Column, Table
from mmrm.data.errors import PredictionsError
from mmrm.data.storage.files import write_whole
from mmrm.eval.protocol import Images
from mmrm.eval.results.predictions import difference, predictions_in, read_predictions
from mmrm.eval.results.predictions_protocol import protocol_of, result_beside
from mmrm.eval.results.result import Accuracy, Result

ABLATIONS: dict[Images, str] = {
    "none": "without images",
    "grey": "grey images",
    "shuffled": "shuffled images",
}
"""Names of the rows with the accuracy without the images."""
COMPARISON_WORDS = {"better": "the first is better", "worse": "the second is better"}


def accuracy_text(figure: Accuracy) -> str:
    """Return an accuracy and its 95 % interval in percent, or a dash if there are no rows."""
    if figure.accuracy is None:
        return MISSING
    return interval(figure.accuracy, figure.low, figure.high)


def accuracy_cells(figure: Accuracy) -> tuple[str, ...]:
    """Return the cells of an accuracy.

    These are accuracy with interval, rows, ties, the accuracy with half a point for a tie, and the
    number of unparsable judgements. With half a point for a tie a judge that ties every pair is
    worth a coin, as some judges that see no content are.
    """
    accuracy = accuracy_text(figure)
    half = percent(figure.half)
    return accuracy, str(figure.n), str(figure.ties), half, str(figure.unparsable)


def write_rows(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write flat rows as CSV.

    The columns are those of all rows, in the order in which they first occur.
    """
    names: dict[str, None] = {}
    for row in rows:
        names |= dict.fromkeys(row)
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(names), restval="")
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
    """Return one table of all benchmarks.

    Each benchmark has rows for all its pairs, for its groups, for its items (Acc+), and for the
    accuracy without images.

    Args:
        results: The result on each benchmark.
        title: The title of the table.
        baselines: True for a column for each judge that sees no content.
        ablations: Results without images by the replacement of the images, then by benchmark.
    """
    blind_names = list(next(iter(results.values())).baselines) if baselines else []
    heads = ("accuracy [95 %]", "n", "ties", "half", "unparsable")
    columns = [Column("benchmark"), *(Column(head, is_number=True) for head in heads)]
    columns += [Column(name, is_number=True, style="dim") for name in blind_names]
    rows: list[tuple[str, ...]] = []
    styles: list[str] = []
    section_ends: list[int] = []

    def add_row(name: str, figure: Accuracy, style: str = "", blind: Sequence[str] = ()) -> None:
        rows.append((name, *accuracy_cells(figure), *blind))
        styles.append(style)

    for name, result in results.items():
        blind = [percent(result.baselines[other].micro.half) for other in blind_names]
        add_row(name, result.micro, "bold", blind)
        for group, figure in result.groups.items():
            blind = [percent(result.baselines[other].groups[group].half) for other in blind_names]
            add_row(f"  {group}", figure, "", blind)
        if result.clusters is not None:
            add_row("  whole items (Acc+)", result.clusters, "italic")
            for group, figure in result.cluster_groups.items():
                add_row(f"    {group} (Acc+)", figure, "italic")
        for images, result_by_name in ablations.items():
            add_row(f"  {ABLATIONS[images]}", result_by_name[name].micro, "italic")
        section_ends.append(len(rows) - 1)
    note = f"{_protocols(results)}; half: with half a point for a tie{_chances(results)}"
    return Table(
        title, tuple(columns), tuple(rows), (note,), tuple(section_ends), row_styles=tuple(styles)
    )


def _protocols(results: Mapping[str, Result]) -> str:
    """Return the protocol of the benchmarks: one line if it is the same for all, else a line for each."""
    protocols = {name: result.description for name, result in results.items()}
    if len(set(protocols.values())) == 1:
        return next(iter(protocols.values()))
    return "; ".join(f"{name}: {words}" for name, words in protocols.items())


def _chances(results: Mapping[str, Result]) -> str:
    """Return the accuracy of coins, if it is not the 50 % of judges that score."""
    chances = dict.fromkeys(result.chance for result in results.values())
    if list(chances) == [0.5]:
        return ""
    return f"; chance: {', '.join(f'{100 * chance:.0f} %' for chance in chances)}, with half 50 %"


def comparison_table(first: Path, second: Path) -> Table:
    """Return the accuracy of the first judge minus the second's on every benchmark of both.

    Args:
        first: A checkpoint with its `eval/`, a run (its best checkpoint, else its last), a folder
            that `--output` named, or one predictions.jsonl.
        second: The same of the other judge. Two files are compared whatever their names are.

    Raises:
        PredictionsError: If there is no common benchmark, or the rows differ.
    """
    first_files = predictions_in(first)
    second_files = predictions_in(second)
    common = {
        name: (file, second_files[name])
        for name, file in first_files.items()
        if name in second_files
    }
    if first.is_file() and second.is_file():
        common = {next(iter(first_files)): (first, second)}
    if not common:
        raise PredictionsError(
            f"{first} holds predictions for {', '.join(first_files) or 'nothing'}, {second} for "
            f"{', '.join(second_files) or 'nothing'}: no benchmark is in both. Evaluate both "
            "first: python eval/run.py CHECKPOINT --benchmarks …"
        )
    together = f" for the {len(common)} benchmarks together" if len(common) > 1 else ""
    notes = [
        "the same rows of both, paired; rows that share an item are not independent; "
        f"95 %{together}, of these two checkpoints and not of their recipes"
    ]
    rows = []
    for name, (first_file, second_file) in common.items():
        rows.append(_comparison_cells(name, first_file, second_file, len(common)))
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


def _comparison_cells(name: str, first: Path, second: Path, comparisons: int) -> tuple[str, ...]:
    """Return the cells of one benchmark, from the predictions of two judges."""
    records = read_predictions(first)
    others = read_predictions(second)
    try:
        change = difference(records, others, comparisons=comparisons)
    except PredictionsError as error:
        raise PredictionsError(f"{name}: {error}") from error
    mean, _, ends = change.points.partition(" ")
    words = COMPARISON_WORDS.get(change.words, change.words)
    label = _comparable_label(first, records)
    other_label = _comparable_label(second, others)
    if label != other_label:
        words += f"; PROTOCOLS DIFFER: {label} / {other_label}"
    return name, str(len(records)), mean, ends, words


def score_table(benchmark: str, found: Mapping[str, Any]) -> Table:
    """Return the figures of a predictions file under published rules, in full precision.

    Args:
        benchmark: Name of the benchmark.
        found: The figures that `official_scores.score_file` returned.
    """
    has_items = "acc_plus" in found
    heads = ["right", "of", "accuracy"]
    if has_items:
        heads += ["items", "Acc+"]
    columns = (Column(""), *(Column(head, is_number=True) for head in heads))
    rows: list[tuple[str, ...]] = []
    for name, group in found["groups"].items():
        cells = [name, str(group["right"]), str(group["n"]), str(group["accuracy"])]
        if has_items:
            cells += [str(group["items"]), str(group["acc_plus"])]
        rows.append(tuple(cells))
    section_ends = (len(rows) - 1,)
    rows.append(("n, rows in the file", "", str(found["coverage"]["rows"]), ""))
    for name in ("k", "micro", "macro"):
        if name in found:
            rows.append((name, "", "", str(found[name])))
    if has_items:
        num_items = str(found["detail"]["groups"])
        rows.append(("all items", "", "", "", num_items, str(found["acc_plus"])))
    title = f"{benchmark}, rules {found['rules']}, file format {found['format']}"
    return Table(title, columns, tuple(rows), (_score_note(found),), section_ends)


def _score_note(found: Mapping[str, Any]) -> str:
    """Return the facts that a reader of the figures of a predictions file needs."""
    note = str(found["about"])
    if "k" in found:
        k = found["k"]
        detail = found["detail"][f"k={k}"]
        classes = detail["classes"]
        note += (
            f". K = {k}: of each item the first {k} votes in cal.py's shuffle, or as many as it "
            "has (--k 1, 3, 5, 7 or 9; else the largest that all have). "
            f"Of {detail['items']} items {classes['doesntMatch']} cannot be read and "
            f"{classes['other']} are split: `of` is without them"
        )
        if detail["fails"]:
            fails = ", ".join(detail["fails"])
            note += f". cal.py itself stops here: it divides by zero for {fails}"
    if found["whole"]:
        return note
    return f"NOT THE WHOLE BENCHMARK, or more than it: see below. {note}"


def _comparable_label(predictions: Path, records: Sequence[dict[str, Any]]) -> str:
    """Return the label that two predictions files must share to be compared.

    The label holds the protocol's requirements of any judge, so that a judge that scores can be
    compared with one that compares. Without the result next to the file only the order of its votes
    is known.

    Raises:
        PredictionsError: If the votes contradict the result next to the file.
    """
    protocol = protocol_of(predictions, records)
    result = result_beside(predictions)
    return protocol.label if result is None else result.label
