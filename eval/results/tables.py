"""Results as tables that a person reads, on the console and in Markdown; of two judges, whether the rows tell them apart."""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rich.table import Column, Table

from data.errors import PredictionsError
from eval.protocol import Images
from eval.results.predictions import difference, predictions_in, read_predictions
from eval.results.result import Accuracy, Result

ABLATIONS: dict[Images, str] = {"none": "without images", "grey": "grey images", "shuffled": "shuffled images"}
"""What is left of the score without the images: how the rows of the table are named."""


def percent(figure: Accuracy) -> str:
    """Return an accuracy and its 95 % interval in percent, or a dash where there are no rows."""
    if figure.accuracy is None or figure.low is None or figure.high is None:
        return "–"
    return f"{100 * figure.accuracy:.1f} [{100 * figure.low:.1f}, {100 * figure.high:.1f}]"


def write_rows(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write flat rows as CSV, with the columns of all of them in the order in which they first occur."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names, restval="")
        writer.writeheader()
        writer.writerows(rows)


def results_table(
    results: Mapping[str, Result],
    *,
    title: str,
    baselines: bool,
    ablations: Mapping[Images, Mapping[str, Result]] = MappingProxyType({}),
) -> Table:
    """Return one table of all benchmarks: overall, groups, items (Acc+), ablations, and the judges that see no content."""
    label = next(iter(results.values())).label
    names = list(next(iter(results.values())).baselines) if baselines else []
    columns = [Column(name, justify="right") for name in ("accuracy [95 %]", "n", "ties", "half", "unparsable")]
    columns += [Column(name, justify="right", style="dim") for name in names]
    table = Table("benchmark", *columns, title=title, caption=f"{label}; half: with half a point for a tie")
    for name, result in results.items():
        overall = [shown(result.baselines[blind].micro) for blind in names]
        table.add_row(f"[bold]{name}", *cells(result.micro), *overall)
        for group, figure in result.groups.items():
            blind = [shown(result.baselines[other].groups[group]) for other in names]
            table.add_row(f"  {group}", *cells(figure), *blind)
        if result.clusters is not None:
            table.add_row("  [italic]whole items (Acc+)", *cells(result.clusters))
        for images, ablated in ablations.items():
            table.add_row(f"  [italic]{ABLATIONS[images]}", *cells(ablated[name].micro))
        table.add_section()
    return table


def comparison_table(first: Path, second: Path) -> Table:
    """Return how much more accurate the first of two judges is on every benchmark that both were evaluated on.

    Either is a checkpoint (with its `eval/`), a folder that `--output` named, or one predictions.jsonl.
    Raises: PredictionsError if there is no common benchmark, or the rows differ.
    """
    one, two = predictions_in(first), predictions_in(second)
    common = [name for name in one if name in two]
    if not common:
        raise PredictionsError(
            f"{first} holds predictions for {', '.join(one) or 'nothing'}, {second} for {', '.join(two) or 'nothing'}: "
            "no benchmark is in both. Evaluate both first: python eval/run.py CHECKPOINT --benchmarks …"
        )
    columns = [Column(name, justify="right") for name in ("rows", "points", "[95 %]")]
    table = Table("benchmark", *columns, "", title=f"{first}  minus  {second}", caption="paired bootstrap over rows, 95 %")
    for name in common:
        rows = read_predictions(one[name])
        found = difference(rows, read_predictions(two[name]))
        mean, low, high = (f"{100 * value:+.1f}" for value in (found.mean, found.low, found.high))
        words = {"better": "the first is better", "worse": "the second is better"}.get(found.words, found.words)
        label, other = _protocol(one[name]), _protocol(two[name])
        if label != other:
            words += f"; PROTOCOLS DIFFER: {label} / {other}"
        table.add_row(name, str(len(rows)), mean, f"[{low}, {high}]", words)
    return table


def score_table(benchmark: str, found: Mapping[str, Any]) -> Table:
    """Return the figures of a predictions file under published rules (`predictions.score_file`), in full precision."""
    columns = [Column(name, justify="right") for name in ("right", "of", "accuracy")]
    table = Table("", *columns, title=f"{benchmark}, rules {found['rules']}", caption=found["about"])
    for name, group in found["groups"].items():
        table.add_row(name, str(group["right"]), str(group["n"]), str(group["accuracy"]))
    table.add_section()
    for name in ("k", "micro", "macro", "acc_plus"):
        if name in found:
            table.add_row(name, "", "", str(found[name]))
    return table


def shown(figure: Accuracy) -> str:
    """Return an accuracy in percent with half a point for a tie: who ties all is worth a coin, as some blind judges are."""
    return "–" if figure.half is None else f"{100 * figure.half:.1f}"


def cells(figure: Accuracy) -> tuple[str, ...]:
    """Return accuracy with interval, rows, ties, the accuracy with half a point for a tie, and what was unparsable."""
    return percent(figure), str(figure.n), str(figure.ties), shown(figure), str(figure.unparsable)


def _protocol(predictions: Path) -> str:
    """Return the protocol beside a predictions file, "" if its result is not there."""
    result = predictions.parent.with_suffix(".json")
    return str(json.loads(result.read_text(encoding="utf-8"))["label"]) if result.is_file() else ""
