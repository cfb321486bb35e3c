"""Sources whose rows lie in files: where these are (in a local copy, or on the hub), and a row on its way to a record."""

from __future__ import annotations

import os
import re
import sys
from abc import abstractmethod
from collections.abc import Mapping, Sequence
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
    check_places,
    is_archive,
    open_images,
)
from mmrm.data.storage.row_files import Row, Rows, kind_of, open_rows
from mmrm.data.storage.strict_json import parse_json
from mmrm.data.video import ADVICE, COLUMNS, is_video_name

SHARD = re.compile(r"(.*)-(\d+)-of-(\d+)\b.*")
"""The name of one file of a set, as the hub writes them: `test-00000-of-00003.parquet`."""
MESSAGE = 1000
"""Characters of a message about a record: more would be the record itself."""
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
"""What a value of a form that an adapter did not think of can raise: it costs its record, not the run."""


@dataclass(frozen=True)
class SourceRow:
    """A row on its way to a record. A RecordError raised over it need not name the record: its source does that."""

    identity: str
    columns: Row
    images: Images
    slot: int = 0
    """Which record of the row is asked for, where a row gives several."""
    limits: Limits = DEFAULTS

    def value(self, name: str, kind: type | UnionType) -> Any:
        """Return a column as `field` does."""
        return field(self.columns, name, kind)

    def optional(self, name: str, kind: type | UnionType) -> Any:
        """Return a column as `field` does, or None where it is missing or empty."""
        return None if self.columns.get(name) is None else self.value(name, kind)

    def text(self, name: str) -> str:
        """Return a column of text."""
        return str(self.value(name, str))

    def label(self, name: str) -> str:
        """Return a column of text that may be missing, for grouping."""
        return str(self.optional(name, str) or "")

    def number(self, name: str) -> float | None:
        """Return a column of numbers that may be missing."""
        found = self.optional(name, int | float)
        return None if found is None else float(found)

    def json(self, name: str, kind: type) -> Any:
        """Return a column of JSON text, parsed; raise RecordError if it is none, or not of type `kind`."""
        try:
            found = parse_json(self.text(name))
        except RecordError as error:
            raise RecordError(
                f"{name!r} is no JSON that is read: {error} Required is a {kind.__name__}."
            ) from error
        if not isinstance(found, kind):
            raise RecordError(
                f"{name!r} is a JSON {type(found).__name__}; required is a {kind.__name__}."
            )
        return found

    def image(self, value: Any) -> EncodedImage:
        """Return the image that `value` stands for: a path in the image folder, a data URI, bytes, or {"bytes": …, "path": …}.

        Raises: ImageError for anything else, an empty struct, or a path that is not a file under the folder.
        """
        if isinstance(value, bytes) and value:
            return value
        if isinstance(value, str) and is_video_name(value):
            raise ImageError(f"{self.identity}: the image {value!r} is a video. {ADVICE}")
        if isinstance(value, str) and value:
            return (
                from_data_uri(value, self.identity)
                if value.startswith("data:")
                else self.images.find(value, self.identity)
            )
        if isinstance(value, dict) and (value.get("bytes") or value.get("path")):
            return self.image(value.get("bytes") or value["path"])
        raise ImageError(
            f"{self.identity}: an image is {_kind(value)}; required is a path, a data URI, bytes, or a struct of bytes and path."
        )

    def stored_image(self, name: str) -> EncodedImage:
        """Return the image in a column of image structs, which hold the bytes themselves.

        Raises: ImageError if the struct is missing or holds no bytes: its path is where the file lay on another machine.
        """
        value = self.columns.get(name)
        if not isinstance(value, dict) or not value.get("bytes"):
            raise ImageError(
                f"{self.identity}: {name!r} is {_kind(value)}; required is an image struct with its bytes."
            )
        return self.image(value["bytes"])

    def all_images(self, values: Any) -> tuple[EncodedImage, ...]:
        """Return the images that `values` stands for: a list, a single one, or None for nothing; an empty text is an error."""
        listed = values if isinstance(values, list) else [] if values is None else [values]
        self.limits.refuse("images", len(listed))
        return tuple(map(self.image, listed))


