"""The rows of a benchmark as a report shows them, with their texts and small copies of images.

A video is shown as a strip of its frames.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mmrm.data.config.validation import format_validation_error
from mmrm.data.display.html import thumbnail
from mmrm.data.encoded_video import Video
from mmrm.data.errors import ImageError, UserError
from mmrm.data.film_strip import film_strip
from mmrm.data.images import decode
from mmrm.data.preference import EncodedImage, texts
from mmrm.data.storage.files import digest
from mmrm.eval.benchmarks.preference_folder import PREFERENCE_FOLDER
from mmrm.eval.benchmarks.registry import BenchmarkConfig, load
from mmrm.eval.candidates import BenchmarkRow
from mmrm.eval.reporting.run_content import JsonRow, Outcome
from mmrm.eval.results.result import Result
from mmrm.eval.results.run_folder import HELD_OUT, HELD_OUT_RECORDS

EXAMPLES = 300
"""Rows shown of a benchmark.

These are the worst mistakes, and a draw by content that is the same for every checkpoint.
"""
BYTES = 8 * 2**20
"""Largest size of the texts and images of one benchmark on the page."""
THUMBNAIL = 448
"""Longest side in pixels of an image on the page."""

KEPT = "key identity group source better ranks scores margin votes critiques probabilities"
"""Keys of a line of predictions.jsonl that the page's script reads. A line of a pair has `better`,
and a line of a row with a ranking has `ranks`."""


@dataclass(slots=True)
class ShownRows:
    """The rows of one benchmark that the page shows, for its template and its script."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    images: dict[str, str] = field(default_factory=dict)
    """Data URIs of images and film strips by name; rows with the same image share it."""
    notes: list[str] = field(default_factory=list)

    def worst(self) -> list[dict[str, Any]]:
        """Return the worst mistakes, worst first."""
        mistakes = [row for row in self.rows if row["rank"] is not None]
        return sorted(mistakes, key=lambda row: int(row["rank"]))


def shown_rows(
    outcome: Outcome, configs: Sequence[BenchmarkConfig], held_out: Path | None = None
) -> ShownRows:
    """Return the rows of an outcome for the page, with notes about missing rows.

    The page has at most EXAMPLES rows and BYTES bytes of a benchmark.

    Args:
        outcome: The result and its predictions.
        configs: The benchmarks of the run's recipe, with their locations.
        held_out: The file of the run's held-out records; None if there is no such file.
    """
    shown = ShownRows()
    if not outcome.predictions.is_file():
        name = outcome.predictions.name
        shown.notes.append(f"No examples: there is no {name} beside the result.")
        return shown
    lines = outcome.records()
    examples = _examples_by_key(outcome.result, configs, held_out, shown.notes)
    ranks = {key: rank for rank, key in enumerate(outcome.result.worst, start=1)}
    after_mistakes = len(ranks) + 1
    # The key is a digest of the row's content, so its order is a draw that ignores the judge.
    ordered = sorted(lines, key=lambda line: (ranks.get(line["key"], after_mistakes), line["key"]))
    drawn_lines = ordered[:EXAMPLES]
    row_by_key: dict[str, dict[str, Any]] = {}
    num_bytes = 0
    for line in drawn_lines:
        key = line["key"]
        row, images = _row(line, examples.get(key), ranks.get(key))
        new_images = [uri for name, uri in images.items() if name not in shown.images]
        num_bytes += len(json.dumps(row)) + sum(map(len, new_images))
        if num_bytes > BYTES:
            break
        row_by_key[key] = row
        shown.images |= images
    # The page lists the rows in the order of the file.
    shown.rows = [row_by_key[line["key"]] for line in lines if line["key"] in row_by_key]
    num_mistakes = len(row_by_key.keys() & ranks)
    shown.notes.insert(0, _count_note(len(row_by_key), len(lines), num_mistakes))
    num_absent = sum(line["key"] not in examples for line in drawn_lines)
    if examples and num_absent:
        shown.notes.append(
            f"{num_absent} of them are not in the benchmark as it was loaded here: "
            "they have no texts and images."
        )
    return shown


def _count_note(num_shown: int, num_rows: int, num_mistakes: int) -> str:
    """Return a note with the number of rows that are shown, and the way they were chosen."""
    if num_shown == num_rows:
        return f"All {num_rows} rows."
    return (
        f"{num_shown:,} of {num_rows:,} rows: the {num_mistakes} worst mistakes, "
        "and a draw by content, the same for every checkpoint."
    )


def _examples_by_key(
    result: Result, configs: Sequence[BenchmarkConfig], held_out: Path | None, notes: list[str]
) -> dict[str, BenchmarkRow]:
    """Return the rows of a benchmark by key.

    If they cannot be loaded, the mapping is empty, and the reason is added to `notes`.

    Args:
        result: The result that was computed from the rows.
        configs: The benchmarks of the run's recipe, with their locations.
        held_out: The file of the run's held-out records; None if there is no such file.
        notes: Gets a sentence with the reason.
    """
    try:
        config = rows_location(result, configs, held_out)
        return {example.key: example for example in load(config).examples}
    except ValidationError as error:
        reason = format_validation_error(error)
    except (ValueError, OSError) as error:  # data that were moved, no network, another schema
        reason = str(error)
    notes.append(
        f"The rows could not be loaded, so questions, responses and images are missing: {reason}"
    )
    return {}


