"""Predictions on disk: our own file with everything, the official formats, and the scoring of files made elsewhere."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data.errors import PredictionsError, UserError
from data.storage.files import whole_file
from eval.benchmarks.benchmark import Benchmark
from eval.benchmarks.rows import read_json_lines
from eval.protocol import Example, ProtocolConfig, Verdict, Vote
from eval.results.intervals import Difference, paired_bootstrap
from eval.results.outcomes import outcomes

OWN = "predictions.jsonl"


def write_predictions(
    examples: Sequence[Example], verdicts: Sequence[Verdict], benchmark: Benchmark, protocol: ProtocolConfig, folder: Path
) -> list[Path]:
    """Write the predictions and return the files: `predictions.jsonl` and `<format>.jsonl` for each of the benchmark's formats.

    The official script of the benchmark runs on `official.jsonl`, R1-Reward's on `rewards.jsonl`. A file that is
    there is replaced whole.
    """
    files = {OWN: own_records(examples, verdicts, protocol)}
    files |= {f"{name}.jsonl": write(examples, verdicts) for name, write in benchmark.formats.items()}
    for name, records in files.items():
        with whole_file(folder / name) as file:
            file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    return [folder / name for name in files]


def read_predictions(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a `predictions.jsonl`."""
    return [row for row in read_json_lines(path) if row is not None]


def own_records(examples: Sequence[Example], verdicts: Sequence[Verdict], protocol: ProtocolConfig) -> list[dict[str, Any]]:
    """Return one record a row with everything that is known of it: what a sweep compares and a report shows."""
    found = outcomes(examples, verdicts, protocol)
    credits = found.credit(protocol.ties)
    return [
        {
            "key": example.key,
            "identity": example.identity,
            "group": example.group,
            "source": example.source,
            "better": example.better,
            "scores": None if verdict.scores is None else [_finite(score) for score in verdict.scores],
            "votes": [{"text": vote.text, "first": vote.first, "names": vote.names} for vote in verdict.votes],
            "critiques": verdict.critiques,
            "margin": _finite(float(found.margin[row])),
            "credit": float(credits[row]),
            "correct": bool(found.correct[row]),
            "tie": bool(found.tie[row]),
            "unparsable": bool(found.unparsable[row]),
        }
        for row, (example, verdict) in enumerate(zip(examples, verdicts, strict=True))
    ]


def verdict_of(record: Mapping[str, Any]) -> Verdict:
    """Return the verdict that a line of `predictions.jsonl` holds."""
    scores = record["scores"] and [math.nan if score is None else score for score in record["scores"]]
    return Verdict(
        scores=None if scores is None else (scores[0], scores[1]),
        votes=tuple(Vote(vote["text"], vote["first"], vote["names"]) for vote in record["votes"]),
        critiques=None if record["critiques"] is None else tuple(record["critiques"]),
    )


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


def score_file(path: Path, benchmark: Benchmark, rules: str | None = None) -> dict[str, Any]:
    """Return the figures of a predictions file in one of the benchmark's formats, under the rules of that name.

    `rules` None takes the benchmark's first: the official ones.
    Raises: PredictionsError for unknown rules, or a file that they cannot score.
    """
    name = next(iter(benchmark.rules)) if rules is None else rules
    if name not in benchmark.rules:
        raise PredictionsError(f"{benchmark.name} has no rules {name!r}; there are {', '.join(benchmark.rules)}.")
    rule = benchmark.rules[name]
    try:
        return rule.figures(name, read_json_lines(path))
    except UserError as error:
        raise PredictionsError(f"{path}, under the rules {name!r} (format {rule.reads}): {error}") from error


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
