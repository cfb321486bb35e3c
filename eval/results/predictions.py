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
from mmrm.data.storage.content import written_response
from mmrm.data.storage.files import content_digest, write_json, write_json_lines
from mmrm.eval.benchmarks.benchmark import Benchmark, Record
from mmrm.eval.benchmarks.prediction_records import abbreviated, is_number
from mmrm.eval.benchmarks.rows import content_key, read_json_lines
from mmrm.eval.candidates import STD, BenchmarkRow, RankedExample, Scores, Vote
from mmrm.eval.protocol import ProtocolConfig
from mmrm.eval.results.intervals import Difference, cluster_codes, paired_difference
from mmrm.eval.results.result import items_of, outcomes

OWN = "predictions.jsonl"
"""Name of the file in this project's own format."""


def write_predictions(
    examples: Sequence[BenchmarkRow],
    scores: Sequence[Scores],
    benchmark: Benchmark,
    protocol: ProtocolConfig,
    folder: Path,
) -> None:
    """Write `predictions.jsonl`, and `<format>.jsonl` for each of the benchmark's formats.

    `predictions.jsonl` holds everything that a sweep compares and a report shows of each row. The
    official script of the benchmark reads `official.jsonl`, or the JSON files that
    `benchmark.script_files` names. R1-Reward's script reads `rewards.jsonl`. Existing files are
    replaced.
    """
    records_by_file = {OWN: _own_records(examples, scores, benchmark, protocol)}
    for format_name, make_records in benchmark.formats.items():
        records_by_file[f"{format_name}.jsonl"] = make_records(examples, scores)
    for name, records in records_by_file.items():
        write_json_lines(folder / name, records)
    if benchmark.script_files is not None:
        official_records = records_by_file["official.jsonl"]
        for name, content in benchmark.script_files(official_records).items():
            write_json(folder / name, content)


def _own_records(
    examples: Sequence[BenchmarkRow],
    scores: Sequence[Scores],
    benchmark: Benchmark,
    protocol: ProtocolConfig,
) -> list[Record]:
    """Return the lines of `predictions.jsonl`, one for each example."""
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
        record: Record = {
            "key": example.key,
            "content": contents_by_row[row],
            "item": item_names[items[row]],
            "identity": example.identity,
            "group": example.group,
            "source": example.source,
            **_verdict_columns(example, row_scores),
            "critiques": _critiques(row_scores),
            "margin": _finite_or_none(float(outcome.margin[row])),
            "credit": float(credits[row]),
            "correct": bool(outcome.correct[row]),
            "tie": bool(outcome.tie[row]),
            "unparsable": bool(outcome.unparsable[row]),
        }
        if STD in row_scores.attributes:
            record["std"] = [_finite_or_none(value) for value in row_scores.attributes[STD]]
        records.append(record)
    return records


def _verdict_columns(example: BenchmarkRow, scores: Scores) -> Record:
    """Return the label of a row, and the judge's scores and votes, as `predictions.jsonl` has them.

    The scores of a row of two responses are None if the judge voted. A row with a ranking always
    has scores: for a judge that votes, the share of its comparisons that each response won.
    """
    if isinstance(example, RankedExample):
        return {
            "ranks": list(example.ranks),
            "scores": [_finite_or_none(value) for value in scores.values],
            "votes": [_ranked_vote_record(vote) for vote in scores.votes],
        }
    response_scores = None
    if not scores.votes:
        response_scores = [_finite_or_none(value) for value in scores.values]
    return {
        "better": example.better,
        "scores": response_scores,
        "votes": [_vote_record(vote) for vote in scores.votes],
    }


def _ranked_vote_record(vote: Vote) -> Record:
    """Return a vote about two of several responses in the form of `predictions.jsonl`.

    It has the judge's text, the two responses in the order in which they were shown, and the
    response that the text names.
    """
    return {"text": vote.text, "shown": list(vote.shown), "names": vote.named}


def _vote_record(vote: Vote) -> Record:
    """Return a vote in the form of `predictions.jsonl`.

    It has the judge's text, the response that was shown first, and the response that the text
    names.
    """
    return {"text": vote.text, "first": vote.shown[0], "names": vote.named}


def _critiques(scores: Scores) -> tuple[str, ...] | None:
    """Return the texts that were written about each response before scoring; None without texts."""
    if scores.votes or not scores.texts:
        return None
    return scores.texts


