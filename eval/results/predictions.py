"""Predictions on disk: writing, reading and paired comparison.

Each evaluation writes `predictions.jsonl`, this project's own format with everything about each
row, and a file in each official format of the benchmark.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mmrm.data.arrays import Ints
from mmrm.data.errors import PredictionsError
from mmrm.data.storage.files import content_digest, write_json_lines
from mmrm.eval.benchmarks.benchmark import Benchmark, Record
from mmrm.eval.benchmarks.prediction_records import abbreviated, is_number
from mmrm.eval.benchmarks.rows import content_key, read_json_lines
from mmrm.eval.candidates import Example, Scores, Vote
from mmrm.eval.protocol import ProtocolConfig
from mmrm.eval.results.intervals import Difference, cluster_codes, paired_difference
from mmrm.eval.results.result import items_of, outcomes

OWN = "predictions.jsonl"
"""Name of the file in this project's own format."""


def write_predictions(
    examples: Sequence[Example],
    scores: Sequence[Scores],
    benchmark: Benchmark,
    protocol: ProtocolConfig,
    folder: Path,
) -> None:
    """Write `predictions.jsonl`, and `<format>.jsonl` for each of the benchmark's formats.

    The first holds everything that a sweep compares and a report shows of each row. The official
    script of the benchmark reads `official.jsonl`, and R1-Reward's script reads `rewards.jsonl`.
    Existing files are replaced.
    """
    files = {OWN: _own_records(examples, scores, benchmark, protocol)}
    for name, write in benchmark.formats.items():
        files[f"{name}.jsonl"] = write(examples, scores)
    for name, records in files.items():
        write_json_lines(folder / name, records)


def _own_records(
    examples: Sequence[Example],
    scores: Sequence[Scores],
    benchmark: Benchmark,
    protocol: ProtocolConfig,
) -> list[Record]:
    """Return the lines of `predictions.jsonl`."""
    outcome = outcomes(examples, scores, protocol)
    credits = outcome.credit(protocol.ties)
    contents_by_row = contents(examples)
    items = items_of(examples, benchmark.item).tolist()
    # An item is named by the content of its first row.
    item_names: dict[int, str] = {}
    for item, content in zip(items, contents_by_row, strict=True):
        item_names.setdefault(item, content)

    records: list[Record] = []
    for row, (example, row_scores) in enumerate(zip(examples, scores, strict=True)):
        values = None
        if not row_scores.votes:
            values = [_finite(value) for value in row_scores.values]
        records.append(
            {
                "key": example.key,
                "content": contents_by_row[row],
                "item": item_names[items[row]],
                "identity": example.identity,
                "group": example.group,
                "source": example.source,
                "better": example.better,
                "scores": values,
                "votes": [_vote(vote) for vote in row_scores.votes],
                "critiques": _critiques(row_scores),
                "margin": _finite(float(outcome.margin[row])),
                "credit": float(credits[row]),
                "correct": bool(outcome.correct[row]),
                "tie": bool(outcome.tie[row]),
                "unparsable": bool(outcome.unparsable[row]),
            }
        )
    return records


def _vote(vote: Vote) -> Record:
    """Return a vote as a line of predictions holds it."""
    return {"text": vote.text, "first": vote.shown[0], "names": vote.named}


def _critiques(scores: Scores) -> tuple[str, ...] | None:
    """Return the texts that were written about each response before scoring; None without texts."""
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
    """Return the accuracy of a `predictions.jsonl` minus the accuracy of another one.

    Rows are matched by their content, so that copies of a benchmark in different folders have the
    same rows. Files of versions that did not write the content are matched by key. The interval is
    at 95 % for `comparisons` differences together, and treats rows of one item as dependent.

    Args:
        first: The lines of a file.
        second: The lines of another file.
        comparisons: Number of differences that are read together.

    Raises:
        PredictionsError: The files do not hold the same rows, or hold a row twice, or a credit is
        no number from 0 to 1.
    """
    has_content = all("content" in record for record in (*first, *second))
    name = "content" if has_content else "key"
    first_credits = credits_by(first, name)
    second_credits = credits_by(second, name)
    if first_credits.keys() != second_credits.keys() or not first_credits:
        num_common = len(first_credits.keys() & second_credits.keys())
        raise PredictionsError(
            f"{len(first_credits)} and {len(second_credits)} rows, of which {num_common} are in "
            "both. A paired comparison requires the same rows, at least one: the same benchmark, "
            "revision and limit."
        )
    rows = sorted(first_credits)
    items = item_by(first, name)
    return paired_difference(
        np.array([first_credits[row] for row in rows]),
        np.array([second_credits[row] for row in rows]),
        item_codes([items[row] for row in rows]),
        comparisons,
    )


