"""The base of sources whose rows are in files: locating the files, and turning a row into a record.

A source of this kind is a `FilesConfig` with a method `convert`, which makes a `Preference` of a
`SourceRow`. `ImageFilesConfig` is for rows that name images elsewhere, and `FormatConfig` for files
in a public format. Their method `open` returns a `TableSource`.
"""

from __future__ import annotations

import os
import re
import sys
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import translate
from pathlib import Path
from types import UnionType
from typing import Any, ClassVar, get_args

from pydantic import model_validator

from mmrm.data.encoded_video import Video
from mmrm.data.errors import ImageError, RecordError, UserError, guess_at_name
from mmrm.data.images import from_data_uri, from_video_uri
from mmrm.data.limits import DEFAULTS, Limits
from mmrm.data.preference import EncodedImage, Preference
from mmrm.data.regular_files import require_regular
from mmrm.data.sources.shared.source import SourceConfig
from mmrm.data.storage.archives import (
    Archive,
    Folder,
    Images,
    check_image_paths,
    is_archive,
    open_images,
)
from mmrm.data.storage.row_files import Row, Rows, SuccessiveRows, kind_of, open_rows
from mmrm.data.storage.strict_json import parse_json
from mmrm.data.video import VIDEO_COLUMNS, VIDEO_PART_ADVICE, is_video_name

