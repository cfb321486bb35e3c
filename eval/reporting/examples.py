"""The rows of a benchmark as a report shows them: chosen, with their texts, and with small copies of their images."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mmrm.data.config.validation import format_validation_error
from mmrm.data.display.html import thumbnail
from mmrm.data.errors import ImageError, UserError
from mmrm.data.images import decode
from mmrm.data.preference import texts
from mmrm.data.storage.files import digest
from mmrm.eval.benchmarks.preference_folder import PREFERENCE_FOLDER
from mmrm.eval.benchmarks.registry import BenchmarkConfig, load
from mmrm.eval.candidates import Example
from mmrm.eval.reporting.run_content import Outcome
from mmrm.eval.results.result import Result
from mmrm.eval.results.run_folder import HELD_OUT, HELD_OUT_RECORDS

EXAMPLES = 300
"""Rows shown of a benchmark: the worst mistakes, and a draw by content that is the same for every checkpoint."""
BYTES = 8 * 2**20
"""Texts and images of one benchmark on the page; rows that would exceed it are left out, which a note says."""
THUMBNAIL = 448
"""Longest side in pixels of an image on the page."""

KEPT = "key identity group source better scores margin votes critiques"
"""What the page's script reads of a line of predictions.jsonl."""

Row = dict[str, Any]


@dataclass(slots=True)
class ShownRows:
    """The rows of one benchmark on the page; `rows` and `images` go to the page's script as they are."""

    rows: list[Row] = field(default_factory=list)
    images: dict[str, str] = field(default_factory=dict)
    """Name of an image to its data URI; rows of the same image share it."""
    notes: list[str] = field(default_factory=list)

    def worst(self) -> list[Row]:
        """Return the worst mistakes, worst first."""
        return sorted(
            (row for row in self.rows if row["rank"] is not None), key=lambda row: row["rank"]
        )


def shown_rows(
    outcome: Outcome, configs: Sequence[BenchmarkConfig], held_out: Path | None = None
) -> ShownRows:
    """Return the rows of an outcome for the page; what is missing (predictions, benchmark, images) is said in the notes.

    Args:
        outcome: the result and its predictions.
        configs: where the run's recipe says that the benchmarks lie.
        held_out: the file of the run's held-out records.
    """
    shown = ShownRows()
    if not outcome.predictions.is_file():
        shown.notes.append(
            f"No examples: there is no {outcome.predictions.name} beside the result."
        )
        return shown
    lines, examples = outcome.records(), dict[str, Example]()
    try:
        place = location(outcome.result, configs, held_out)
        examples = {example.key: example for example in load(place).examples}
    except ValidationError as error:
        shown.notes.append(_not_loaded(format_validation_error(error)))
    except (ValueError, OSError) as error:  # not in the place any more, no network, another schema
        shown.notes.append(_not_loaded(str(error)))
    worst = {key: rank for rank, key in enumerate(outcome.result.worst, start=1)}
    chosen = sorted(lines, key=lambda line: (worst.get(line["key"], len(worst) + 1), line["key"]))[
        :EXAMPLES
    ]
    fitting, room = dict[str, Row](), BYTES
    for line in chosen:
        row, images = _row(line, examples.get(line["key"]), worst.get(line["key"]))
        room -= len(json.dumps(row)) + sum(
            len(uri) for name, uri in images.items() if name not in shown.images
        )
        if room < 0:
            break
        fitting[line["key"]] = row
        shown.images |= images
    shown.rows = [fitting[line["key"]] for line in lines if line["key"] in fitting]
    count = f"All {len(lines)} rows."
    if len(fitting) < len(lines):
        mistakes = f"the {len(fitting.keys() & worst)} worst mistakes, and a draw by content, the same for every checkpoint."
        count = f"{len(fitting):,} of {len(lines):,} rows: {mistakes}"
    shown.notes.insert(0, count)
    if examples and (absent := sum(line["key"] not in examples for line in chosen)):
        shown.notes.append(
            f"{absent} of them are not in the benchmark as it was loaded here: they have no texts and images."
        )
    return shown


def _not_loaded(reason: str) -> str:
    return f"The rows could not be loaded, so questions, responses and images are missing: {reason}"


def location(
    result: Result, configs: Sequence[BenchmarkConfig], held_out: Path | None = None
) -> BenchmarkConfig:
    """Return where to load a result's rows from.

    Held-out records are read from the file that the run wrote; rows of a benchmark as the run's recipe
    says if they came from there, else by their origin.

    Raises:
        UserError: for held-out records whose file is gone.
        ValidationError: for a benchmark that is not in the table.
    """
    if result.benchmark == HELD_OUT:
        if held_out is None:
            raise UserError(
                f"there is no {HELD_OUT_RECORDS} in the run's folder. The run wrote it at its start; put it back, or "
                "evaluate the checkpoint on your file as a benchmark (--benchmarks preference_folder=FILE)."
            )
        return BenchmarkConfig(name=PREFERENCE_FOLDER.name, location=str(held_out))
    _, at, revision = result.origin.partition("@")
    for config in configs:
        here = Path(result.origin).is_relative_to(config.location)  # the folder, or a file in it
        if config.location == "hub":
            here = result.origin.endswith(f"@{config.revision or 'main'}")
        if config.name == result.benchmark and here:
            return config
    if at and not Path(result.origin).exists():
        return BenchmarkConfig(name=result.benchmark, location="hub", revision=revision)
    return BenchmarkConfig(name=result.benchmark, location=result.origin)


def _row(line: Row, example: Example | None, rank: int | None) -> tuple[Row, dict[str, str]]:
    """Return a row as the page's script reads it, and its images by their names."""
    outcome = next(
        (name for name in ("unparsable", "tie") if line[name]),
        "right" if line["correct"] else "wrong",
    )
    row: Row = {name: line[name] for name in KEPT.split()}
    row |= {
        "outcome": outcome,
        "rank": rank,
        "turns": [],
        "responses": None,
        "images": [],
        "missing": [],
    }
    if example is None:
        return row, {}
    images: dict[str, str] = {}
    for number, image in enumerate(example.images, start=1):
        try:
            uri = thumbnail(decode(image, example.identity), THUMBNAIL)
        except ImageError as error:
            row["missing"].append(f"Image {number} cannot be shown: {error}")
            continue
        images[digest(uri)] = uri
        row["images"].append(digest(uri))
    turns = [{"role": turn["role"], "text": "\n".join(texts([turn]))} for turn in example.prompt]
    return row | {"turns": turns, "responses": list(example.responses)}, images
