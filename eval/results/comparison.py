"""Two judges that were evaluated on the same rows, and whether these tell them apart."""

from __future__ import annotations

import json
from pathlib import Path

from rich.table import Table

from data.errors import PredictionsError
from eval.results.predictions import OWN, difference, read_predictions


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
    table = Table(title=f"{first}  minus  {second}", caption="paired bootstrap over rows, 95 %")
    for name in ("benchmark", "rows", "points", "[95 %]", ""):
        table.add_column(name, justify="left" if name in ("benchmark", "") else "right")
    for name in common:
        rows = read_predictions(one[name])
        found = difference(rows, read_predictions(two[name]))
        mean, low, high = (f"{100 * value:+.1f}" for value in (found.mean, found.low, found.high))
        better = "the first is better" if found.mean > 0 else "the second is better"
        words = better if found.distinguishable else "not distinguishable"
        label, other = _protocol(one[name]), _protocol(two[name])
        if label != other:
            words += f"; PROTOCOLS DIFFER: {label} / {other}"
        table.add_row(name, str(len(rows)), mean, f"[{low}, {high}]", words)
    return table


def predictions_in(place: Path) -> dict[str, Path]:
    """Return the predictions files at `place` by the name of their benchmark; of a single file, by the file's own name."""
    if place.is_file():
        return {place.name: place}
    for folder in (place, place / "eval"):
        found = {path.parent.name: path for path in sorted(folder.glob(f"*/{OWN}"))}
        if found:
            return found
    return {}


def _protocol(predictions: Path) -> str:
    """Return the protocol beside a predictions file, "" if its result is not there."""
    result = predictions.parent.with_suffix(".json")
    return str(json.loads(result.read_text(encoding="utf-8"))["label"]) if result.is_file() else ""