SHARD = re.compile(r"(.*)-(\d+)-of-(\d+)\b.*")
"""The name of one file of a set on the hub, such as `test-00000-of-00003.parquet`."""
MAX_MESSAGE_LENGTH = 1000
"""The most characters of a message about a record. A longer message would repeat the record."""
MAX_VALUE_LENGTH = 60
"""The most characters of a value in a message."""
ROWS_BY_HUB_ID = {
    "OpenGVLab/MMPR-v1.2": 3_000_000,
    "allenai/llama-3.1-tulu-3-8b-preference-mixture": 271_409,
    "allenai/olmo-2-1124-7b-preference-mix": 378_341,
    "nvidia/HelpSteer2": 20_324,
    "nvidia/HelpSteer3": 38_459,
    "openbmb/RLAIF-V-Dataset": 83_132,
    "openbmb/UltraFeedback": 63_967,
    "trl-lib/rlaif-v": 83_132,
    "yifanzhang114/R1-Reward-RL": 17_261,
}
"""The rows of public data sets as their cards state them, for plans. The data card of a run has the
number that was really read."""
CONVERSION_ERRORS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""The errors that a value of an unexpected form can raise in `convert`. They make the record
unusable, and do not stop the run."""
RESPONSE_IMAGES = ("chosen_images", "rejected_images")
"""Columns of preference files with images of a response."""
RESPONSE_VIDEOS = ("chosen_videos", "rejected_videos")
"""Columns of preference files with videos of a response."""
SOUNDS = ("audio", "audios", "rejected_audios")
"""Columns of preference files with sounds."""


@dataclass(frozen=True)
class SourceRow:
    """A row of a file, with the methods by which `FilesConfig.convert` reads its columns.

    A RecordError that these methods raise does not name the record. `TableSource` adds the identity
    to its message.
    """

    identity: str
    columns: Row
    images: Images
    index_in_row: int = 0
    """The index of the record to read, among the records that the row gives."""
    limits: Limits = DEFAULTS

    def value(self, name: str, kind: type | UnionType) -> Any:
        """Return the value of a column.

        Raises:
            RecordError: If the column is missing, or its value is not of type `kind`.
        """
        return field(self.columns, name, kind)

    def optional_value(self, name: str, kind: type | UnionType) -> Any:
        """Return the value of a column of type `kind`, or None if it is missing or None."""
        if self.columns.get(name) is None:
            return None
        return self.value(name, kind)

    def text(self, name: str) -> str:
        """Return the value of a column of texts; raise RecordError if it is missing or no text."""
        return str(self.value(name, str))

    def text_or_empty(self, name: str) -> str:
        """Return the value of a column of texts, or an empty text if it is missing or None."""
        return str(self.optional_value(name, str) or "")

    def optional_number(self, name: str) -> float | None:
        """Return the value of a column of numbers, or None if it is missing or None."""
        value = self.optional_value(name, int | float)
        return None if value is None else float(value)

    def json_value(self, name: str, kind: type) -> Any:
        """Return the parsed value of a column of JSON texts.

        Raises:
            RecordError: If the text is not JSON, or its value is not of type `kind`.
        """
        try:
            value = parse_json(self.text(name))
        except RecordError as error:
            raise RecordError(
                f"{name!r} cannot be read as JSON: {error} It must hold a {kind.__name__}."
            ) from error
        if not isinstance(value, kind):
            raise RecordError(
                f"{name!r} is a JSON {type(value).__name__}; required is a {kind.__name__}."
            )
        return value

    def image(self, value: Any) -> EncodedImage:
        """Return the encoded image, or the path of its file, that a value of a column stands for.

        The value is a path in the image folder, a data URI, bytes, or {"bytes": …, "path": …}.

        Raises:
            ImageError: If the value has none of these forms or is empty, or if the path is not a
                file below the folder.
        """
        if isinstance(value, bytes) and value:
            return value
        if isinstance(value, str) and is_video_name(value):
            raise ImageError(
                f"{self.identity}: the image {value!r} is a video. {VIDEO_PART_ADVICE}"
            )
        if isinstance(value, str) and value.startswith("data:"):
            return from_data_uri(value, self.identity)
        if isinstance(value, str) and value:
            return self.images.find(value, self.identity)
        if isinstance(value, dict) and value.get("bytes"):
            return self.image(value["bytes"])
        if isinstance(value, dict) and value.get("path"):
            return self.image(value["path"])
        raise ImageError(
            f"{self.identity}: an image is {_kind(value)}; required is a path, a data URI, bytes, "
            "or a struct of bytes and path. Correct the value, or remove the row."
        )

    def video(self, value: Any) -> Video:
        """Return the video that a value of a column stands for; it is not opened.

        The value is a path in the image folder, a data URI, bytes, or {"bytes": …, "path": …}.

        Raises:
            ImageError: If the value has none of these forms or is empty, or if the path is not a
                file below the folder.
        """
        if isinstance(value, bytes) and value:
            return Video(value)
        if isinstance(value, str) and value.startswith("data:"):
            return Video(from_video_uri(value, self.identity))
        if isinstance(value, str) and value:
            return Video(self.images.find(value, self.identity))
        if isinstance(value, dict) and value.get("bytes"):
            return self.video(value["bytes"])
        if isinstance(value, dict) and value.get("path"):
            return self.video(value["path"])
        raise ImageError(
            f"{self.identity}: a video is {_kind(value)}; required is the path of a video file, a "
            "data URI, bytes, or a struct of bytes and path. Correct the value, or remove the row."
        )

    def all_videos(self, values: Any) -> tuple[Video, ...]:
        """Return the videos of a value that is a list of videos, one video, or None for no video.

        Raises:
            ImageError: If an entry is no video in the sense of `video`, such as an empty text.
            RecordError: If there are more videos than `limits` allows.
        """
        if values is None:
            return ()
        entries = values if isinstance(values, list) else [values]
        self.limits.refuse_beyond("videos", len(entries))
        return tuple(self.video(entry) for entry in entries)

    def stored_image(self, name: str) -> EncodedImage:
        """Return the image in a column of objects {bytes, path} that hold the image's bytes.

        Raises:
            ImageError: If the object is missing or holds no bytes. Its path is of no use, because
                it names a file on the machine that wrote the data set.
        """
        value = self.columns.get(name)
        if not isinstance(value, dict) or not value.get("bytes"):
            raise ImageError(
                f"{self.identity}: {name!r} is {_kind(value)}; required is an image struct with "
                "its bytes. Fetch the data set with its images, or remove the row."
            )
        return self.image(value["bytes"])

    def all_images(self, values: Any) -> tuple[EncodedImage, ...]:
        """Return the images of a value that is a list of images, one image, or None for no image.

        Raises:
            ImageError: If an entry is no image in the sense of `image`, such as an empty text.
            RecordError: If there are more images than `limits` allows.
        """
        if values is None:
            return ()
        entries = values if isinstance(values, list) else [values]
        self.limits.refuse_beyond("images", len(entries))
        return tuple(self.image(entry) for entry in entries)


class FilesConfig(SourceConfig):
    """A source that reads files: a local copy if `path` is set, or else the data set `hub`.

    A class for one data set sets the class variables below, adds its own recipe keys, and
    implements `convert`.
    """

    FILES: ClassVar[Sequence[str]] = ("*.parquet",)
    """Patterns, for `fnmatch`, of the files' paths inside the data set. `{key}` is replaced by the
    value of a recipe key."""
    COLUMNS: ClassVar[Sequence[str]] = ()
    """Columns that every parquet or Arrow file must have."""
    LICENCE: ClassVar[str] = "not stated"
    VIDEOS: ClassVar[bool] = False
    """True if rows may name videos, which `convert` reads, shows as frames, or leaves out."""
    VIDEO_FRAMES: ClassVar[bool] = False
    """True if `convert` shows a video as its frames, which are in a folder."""
    ROWS_TOGETHER: ClassVar[int] = 1
    """The number of successive rows of the files that `convert` is given as one row. If it is more
    than 1, every column is the list of their values."""
    READS_TABLES: ClassVar[bool] = True
    """True if the rows are those of tables that other programs write, whose format can be
    recognised."""
    BRANCH: ClassVar[str | None] = None
    """The revision to read from the hub if the recipe names none; None takes the newest."""

    path: str | None = None
    """A file, or a folder that is a copy of the data set's repository."""
    hub: str | None = None
    """The data set's id on the hub."""
    revision: str | None = None
    """Commit, tag or branch on the hub. Null takes the newest; the data card states which it
    was."""
    limits: Limits = DEFAULTS

    @model_validator(mode="after")
    def _location_is_valid(self) -> FilesConfig:
        if self.path is None and self.hub is None:
            raise ValueError(
                f"source {self.label!r}: neither `path` nor `hub` is set. Give `path` (a local "
                "file or folder) or `hub` (a data set's id)."
            )
        if self.path is not None and self.revision is not None:
            raise ValueError(
                f"source {self.label!r}: `revision` is {self.revision!r} and `path` is set, and "
                "only a data set on the hub has revisions. Remove one of the two."
            )
        return self

    @property
    def location(self) -> str | None:
        """The local path, or else the hub id."""
        return self.path or self.hub

    @property
    def is_on_hub(self) -> bool:
        """True if no local path is given."""
        return self.path is None

    @property
    def patterns(self) -> list[str]:
        """The `fnmatch` patterns of the source's files: FILES with keys inserted."""
        values_of_keys = dict(self)
        return [pattern.format(**values_of_keys) for pattern in self.FILES]

    @property
    def records_per_row(self) -> int:
        """The largest number of records that a row can give."""
        return 1

    @property
    def required_columns(self) -> Sequence[str]:
        """The names of the columns that every parquet or Arrow file must have."""
        return self.COLUMNS

    def input_paths(self) -> dict[str, str]:
        """Return the local path under its key `path`, or an empty mapping if none is set."""
        return {} if self.path is None else {"path": self.path}

    def stated_rows(self) -> tuple[int | None, str]:
        """Return the number of rows on a public data set's card, and words for where it is from.

        The number is None for other data sets, for local files, and if a row can give several
        records.
        """
        is_stated = self.is_on_hub and self.hub in ROWS_BY_HUB_ID
        if is_stated and self.records_per_row == 1:
            return ROWS_BY_HUB_ID[str(self.hub)] // self.ROWS_TOGETHER, "stated by its card"
        return super().stated_rows()

    @abstractmethod
    def convert(self, row: SourceRow) -> Preference:
        """Return the preference record that is made from the columns of a row.

        Raises:
            LeftOut: If a rule of the source leaves the row out.
            RecordError: If the row cannot be used.
        """

    def check_columns(self, columns: Row) -> None:
        """Refuse a row that names a video, unless this source can show videos.

        Raises:
            RecordError: If a column of videos is not empty and VIDEOS is False.
        """
        for name in (*VIDEO_COLUMNS, *RESPONSE_VIDEOS):
            if columns.get(name) and not self.VIDEOS:
                raise RecordError(
                    f"the record holds a video under {name!r}, and this type of source reads no "
                    "videos. Leave the record out, or write it in the format of ms-swift, "
                    "ShareGPT, TRL or this project."
                )

    def open(self, cache: Path) -> TableSource:
        """Open the source: all its files as one table, and the images that their rows name.

        Derived files, such as memory-mapped tables, are written below the folder `cache`.

        Raises:
            UserError: If a file is missing, cannot be read or lacks a column of COLUMNS.
        """
        located = self.locate()
        tables = [path for path in located.files if not is_archive(path)]
        rows = open_rows(tables, cache, self.required_columns)
        if self.ROWS_TOGETHER > 1:
            rows = SuccessiveRows(rows, self.ROWS_TOGETHER)
        images = self.open_images(located, cache)
        return TableSource(self, located.revision, rows, images)

    def check_local_files(self) -> None:
        """Check that the local files exist and are of a kind that can be read.

        The files are not opened, and the hub is not asked.

        Raises:
            UserError: If files are missing, or of a kind that cannot be read.
        """
        if self.path is not None:
            tables = [path for path in self.locate().files if not is_archive(path)]
            kind_of(tables)  # raises for an unknown kind, or files of several kinds

    def open_images(self, located: LocatedFiles, cache: Path) -> Archive | Folder:
        """Return the folder that images named by the rows are read from: that of the files."""
        return Folder(located.root)

    def licence_of_files(self) -> str:
        """Return the licence that the data card prints for this source."""
        return self.LICENCE

    def locate(self) -> LocatedFiles:
        """Return the source's local files, or fetch them from the hub and return the copies.

        Raises:
            UserError: If there are no files, if a file of a numbered set is missing, if one is not
                a regular file, if two are the same file by a link, or if the hub does not answer.
        """
        if self.path is None:
            revision = self.revision or self.BRANCH
            folder = _fetched(str(self.hub), revision, self.patterns)
            commit = folder.name  # the hub's cache has a folder for each commit
            return LocatedFiles(self._matching_files(folder), folder, commit)

        folder = Path(self.path).expanduser()
        if folder.is_file():
            return LocatedFiles([folder], folder.parent, "local")
        if os.path.lexists(folder) and not folder.is_dir():
            require_regular(folder)  # raises for a broken link, a pipe and the like
        if not folder.is_dir():
            raise UserError(
                f"source {self.label!r}: `path` is {folder}, which is neither a file nor a folder. "
                "Correct `path`, or fetch the data first."
            )
        files = self._matching_files(folder)
        refuse_same_files(files)
        problem = shards_problem(files)
        if problem:
            raise UserError(
                f"source {self.label!r}: {problem} To read one file of a set alone, set `path` to "
                "that file."
            )
        return LocatedFiles(files, folder, "local")

    def _matching_files(self, folder: Path) -> list[Path]:
        """Return the files of the source below a folder, sorted: those that match `patterns`.

        Raises:
            UserError: If there are none.
        """
        any_pattern = re.compile("|".join(map(translate, self.patterns)))
        files = list(_files_below(folder))
        matching = []
        for path in files:
            if any_pattern.match(path.relative_to(folder).as_posix()):
                matching.append(path)
        if not matching:
            raise UserError(
                f"source {self.label!r}: {folder} holds no file like {' or '.join(self.patterns)} "
                f"({len(files)} other files). A local copy must have the names of the data set's "
                "repository. Rename the files, or fetch the data set again."
            )
        return sorted(matching)


