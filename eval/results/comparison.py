"""Two judges that were evaluated on the same rows, and whether these tell them apart."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from data.errors import PredictionsError
from eval.benchmarks.rows import read_json_lines
from eval.results.intervals import Difference
from eval.results.predictions import OWN, difference


@dataclass(frozen=True, slots=True)
class Compared:
    """How much more accurate the first of two judges is on one benchmark."""

    benchmark: str
    rows: int
    difference: Difference
    labels: tuple[str, str]
    """The protocols under which the two were evaluated."""


def compare(first: Path, second: Path) -> list[Compared]:
    """Return the paired differences on every benchmark that both were evaluated on.

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
    return [_compared(name, one[name], two[name]) for name in common]


def predictions_in(place: Path) -> dict[str, Path]:
    """Return the predictions files at `place` by the name of their benchmark; of a single file, by the file's own name."""
    if place.is_file():
        return {place.name: place}
    for folder in (place, place / "eval"):
        found = {path.parent.name: path for path in sorted(folder.glob(f"*/{OWN}"))}
        if found:
            return found
    return {}


def comparison_table(first: str, second: str, found: Sequence[Compared]) -> Table:
    """Return the differences in points of accuracy, and in words."""
    table = Table(title=f"{first}  minus  {second}", caption="paired bootstrap over rows, 95 %")
    for name in ("benchmark", "rows", "points", "[95 %]", ""):
        table.add_column(name, justify="left" if name in ("benchmark", "") else "right")
    for one in found:
        mean, low, high = (f"{100 * value:+.1f}" for value in (one.difference.mean, one.difference.low, one.difference.high))
        table.add_row(one.benchmark, str(one.rows), mean, f"[{low}, {high}]", in_words(one))
    return table


def in_words(one: Compared) -> str:
    """Say whether the rows tell the two judges apart."""
    better = "the first is better" if one.difference.mean > 0 else "the second is better"
    said = better if one.difference.distinguishable else "not distinguishable"
    return said if one.labels[0] == one.labels[1] else f"{said}; PROTOCOLS DIFFER: {one.labels[0]} / {one.labels[1]}"


def _compared(name: str, first: Path, second: Path) -> Compared:
    one, two = ([row for row in read_json_lines(path, PredictionsError) if row is not None] for path in (first, second))
    return Compared(name, len(one), difference(one, two), (_label(first), _label(second)))


def _label(predictions: Path) -> str:
    """Return the protocol beside a predictions file, "" if its result is not there."""
    result = predictions.parent.with_suffix(".json")
    return str(json.loads(result.read_text(encoding="utf-8"))["label"]) if result.is_file() else ""
