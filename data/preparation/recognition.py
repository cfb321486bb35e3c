"""Recognition of the format of a file: which type of source reads it.

Each type is tried on rows that are spread over the file. A type that ignores a filled column of
MEANINGFUL_COLUMNS, such as `images`, loses to a type that reads it. Of the remaining types the one
that reads the most columns is taken, if no other type reads as many and makes different records of
them.
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
from mmrm.data.errors import ImageError, LeftOut, RecordError, UserError, guess_at_name
from mmrm.data.preference import EncodedImage, Preference, texts
from mmrm.data.preparation.row_index import LEFT_OVER_MARKER
from mmrm.data.sources.registry import SOURCES
from mmrm.data.sources.shared.file_source import CONVERSION_ERRORS, FilesConfig, SourceRow
from mmrm.data.sources.shared.source import SourceConfig
from mmrm.data.storage.row_files import Rows
from mmrm.data.video import VIDEO_COLUMNS

MAX_TRIED_ROWS = 32
"""Number of rows on which each type is tried."""
FILE_SOURCES = {
    name: source_class
    for name, source_class in installed_rows(SOURCES).items()
    if issubclass(source_class, FilesConfig)
    and source_class.has_responses
    and source_class.READS_TABLES
}
"""The classes of sources that read pairs from tables, by their `type`."""
FORMATS = tuple(
    name
    for name, source_class in FILE_SOURCES.items()
    if source_class.model_fields["hub"].default is None
)
"""Types of general formats, which belong to no data set on the hub. They are preferred to the type
of a public data set if both make the same records."""
MEANINGFUL_COLUMNS = frozenset(
    {
        *("images", "image", "system", "margin"),
        *("chosen_critique", "rejected_critique", "rationale"),
    }
)
"""Names of columns that have one meaning in all general formats. A record without their values is
another record, so a type that does not read them is the wrong one if another type does. Columns of
videos are absent: a type that cannot show videos refuses their rows."""

SEPARATORS = {".csv": ",", ".tsv": "\t"}
"""The separators of columns in the files that cannot be read but can be converted, by suffix."""


@dataclass
class Fit:
    """The result of trying one type of source on some rows of a file."""

    settings: dict[str, str]
    """The source's keys in a recipe, such as `type` and `path`."""
    num_rows: int = 0
    """Number of tried rows that the type reads, or leaves out by its own rule."""
    num_columns: int = 0
    """Number of columns that it reads, summed over these rows."""
    num_clean_columns: int = 0
    """The same without rows whose prompt has another data set's image marker left in its texts."""
    unread: dict[str, None] = field(default_factory=dict)
    """Names of columns that have a value in some row and are read in no row. The dictionary is an
    ordered set: its values are not used."""
    num_ignored: int = 0
    """Number of MEANINGFUL_COLUMNS that are filled in some tried row and read in no row. Rows that
    the type cannot read count, too: a type without images cannot read a text with `<image>`."""
    records: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    """The prompt, responses, ranks and margin of each row that was read, by the number of the
    row."""
    problem: str = ""
    """The error message about the first row that the type cannot read, or empty. If a column that
    the row lacks is like one that is not read, the message ends with that guess."""
    num_columns_of_problem: int = 0
    """Number of columns that the type had read of that row before it failed."""

    @property
    def type(self) -> str:
        """The type of the source."""
        return self.settings["type"]

    @property
    def line(self) -> str:
        """The source on one line of YAML, as it is written under `data.sources` of a recipe."""
        settings = ", ".join(f"{key}: {in_yaml(value)}" for key, value in self.settings.items())
        return f"{{{settings}}}"

    @property
    def rank(self) -> tuple[int, int, int]:
        """The value by which types that make different records are compared; the largest wins."""
        return -self.num_ignored, self.num_clean_columns, self.num_columns


class _ObservedRow(dict[str, Any]):
    """A row, by column, that remembers which columns are read, and which are missing.

    `read_names` has the names of the columns that were read. `missing_names` has the names that
    were requested and are not in the row. Both are ordered sets: their values are not used.
    """

    def __init__(self, row: Any) -> None:
        super().__init__(row)
        self.read_names: dict[str, None] = {}
        self.missing_names: dict[str, None] = {}

    def __contains__(self, name: object) -> bool:
        is_present = super().__contains__(name)
        if not is_present:
            self.missing_names[str(name)] = None
        return is_present

    def __getitem__(self, name: str) -> Any:
        self.read_names[name] = None
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        if name not in self or super().__getitem__(name) is None:
            return default
        return self[name]

    def guess_at_missing_name(self) -> str:
        """Return a sentence about a missing column that is like a column that is not read.

        The sentence is empty if there is no such column.
        """
        unread_names = [name for name in self if name not in self.read_names]
        for name in self.missing_names:
            guess = guess_at_name(name, unread_names)
            if guess:
                return f"There is no column {name!r}.{guess}"
        return ""


class _UncheckedImages:
    """Images of any name. Only the columns of a file are tried, so its images need not exist."""

    def find(self, name: str, record: str) -> EncodedImage:
        return Path(name)