class ImageFilesConfig(FilesConfig):
    """A source that reads files whose rows name images in a folder or in an archive."""

    images: str | None = None
    """The folder that image paths are relative to and may not leave, or an archive (a zip, also in
    parts, or a tar).

    Null takes the data set's archives of images, or else the folder of the data set or file.
    """

    def input_paths(self) -> dict[str, str]:
        """Return the local paths of the files and of their images, by the keys `path`, `images`."""
        paths = super().input_paths()
        if self.images is not None:
            paths["images"] = self.images
        return paths

    def check_local_files(self) -> None:
        """Check that the local files, and the images that the recipe names, exist and are readable.

        Raises:
            UserError: If one of them is missing, or of a kind that cannot be read.
        """
        super().check_local_files()
        if self.images is not None:
            check_image_paths(_image_paths(self.images))

    def open_images(self, located: LocatedFiles, cache: Path) -> Archive | Folder:
        """Return the images in the folder or archive that the recipe names.

        Without the key `images`, these are the data set's own archives of images, or else its
        folder.
        """
        if self.images is not None:
            return open_images(_image_paths(self.images), cache)
        archives = [path for path in located.files if is_archive(path)]
        return open_images(archives or [located.root], cache)


class FormatConfig(ImageFilesConfig):
    """A source that reads files in a public format, of any data set."""

    RESPONSES_WITH_IMAGES: ClassVar[bool] = False
    """True if `convert` reads the images of responses."""

    licence: str = "not stated"
    """The licence that the data card states."""

    def licence_of_files(self) -> str:
        """Return the licence that the recipe gives for these files."""
        return self.licence

    def check_columns(self, columns: Row) -> None:
        """Refuse a row with media that `convert` would not read.

        These are videos that the source cannot show, images and videos of a response, and sounds.

        Raises:
            RecordError: If a column of such media is not empty.
        """
        super().check_columns(columns)
        refuse_media_columns(columns)
        if not self.RESPONSES_WITH_IMAGES:
            refuse_response_images(columns)


