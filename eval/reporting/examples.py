"""The rows of a benchmark as a report shows them: chosen, with their texts, and with small copies of their pictures."""

from __future__ import annotations

import base64
import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image

from data.errors import ImageError
from data.images import decode
from data.preference import EncodedImage, Message
from eval.benchmarks.table import BenchmarkConfig, load
from eval.protocol import Example
from eval.reporting.content import Outcome, records
from eval.results.result import Result

EXAMPLES = 300
"""Rows shown of a benchmark: the worst mistakes, and a draw by content that is the same for every checkpoint."""
BYTES = 8 * 2**20
"""Texts and pictures of one benchmark on the page; rows that would exceed it are left out, and that is said."""
THUMBNAIL = 448
"""Longest side in pixels of a picture on the page."""
TINY = 128
"""Longest side of a picture that is shown enlarged, which would show what a lossy format does to it."""

KEPT = ("key", "identity", "group", "source", "better", "scores", "margin", "votes", "critiques")
"""What the page's script reads of a line of predictions.jsonl."""

Row = dict[str, Any]


@dataclass(slots=True)
class ShownRow:
    """The rows of one benchmark on the page; `rows` and `images` go to the page's script as they are."""

    rows: list[Row] = field(default_factory=list)
    images: dict[str, str] = field(default_factory=dict)
    """Name of a picture to its data URI; rows of the same picture share it."""
    notes: list[str] = field(default_factory=list)

    def worst(self) -> list[Row]:
        """Return the worst mistakes, worst first."""
        return sorted((row for row in self.rows if row["rank"] is not None), key=lambda row: row["rank"])


def shown_rows(outcome: Outcome, configs: Sequence[BenchmarkConfig]) -> ShownRow:
    """Return the rows of an outcome for the page; what is missing (predictions, benchmark, pictures) is said in the notes."""
    shown = ShownRow()
    if not outcome.predictions.is_file():
        shown.notes.append(f"No examples: there is no {outcome.predictions.name} beside the result.")
        return shown
    lines = records(outcome)
    examples = _examples(outcome.result, configs, shown)
    worst = {key: rank for rank, key in enumerate(outcome.result.worst, start=1)}
    chosen = sorted(lines, key=lambda record: (worst.get(record["key"], len(worst) + 1), record["key"]))[:EXAMPLES]
    fitting = _fitting(chosen, examples, worst, shown)
    shown.rows = [fitting[record["key"]] for record in lines if record["key"] in fitting]
    shown.notes.insert(0, _count(len(shown.rows), len(lines), sum(key in fitting for key in worst)))
    if examples and (absent := sum(record["key"] not in examples for record in chosen)):
        shown.notes.append(f"{absent} of them are not in the benchmark as it was loaded here: they have no texts and pictures.")
    return shown


def _count(shown: int, total: int, worst: int) -> str:
    if shown == total:
        return f"All {total} rows."
    return f"{shown:,} of {total:,} rows: the {worst} worst mistakes, and a draw by content, the same for every checkpoint."


def _fitting(chosen: Sequence[Row], examples: Mapping[str, Example], worst: Mapping[str, int], shown: ShownRow) -> dict[str, Row]:
    """Return the first rows of `chosen` that fit into BYTES, by key; their pictures go to `shown`."""
    found: dict[str, Row] = {}
    room = BYTES
    for record in chosen:
        row, pictures = _row(record, examples.get(record["key"]), worst.get(record["key"]))
        fresh = {name: picture for name, picture in pictures.items() if name not in shown.images}
        room -= len(json.dumps(row)) + sum(map(len, fresh.values()))
        if room < 0:
            break
        found[record["key"]] = row
        shown.images |= fresh
    return found


def _examples(result: Result, configs: Sequence[BenchmarkConfig], shown: ShownRow) -> dict[str, Example]:
    """Return the benchmark's rows by key; none, with a note, if it cannot be loaded here."""
    try:
        return {example.key: example for example in load(location(result, configs)).examples}
    except (ValueError, OSError) as error:  # not in the place any more, no network, another schema
        shown.notes.append(f"The benchmark could not be loaded, so questions, responses and pictures are missing: {error}")
        return {}


def location(result: Result, configs: Sequence[BenchmarkConfig]) -> BenchmarkConfig:
    """Return where to load a result's rows from: as the run's recipe says if the rows came from there, else by their origin.

    Raises: ValueError for a benchmark that is not in the table.
    """
    for config in configs:
        if config.name == result.benchmark and _comes_from(result.origin, config):
            return config
    _, at, revision = result.origin.partition("@")
    if at and not Path(result.origin).exists():
        return BenchmarkConfig(name=result.benchmark, location="hub", revision=revision)
    return BenchmarkConfig(name=result.benchmark, location=result.origin)


def _comes_from(origin: str, config: BenchmarkConfig) -> bool:
    if config.location == "hub":
        return origin.endswith(f"@{config.revision or 'main'}")
    return Path(origin).is_relative_to(config.location)  # the folder, or a file in it


def _row(record: Mapping[str, Any], example: Example | None, rank: int | None) -> tuple[Row, dict[str, str]]:
    """Return a row as the page's script reads it, and its pictures."""
    row: Row = {name: record[name] for name in KEPT}
    row |= {"outcome": _outcome(record), "rank": rank, "turns": [], "responses": None, "images": [], "missing": []}
    if example is None:
        return row, {}
    pictures: dict[str, str] = {}
    for number, image in enumerate(example.images, start=1):
        try:
            uri = picture(image, example.identity)
        except ImageError as error:
            row["missing"].append(f"Image {number} cannot be shown: {error}")
            continue
        name = hashlib.sha256(uri.encode()).hexdigest()[:16]
        pictures[name] = uri
        row["images"].append(name)
    row |= {"turns": [_turn(message) for message in example.prompt], "responses": list(example.responses)}
    return row, pictures


def _outcome(record: Mapping[str, Any]) -> str:
    return next((name for name in ("unparsable", "tie") if record[name]), "right" if record["correct"] else "wrong")


def _turn(message: Message) -> Row:
    return {"role": message["role"], "text": "\n".join(part["text"] for part in message["content"] if part["type"] == "text")}


def picture(image: EncodedImage, record: str) -> str:
    """Return a small copy of an image as a data URI; raises ImageError naming `record` if it cannot be decoded."""
    small = decode(image, record)
    small.thumbnail((THUMBNAIL, THUMBNAIL), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    small.save(buffer, "WEBP", quality=80, method=2, lossless=max(small.size) <= TINY)
    return "data:image/webp;base64," + base64.b64encode(buffer.getvalue()).decode()