def in_yaml(text: str) -> str:
    """Return `text` as it is written in YAML: with quotation marks if it needs some."""
    if re.fullmatch(r"[\w./-]+", text):
        return text
    return json.dumps(text)


def files_config(**settings: str | None) -> FilesConfig:
    """Return the section of a recipe for a source that reads files, with the given keys.

    Args:
        settings: The keys of the source in a recipe, with at least `type` and `path`. A key whose
            value is None is left out.

    Raises: UserError if `type` is no source that reads files, or a key is wrong.
    """
    keys = {key: value for key, value in settings.items() if value is not None}
    source_class = FILE_SOURCES.get(keys["type"])
    if source_class is None:
        raise UserError(
            f"{keys['path']}: no files are of type {keys['type']!r}. Required is one of "
            f"{', '.join(FILE_SOURCES)}."
        )
    try:
        return source_class.model_validate(keys)
    except ValidationError as error:
        raise UserError(
            f"{keys['path']} as `{keys['type']}`: {format_validation_error(error)}"
        ) from error


def types_with_files(path: str, images: str | None = None) -> Iterator[tuple[Fit, FilesConfig]]:
    """Yield the types of source that could read `path`, judged by the names of its files.

    For each type there is a `Fit`, which holds the source's keys and no result yet, and the
    source's section of a recipe with these keys.

    Args:
        path: The file or folder.
        images: The folder of its images, if it is another one.
    """
    for name in FILE_SOURCES:
        settings = {"type": name, "path": path}
        # Some types read files of one split, such as train. If there are none, any split will do.
        for settings_to_try in (settings, settings | {"split": ""}):
            candidate = _candidate(settings_to_try, images)
            if candidate is not None:
                yield candidate
                break


def _candidate(settings: dict[str, str], images: str | None) -> tuple[Fit, FilesConfig] | None:
    """Return a source with the given settings: a `Fit` without a result yet, and its section.

    The result is None if no files at the path have the names that the type expects.

    Args:
        settings: The source's keys `type` and `path`, and perhaps `split`.
        images: The folder of the images; None takes the folder of the file.
    """
    path = Path(settings["path"]).expanduser()
    fields = FILE_SOURCES[settings["type"]].model_fields
    image_folder = images or None
    if image_folder is None and "images" in fields:
        image_folder = str(path.parent if path.is_file() else path)
    try:
        config = files_config(**settings | {"images": image_folder})
        config.check_local_files()
    except UserError:
        return None
    # A recipe has to name the folder only if it was given, or if the type has no default for it.
    if image_folder is not None and (images or fields["images"].is_required()):
        settings = settings | {"images": image_folder}
    return Fit(settings), config


def recognise(path: str, cache: Path, images: str | None = None) -> Fit:
    """Return the type of source that reads the file or folder `path` best, as its `Fit`.

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
    failed_fits: list[Fit] = []
    for fit, config in types_with_files(path, images):
        try:
            _fill(fit, config, config.open(cache).rows)
        except UserError as error:
            fit.problem = str(error)
        if fit.num_rows:
            fits.append(fit)
        else:
            failed_fits.append(fit)
    if not fits:
        raise UserError(_unknown_format(path, failed_fits))

    best = max(fits, key=lambda fit: fit.rank)
    best_lines: dict[str, None] = {}  # an ordered set
    for fit in fits:
        is_rival = fit.rank == best.rank and _make_different_records(fit, best)
        if fit is best or is_rival:
            best_lines[_general(fit, fits).line] = None
    if len(best_lines) > 1:
        formats = "".join(f"\n- {line}" for line in best_lines)
        raise UserError(
            f"{path} fits several formats, which make different records of it. Name the one that "
            f"is meant, in a recipe by its line, for a benchmark by `type=`:{formats}"
        )
    return _general(best, fits)


def _unknown_format(path: str, failed_fits: list[Fit]) -> str:
    """Return the message about a file or folder that no type of source reads.

    The general formats are listed with their problems. The format that read the most columns before
    it failed is the first.

    Args:
        path: The file or folder.
        failed_fits: The fits of the types that were tried. There are none of general formats if
            these cannot open the files.
    """
    failed_formats = [fit for fit in failed_fits if fit.type in FORMATS]
    if not failed_formats:
        return _unreadable_files(path)
    failed_formats.sort(key=lambda fit: fit.num_columns_of_problem, reverse=True)
    reasons = "".join(f"\n- {fit.type}: {fit.problem}" for fit in failed_formats)
    message = (
        f"{path} is in no known format. Required is one of those in docs/data_formats.md. The "
        f"following keeps it from being one of the general formats, the nearest first:{reasons}"
    )
    if "Did you mean" in reasons:
        return message
    return (
        f"{message}\nIf the file holds a prompt and two responses under other names, give these "
        f"names in a recipe, such as - {{type: project, path: {in_yaml(path)}, columns: {{prompt: "
        "question, chosen: better, rejected: worse}}"
    )


def _unreadable_files(path: str) -> str:
    """Return the message about a path at which no file can be opened as a table of rows."""
    suffix = Path(path).suffix.lower()
    if suffix in SEPARATORS:
        converted = str(Path(path).with_suffix(".jsonl"))
        return (
            f"{path} is a {suffix} file. Required is JSON lines, JSON, parquet or Arrow. Convert "
            f'it:\npython -c "import pandas; pandas.read_csv({path!r}, sep={SEPARATORS[suffix]!r})'
            f".to_json({converted!r}, orient='records', lines=True)\""
        )
    try:
        files_config(type="project", path=path).check_local_files()
    except UserError as error:
        return f"{path} cannot be read as one file, or one folder, of preference records. {error}"
    return f"{path} has no file ending in .jsonl, .json, .parquet or .arrow. Give such a file."


def _general(fit: Fit, fits: list[Fit]) -> Fit:
    """Return the first general format that makes the same records as `fit`, or else `fit` itself.

    Args:
        fit: The fit of any type of source.
        fits: All fits, among which general formats are looked for.
    """
    for candidate in fits:
        is_as_clean = bool(candidate.num_clean_columns) == bool(fit.num_clean_columns)
        has_same_records = not _make_different_records(candidate, fit)
        if candidate.type in FORMATS and is_as_clean and has_same_records:
            return candidate
    return fit


def format_advice(config: SourceConfig, cache: Path) -> str:
    """Return advice to append to the error message about a source that could not be read.

    If the source's files are in another known format, the advice names that format and the line to
    write in a recipe. Otherwise, or if the source reads no local files, the advice is empty.

    Args:
        config: The source's section of the recipe.
        cache: The folder for derived files.
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
    rows_read_by_both = first.records.keys() & second.records.keys()
    if not rows_read_by_both:
        return True
    return any(first.records[row] != second.records[row] for row in rows_read_by_both)


