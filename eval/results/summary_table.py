"""Results as tables that a person reads, on the console and in Markdown; of two judges, whether the rows tell them apart."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rich.table import Column, Table
from rich.text import Text

from mmrm.data.errors import PredictionsError
from mmrm.data.storage.files import write_whole
from mmrm.eval.protocol import Images
from mmrm.eval.results.intervals import Estimate
from mmrm.eval.results.predictions import difference, predictions_in, read_predictions
from mmrm.eval.results.predictions_protocol import protocol_of, result_beside
from mmrm.eval.results.result import Accuracy, Result

ABLATIONS: dict[Images, str] = {
    "none": "without images",
    "grey": "grey images",
    "shuffled": "shuffled images",
}
"""What is left of the score without the images: how the rows of the table are named."""


def percent(figure: Accuracy) -> str:
    """Return an accuracy and its 95 % interval in percent, or a dash if there are no rows."""
    if figure.accuracy is None:
        return "–"
    return Estimate(figure.accuracy, figure.low, figure.high).percent


def write_rows(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write flat rows as CSV, with the columns of all of them in the order in which they first occur."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, names, restval="")
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
    """Return one table of all benchmarks: overall, groups, items (Acc+), ablations, and the judges that see no content."""
    done = {name: result.done for name, result in results.items()}
    same = len(set(done.values())) == 1
    caption = (
        next(iter(done.values()))
        if same
        else "; ".join(f"{name}: {words}" for name, words in done.items())
    )
    names = list(next(iter(results.values())).baselines) if baselines else []
    columns = [
        Column(name, justify="right")
        for name in ("accuracy [95 %]", "n", "ties", "half", "unparsable")
    ]
    columns += [Column(name, justify="right", style="dim") for name in names]
    table = Table(
        "benchmark",
        *columns,
        title=title,
        caption=f"{caption}; half: with half a point for a tie{_chances(results)}",
    )
    for name, result in results.items():
        overall = [shown(result.baselines[blind].micro) for blind in names]
        table.add_row(Text(name, "bold"), *cells(result.micro), *overall)
        for group, figure in result.groups.items():
            blind = [shown(result.baselines[other].groups[group]) for other in names]
            table.add_row(f"  {group}", *cells(figure), *blind)
        if result.clusters is not None:
            table.add_row(Text("  whole items (Acc+)", "italic"), *cells(result.clusters))
            for group, figure in result.cluster_groups.items():
                table.add_row(Text(f"    {group} (Acc+)", "italic"), *cells(figure))
        for images, ablated in ablations.items():
            table.add_row(Text(f"  {ABLATIONS[images]}", "italic"), *cells(ablated[name].micro))
        table.add_section()
    return table


def _chances(results: Mapping[str, Result]) -> str:
    """Return the accuracy of coins, if it is not the 50 % of judges that score."""
    chances = dict.fromkeys(result.chance for result in results.values())
    if list(chances) == [0.5]:
        return ""
    return f"; chance: {', '.join(f'{100 * chance:.0f} %' for chance in chances)}, with half 50 %"


def comparison_table(first: Path, second: Path) -> Table:
    """Return how much more accurate the first of two judges is on every benchmark that both were evaluated on.

    Either is a checkpoint (with its `eval/`), a run (its best checkpoint, else its last), a folder that `--output` named, or one
    predictions.jsonl; two files are compared whatever their names are.
    Raises: PredictionsError if there is no common benchmark, or the rows differ.
    """
    one, two = predictions_in(first), predictions_in(second)
    common = {name: (one[name], two[name]) for name in one if name in two}
    if first.is_file() and second.is_file():
        common = {next(iter(one)): (first, second)}
    if not common:
        raise PredictionsError(
            f"{first} holds predictions for {', '.join(one) or 'nothing'}, {second} for {', '.join(two) or 'nothing'}: "
            "no benchmark is in both. Evaluate both first: python eval/run.py CHECKPOINT --benchmarks …"
        )
    columns = [Column(name, justify="right") for name in ("rows", "points", "[95 %]")]
    table = Table("benchmark", *columns, "", title=f"{first}  minus  {second}")
    together = f" for the {len(common)} benchmarks together" if len(common) > 1 else ""
    table.caption = (
        "the same rows of both, paired; rows that share an item are not independent; "
        f"95 %{together}, of these two checkpoints and not of their recipes"
    )
    for name, files in common.items():
        rows = read_predictions(files[0])
        others = read_predictions(files[1])
        try:
            found = difference(rows, others, comparisons=len(common))
        except PredictionsError as error:
            raise PredictionsError(f"{name}: {error}") from error
        mean, _, interval = found.points.partition(" ")
        words = {"better": "the first is better", "worse": "the second is better"}.get(
            found.words, found.words
        )
        label = _comparable_label(files[0], rows)
        other = _comparable_label(files[1], others)
        if label != other:
            words += f"; PROTOCOLS DIFFER: {label} / {other}"
        table.add_row(name, str(len(rows)), mean, interval, words)
        taken = [
            f"\n{place}: {file}"
            for place, file in zip((first, second), files, strict=True)
            if place != file
        ]
        table.caption += "".join(taken)
    return table


def score_table(benchmark: str, found: Mapping[str, Any]) -> Table:
    """Return the figures of a predictions file under published rules (`scoring.score_file`), in full precision."""
    compared, caption = found["coverage"], found["about"]
    if "k" in found:
        detail = found["detail"][f"k={found['k']}"]
        classes = detail["classes"]
        caption += (
            f". K = {found['k']}: of each item the first {found['k']} votes in cal.py's shuffle, or as many as it has (--k 1, 3, "
            f"5, 7 or 9; else the largest that all have). Of {detail['items']} items {classes['doesntMatch']} cannot be read and "
            f"{classes['other']} are split: `of` is without them"
        )
        if detail["fails"]:
            caption += (
                f". cal.py itself stops here: it divides by zero for {', '.join(detail['fails'])}"
            )
    if not found["whole"]:
        caption = f"NOT THE WHOLE BENCHMARK, or more than it: see below. {caption}"
    items = ("items", "Acc+") if "acc_plus" in found else ()
    columns = [Column(name, justify="right") for name in ("right", "of", "accuracy", *items)]
    title = f"{benchmark}, rules {found['rules']}, file format {found['format']}"
    table = Table("", *columns, title=title, caption=caption)
    for name, group in found["groups"].items():
        whole = (str(group["items"]), str(group["acc_plus"])) if items else ()
        table.add_row(name, str(group["right"]), str(group["n"]), str(group["accuracy"]), *whole)
    table.add_section()
    table.add_row("n, rows in the file", "", str(compared["rows"]), "")
    for name in ("k", "micro", "macro"):
        if name in found:
            table.add_row(name, "", "", str(found[name]))
    if items:
        table.add_row(
            "all items", "", "", "", str(found["detail"]["groups"]), str(found["acc_plus"])
        )
    return table


def shown(figure: Accuracy) -> str:
    """Return an accuracy in percent with half a point for a tie: who ties all is worth a coin, as some blind judges are."""
    return "–" if figure.half is None else f"{100 * figure.half:.1f}"


def cells(figure: Accuracy) -> tuple[str, ...]:
    """Return accuracy with interval, rows, ties, the accuracy with half a point for a tie, and what was unparsable."""
    return percent(figure), str(figure.n), str(figure.ties), shown(figure), str(figure.unparsable)


def _comparable_label(predictions: Path, records: Sequence[dict[str, Any]]) -> str:
    """Return the label that two predictions files must share to be compared.

    That is what the protocol asks of any judge, so that a judge that scores can be compared with one
    that compares. Without the result beside the file only the order of its votes is known.

    Raises:
        PredictionsError: if the votes contradict the result beside the file.
    """
    protocol = protocol_of(predictions, records)
    result = result_beside(predictions)
    return protocol.label if result is None else result.label
