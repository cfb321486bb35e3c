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

from mmrm.data.errors import ImageError, RecordError, UserError
from mmrm.data.images import from_data_uri
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
from mmrm.data.storage.row_files import Row, Rows, kind_of, open_rows
from mmrm.data.storage.strict_json import parse_json
from mmrm.data.video import VIDEO_ADVICE, VIDEO_COLUMNS, is_video_name

SHARD = re.compile(r"(.*)-(\d+)-of-(\d+)\b.*")
"""The name of one file of a set on the hub, such as `test-00000-of-00003.parquet`."""
MESSAGE = 1000
"""The most characters of a message about a record. A longer message would repeat the record."""
LONGEST_VALUE = 60
"""The most characters of a value in a message."""
ROWS_BY_HUB_ID = {
    "OpenGVLab/MMPR-v1.2": 3_000_000,
    "allenai/llama-3.1-tulu-3-8b-preference-mixture": 271_409,
    "allenai/olmo-2-1124-7b-preference-mix": 378_341,
    "nvidia/HelpSteer3": 38_459,
    "openbmb/RLAIF-V-Dataset": 83_132,
    "openbmb/UltraFeedback": 63_967,
    "trl-lib/rlaif-v": 83_132,
    "yifanzhang114/R1-Reward-RL": 17_261,
}
"""The rows of public data sets as their cards state them, for plans. The data card of a run has the
number that was really read."""
ODD_VALUES = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""The errors that a value of an unexpected form can raise in `convert`. They make the record
unusable, and do not stop the run."""
RESPONSE_IMAGES = ("chosen_images", "rejected_images")
"""Columns of preference files with images of a response."""
OTHER_MEDIA = ("audio", "audios", "rejected_audios", "rejected_videos")
"""Columns of preference files with sounds, or with videos of a response."""


@dataclass(frozen=True)
class SourceRow:
    """A row of a file, with the methods by which `convert` reads its columns.

    The message of a RecordError that `convert` raises need not name the record: `TableSource` adds
    the identity.
    """

    identity: str
    columns: Row
    images: Images
    slot: int = 0
    """The index of the record that is read, if a row gives several."""
    limits: Limits = DEFAULTS

    def value(self, name: str, kind: type | UnionType) -> Any:
        """Return the value of a column; raise RecordError as `field` does."""
        return field(self.columns, name, kind)

    def optional(self, name: str, kind: type | UnionType) -> Any:
        """Return the value of a column, or None if it is missing or None."""
        if self.columns.get(name) is None:
            return None
        return self.value(name, kind)

    def text(self, name: str) -> str:
        """Return the value of a column of texts."""
        return str(self.value(name, str))

    def label(self, name: str) -> str:
        """Return the value of a column of texts; an empty text if it is missing."""
        return str(self.optional(name, str) or "")

    def number(self, name: str) -> float | None:
        """Return the value of a column of numbers; None if it is missing."""
        value = self.optional(name, int | float)
        return None if value is None else float(value)

    def json(self, name: str, kind: type) -> Any:
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
        """Return the image that a value of a column denotes.

        The value is a path in the image folder, a data URI, bytes, or {"bytes": …, "path": …}.

        Raises:
            ImageError: If the value is anything else or an empty struct, or if the path is not a
                file below the folder.
        """
        if isinstance(value, bytes) and value:
            return value
        if isinstance(value, str) and is_video_name(value):
            raise ImageError(f"{self.identity}: the image {value!r} is a video. {VIDEO_ADVICE}")
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

    def stored_image(self, name: str) -> EncodedImage:
        """Return the image in a column of image structs, which hold the bytes themselves.

        Raises:
            ImageError: If the struct is missing or holds no bytes. Its path is of no use, because
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
        """Return the images that a value denotes: a list, one image, or no image for None.

        An empty text is an error.
        """
        if values is None:
            return ()
        images = values if isinstance(values, list) else [values]
        self.limits.refuse_beyond("images", len(images))
        return tuple(self.image(image) for image in images)