class FilesConfig(SourceConfig):
    """A source that reads files: a local copy if `path` is given, else the data set `hub`.

    An adapter states the constants below and its own recipe keys, and turns a row into a record by `convert`.
    """

    FILES: ClassVar[Sequence[str]] = ("*.parquet",)
    """Patterns (as `fnmatch` reads them) of the files' paths inside the data set; `{key}` is a recipe key's value."""
    COLUMNS: ClassVar[Sequence[str]] = ()
    """What every parquet or Arrow file must hold."""
    LICENCE: ClassVar[str] = "not stated"
    VIDEOS: ClassVar[bool] = False
    """Rows may name videos, which `convert` then shows as frames, or leaves out."""
    BRANCH: ClassVar[str | None] = None
    """The revision on the hub where the recipe names none."""

    path: str | None = None
    """A file, or a folder that is a copy of the data set's repository."""
    hub: str | None = None
    """The data set's id on the hub."""
    revision: str | None = None
    """Commit, tag or branch on the hub; null takes the newest and the data card says which that was."""
    limits: Limits = DEFAULTS

    @model_validator(mode="after")
    def _place_given(self) -> FilesConfig:
        if self.path is None and self.hub is None:
            raise ValueError(
                f"source {self.label!r}: give `path` (a local file or folder) or `hub` (a data set's id)"
            )
        if self.path is not None and self.revision is not None:
            raise ValueError(
                f"source {self.label!r}: `revision` is for the hub; a local `path` has none"
            )
        return self

    @property
    def patterns(self) -> list[str]:
        """Which files belong to the source."""
        return [pattern.format(**dict(self)) for pattern in self.FILES]

    @property
    def location(self) -> str | None:
        """The local path, or else the hub id."""
        return self.path or self.hub

    @property
    def is_on_hub(self) -> bool:
        """True if no local path is given."""
        return self.path is None

    def input_paths(self) -> dict[str, str]:
        """Return the local path, if one is given, under its key."""
        return {} if self.path is None else {"path": self.path}

    def stated_rows(self) -> tuple[int | None, str]:
        """Return the number of rows that the card of a public data set states.

        Rows of several pairs each give a number of records that only reading them tells.
        """
        is_stated = self.is_on_hub and self.hub in ROWS_BY_HUB_ID
        if is_stated and self.records_per_row == 1:
            return ROWS_BY_HUB_ID[str(self.hub)], "stated by its card"
        return super().stated_rows()

    @property
    def records_per_row(self) -> int:
        """How many records a row may give."""
        return 1

    @abstractmethod
    def convert(self, row: SourceRow) -> Preference:
        """Return the record of a row; raise LeftOut if a rule leaves it out, RecordError if it cannot be used."""

    def open(self, cache: Path) -> TableSource:
        """Open the files as one table."""
        located = self.locate()
        tables = [path for path in located.files if not is_archive(path)]
        return TableSource(
            self,
            located.revision,
            open_rows(tables, cache, self.COLUMNS),
            self.open_images(located, cache),
        )

    def look(self) -> None:
        """Raise UserError if local files are missing or of a kind that is not read; opens none of them, nor asks the hub."""
        if self.path is not None:
            kind_of([path for path in self.locate().files if not is_archive(path)])

    def open_images(self, located: LocatedFiles, cache: Path) -> Archive | Folder:
        """Return where the images lie that rows name: in the data set's own folder."""
        return Folder(located.root)

    def licence_of_files(self) -> str:
        """Return the licence that the data card names."""
        return self.LICENCE

    def locate(self) -> LocatedFiles:
        """Find (or fetch) the source's files.

        Raises: UserError if there are none, one of a numbered set is missing, one is no regular file, two are the same file by a
        link, or the hub does not answer.
        """
        if self.path is None:
            folder = _fetched(str(self.hub), self.revision or self.BRANCH, self.patterns)
        else:
            folder = Path(self.path).expanduser()
            if folder.is_file():
                return LocatedFiles([folder], folder.parent, "local")
            if os.path.lexists(folder) and not folder.is_dir():
                require_regular(folder)
            if not folder.is_dir():
                raise UserError(
                    f"source {self.label!r}: {folder} is neither a file nor a folder. Correct `path`, or fetch the data first."
                )
        wanted = re.compile("|".join(map(translate, self.patterns)))
        files = [Path(place) / name for place, _, names in os.walk(folder) for name in names]
        found = sorted(path for path in files if wanted.match(path.relative_to(folder).as_posix()))
        if not found:
            raise UserError(
                f"source {self.label!r}: in {folder} there is no file like {' or '.join(self.patterns)} ({len(files)} other "
                "files). A local copy must have the names of the data set's repository."
            )
        if self.path is not None:
            refuse_same_files(found)
        if self.path is not None and (problem := shards_problem(found)):
            raise UserError(
                f"source {self.label!r}: {problem} (To read one of them alone, let `path` name that file.)"
            )
        return LocatedFiles(found, folder, "local" if self.path else folder.name)


