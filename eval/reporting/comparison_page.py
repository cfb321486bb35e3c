"""The page of a list of runs: its variants side by side, and beside them what was found out about policies and reward models.

Read are the files that train/ablate.py, eval/overoptimisation.py and train/predictors.py leave in the list's folder.
"""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from mmrm.data.display.chart import Axis
from mmrm.data.display.html import render
from mmrm.data.storage.files import read_json
from mmrm.eval.reporting.overoptimisation_page import overoptimisation
from mmrm.eval.reporting.predictors_page import predictors_of
from mmrm.eval.reporting.run_content import Row
from mmrm.eval.results.intervals import Difference
from mmrm.eval.results.run_folder import ABLATION, OVEROPTIMISATION, PREDICTORS

TEMPLATE = Path(__file__).parent / "list.html"


def list_page(folder: Path) -> str:
    """Return the page of a list as HTML."""
    found = read_json(folder / ABLATION)
    over, predictors = (
        read_json(folder / file) if (folder / file).is_file() else None
        for file in (OVEROPTIMISATION, PREDICTORS)
    )
    missing = [f"{run['variant']}, seed {run['seed']}" for run in found["missing"]]
    parts = {
        "variants": "Variants",
        "overoptimisation": "Against KL",
        "predictors": "What a reward model is worth",
    }
    there = dict(zip(parts, (True, over, predictors), strict=True))
    return render(
        TEMPLATE,
        title=folder.resolve().name,
        list=found,
        missing=missing,
        benchmarks=benchmarks(found["results"]),
        answers=benchmarks(predictors["variants"]) if predictors else [],
        costs=found.get("costs", {}),
        over=over and overoptimisation(over),
        predictors=predictors and predictors_of(predictors),
        sections=[(anchor, name) for anchor, name in parts.items() if there[anchor]],
    )


def benchmarks(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the rows of a list's table by benchmark."""
    return [
        benchmark(name, list(own)) for name, own in groupby(rows, lambda row: str(row["benchmark"]))
    ]


def benchmark(name: str, rows: Sequence[Row]) -> dict[str, Any]:
    """Return the lines of a benchmark, or of a figure of a policy, with places in percent of a drawing that holds all of them."""
    lines = [
        {
            **row,
            "each": [row[key] for key in row if key.startswith("seed_")],
            "against": _difference(row),
        }
        for row in rows
    ]
    axis = Axis.shares(
        [
            value
            for line in lines
            for value in (line["low"], line["high"], *line["each"])
            if value is not None
        ]
    )
    width = axis.high - axis.low
    ticks = [
        (100 * (at - axis.low) / width, written.removesuffix(" %"))
        for at, written in (axis.ticks[0], axis.ticks[-1])
    ]
    return {
        "name": name,
        "rows": lines,
        "ticks": ticks,
        "place": lambda value: round(100 * (value - axis.low) / width, 2),
    }


def _difference(row: Row) -> Difference | None:
    return (
        None
        if row["difference"] is None
        else Difference(row["difference"], row["difference_low"], row["difference_high"])
    )