class FilesConfig(SourceConfig):
    """A source that reads files: a local copy if `path` is given, or else the data set `hub`.

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
    """True if rows may name videos, which `convert` shows as frames or leaves out."""
    BRANCH: ClassVar[str | None] = None
    """The revision on the hub if the recipe names none."""

    path: str | None = None
    """A file, or a folder that is a copy of the data set's repository."""
    hub: str | None = None
    """The data set's id on the hub."""
    revision: str | None = None
    """Commit, tag or branch on the hub. Null takes the newest; the data card states which it
    was."""
    limits: Limits = DEFAULTS

    @model_validator(mode="after")
    def _place_given(self) -> FilesConfig:
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
        """The patterns of the files that belong to the source."""
        return [pattern.format(**dict(self)) for pattern in self.FILES]

    @property
    def records_per_row(self) -> int:
        """The number of records that a row may give."""
        return 1

    def input_paths(self) -> dict[str, str]:
        """Return the local path, if one is given, under its key."""
        return {} if self.path is None else {"path": self.path}

    def stated_rows(self) -> tuple[int | None, str]:
        """Return the number of rows that the card of a public data set states.

        If rows have several pairs each, the number of records is known only after reading.
        """
        is_stated = self.is_on_hub and self.hub in ROWS_BY_HUB_ID
        if is_stated and self.records_per_row == 1:
            return ROWS_BY_HUB_ID[str(self.hub)], "stated by its card"
        return super().stated_rows()

    @abstractmethod
    def convert(self, row: SourceRow) -> Preference:
        """Return the record of a row.

        Raises:
            LeftOut: If a rule of the source leaves the row out.
            RecordError: If the row cannot be used.
        """

    def check_columns(self, columns: Row) -> None:
        """Refuse a row with contents that `convert` would not read.

        Raises:
            RecordError: If the row names a video and this source cannot show videos.
        """
        for name in VIDEO_COLUMNS:
            if columns.get(name) and not self.VIDEOS:
                raise RecordError(f"the record holds a video under {name!r}. {VIDEO_ADVICE}")

    def open(self, cache: Path) -> TableSource:
        """Open the files as one table."""
        located = self.locate()
        tables = [path for path in located.files if not is_archive(path)]
        rows = open_rows(tables, cache, self.COLUMNS)
        images = self.open_images(located, cache)
        return TableSource(self, located.revision, rows, images)

    def look(self) -> None:
        """Check the local files by name and kind, without opening them or asking the hub.

        Raises:
            UserError: If files are missing, or of a kind that cannot be read.
        """
        if self.path is not None:
            kind_of([path for path in self.locate().files if not is_archive(path)])

    def open_images(self, located: LocatedFiles, cache: Path) -> Archive | Folder:
        """Return the place of the images that rows name: the data set's own folder."""
        return Folder(located.root)

    def licence_of_files(self) -> str:
        """Return the licence that the data card states."""
        return self.LICENCE

    def locate(self) -> LocatedFiles:
        """Find the source's files, or fetch them from the hub.

        Raises:
            UserError: If there are none, one of a numbered set is missing, one is not a regular
                file, two are the same file by a link, or the hub does not answer.
        """
        if self.path is None:
            revision = self.revision or self.BRANCH
            folder = _fetched(str(self.hub), revision, self.patterns)
            # The hub's cache has one folder for each commit, of the commit's name.
            return LocatedFiles(self._matching_files(folder), folder, folder.name)

        folder = Path(self.path).expanduser()
        if folder.is_file():
            return LocatedFiles([folder], folder.parent, "local")
        if os.path.lexists(folder) and not folder.is_dir():
            require_regular(folder)
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
        """Return the files below a folder whose relative paths match the patterns, sorted."""
        wanted = re.compile("|".join(map(translate, self.patterns)))
        files = list(_files_below(folder))
        matching = [path for path in files if wanted.match(path.relative_to(folder).as_posix())]
        if not matching:
            raise UserError(
                f"source {self.label!r}: {folder} holds no file like {' or '.join(self.patterns)} "
                f"({len(files)} other files). A local copy must have the names of the data set's "
                "repository. Rename the files, or fetch the data set again."
            )
        return sorted(matching)