def refuse_response_images(columns: Mapping[str, Any]) -> None:
    """Refuse a row with images or videos of a response.

    Without this check, the row would be trained on or scored as if these images were not there.

    Raises:
        RecordError: If a column of such images or videos is not empty.
    """
    for name in (*RESPONSE_IMAGES, *RESPONSE_VIDEOS):
        if columns.get(name):
            raise RecordError(
                f"the record holds images of a response under {name!r}, and responses in this "
                "format are texts. Leave the record out, write it in the format of ms-swift, TRL "
                f"or this project, or remove {name!r} if both responses are about the same images."
            )


def refuse_media_columns(columns: Mapping[str, Any]) -> None:
    """Refuse a row with sounds.

    Without this check, the row would be trained on or scored as if these sounds were not there.

    Raises:
        RecordError: If a column of sounds is not empty.
    """
    for name in SOUNDS:
        if columns.get(name):
            raise RecordError(
                f"the record holds audio under {name!r}, which models here cannot read; required "
                f"are texts, images and videos. Leave the record out, or remove {name!r} if the "
                "responses do not depend on it."
            )


class TableSource:
    """An opened source whose records are made from the rows of files.

    A row may give one record or several.
    """

    generated = False

    def __init__(
        self,
        config: FilesConfig,
        revision: str,
        rows: Rows,
        images: Images,
        name: str | None = None,
    ) -> None:
        """Store the opened files of a source.

        Args:
            config: The source's section of the recipe.
            revision: The commit on the hub, or `local`.
            rows: The rows of all files.
            images: The images that the rows name.
            name: The name in the data card and in identities; None takes the name in the recipe.
        """
        self.config = config
        self.revision = revision
        self.rows = rows
        self.images = images
        self.name = name or config.label
        self.licence = config.licence_of_files()

    def __len__(self) -> int:
        """Return the number of records that the rows can give, including those left out later."""
        return len(self.rows) * self.config.records_per_row

    def record(self, index: int) -> Preference:
        """Return the record at `index`.

        If a row can give several records, its records have consecutive indices.

        Raises:
            LeftOut: If a rule of the source leaves the row out.
            RecordError: If the row cannot be used. The message begins with the record's identity.
        """
        row_index, index_in_row = divmod(index, self.config.records_per_row)
        identity = f"{self.name}:{row_index}"
        if self.config.records_per_row > 1:
            identity = f"{identity}.{index_in_row}"
        try:
            columns = self.rows.row(row_index)
            self.config.check_columns(columns)
            row = SourceRow(identity, columns, self.images, index_in_row, self.config.limits)
            return self.config.limits.check(self.config.convert(row))
        except ImageError as error:  # its message names the record already
            error.args = (str(error)[:MAX_MESSAGE_LENGTH],)
            raise
        except RecordError as error:
            error.args = (f"{identity}: {error}"[:MAX_MESSAGE_LENGTH],)
            raise
        except CONVERSION_ERRORS as error:
            message = (
                f"{identity}: the row cannot be read as {self.config.type} "
                f"({type(error).__name__}: {error})"
            )
            raise RecordError(message[:MAX_MESSAGE_LENGTH]) from error

    def fingerprint(self) -> str:
        """Return a text that changes with the files of rows, the settings or an image archive.

        Images in a folder do not change it: reading the state of all its files takes minutes.
        """
        parts = [self.rows.fingerprint(), self.config.settings]
        if isinstance(self.images, Archive):
            parts.append(self.images.fingerprint())
        return " ".join(parts)


