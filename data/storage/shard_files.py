"""Records in shards: large files of records with their images and videos, read by position.

A folder of shards has three kinds of files:

    shards.json      the version of the format, and for each shard its name, its size, its number of
                     records and a digest; a digest of the index; what the shards were made of
    index.npy        for each record the position of its block in its shard, ENTRY of shape (records,)
    00000.shard ...  the blocks of records, one after the other

The block of a record begins with the images and videos that no earlier record of the shard has, and
ends with a JSON object. In the object, an image or a video is `{"start": S, "size": N, "crc": C}`: N
bytes from position S of the shard on, and their checksum. A record is read by one `pread`, and by one
more for each image that an earlier record has brought along. No file is opened for an image, and few
files are open at one time. Blocks and images have checksums (CRC-32), which are compared whenever they
are read, so that damaged records are counted as such.
"""

from __future__ import annotations

import hashlib
import os
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import accumulate
from json import dumps
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from mmrm.data.config.section import Section
from mmrm.data.errors import RecordError, SpecialFileError, UserError
from mmrm.data.regular_files import open_descriptor, require_regular
from mmrm.data.storage.files import content_digest, digest, read_json_object
from mmrm.data.storage.row_files import Row, part_and_position
from mmrm.data.storage.strict_json import parse_json

MANIFEST = "shards.json"
INDEX = "index.npy"
FORMAT = 1
"""The version of the format, which changes whenever an older reader could not read the files."""
ENTRY = np.dtype([("start", "<u8"), ("size", "<u4"), ("json_size", "<u4"), ("crc", "<u4")])
"""A row of the index: position and size in bytes of the block of a record in its shard, the size of
the JSON object at the end of the block, and the checksum of the block."""
LARGEST_BLOCK = 2**32 - 1
"""The most bytes of the images, videos and texts of a record."""
MAX_OPEN = 32
"""The most shards of a source that a process holds open."""
READ_AT_ONCE = 2**30
"""The most bytes of one `pread`. Linux reads at most 2 GiB."""


class ShardFile(Section):
    """A shard, as shards.json lists it."""

    name: str
    size: int = Field(ge=0)
    """Bytes of the file."""
    records: int = Field(ge=1)
    digest: str
    """SHA-256 of the file's content. It identifies the content; damage is found by checksums."""


class MadeOf(Section):
    """The source of a folder of shards, and how its records were chosen."""

    source: dict[str, Any]
    """The keys of the source in a recipe."""
    name: str
    """The name of the source."""
    licence: str
    revision: str
    """The commit on the hub, or `local`."""
    seed: int
    """The seed that drew the order of the records."""
    left_out: dict[str, int]
    """Number of rows that are in no shard, by reason."""


class ShardManifest(Section):
    """The content of shards.json."""

    format: int
    files: list[ShardFile] = Field(min_length=1)
    index_digest: str
    """SHA-256 of index.npy."""
    made_of: MadeOf

    @property
    def block_ends(self) -> list[int]:
        """For each shard, the number of records in it and all shards before it."""
        return list(accumulate(file.records for file in self.files))


def read_manifest(folder: Path) -> ShardManifest:
    """Return the content of the shards.json of a folder.

    Raises: UserError if it is missing, damaged, or of another version of the format.
    """
    path = folder / MANIFEST
    if folder.is_file():
        raise UserError(f"{folder} is a file; required is the folder of the shards.")
    if not path.exists():
        raise UserError(
            f"{folder}: there is no {MANIFEST}, which a folder of shards has. Make shards with "
            "`python data/make_shards.py`, or name their folder."
        )
    content = read_json_object(path)
    if content.get("format") != FORMAT:
        raise UserError(
            f"{path}: the format is {content.get('format')!r}; this version reads {FORMAT}. Make "
            "the shards again with `python data/make_shards.py`, or install the version that made "
            "them."
        )
    try:
        return ShardManifest.model_validate(content)
    except ValueError as error:
        raise UserError(
            f"{path}: the file is damaged: a key is missing or has another form. Copy it again."
        ) from error