class ImageFilesConfig(FilesConfig):
    """Files whose rows name images that lie elsewhere."""

    images: str | None = None
    """The folder that image paths are relative to and may not leave, or an archive (a zip, also in parts, or a tar).

    Null takes the data set's archives of images, or else the folder of the data set or file.
    """

    def input_paths(self) -> dict[str, str]:
        """Return the local paths of the files and of their images under their keys."""
        paths = super().input_paths()
        if self.images is not None:
            paths["images"] = self.images
        return paths

    def look(self) -> None:
        """Look at the files, and at the images that the recipe names."""
        super().look()
        if self.images is not None:
            check_places(self._named())

    def open_images(self, located: LocatedFiles, cache: Path) -> Archive | Folder:
        """Return what the recipe names, or the data set's own archives or folder."""
        return open_images(
            self._named() or list(filter(is_archive, located.files)) or [located.root], cache
        )

    def _named(self) -> list[Path]:
        if self.images is None:
            return []
        place = Path(self.images).expanduser()
        return [place] if place.exists() else sorted(place.parent.glob(f"{place.name}*")) or [place]


class FormatConfig(ImageFilesConfig):
    """Files in a public format, of anybody's data."""

    licence: str = "not stated"
    """What the data card states."""

    def licence_of_files(self) -> str:
        """Return what the recipe states."""
        return self.licence


RESPONSE_IMAGES = ("chosen_images", "rejected_images")
OTHER_MEDIA = ("audio", "audios", "rejected_audios", "rejected_videos")
"""Columns of preference files whose content is not trained on yet, images of responses apart."""


def refuse_media_columns(columns: Mapping[str, Any]) -> None:
    """Raise RecordError for a row with images of a response, or with sounds or other videos.

    Without this the row would be trained on or scored as if they were not there.
    """
    for name in RESPONSE_IMAGES:
        if columns.get(name):
            raise RecordError(
                f"the record holds images of a response under {name!r}. Images in responses are not "
                "supported yet; required is one prompt with all images in `images`, and responses of "
                f"text. Leave the record out, or remove {name!r} if both responses are about the same "
                "images."
            )
    for name in OTHER_MEDIA:
        if columns.get(name):
            raise RecordError(
                f"the record holds audio or video under {name!r}, which models here cannot read; "
                f"required are texts and images. Leave the record out, or remove {name!r} if the "
                "responses do not depend on it."
            )