class ImageFilesConfig(FilesConfig):
    """Files whose rows name images that are elsewhere."""

    images: str | None = None
    """The folder that image paths are relative to and may not leave, or an archive (a zip, also in
    parts, or a tar).

    Null takes the data set's archives of images, or else the folder of the data set or file.
    """

    def input_paths(self) -> dict[str, str]:
        """Return the local paths of the files and of their images under their keys."""
        paths = super().input_paths()
        if self.images is not None:
            paths["images"] = self.images
        return paths

    def look(self) -> None:
        """Check the files as `FilesConfig.look` does, and the images that the recipe names."""
        super().look()
        if self.images is not None:
            check_image_paths(_image_places(self.images))

    def open_images(self, located: LocatedFiles, cache: Path) -> Archive | Folder:
        """Return the folder or archive that the recipe names, or the data set's own."""
        if self.images is not None:
            return open_images(_image_places(self.images), cache)
        archives = [path for path in located.files if is_archive(path)]
        return open_images(archives or [located.root], cache)


class FormatConfig(ImageFilesConfig):
    """Files of anybody's data in a public format."""

    licence: str = "not stated"
    """The licence that the data card states."""

    def licence_of_files(self) -> str:
        """Return the licence that the recipe states."""
        return self.licence

    def check_columns(self, columns: Row) -> None:
        """Refuse videos that cannot be shown, images of a response, sounds and other videos."""
        super().check_columns(columns)
        refuse_media_columns(columns)


def refuse_media_columns(columns: Mapping[str, Any]) -> None:
    """Refuse a row with images of a response, or with sounds or other videos.

    Without this check, the row would be trained on or scored as if they were not there.

    Raises:
        RecordError: If a column of such media is not empty.
    """
    for name in RESPONSE_IMAGES:
        if columns.get(name):
            raise RecordError(
                f"the record holds images of a response under {name!r}. Images in responses are "
                "not supported yet; required is one prompt with all images in `images`, and "
                f"responses of text. Leave the record out, or remove {name!r} if both responses "
                "are about the same images."
            )
    for name in OTHER_MEDIA:
        if columns.get(name):
            raise RecordError(
                f"the record holds audio or video under {name!r}, which models here cannot read; "
                f"required are texts and images. Leave the record out, or remove {name!r} if the "
                "responses do not depend on it."
            )


class TableSource:
    """A source whose records are rows of a table. A row may give one record or several."""

    generated = False

    def __init__(
        self,
        config: FilesConfig,
        revision: str,
        rows: Rows,
        images: Images,
        name: str | None = None,
    ) -> None:
        self.config = config
        self.revision = revision
        self.rows = rows
        self.images = images
        self.name = name or config.label
        self.licence = config.licence_of_files()

    def __len__(self) -> int:
        """Return the number of records that the rows could give."""
        return len(self.rows) * self.config.records_per_row

    def record(self, index: int) -> Preference:
        """Return the record at `index`, counted through the rows and the records of each row.

        Raises:
            LeftOut: If a rule of the source leaves the row out.
            RecordError: If the row cannot be used. The message begins with the record's identity.
        """
        row_index, slot = divmod(index, self.config.records_per_row)
        identity = f"{self.name}:{row_index}"
        if self.config.records_per_row > 1:
            identity = f"{identity}.{slot}"
        try:
            columns = self.rows.row(row_index)
            self.config.check_columns(columns)
            row = SourceRow(identity, columns, self.images, slot, self.config.limits)
            return self.config.limits.check(self.config.convert(row))
        except ImageError as error:  # its message names the record already
            error.args = (str(error)[:MESSAGE],)
            raise
        except RecordError as error:
            error.args = (f"{identity}: {error}"[:MESSAGE],)
            raise
        except ODD_VALUES as error:
            message = (
                f"{identity}: the row cannot be read as {self.config.type} "
                f"({type(error).__name__}: {error})"
            )
            raise RecordError(message[:MESSAGE]) from error

    def fingerprint(self) -> str:
        """Return the fingerprints of the table and of an archive of images, and the settings."""
        parts = [self.rows.fingerprint(), self.config.settings]
        # A folder has no fingerprint, because reading the state of all its files takes minutes.
        if isinstance(self.images, Archive):
            parts.append(self.images.fingerprint())
        return " ".join(parts)


