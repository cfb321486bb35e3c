"""Which type of source reads somebody's file: each is tried on rows spread over it, and the columns that it reads are counted."""

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
"""Rows on which each type is tried."""
FILES = {
    name: kind
    for name, kind in installed_rows(SOURCES).items()
    if issubclass(kind, FilesConfig) and kind.has_responses
}
FORMATS = tuple(name for name, kind in FILES.items() if kind.model_fields["hub"].default is None)
"""Types of anybody's data, which go before that of a public data set where both make the same records."""


@dataclass
class Fit:
    """How one type of source reads the rows that were tried."""

    settings: dict[str, str]
    """The source's keys in a recipe."""
    rows: int = 0
    """Rows that it reads, or leaves out by a rule of its own."""
    columns: int = 0
    """Columns that it reads, summed over the rows."""
    clean: int = 0
    """The same without the records in whose texts a place holder for an image is left over."""
    unread: dict[str, None] = field(default_factory=dict)
    """Columns that hold something and are read in no row."""
    records: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    problem: str = ""
    """What is wrong with the first row that it cannot read."""

    @property
    def type(self) -> str:
        """The type of the source."""
        return self.settings["type"]

    @property
    def line(self) -> str:
        """The source as it is written in a recipe."""
        return (
            "{"
            + ", ".join(f"{key}: {in_yaml(value)}" for key, value in self.settings.items())
            + "}"
        )

    @property
    def rank(self) -> tuple[int, int]:
        """What decides between types whose records differ."""
        return self.clean, self.columns


class _Columns(dict[str, Any]):
    """A row that notes which of its columns are read."""

    def __init__(self, row: Any) -> None:
        super().__init__(row)
        self.read: dict[str, None] = {}

    def __getitem__(self, name: str) -> Any:
        self.read[name] = None
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if super().get(name) is not None else default


class _Anywhere:
    """Images of any name: whether they are there is found out later."""

    def find(self, name: str, record: str) -> EncodedImage:
        return Path(name)


def in_yaml(text: str) -> str:
    """Return a text as it is written in a recipe."""
    return text if re.fullmatch(r"[\w./-]+", text) else json.dumps(text)


def configured(**settings: str | None) -> FilesConfig:
    """Return the source that `type` and further keys name; raise UserError unless they are right and it reads files."""
    given = {key: value for key, value in settings.items() if value is not None}
    kind = FILES.get(given["type"])
    if kind is None:
        raise UserError(
            f"{given['path']}: no files are of type {given['type']!r}; required is one of {', '.join(FILES)}."
        )
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        raise UserError(
            f"{given['path']} as `{given['type']}`: {format_validation_error(error)}"
        ) from error


def candidates(path: str, images: str | None = None) -> Iterator[tuple[Fit, FilesConfig]]:
    """Yield the types that find files of theirs at `path`, by the names of the files."""
    place = Path(path).expanduser()
    folder = str(place.parent if place.is_file() else place)
    for name, kind in FILES.items():
        for more in ({}, {"split": ""}):
            settings = {"type": name, "path": path, **more}
            named = images or (folder if "images" in kind.model_fields else None)
            if named is not None and (images or kind.model_fields["images"].is_required()):
                settings["images"] = named
            try:
                config = configured(**settings | {"images": named})
                config.look()
            except UserError:
                continue
            yield Fit(settings), config
            break


def recognise(path: str, cache: Path, images: str | None = None) -> Fit:
    """Return how the file or folder `path` is read best; `images` is the folder of its images, if it is another one.

    Raises: UserError if no type reads half of the rows, or two read them alike well and make different records of them.
    """
    if not Path(path).expanduser().exists():
        raise UserError(f"{path}: there is no such file or folder.")
    found, problems = [], {}
    for fit, config in candidates(path, images):
        try:
            _try(config, config.open(cache).rows, fit)
        except UserError as error:
            fit.problem = str(error)
        if fit.rows:
            found.append(fit)
        problems[fit.type] = fit.problem
    if not found:
        known = "\n".join(f"- {name}: {problems[name]}" for name in FORMATS if name in problems)
        raise UserError(
            f"{path} is in no known format. Required is one of those in docs/data_formats.md; what keeps it from being one of "
            f"these:\n{known or '- there is no file ending in .jsonl, .json, .parquet or .arrow'}"
        )
    best = max(found, key=lambda fit: fit.rank)
    lines = {
        _general(fit, found).line: None
        for fit in found
        if fit is best or (fit.rank == best.rank and _differ(fit, best))
    }
    if len(lines) > 1:
        raise UserError(
            f"{path} fits several formats, which make different records of it. Name the one that is meant, in a recipe by its "
            "line, for a benchmark by `type=`:" + "".join(f"\n- {line}" for line in lines)
        )
    return _general(best, found)


def _general(fit: Fit, found: list[Fit]) -> Fit:
    """Return the first of FORMATS that makes the same records as `fit`; else `fit`."""
    return next(
        (
            one
            for one in found
            if one.type in FORMATS and bool(one.clean) == bool(fit.clean) and not _differ(one, fit)
        ),
        fit,
    )


def advice(config: SourceConfig, cache: Path) -> str:
    """Return what to write in place of a source that could not be read, if its files are in another format; else nothing."""
    if not isinstance(config, FilesConfig) or config.path is None:
        return ""
    try:
        found = recognise(config.path, cache)
    except UserError:
        return ""
    if found.type == config.type:
        return ""
    return (
        f"\n{config.path} is in the format `{found.type}`, not `{config.type}`. Write in a recipe: - {found.line}\n"
        f"For a benchmark: preference_folder={config.path},type={found.type}"
    )


def _differ(one: Fit, other: Fit) -> bool:
    both = one.records.keys() & other.records.keys()
    return not both or any(one.records[number] != other.records[number] for number in both)


def _try(config: FilesConfig, rows: Rows, fit: Fit) -> None:
    """Note in `fit` how the type reads rows; a fit that reads less than half of them loses its rows."""
    if not len(rows):
        raise UserError("there are no rows.")
    tried = np.unique(
        np.linspace(0, len(rows) - 1, min(TRIED, len(rows))).astype(np.int64)
    ).tolist()
    read: dict[str, None] = {}
    for number in tried:
        record: Preference | None = None
        try:
            columns = _Columns(rows.row(number))
            if not config.VIDEOS and any(columns.get(name) for name in COLUMNS):
                raise RecordError("the record holds a video.")
            record = config.convert(
                SourceRow(f"row {number}", columns, _Anywhere(), limits=config.limits)
            )
        except LeftOut:
            pass
        except ODD_VALUES as error:
            if not (
                isinstance(error, ImageError) and config.VIDEOS
            ):  # frames, which only a folder of images has
                fit.problem = fit.problem or str(error)
                continue
        held = {name for name, value in columns.items() if value is not None}
        read |= columns.read
        fit.unread |= dict.fromkeys(sorted(held))
        fit.rows += 1
        fit.columns += len(held & columns.read.keys())
        if record is not None:
            fit.records[number] = record.prompt, record.chosen, record.rejected, record.margin
            fit.clean += len(held & columns.read.keys()) * (
                not any(map(LEFT_OVER_MARKER.search, texts(record.prompt)))
            )
    fit.unread = {name: None for name in fit.unread if name not in read}
    if 2 * fit.rows < len(tried):
        fit.rows = 0