@dataclass(frozen=True)
class LocatedFiles:
    """The files of a source, and the folder and revision that they belong to."""

    files: list[Path]
    root: Path
    """The folder that relative paths inside the data set refer to."""
    revision: str
    """The commit on the hub, or `local`."""


def refuse_same_files(paths: Sequence[Path]) -> None:
    """Refuse files that cannot be read, or whose rows would be read twice.

    Raises:
        UserError: If a path is not a regular file, or two paths are the same file by a link.
    """
    first_path_by_inode: dict[tuple[int, int], Path] = {}
    for path in paths:
        status = require_regular(path)
        first_path = first_path_by_inode.setdefault((status.st_dev, status.st_ino), path)
        if first_path != path:
            raise UserError(
                f"{first_path} and {path} are the same file by a link, so its rows would be read "
                "twice. Remove one of the names, or set `path` to the file."
            )


def shards_problem(files: Sequence[Path]) -> str | None:
    """Return an error message about an incomplete set of numbered files, or None if there is none.

    A set consists of files such as `NAME-00000-of-00003.parquet`. It is incomplete if a number is
    missing or occurs twice.
    """
    # (00001, 00003) for the file `NAME-00001-of-00003.parquet`, by its folder, NAME and suffix.
    numbers_by_set: dict[tuple[Path, str, str], list[tuple[int, int]]] = {}
    for path in files:
        match = SHARD.fullmatch(path.name)
        if match:
            numbers = numbers_by_set.setdefault((path.parent, match[1], path.suffix), [])
            numbers.append((int(match[2]), int(match[3])))
    for (folder, name, suffix), numbers in numbers_by_set.items():
        total = max(total for _, total in numbers)
        complete_numbers = [(number, total) for number in range(total)]
        if sorted(numbers) != complete_numbers:
            present = ", ".join(f"{number:05}-of-{count:05}" for number, count in sorted(numbers))
            return (
                f"of {folder / name}-…{suffix} there are the parts {present}, and each of {total} "
                "must be there once. Otherwise rows are missing, or read twice. Fetch the missing "
                "parts, and remove the parts of another set."
            )
    return None