class ShardRows:
    """The records of a folder of shards, as rows whose images and videos are bytes.

    The index is mapped into memory, and shards are opened when one of their records is read. Threads
    may read at the same time, and the object may be sent to another process.
    """

    def __init__(self, folder: Path) -> None:
        """Read shards.json, and check the sizes of all shards and the digest of the index.

        Raises: UserError if a file is missing, or is another one than shards.json says.
        """
        self.folder = folder
        self.manifest = read_manifest(folder)
        self.ends = self.manifest.block_ends
        """For each shard, the number of records in it and all shards before it."""
        for file in self.manifest.files:
            size = _size_of(folder / file.name)
            if size != file.size:
                raise UserError(
                    f"{folder / file.name} has {size:,} bytes, and {MANIFEST} says {file.size:,}. "
                    "Copy the file again."
                )
        _size_of(folder / INDEX)
        if content_digest(folder / INDEX) != self.manifest.index_digest:
            raise UserError(
                f"{folder / INDEX} is not the index of these shards, or is damaged: {MANIFEST} has "
                "another digest. Copy both files again."
            )
        self._open: OrderedDict[int, int] = OrderedDict()
        self._lock = threading.Lock()

    @cached_property
    def index(self) -> npt.NDArray[Any]:
        """The index of all records, mapped into memory, ENTRY of shape (records,)."""
        index: npt.NDArray[Any] = np.load(self.folder / INDEX, mmap_mode="r")
        return index

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for another process, which opens the files itself."""
        state = dict(vars(self))
        for name in ("index", "_open", "_lock"):
            state.pop(name, None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the state from another process, with no shard open."""
        vars(self).update(state)
        self._open = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Return the number of records."""
        return self.ends[-1]

    def row(self, index: int) -> Row:
        """Return the record at `index` as a row; its images and videos are bytes.

        Raises: RecordError if the shard cannot be read, or the record or an image is damaged.
        """
        shard, _ = part_and_position(self.ends, index)
        entry = self.index[index]
        start = int(entry["start"])
        where = f"{self.manifest.files[shard].name}, record {index} (byte {start})"
        block = self._read(shard, start, int(entry["size"]), where)
        _check(block, int(entry["crc"]), where)
        json = block[len(block) - int(entry["json_size"]) :]
        try:
            row = parse_json(json)
        except RecordError as error:
            raise RecordError(f"{where}: {error} Copy the shard again.") from error
        if not isinstance(row, dict):
            raise RecordError(f"{where}: no JSON object. Copy the shard again.")

        def medium(place: Any) -> bytes:
            """Return the bytes of an image or a video at its place in the shard."""
            first = int(place["start"])
            size = int(place["size"])
            if first >= start:
                return block[first - start : first - start + size]
            content = self._read(shard, first, size, where)
            _check(content, int(place["crc"]), where)
            return content

        return with_media(row, medium)

    def fingerprint(self) -> str:
        """Return a digest of the digests of all shards."""
        return digest(" ".join(file.digest for file in self.manifest.files))

    def num_open(self) -> int:
        """Return the number of shards that this process holds open."""
        return len(self._open)

    def _read(self, shard: int, start: int, size: int, where: str) -> bytes:
        """Return `size` bytes of a shard from `start` on; `where` names the record for messages."""
        try:
            with self._descriptor(shard) as descriptor:
                content = _pread(descriptor, size, start)
        except (OSError, SpecialFileError) as error:
            raise RecordError(f"{where}: the shard cannot be read ({error}).") from error
        if len(content) != size:
            raise RecordError(f"{where}: the shard ends too early. Copy it again.")
        return content

    @contextmanager
    def _descriptor(self, shard: int) -> Iterator[int]:
        """Give the block a file descriptor of a shard, which another thread cannot close meanwhile.

        The shard that was not used for longest is closed if more than MAX_OPEN would be open.
        """
        with self._lock:
            descriptor = self._open.pop(shard, None)
            if descriptor is None:
                descriptor = open_descriptor(self.folder / self.manifest.files[shard].name)
            self._open[shard] = descriptor
            # A copy stays open for this block, even if the shard is closed.
            own_descriptor = os.dup(descriptor)
            while len(self._open) > MAX_OPEN:
                _, oldest = self._open.popitem(last=False)
                os.close(oldest)
        try:
            yield own_descriptor
        finally:
            os.close(own_descriptor)

    def __del__(self) -> None:
        """Close all shards."""
        for descriptor in vars(self).get("_open", {}).values():
            os.close(descriptor)


def _pread(descriptor: int, size: int, start: int) -> bytes:
    """Return `size` bytes of a file from `start` on; fewer at its end."""
    pieces = []
    remaining = size
    while remaining > 0:
        piece = os.pread(descriptor, min(remaining, READ_AT_ONCE), start)
        if not piece:
            break
        pieces.append(piece)
        start += len(piece)
        remaining -= len(piece)
    return b"".join(pieces)


def _check(content: bytes, crc: int, where: str) -> None:
    """Raise RecordError if a block or an image does not have its checksum."""
    if zlib.crc32(content) != crc:
        raise RecordError(f"{where}: the record is damaged. Copy the shard again.")


def _size_of(path: Path) -> int:
    """Return the size of a file; raise UserError if it is not there, or no regular file."""
    try:
        return require_regular(path).st_size
    except FileNotFoundError as error:
        raise UserError(f"{path} is missing, and {MANIFEST} lists it. Copy the file.") from error


class ShardWriter:
    """Writes the blocks of records into one shard."""

    def __init__(self, file: IO[bytes]) -> None:
        """Keep the open file, to which nothing has been written yet."""
        self.file = file
        self.size = 0
        """Bytes that were written."""
        self.entries: list[tuple[int, int, int, int]] = []
        """The rows of the index for the written records."""
        self._digest = hashlib.sha256()
        self._places: dict[bytes, dict[str, int]] = {}
        """Where the shard has an image or a video, by the digest of its content."""
        self._crc = 0
        """The checksum of the block that is being written."""

    def place(self, content: bytes) -> dict[str, int]:
        """Return the place of an image or a video in the shard; it is written if it is new."""
        key = hashlib.sha256(content).digest()
        if key not in self._places:
            crc = zlib.crc32(content)
            self._places[key] = {"start": self.size, "size": len(content), "crc": crc}
            self._write(content)
        return self._places[key]

    def add(self, make_row: Callable[[], Mapping[str, Any]], record: str) -> None:
        """Write a record.

        Args:
            make_row: Returns the row, and calls `place` for each of its images and videos.
            record: Identity of the record, for messages.

        Raises: RecordError if the record is too large for the format.
        """
        start = self.size
        self._crc = 0
        json = dumps(make_row(), allow_nan=False).encode()
        self._write(json)
        size = self.size - start
        if size > LARGEST_BLOCK:
            raise RecordError(
                f"{record}: {size:,} bytes; a shard takes at most {LARGEST_BLOCK:,} of a record. "
                "Leave the record out, or make its videos smaller."
            )
        self.entries.append((start, size, len(json), self._crc))

    def digest(self) -> str:
        """Return the SHA-256 of what was written."""
        return self._digest.hexdigest()

    def _write(self, content: bytes) -> None:
        """Append some bytes."""
        self.file.write(content)
        self._digest.update(content)
        self._crc = zlib.crc32(content, self._crc)
        self.size += len(content)


def with_media(row: dict[str, Any], medium: Callable[[Any], bytes]) -> dict[str, Any]:
    """Return a row of this project's format in which places of images and videos are their bytes.

    Args:
        row: The row. Its keys `images` and `videos` are lists of places, and `chosen`, `rejected`
            and the items of `responses` are texts or lists of parts.
        medium: Returns the bytes at a place.
    """
    changed = dict(row)
    for name in ("images", "videos"):
        if name in row:
            changed[name] = [medium(place) for place in row[name]]
    for name in ("chosen", "rejected"):
        if name in row:
            changed[name] = _with_media_of_parts(row[name], medium)
    if "responses" in row:
        changed["responses"] = [
            _with_media_of_parts(response, medium) for response in row["responses"]
        ]
    return changed


def _with_media_of_parts(
    response: str | Sequence[Mapping[str, Any]], medium: Callable[[Any], bytes]
) -> str | list[dict[str, Any]]:
    """Return a response with the bytes of its images and videos."""
    if isinstance(response, str):
        return response
    parts = []
    for part in response:
        kind = part["type"]
        if kind == "text":
            parts.append(dict(part))
        else:
            parts.append({"type": kind, kind: medium(part[kind])})
    return parts