@dataclass(frozen=True)
class LocatedFiles:
    """The files of a source."""

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
    path_by_inode: dict[tuple[int, int], Path] = {}
    for path in paths:
        status = require_regular(path)
        other = path_by_inode.setdefault((status.st_dev, status.st_ino), path)
        if other != path:
            raise UserError(
                f"{other} and {path} are the same file by a link, so its rows would be read twice. "
                "Remove one of the names, or set `path` to the file."
            )


def shards_problem(files: Sequence[Path]) -> str | None:
    """Return the incomplete numbered set of files, such as `NAME-00000-of-00003.parquet`.

    A set is incomplete if a number is missing or occurs twice. None means that all are complete.
    """
    numbers_by_set: dict[tuple[Path, str, str], list[tuple[int, int]]] = {}
    for path in files:
        match = SHARD.fullmatch(path.name)
        if match:
            numbers = numbers_by_set.setdefault((path.parent, match[1], path.suffix), [])
            numbers.append((int(match[2]), int(match[3])))
    for (folder, name, suffix), numbers in numbers_by_set.items():
        total = max(total for _, total in numbers)
        if sorted(numbers) != [(number, total) for number in range(total)]:
            present = ", ".join(f"{number:05}-of-{of:05}" for number, of in sorted(numbers))
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
    """Fetch the files of a data set that match the patterns, and return their folder."""
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


def _image_places(images: str) -> list[Path]:
    """Return the folder or file that `images` names, or the parts of an archive in parts."""
    place = Path(images).expanduser()
    if place.exists():
        return [place]
    return sorted(place.parent.glob(f"{place.name}*")) or [place]


def field(columns: Any, name: str, kind: type | UnionType) -> Any:
    """Return `columns[name]`.

    Raises:
        RecordError: If `columns` is not an object, or the value is missing, not of type `kind`, or
            a number that is larger than every float.
    """
    if not isinstance(columns, dict):
        raise RecordError(
            f"an entry is a {type(columns).__name__}; required is an object with {name!r}."
        )
    if name not in columns:
        raise RecordError(
            f"there is no {name!r}. The columns are {', '.join(map(repr, sorted(columns)))}."
        )
    value = columns[name]
    kinds = get_args(kind) or (kind,)
    # True is an int to Python, and no number here.
    is_wrong_bool = isinstance(value, bool) and bool not in kinds and object not in kinds
    if is_wrong_bool or not isinstance(value, kind):
        required = " or ".join(allowed.__name__ for allowed in kinds)
    elif isinstance(value, int) and abs(value) > sys.float_info.max:
        required = f"a number of at most {sys.float_info.max:.4g}"
    else:
        return value
    text = repr(value)
    if len(text) > LONGEST_VALUE:
        text = text[:LONGEST_VALUE] + "…"
    raise RecordError(f"{name!r} is {type(value).__name__} {text}; required is {required}.")


def _kind(value: Any) -> str:
    """Return the type of a value for a message."""
    if not value:
        return f"an empty {type(value).__name__}"
    return f"a {type(value).__name__}"
