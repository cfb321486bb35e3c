"""Recognition of the format of a file: which type of source reads it.

Each type is tried on rows that are spread over the file. The type that reads the most columns is
taken, if no other type reads as many and makes different records of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from mmrm.data.config.registry import installed_rows
from mmrm.data.config.validation import format_validation_error
from mmrm.data.errors import ImageError, LeftOut, RecordError, UserError
from mmrm.data.preference import EncodedImage, Preference, texts
from mmrm.data.preparation.row_index import LEFT_OVER_MARKER
from mmrm.data.sources.registry import SOURCES
from mmrm.data.sources.shared.file_source import ODD_VALUES, FilesConfig, SourceRow
from mmrm.data.sources.shared.source import SourceConfig
from mmrm.data.storage.row_files import Rows
from mmrm.data.video import COLUMNS

TRIED = 32
"""Number of rows on which each type is tried."""
FILES = {
    name: kind
    for name, kind in installed_rows(SOURCES).items()
    if issubclass(kind, FilesConfig) and kind.has_responses
}
"""Sources of pairs in files, by their `type`."""
FORMATS = tuple(name for name, kind in FILES.items() if kind.model_fields["hub"].default is None)
"""Types of general formats. They are preferred to the type of a public data set if both make the
same records."""


@dataclass
class Fit:
    """The result of trying one type of source on a file."""

    settings: dict[str, str]
    """The source's keys in a recipe."""
    rows: int = 0
    """Number of tried rows that the type reads, or leaves out by its own rule."""
    columns: int = 0
    """Number of columns that it reads, summed over the rows."""
    clean: int = 0
    """The same, without records that have an image marker left over in their texts."""
    unread: dict[str, None] = field(default_factory=dict)
    """Columns that have a value in some row and are read in no row; the values are not used."""
    records: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    """The prompt, responses and margin of each row that was read, by the number of the row."""
    problem: str = ""
    """The error message about the first row that the type cannot read."""

    @property
    def type(self) -> str:
        """The type of the source."""
        return self.settings["type"]

    @property
    def line(self) -> str:
        """The source in the form of a recipe's entry."""
        settings = ", ".join(f"{key}: {in_yaml(value)}" for key, value in self.settings.items())
        return f"{{{settings}}}"

    @property
    def rank(self) -> tuple[int, int]:
        """The order of types whose records differ; the largest is the best."""
        return self.clean, self.columns


class _Columns(dict[str, Any]):
    """A row that records in `read` which of its columns are read."""

    def __init__(self, row: Any) -> None:
        super().__init__(row)
        self.read: dict[str, None] = {}

    def __getitem__(self, name: str) -> Any:
        self.read[name] = None
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        if super().get(name) is None:
            return default
        return self[name]


class _Anywhere:
    """Images of any name; whether they exist is checked later."""

    def find(self, name: str, record: str) -> EncodedImage:
        return Path(name)


def in_yaml(text: str) -> str:
    """Return a text in YAML, quoted if necessary."""
    if re.fullmatch(r"[\w./-]+", text):
        return text
    return json.dumps(text)


def configured(**settings: str | None) -> FilesConfig:
    """Return the source with the given `type`, `path` and further keys; None leaves a key out.

    Raises: UserError if `type` is no source that reads files, or a key is wrong.
    """
    given = {key: value for key, value in settings.items() if value is not None}
    kind = FILES.get(given["type"])
    if kind is None:
        raise UserError(
            f"{given['path']}: no files are of type {given['type']!r}. Required is one of "
            f"{', '.join(FILES)}."
        )
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        raise UserError(
            f"{given['path']} as `{given['type']}`: {format_validation_error(error)}"
        ) from error


def candidates(path: str, images: str | None = None) -> Iterator[tuple[Fit, FilesConfig]]:
    """Yield the types of source that find files of theirs at `path`, by the names of the files."""
    for name in FILES:
        for split in (None, ""):
            settings = {"type": name, "path": path}
            if split is not None:
                settings["split"] = split
            candidate = _candidate(settings, images)
            if candidate is not None:
                yield candidate
                break


def _candidate(settings: dict[str, str], images: str | None) -> tuple[Fit, FilesConfig] | None:
    """Return the source with these settings; None if it finds no files.

    The folder of the images is `images`, or else the folder of the file. A recipe has to name it
    only in the first case, and for a type without a default.
    """
    place = Path(settings["path"]).expanduser()
    fields = FILES[settings["type"]].model_fields
    folder = images or None
    if folder is None and "images" in fields:
        folder = str(place.parent if place.is_file() else place)
    try:
        config = configured(**settings | {"images": folder})
        config.check_local_files()
    except UserError:
        return None
    if folder is not None and (images or fields["images"].is_required()):
        settings = settings | {"images": folder}
    return Fit(settings), config