class TableSource:
    """A source whose records are rows of a table, each turned into one preference, or into several."""

    generated = False

    def __init__(
        self,
        config: FilesConfig,
        revision: str,
        rows: Rows,
        images: Images,
        name: str | None = None,
    ) -> None:
        self.config, self.revision, self.rows, self.images = config, revision, rows, images
        self.name, self.licence = name or config.label, config.licence_of_files()

    def __len__(self) -> int:
        """Return the number of records that the rows could give."""
        return len(self.rows) * self.config.records_per_row

    def record(self, index: int) -> Preference:
        """Return record `index`, counted through the rows and the records of each; errors name it."""
        number, slot = divmod(index, self.config.records_per_row)
        identity = f"{self.name}:{number}" + f".{slot}" * (self.config.records_per_row > 1)
        try:
            row = SourceRow(identity, self.rows.row(number), self.images, slot, self.config.limits)
            video = next((name for name in COLUMNS if row.columns.get(name)), None)
            if video is not None and not self.config.VIDEOS:
                raise RecordError(f"the record holds a video under {video!r}. {ADVICE}")
            if isinstance(self.config, FormatConfig):
                refuse_media_columns(row.columns)
            return self.config.limits.check(self.config.convert(row))
        except RecordError as error:
            named = str(error) if isinstance(error, ImageError) else f"{identity}: {error}"
            error.args = (named[:MESSAGE],)
            raise
        except ODD_VALUES as error:
            said = f"{identity}: the row cannot be read as {self.config.type} ({type(error).__name__}: {error})"
            raise RecordError(said[:MESSAGE]) from error

    def fingerprint(self) -> str:
        """Return the fingerprints of the table's files and of the archive of the images, and the settings."""
        parts = [self.rows.fingerprint(), self.config.settings]
        # A folder has no fingerprint: to look at each of its files would take minutes.
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


def refuse_same_files(paths: Sequence[Path]) -> None:
    """Raise UserError if one of `paths` is no regular file, or two of them are one file: its rows would count twice."""
    path_by_inode: dict[tuple[int, int], Path] = {}
    for path in paths:
        status = require_regular(path)
        other = path_by_inode.setdefault((status.st_dev, status.st_ino), path)
        if other != path:
            raise UserError(
                f"{other} and {path} are the same file by a link, so that its rows would be there twice. Remove one of the "
                "names, or let `path` name the file."
            )


def shards_problem(files: Sequence[Path]) -> str | None:
    """Say which sets of files `NAME-00000-of-00003…` are not whole (a number is missing, or there twice); None if all are."""
    sets: dict[tuple[Path, str, str], list[tuple[int, int]]] = {}
    for path in files:
        if match := SHARD.fullmatch(path.name):
            sets.setdefault((path.parent, match[1], path.suffix), []).append(
                (int(match[2]), int(match[3]))
            )
    for (folder, name, suffix), found in sets.items():
        total = max(of for _, of in found)
        if sorted(found) != [(number, total) for number in range(total)]:
            shown = ", ".join(f"{number:05}-of-{of:05}" for number, of in sorted(found))
            return (
                f"of {folder / name}-…{suffix} there are the parts {shown}; required is each of {total} once, "
                "else rows would be missing, or there twice. Fetch the parts that are missing, remove those of another set."
            )
    return None


def _fetched(hub: str, revision: str | None, patterns: Sequence[str]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(
            snapshot_download(
                hub, repo_type="dataset", revision=revision, allow_patterns=list(patterns)
            )
        )
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise UserError(
            f"the data set {hub} cannot be fetched from the hub ({type(error).__name__}: {error}). "
            "Check the id, the revision, the network and (for a gated set) the login, or give `path` to a local copy."
        ) from error


def field(columns: Any, name: str, kind: type | UnionType) -> Any:
    """Return `columns[name]`.

    Raises: RecordError if `columns` is no object, or its value is missing, not of type `kind`, or a number beyond every float.
    """
    if not isinstance(columns, dict):
        raise RecordError(
            f"an entry is a {type(columns).__name__}; required is an object with {name!r}."
        )
    if name not in columns:
        raise RecordError(
            f"there is no {name!r}; found are {', '.join(map(repr, sorted(columns)))}."
        )
    value = columns[name]
    kinds = get_args(kind) or (kind,)
    if not isinstance(value, kind) or (
        isinstance(value, bool) and not {bool, object} & {*kinds}
    ):  # True is an int to Python
        required = " or ".join(one.__name__ for one in kinds)
    elif isinstance(value, int) and abs(value) > sys.float_info.max:
        required = f"a number of at most {sys.float_info.max:.4g}"
    else:
        return value
    text = repr(value)
    shown = text if len(text) <= 60 else text[:60] + "…"
    raise RecordError(f"{name!r} is {type(value).__name__} {shown}; required is {required}.")


def _kind(value: Any) -> str:
    return f"an empty {type(value).__name__}" if not value else f"a {type(value).__name__}"