def read_predictions(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a `predictions.jsonl`, without lines that hold null."""
    return [row for row in read_json_lines(path) if row is not None]


def difference(
    first: Sequence[Mapping[str, Any]],
    second: Sequence[Mapping[str, Any]],
    comparisons: int = 1,
) -> Difference:
    """Return the accuracy of a `predictions.jsonl` minus the accuracy of another one.

    Rows are matched by their content, so that copies of a benchmark in different folders have the
    same rows. Files of versions that did not write the content are matched by key. The interval
    treats rows of one item as dependent. Rows belong to one item if they share an image or a
    prompt, or if the benchmark groups them.

    Args:
        first: The lines of a file.
        second: The lines of another file.
        comparisons: Number of differences that are read together; the interval is at 95 % for all.

    Raises:
        PredictionsError: If the files do not hold the same rows, or hold a row twice, or a credit
            is no number from 0 to 1.
    """
    has_content = all("content" in record for record in (*first, *second))
    column = "content" if has_content else "key"
    first_credits = credits_by(first, column)
    second_credits = credits_by(second, column)
    if first_credits.keys() != second_credits.keys() or not first_credits:
        num_common = len(first_credits.keys() & second_credits.keys())
        raise PredictionsError(
            f"{len(first_credits)} and {len(second_credits)} rows, of which {num_common} are in "
            "both. A paired comparison requires the same rows, at least one: the same benchmark, "
            "revision and limit."
        )
    rows = sorted(first_credits)
    items = item_by(first, column)
    return paired_difference(
        np.array([first_credits[row] for row in rows]),
        np.array([second_credits[row] for row in rows]),
        item_codes([items[row] for row in rows]),
        comparisons,
    )


def item_by(records: Sequence[Mapping[str, Any]], by: str = "key") -> dict[str, str]:
    """Return the name of the item that each line of a `predictions.jsonl` belongs to.

    Lines of one item are not independent. A line of an earlier version has no item, and counts as a
    separate item.

    Args:
        records: The lines of the file.
        by: "key" or "content", the column by which lines are named in the result.
    """
    return {record[by]: str(record.get("item", record[by])) for record in records}


def item_codes(items: Sequence[str]) -> Ints:
    """Return the index of each row's item, shape (rows,).

    Rows whose items have the same name have the same index.

    Args:
        items: Name of the item that each row belongs to.
    """
    return cluster_codes([(item,) for item in items])


def credits_by(records: Sequence[Mapping[str, Any]], by: str = "key") -> dict[str, float]:
    """Return the credit of each line of a `predictions.jsonl`, a number from 0 to 1.

    The credit is 1 if the verdict is right and 0 if it is wrong. The protocol decides what a tie
    gets.

    Args:
        records: The lines of the file.
        by: "key" or "content", the column by which lines are named in the result.

    Raises:
        PredictionsError: If a row occurs twice, or a credit is no number from 0 to 1.
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


def contents(examples: Sequence[BenchmarkRow]) -> list[str]:
    """Return a name for each row: a digest of its content and of the ranks of its responses.

    If several rows have the same digest, the second gets the suffix -2, the third -3 and so on.
    Unlike `Example.key`, the digest depends neither on the paths of the images nor on the order in
    which the responses are listed.
    """
    count_by_digest = Counter[str]()
    names = []
    for example in examples:
        media = [content_digest(image) for image in example.images]
        media += [content_digest(video.content) for video in example.videos]
        digest = content_key(example.prompt, _responses_in_order(example), media)
        count_by_digest[digest] += 1
        count = count_by_digest[digest]
        names.append(digest if count == 1 else f"{digest}-{count}")
    return names


def _responses_in_order(example: BenchmarkRow) -> list[str]:
    """Return the responses of a row, the best first, whatever the order is in which it lists them.

    Each response of a row with a ranking is preceded by its rank.
    """
    if isinstance(example, RankedExample):
        written = map(written_response, example.responses)
        ranked = sorted(zip(example.ranks, written, strict=True))
        return [f"{rank}: {response}" for rank, response in ranked]
    better = example.responses[example.better]
    other = example.responses[1 - example.better]
    return [written_response(better), written_response(other)]


def predictions_in(path: Path) -> dict[str, Path]:
    """Return the predictions files at a path by the name of their benchmark.

    A file with another name than `predictions.jsonl` is returned by its own name. The result is
    empty if there are no files.

    Args:
        path: A file, a folder of results, a folder with results in `eval/`, or a run folder. In a
            run folder the best checkpoint is taken, or else the last one that was evaluated.
    """
    if path.is_file():
        name = path.parent.name if path.name == OWN else path.name
        return {name: path}
    best = path / "best" / "eval"
    for folder in (path, path / "eval", best, *_result_folders_of_run(path)):
        file_by_benchmark = {file.parent.name: file for file in sorted(folder.glob(f"*/{OWN}"))}
        if file_by_benchmark:
            return file_by_benchmark
    return {}


def _result_folders_of_run(run: Path) -> list[Path]:
    """Return the folders of results of a run's checkpoints, the last checkpoint first."""
    folder_by_step = []
    for checkpoint in run.glob("checkpoint-*"):
        step = checkpoint.name.partition("-")[2]
        if step.isdecimal():
            folder_by_step.append((int(step), checkpoint / "eval"))
    return [folder for _, folder in sorted(folder_by_step, reverse=True)]


def _finite_or_none(value: float) -> float | None:
    """Return a number, or None in place of infinity and NaN, which JSON does not have."""
    return value if math.isfinite(value) else None