def recognise(path: str, cache: Path, images: str | None = None) -> Fit:
    """Return the type of source that reads the file or folder `path` best.

    Args:
        path: The file or folder.
        cache: The folder for derived files.
        images: The folder of its images, if it is another one.

    Raises:
        UserError: No type reads half of the rows, or two types read them equally well and make
        different records of them.
    """
    if not Path(path).expanduser().exists():
        raise UserError(f"{path}: there is no such file or folder. Correct the path.")
    fits: list[Fit] = []
    problems: dict[str, str] = {}
    for fit, config in candidates(path, images):
        try:
            _try(config, config.open(cache).rows, fit)
        except UserError as error:
            fit.problem = str(error)
        if fit.rows:
            fits.append(fit)
        problems[fit.type] = fit.problem
    if not fits:
        reasons = "\n".join(f"- {name}: {problems[name]}" for name in FORMATS if name in problems)
        raise UserError(
            f"{path} is in no known format. Required is one of those in docs/data_formats.md. The "
            "following keeps it from being one of the general formats:\n"
            f"{reasons or '- there is no file ending in .jsonl, .json, .parquet or .arrow'}"
        )

    best = max(fits, key=lambda fit: fit.rank)
    lines: dict[str, None] = {}
    for fit in fits:
        is_equally_good = fit.rank == best.rank and _make_different_records(fit, best)
        if fit is best or is_equally_good:
            lines[_general(fit, fits).line] = None
    if len(lines) > 1:
        formats = "".join(f"\n- {line}" for line in lines)
        raise UserError(
            f"{path} fits several formats, which make different records of it. Name the one that "
            f"is meant, in a recipe by its line, for a benchmark by `type=`:{formats}"
        )
    return _general(best, fits)


def _general(fit: Fit, fits: list[Fit]) -> Fit:
    """Return the first of FORMATS among `fits` that makes the same records as `fit`; else `fit`."""
    for other in fits:
        is_as_clean = bool(other.clean) == bool(fit.clean)
        if other.type in FORMATS and is_as_clean and not _make_different_records(other, fit):
            return other
    return fit


def advice(config: SourceConfig, cache: Path) -> str:
    """Return the line to write in place of a source that could not be read.

    The result is empty if the source reads no files, or its files are in no other known format.
    """
    if not isinstance(config, FilesConfig) or config.path is None:
        return ""
    try:
        fit = recognise(config.path, cache)
    except UserError:
        return ""
    if fit.type == config.type:
        return ""
    return (
        f"\n{config.path} is in the format `{fit.type}`, not `{config.type}`. Write in a recipe: "
        f"- {fit.line}\nFor a benchmark: preference_folder={config.path},type={fit.type}"
    )


def _make_different_records(first: Fit, second: Fit) -> bool:
    """Return True if the records of two types differ in a row, or no row was read by both."""
    both = first.records.keys() & second.records.keys()
    if not both:
        return True
    return any(first.records[number] != second.records[number] for number in both)


def _try(config: FilesConfig, rows: Rows, fit: Fit) -> None:
    """Set in `fit` how the type reads the rows; `fit.rows` is 0 if it reads less than half of them.

    Raises: UserError if there are no rows.
    """
    if not len(rows):
        raise UserError("there are no rows.")
    num_tried = min(TRIED, len(rows))
    tried = np.unique(np.linspace(0, len(rows) - 1, num_tried).astype(np.int64)).tolist()
    read: dict[str, None] = {}
    for number in tried:
        record: Preference | None = None
        try:
            columns = _Columns(rows.row(number))
            record = _convert(config, number, columns)
        except LeftOut:
            pass
        except ODD_VALUES as error:
            # Frames of videos cannot be found without their folder.
            is_missing_frame = isinstance(error, ImageError) and config.VIDEOS
            if not is_missing_frame:
                fit.problem = fit.problem or str(error)
                continue
        filled = {name for name, value in columns.items() if value is not None}
        num_read = len(filled & columns.read.keys())
        read |= columns.read
        fit.unread |= dict.fromkeys(sorted(filled))
        fit.rows += 1
        fit.columns += num_read
        if record is not None:
            fit.records[number] = (record.prompt, record.chosen, record.rejected, record.margin)
            if not any(map(LEFT_OVER_MARKER.search, texts(record.prompt))):
                fit.clean += num_read
    fit.unread = {name: None for name in fit.unread if name not in read}
    if 2 * fit.rows < len(tried):
        fit.rows = 0


def _convert(config: FilesConfig, number: int, columns: _Columns) -> Preference:
    """Return the record that a type makes of a row; raise RecordError if the row holds a video."""
    if not config.VIDEOS and any(columns.get(name) for name in COLUMNS):
        raise RecordError("the record holds a video.")
    row = SourceRow(f"row {number}", columns, _Anywhere(), limits=config.limits)
    return config.convert(row)