def _files_below(folder: Path) -> Iterator[Path]:
    """Yield the paths of all files in a folder and its subfolders."""
    for subfolder, _, names in os.walk(folder):
        for name in names:
            yield Path(subfolder) / name


def _fetched(hub: str, revision: str | None, patterns: Sequence[str]) -> Path:
    """Fetch the files of a data set on the hub that match the patterns, and return their folder.

    Raises:
        UserError: If the hub does not answer, or has no such data set or revision.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        folder = snapshot_download(
            hub, repo_type="dataset", revision=revision, allow_patterns=list(patterns)
        )
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise UserError(
            f"the data set {hub} cannot be fetched from the hub ({type(error).__name__}: {error}). "
            "Check the id, the revision, the network and (for a gated set) the login, or set "
            "`path` to a local copy."
        ) from error
    return Path(folder)


def _image_paths(images: str) -> list[Path]:
    """Return the paths for the key `images`: one folder or file, or all parts of an archive.

    An archive in parts is given by the beginning of their names, such as `images.zip`. A path that
    does not exist is returned, too; opening it raises an error.
    """
    path = Path(images).expanduser()
    if path.exists():
        return [path]
    return sorted(path.parent.glob(f"{path.name}*")) or [path]


def field(columns: Any, name: str, kind: type | UnionType) -> Any:
    """Return the value `columns[name]` of a row, which has to be of type `kind`.

    Raises:
        RecordError: If `columns` is not an object, or the value is missing, not of type `kind`, or
            an integer that is larger than every float.
    """
    if not isinstance(columns, dict):
        raise RecordError(
            f"an entry is a {type(columns).__name__}; required is an object with {name!r}."
        )
    if name not in columns:
        raise RecordError(
            f"there is no {name!r}.{guess_at_name(name, columns)} The columns are "
            f"{', '.join(map(repr, sorted(columns)))}."
        )
    value = columns[name]
    kinds = get_args(kind) or (kind,)
    # In Python, True is also an int. Here it counts as a number only if `kind` allows bool or all.
    is_unwanted_bool = isinstance(value, bool) and bool not in kinds and object not in kinds
    if is_unwanted_bool or not isinstance(value, kind):
        required = " or ".join(allowed.__name__ for allowed in kinds)
    elif isinstance(value, int) and abs(value) > sys.float_info.max:
        required = f"a number of at most {sys.float_info.max:.4g}"
    else:
        return value
    text = repr(value)
    if len(text) > MAX_VALUE_LENGTH:
        text = text[:MAX_VALUE_LENGTH] + "…"
    raise RecordError(f"{name!r} is {type(value).__name__} {text}; required is {required}.")


def _kind(value: Any) -> str:
    """Return the type of a value in words: "null", "a list" or "an empty str", for a message."""
    if value is None:
        return "null"
    if not value:
        return f"an empty {type(value).__name__}"
    return f"a {type(value).__name__}"
