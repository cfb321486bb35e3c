"""Predictions on disk: our own file with everything, the official formats, and the scoring of files made elsewhere."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from data.errors import PredictionsError, UserError
from data.storage.files import whole_file
from eval.benchmarks.benchmark import Benchmark, Record
from eval.benchmarks.rows import read_json_lines
from eval.protocol import Example, ProtocolConfig, Verdict
from eval.results.result import outcomes
from eval.results.statistics import Difference, paired_bootstrap

OWN = "predictions.jsonl"


def write_predictions(
    examples: Sequence[Example], verdicts: Sequence[Verdict], benchmark: Benchmark, protocol: ProtocolConfig, folder: Path
) -> None:
    """Write the predictions: `predictions.jsonl` and `<format>.jsonl` for each of the benchmark's formats.

    The first holds everything that is known of each row: what a sweep compares and a report shows. The official script of
    the benchmark runs on `official.jsonl`, R1-Reward's on `rewards.jsonl`. A file that is there is replaced whole.
    """
    found = outcomes(examples, verdicts, protocol)
    credits = found.credit(protocol.ties)
    own: list[Record] = [
        {
            "key": example.key,
            "identity": example.identity,
            "group": example.group,
            "source": example.source,
            "better": example.better,
            "scores": None if verdict.scores is None else [_finite(score) for score in verdict.scores],
            "votes": list(map(asdict, verdict.votes)),
            "critiques": verdict.critiques,
            "margin": _finite(float(found.margin[row])),
            "credit": float(credits[row]),
            "correct": bool(found.correct[row]),
            "tie": bool(found.tie[row]),
            "unparsable": bool(found.unparsable[row]),
        }
        for row, (example, verdict) in enumerate(zip(examples, verdicts, strict=True))
    ]
    files = {OWN: own, **{f"{name}.jsonl": write(examples, verdicts) for name, write in benchmark.formats.items()}}
    for name, records in files.items():
        with whole_file(folder / name) as file:
            file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def read_predictions(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a `predictions.jsonl`."""
    return [row for row in read_json_lines(path) if row is not None]


def difference(first: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]]) -> Difference:
    """Return how much more accurate the first of two `predictions.jsonl` (lists of its lines) is, rows matched by key.

    Raises: PredictionsError if they do not hold the same rows.
    """
    one, two = ({record["key"]: float(record["credit"]) for record in records} for records in (first, second))
    if one.keys() != two.keys() or not one:
        raise PredictionsError(
            f"{len(one)} and {len(two)} rows, of which {len(one.keys() & two.keys())} are in both; a paired comparison needs the "
            "same rows, at least one: the same benchmark, revision and limit."
        )
    keys = sorted(one)
    return paired_bootstrap(np.array([one[key] for key in keys]), np.array([two[key] for key in keys]))


def predictions_in(place: Path) -> dict[str, Path]:
    """Return the predictions files at `place` by the name of their benchmark; of a single file, by the file's own name."""
    if place.is_file():
        return {place.name: place}
    for folder in (place, place / "eval"):
        found = {path.parent.name: path for path in sorted(folder.glob(f"*/{OWN}"))}
        if found:
            return found
    return {}


def score_file(path: Path, benchmark: Benchmark, rules: str | None = None) -> dict[str, Any]:
    """Return the figures of a predictions file in one of the benchmark's formats, under the rules of that name.

    `rules` None takes the benchmark's first: the official ones.
    Raises: PredictionsError for unknown rules, or a file that they cannot score.
    """
    name = rules or next(iter(benchmark.rules))
    if name not in benchmark.rules:
        raise PredictionsError(f"{benchmark.name} has no rules {name!r}; there are {', '.join(benchmark.rules)}.")
    rule = benchmark.rules[name]
    try:
        return rule.figures(name, read_json_lines(path))
    except UserError as error:
        raise PredictionsError(f"{path}, under the rules {name!r} (format {rule.reads}): {error}") from error


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
