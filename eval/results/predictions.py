"""Predictions on disk: our own file with everything, and the official formats; what two files say of the same rows."""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mmrm.data.arrays import Ints
from mmrm.data.errors import PredictionsError
from mmrm.data.storage.files import content_digest, whole_file
from mmrm.eval.benchmarks.benchmark import Benchmark, Record
from mmrm.eval.benchmarks.prediction_records import is_number, shown
from mmrm.eval.benchmarks.rows import content_key, read_json_lines
from mmrm.eval.candidates import Example, Scores, Vote
from mmrm.eval.protocol import ProtocolConfig
from mmrm.eval.results.intervals import Difference, cluster_codes, paired_difference
from mmrm.eval.results.result import items_of, outcomes

OWN = "predictions.jsonl"


def write_predictions(
    examples: Sequence[Example],
    scores: Sequence[Scores],
    benchmark: Benchmark,
    protocol: ProtocolConfig,
    folder: Path,
) -> None:
    """Write the predictions: `predictions.jsonl` and `<format>.jsonl` for each of the benchmark's formats.

    The first holds everything that is known of each row: what a sweep compares and a report shows. The official script of
    the benchmark runs on `official.jsonl`, R1-Reward's on `rewards.jsonl`. A file that is there is replaced whole.
    """
    found = outcomes(examples, scores, protocol)
    credits = found.credit(protocol.ties)
    contents_by_row = contents(examples)
    items = items_of(examples, benchmark.item)
    first_row_by_item = {int(item): row for row, item in reversed(list(enumerate(items)))}
    own: list[Record] = [
        {
            "key": example.key,
            "content": content,
            "item": contents_by_row[first_row_by_item[int(items[row])]],
            "identity": example.identity,
            "group": example.group,
            "source": example.source,
            "better": example.better,
            "scores": None if judged.votes else [_finite(value) for value in judged.values],
            "votes": list(map(_vote, judged.votes)),
            "critiques": _critiques(judged),
            "margin": _finite(float(found.margin[row])),
            "credit": float(credits[row]),
            "correct": bool(found.correct[row]),
            "tie": bool(found.tie[row]),
            "unparsable": bool(found.unparsable[row]),
        }
        for row, (example, judged, content) in enumerate(
            zip(examples, scores, contents_by_row, strict=True)
        )
    ]
    files = {
        OWN: own,
        **{f"{name}.jsonl": write(examples, scores) for name, write in benchmark.formats.items()},
    }
    for name, records in files.items():
        with whole_file(folder / name) as file:
            file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def _vote(vote: Vote) -> Record:
    """Return a vote as a line of predictions holds it."""
    return {"text": vote.text, "first": vote.shown[0], "names": vote.named}


def _critiques(scores: Scores) -> tuple[str, ...] | None:
    """Return what was written about each response before it was scored; None if nothing was."""
    if scores.votes or not scores.texts:
        return None
    return scores.texts


def read_predictions(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a `predictions.jsonl`."""
    return [row for row in read_json_lines(path) if row is not None]


def difference(
    first: Sequence[Mapping[str, Any]],
    second: Sequence[Mapping[str, Any]],
    comparisons: int = 1,
) -> Difference:
    """Return how much more accurate the first of two `predictions.jsonl` (lists of its lines) is on the same rows.

    Rows are matched by what they show, so that two copies of a benchmark in different folders are one; files written before
    that was noted, by key. The interval is at 95 % for as many `comparisons` together, and counts rows of one item as
    dependent.
    Raises: PredictionsError if they do not hold the same rows, a row twice, or a credit that is none.
    """
    by = (
        "content"
        if all("content" in record for records in (first, second) for record in records)
        else "key"
    )
    one, two = credits_by(first, by), credits_by(second, by)
    if one.keys() != two.keys() or not one:
        raise PredictionsError(
            f"{len(one)} and {len(two)} rows, of which {len(one.keys() & two.keys())} are in both; a paired comparison needs the "
            "same rows, at least one: the same benchmark, revision and limit."
        )
    keys = sorted(one)
    items = item_by(first, by)
    return paired_difference(
        np.array([one[key] for key in keys]),
        np.array([two[key] for key in keys]),
        item_codes([items[key] for key in keys]),
        comparisons,
    )


def item_by(records: Sequence[Mapping[str, Any]], by: str = "key") -> dict[str, str]:
    """Return the item of each line of a `predictions.jsonl` by its key, or by what the row shows (`content`).

    A line of an earlier version names none, and is taken for an item of its own.
    """
    return {record[by]: str(record.get("item", record[by])) for record in records}


def item_codes(items: Sequence[str]) -> Ints:
    """Return the number of each row's item, shape (rows,)."""
    return cluster_codes([(item,) for item in items])


def credits_by(records: Sequence[Mapping[str, Any]], by: str = "key") -> dict[str, float]:
    """Return the credit of each line of a `predictions.jsonl` by its key, or by what the row shows (`content`).

    Raises: PredictionsError for a row that occurs twice, or a credit that is not a number from 0 to 1.
    """
    found: dict[str, float] = {}
    for line, record in enumerate(records, start=1):
        name, credit = record.get(by), record.get("credit")
        if not isinstance(name, str) or not is_number(credit) or not 0 <= credit <= 1:
            raise PredictionsError(
                f"record {line}: its {by} is {shown(name)} and its credit {shown(credit)}; required are a text and a number "
                "from 0 to 1, as a predictions.jsonl of this project holds them."
            )
        if name in found:
            raise PredictionsError(
                f"record {line}: the row {shown(name)} is there twice; a comparison would count only one."
            )
        found[name] = float(credit)
    return found


def contents(examples: Sequence[Example]) -> list[str]:
    """Return a digest of what each row shows and which response is the better one; equal rows are numbered in file order.

    Unlike `Example.key` it does not depend on where the images lie, or on the order in which the responses are listed.
    """
    seen, found = Counter[str](), []
    for example in examples:
        pair = example.responses[example.better], example.responses[1 - example.better]
        name = content_key(example.prompt, pair, list(map(content_digest, example.images)))
        seen[name] += 1
        found.append(name if seen[name] == 1 else f"{name}-{seen[name]}")
    return found


def predictions_in(place: Path) -> dict[str, Path]:
    """Return the predictions files at `place` by the name of their benchmark; of a file with another name, by that.

    `place` is a file, a folder of results or one that has it in `eval/`, or a run: then its best checkpoint is meant, else the
    last one that was evaluated.
    """
    if place.is_file():
        return {place.parent.name if place.name == OWN else place.name: place}
    steps = [
        (int(path.name.partition("-")[2]), path)
        for path in place.glob("checkpoint-*")
        if path.name[11:].isdecimal()
    ]
    for folder in (
        place,
        place / "eval",
        place / "best" / "eval",
        *(path / "eval" for _, path in sorted(steps, reverse=True)),
    ):
        found = {path.parent.name: path for path in sorted(folder.glob(f"*/{OWN}"))}
        if found:
            return found
    return {}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