def rows_location(
    result: Result, configs: Sequence[BenchmarkConfig], held_out: Path | None = None
) -> BenchmarkConfig:
    """Return the benchmark and the location from which the rows of a result can be loaded.

    The location of held-out records is the file that the run wrote. The rows of a benchmark are
    loaded as the run's recipe configures it if they came from there, else from the origin that the
    result states.

    Args:
        result: The result that was computed from the rows.
        configs: The benchmarks of the run's recipe.
        held_out: The file of the run's held-out records; None if there is no such file.

    Raises:
        UserError: For held-out records whose file does not exist.
        ValidationError: For a benchmark that is not in the registry.
    """
    if result.benchmark == HELD_OUT:
        if held_out is None:
            raise UserError(
                f"there is no {HELD_OUT_RECORDS} in the run's folder. The run wrote it at its "
                "start; put it back, or evaluate the checkpoint on your file as a benchmark "
                "(--benchmarks preference_folder=FILE)."
            )
        return BenchmarkConfig(name=PREFERENCE_FOLDER.name, location=str(held_out))
    # The origin of rows on the hub is `repository@revision`.
    _, at_sign, revision = result.origin.partition("@")
    for config in configs:
        # The origin is the folder of the recipe, or a file in it.
        is_origin = Path(result.origin).is_relative_to(config.location)
        if config.location == "hub":
            is_origin = result.origin.endswith(f"@{config.revision or 'main'}")
        if config.name == result.benchmark and is_origin:
            return config
    if at_sign and not Path(result.origin).exists():
        return BenchmarkConfig(name=result.benchmark, location="hub", revision=revision)
    return BenchmarkConfig(name=result.benchmark, location=result.origin)


def _row(
    line: JsonRow, example: BenchmarkRow | None, rank: int | None
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a row for the page's script, and data URIs of its images and film strips by name.

    Args:
        line: The line of predictions.jsonl.
        example: The row of the benchmark; None if it is not there.
        rank: The row's rank among the worst mistakes, from 1; None for other rows.
    """
    row: dict[str, Any] = {name: line[name] for name in KEPT.split() if name in line}
    row |= {
        "outcome": _outcome(line),
        "rank": rank,
        "turns": [],
        "responses": None,
        "images": [],
        "videos": [],
        "response_images": [],
        "response_videos": [],
        "missing": [],
    }
    if example is None:
        return row, {}
    images: dict[str, str] = {}
    row["images"] = _added_thumbnails(example.images, "Image", example.identity, images, row)
    row["videos"] = _added_strips(example.videos, "Video", example.identity, images, row)
    for turn in example.prompt:
        row["turns"].append({"role": turn["role"], "text": "\n".join(texts([turn]))})
    row["responses"] = [response.text for response in example.responses]
    for number, response in enumerate(example.responses, start=1):
        title = f"Image of response {number}:"
        names = _added_thumbnails(response.images, title, example.identity, images, row)
        row["response_images"].append(names)
        title = f"Video of response {number}:"
        names = _added_strips(response.videos, title, example.identity, images, row)
        row["response_videos"].append(names)
    return row, images


def _added_thumbnails(
    encoded_images: Sequence[EncodedImage],
    title: str,
    identity: str,
    thumbnails: dict[str, str],
    row: dict[str, Any],
) -> list[str]:
    """Add thumbnails of images to a mapping, and return the names of those that can be shown.

    Args:
        encoded_images: The images of the prompt or of a response.
        title: The beginning of a message about an image, before its number.
        identity: The name of the benchmark's row.
        thumbnails: The mapping, from names to data URIs.
        row: The row of the page. A message about each image that cannot be shown is added to it.
    """
    names = []
    for number, image in enumerate(encoded_images, start=1):
        try:
            uri = thumbnail(decode(image, identity), THUMBNAIL)
        except ImageError as error:
            row["missing"].append(f"{title} {number} cannot be shown: {error}")
            continue
        name = digest(uri)
        thumbnails[name] = uri
        names.append(name)
    return names


def _added_strips(
    videos: Sequence[Video],
    title: str,
    identity: str,
    thumbnails: dict[str, str],
    row: dict[str, Any],
) -> list[str]:
    """Add film strips of videos to a mapping, and return the names of those that can be shown.

    The arguments are those of `_added_thumbnails`.
    """
    names = []
    for number, video in enumerate(videos, start=1):
        try:
            uri = film_strip(video, identity)
        except UserError as error:  # a damaged video, or no PyAV
            row["missing"].append(f"{title} {number} cannot be shown: {error}")
            continue
        name = digest(uri)
        thumbnails[name] = uri
        names.append(name)
    return names


def _outcome(line: JsonRow) -> str:
    """Return the outcome of a line of predictions.jsonl, in the words of the page's script."""
    if line["unparsable"]:
        return "unparsable"
    if line["tie"]:
        return "tie"
    return "right" if line["correct"] else "wrong"