def item_by(records: Sequence[Mapping[str, Any]], by: str = "key") -> dict[str, str]:
    """Return the item of each line of a `predictions.jsonl`, by the line's "key" or "content".

    A line of an earlier version has no item, and counts as a separate item.
    """
    return {record[by]: str(record.get("item", record[by])) for record in records}


def item_codes(items: Sequence[str]) -> Ints:
    """Return the number of each row's item, shape (rows,)."""
    return cluster_codes([(item,) for item in items])


def credits_by(records: Sequence[Mapping[str, Any]], by: str = "key") -> dict[str, float]:
    """Return the credit of each line of a `predictions.jsonl`, by the line's "key" or "content".

    Raises: PredictionsError for a row that occurs twice, or a credit that is no number from 0 to 1.
    """
    credits: dict[str, float] = {}
    for number, record in enumerate(records, start=1):
        name = record.get(by)
        credit = record.get("credit")
        if not isinstance(name, str) or not is_number(credit) or not 0 <= credit <= 1:
            raise PredictionsError(
                f"record {number}: its {by} is {abbreviated(name)} and its credit {abbreviated(credit)}; "
                "required are a text and a number from 0 to 1, as in a predictions.jsonl of this "
                "project."
            )
        if name in credits:
            raise PredictionsError(
                f"record {number}: the row {abbreviated(name)} is there twice, and a comparison would "
                "count only one. Remove one of them."
            )
        credits[name] = float(credit)
    return credits


def contents(examples: Sequence[Example]) -> list[str]:
    """Return a digest of each row's content and of which response is the better one.

    Equal rows get numbers in the order of the file. Unlike `Example.key`, the digest depends
    neither on the paths of the images nor on the order in which the responses are listed.
    """
    count_by_digest = Counter[str]()
    names = []
    for example in examples:
        better_first = (example.responses[example.better], example.responses[1 - example.better])
        images = [content_digest(image) for image in example.images]
        digest = content_key(example.prompt, better_first, images)
        count_by_digest[digest] += 1
        count = count_by_digest[digest]
        names.append(digest if count == 1 else f"{digest}-{count}")
    return names


def predictions_in(place: Path) -> dict[str, Path]:
    """Return the predictions files at `place` by the name of their benchmark.

    A file with another name than `predictions.jsonl` is returned by its own name.

    Args:
        place: A file, a folder of results, a folder with results in `eval/`, or a run folder. In a
            run folder the best checkpoint is taken, or else the last one that was evaluated.
    """
    if place.is_file():
        name = place.parent.name if place.name == OWN else place.name
        return {name: place}
    for folder in (place, place / "eval", place / "best" / "eval", *_evaluations_of(place)):
        files = {path.parent.name: path for path in sorted(folder.glob(f"*/{OWN}"))}
        if files:
            return files
    return {}


def _evaluations_of(run: Path) -> list[Path]:
    """Return the folders of results of a run's checkpoints, the last checkpoint first."""
    folder_by_step = []
    for checkpoint in run.glob("checkpoint-*"):
        step = checkpoint.name.partition("-")[2]
        if step.isdecimal():
            folder_by_step.append((int(step), checkpoint / "eval"))
    return [folder for _, folder in sorted(folder_by_step, reverse=True)]


def _finite(value: float) -> float | None:
    """Return a number, or None in place of infinity and NaN, which JSON does not have."""
    return value if math.isfinite(value) else None