def _fill(fit: Fit, config: FilesConfig, rows: Rows) -> None:
    """Try a type of source on some of the rows, and write the result into `fit`.

    `fit.num_rows` is 0 afterwards if the type reads less than half of the tried rows.

    Args:
        fit: The fit of the type, without a result yet.
        config: The section of a recipe for the source.
        rows: The rows of the file; up to MAX_TRIED_ROWS of them are tried.

    Raises: UserError if there are no rows.
    """
    if not len(rows):
        raise UserError("there are no rows.")
    num_tried = min(MAX_TRIED_ROWS, len(rows))
    tried_rows = np.unique(np.linspace(0, len(rows) - 1, num_tried).astype(np.int64)).tolist()
    names_with_value: dict[str, None] = {}  # an ordered set
    names_read: dict[str, None] = {}
    filled_names: set[str] = set()  # also of rows that cannot be read
    tried_names: set[str] = set()
    for number in tried_rows:
        record: Preference | None = None
        row = _ObservedRow({})
        try:
            row = _ObservedRow(rows.row(number))
            filled_names |= {name for name, value in row.items() if value}
            record = _convert(config, number, row)
        except LeftOut:
            pass  # the type reads this row, and leaves it out by its own rule
        except CONVERSION_ERRORS as error:
            # Frames of videos cannot be found without their folder. Such a row counts as read.
            is_missing_frame = isinstance(error, ImageError) and config.VIDEO_FRAMES
            if not is_missing_frame:
                if not fit.problem:
                    fit.problem = _problem_of_row(error, row)
                    fit.num_columns_of_problem = len(row.read_names)
                continue
        finally:
            tried_names |= row.read_names.keys()
        names_with_value_in_row = {name for name, value in row.items() if value is not None}
        num_columns_read = len(names_with_value_in_row & row.read_names.keys())
        names_with_value |= dict.fromkeys(sorted(names_with_value_in_row))
        names_read |= row.read_names
        fit.num_rows += 1
        fit.num_columns += num_columns_read
        if record is not None:
            fit.records[number] = (record.prompt, record.responses, record.ranks, record.margin)
            if not any(map(LEFT_OVER_MARKER.search, texts(record.prompt))):
                fit.num_clean_columns += num_columns_read
    fit.unread = {name: None for name in names_with_value if name not in names_read}
    fit.num_ignored = len((filled_names & MEANINGFUL_COLUMNS) - tried_names)
    if 2 * fit.num_rows < len(tried_rows):
        fit.num_rows = 0


def _problem_of_row(error: Exception, row: _ObservedRow) -> str:
    """Return the message of an error about a row, with a guess at the column that was meant."""
    guess = row.guess_at_missing_name()
    if "Did you mean" in str(error) or not guess:
        return str(error)
    return f"{error} {guess}"


def _convert(config: FilesConfig, number: int, columns: _ObservedRow) -> Preference:
    """Return the record that a type of source makes of a row.

    Args:
        config: The section of a recipe for the source.
        number: Number of the row in the file.
        columns: The row, by column.

    Raises:
        LeftOut: A rule of the source leaves the row out.
        RecordError: The row has another form, or holds a video that the type cannot show.
    """
    if not config.VIDEOS:
        has_video = any(columns.get(name) for name in VIDEO_COLUMNS)
        if has_video:
            raise RecordError("the record holds a video.")
    row = SourceRow(f"row {number}", columns, _UncheckedImages(), limits=config.limits)
    return config.convert(row)
