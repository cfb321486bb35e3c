"""Images inside an archive, read one at a time without unpacking: zip (also one cut into parts, as `x.zip_aa`), and tar.

The first time, the archive's directory is turned into arrays in the cache, sorted by a hash of the name, so that an
archive of 270,000 images opens in a moment and costs no memory.

A name that occurs more than once is refused: extraction leaves the last member with that name, other readers take the first.
Names are compared as extraction writes them, so `a.png`, `./a.png`, `/a.png`, `x//../a.png` are one name. Letters in upper and
lower case differ, as they do on Linux. A link is not followed, and what lies behind a linked folder is refused.
"""

import os
import posixpath
import stat
import struct
import tarfile
import zipfile
import zlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from mmrm.data.errors import ImageError, UserError
from mmrm.data.images import ELSEWHERE, image_path
from mmrm.data.preference import EncodedImage
from mmrm.data.regular_files import open_regular, require_regular
from mmrm.data.storage.files import digest, hash64, stamp
from mmrm.data.storage.row_files import IndexedFiles

ENTRY = np.dtype([("name", "u8"), ("start", "i8"), ("stored", "i8"), ("kind", "u1"), ("crc", "u4")])
"""A file in the archive; `start` is that of the local header in a zip and of the content in a tar."""
DAMAGED = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, struct.error),
    *(ArithmeticError, EOFError, OSError, RuntimeError, ValueError),
)
"""What the readers of damaged archives raise; a zip under a password is a RuntimeError."""
STORED, DEFLATED, TAR = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, 255
AMBIGUOUS, LINK, UNSUPPORTED, BEHIND_LINK, UPWARDS, FOLDER = 250, 251, 252, 253, 254, 249
REFUSED = {
    AMBIGUOUS: "its name is in the archive more than once, and extraction may leave another file than the first. Write the "
    "archive again with each name once, or unpack it and check which file is the right one",
    LINK: "it is a link, or a sparse or special file, which is not read inside an archive. Unpack the archive into a folder",
    UNSUPPORTED: "it is compressed in a way that is not read here. Unpack the archive into a folder",
    BEHIND_LINK: "a folder in its path is a link or a file in the archive, so that extraction would write it elsewhere. Unpack "
    "the archive into a folder and check what it holds",
    UPWARDS: "its path in the archive contains `..` or ends in `.`, and programs differ in where they extract it to. Write "
    "the archive again with plain paths",
}
"""Kinds of members that are never read, with the reason that a record's error states."""
LOCAL_HEADER = 30
LARGEST_IMAGE = 1 << 28
"""Bytes of a file in the archive, unpacked: 256 MiB, as much as the pixels of the largest image that is decoded."""


class Images(Protocol):
    """Where the images lie that records name."""

    def find(self, name: str, record: str) -> EncodedImage:
        """Return the image `name`; raise ImageError naming `record` if it is not there."""
        ...


@dataclass(frozen=True)
class Folder:
    """Images as files under a folder, which no name may leave but through a link of the folder's owner (see `image_path`)."""

    root: Path

    def find(self, name: str, record: str) -> EncodedImage:
        """Return the path of image `name`."""
        return image_path(self.root, name, record, links=True)

    def __contains__(self, name: str) -> bool:
        """Tell whether there is such a file."""
        try:
            return bool(self.find(name, ""))
        except ImageError:
            return False


@dataclass(frozen=True, slots=True)
class Member:
    """A file, folder, link or special file in an archive, as its directory lists it."""

    name: str
    start: int
    stored: int
    kind: int
    crc: int


class Archive(IndexedFiles):
    """Images inside a tar file, or a zip file in one or more parts; its files by the hash of their name: (files,) of ENTRY."""

    def __init__(self, parts: Sequence[Path], cache: Path) -> None:
        stamps = " ".join(f"{stamp(part)} {part.resolve()}" for part in parts)
        identity = digest(f"each name once: {stamps}")  # older indices list the first of a name
        super().__init__(parts, cache / "archives" / f"{parts[0].stem}-{identity}.npy")

    def fingerprint(self) -> str:
        """Return a digest of the parts' names, sizes and times of change."""
        return digest(" ".join(map(stamp, self.parts)))

    def __contains__(self, name: str) -> bool:
        """Return True if the archive has such a name, also if its file is refused."""
        return self._entry(name) is not None

    def find(self, name: str, record: str) -> EncodedImage:
        """Return the bytes of file `name`; raise ImageError if it is not there, damaged, or one of `REFUSED`."""
        entry = self._entry(name)
        if entry is None:
            raise ImageError(f"{record}: the image {name!r} is not in {self.parts[0]}. {ELSEWHERE}")
        reason = REFUSED.get(int(entry["kind"]))
        if reason is not None:
            raise ImageError(
                f"{record}: the image {name!r} in {self.parts[0].name} is not used: {reason}."
            )
        try:
            return self._content(entry)
        except (zlib.error, ValueError, OSError) as error:
            raise ImageError(
                f"{record}: the image {name!r} in {self.parts[0].name} is damaged or too large ({error})."
            ) from error

    def _entry(self, name: str) -> Any:
        wanted_name = extracted_name(name)
        if wanted_name is None:
            return None
        names = self.index["name"]
        wanted = hash64(wanted_name)
        position = bisect_left(names, wanted)
        return self.index[position] if position < len(names) and names[position] == wanted else None

    def _content(self, entry: Any) -> bytes:
        start, stored, kind = (int(entry[name]) for name in ("start", "stored", "kind"))
        if stored > LARGEST_IMAGE:
            raise ValueError(f"{stored:,} bytes; read are at most {LARGEST_IMAGE:,}")
        if kind == TAR:
            return self.read(start, stored)
        header = self.read(start, LOCAL_HEADER)
        skip = (
            LOCAL_HEADER
            + int.from_bytes(header[26:28], "little")
            + int.from_bytes(header[28:30], "little")
        )
        content = self.read(start + skip, stored)
        if kind == DEFLATED:
            unpacking = zlib.decompressobj(wbits=-15)
            content = unpacking.decompress(content, LARGEST_IMAGE)
            if unpacking.unconsumed_tail:
                raise ValueError(f"it unpacks to more than {LARGEST_IMAGE:,} bytes")
        if zlib.crc32(content) != int(entry["crc"]):
            raise ValueError("its checksum does not agree")
        return content

    def make_index(self) -> npt.NDArray[np.void]:
        """Read the directory; a name that more than one member has gets one entry of the kind AMBIGUOUS."""
        try:
            is_tar = self.parts[0].suffix == ".tar"
            members = self._tar_members() if is_tar else self._zip_members()
            rows = _rows_by_name(members)
            entries = np.array(list(rows.values()), ENTRY)
        except DAMAGED as error:
            names = ", ".join(part.name for part in self.parts)
            raise UserError(
                f"the archive {names} cannot be read ({error}). Are all its parts there and complete?"
            ) from error
        return entries[np.argsort(entries["name"], kind="stable")]

    def _tar_members(self) -> Iterator[Member]:
        with open_regular(self.parts[0]) as file, tarfile.open(fileobj=file, mode="r:") as tar:
            for member in tar:
                tar.members = []  # type: ignore[attr-defined]  # undocumented, but else tarfile remembers every file
                kind = TAR if member.isfile() and not member.issparse() else LINK
                if member.isdir():
                    kind = FOLDER
                yield Member(member.name, member.offset_data, member.size, kind, 0)

    def _zip_members(self) -> Iterator[Member]:
        with zipfile.ZipFile(_Joined(self)) as archive:
            for entry in archive.infolist():
                if not entry.filename:
                    continue  # `is_dir` would fail
                kind = entry.compress_type
                if kind not in (STORED, DEFLATED):
                    kind = UNSUPPORTED
                if stat.S_ISLNK(entry.external_attr >> 16):
                    kind = LINK
                if entry.is_dir():
                    kind = FOLDER
                size = entry.compress_size
                yield Member(entry.filename, entry.header_offset, size, kind, entry.CRC)


def extracted_name(name: str) -> str | None:
    """Return the path to which extraction writes a member, relative to the folder; None if that is outside of it.

    A leading `/` is dropped, as unzip and tar do. `..` removes the folder before it.
    Example: `/a//./b/../c.png` becomes `a/c.png`.
    """
    path = posixpath.normpath(name.lstrip("/"))
    if path in (".", "..") or path.startswith("../"):
        return None
    return path


def _rows_by_name(members: Iterable[Member]) -> dict[str, tuple[int, int, int, int, int]]:
    """Return the row of ENTRY for each name; names are held in memory while the index is made."""
    rows: dict[str, tuple[int, int, int, int, int]] = {}
    folders = set[str]()
    for member in members:
        parts = member.name.split("/")
        is_upwards = ".." in parts or parts[-1] == "."
        is_folder = member.kind == FOLDER or parts[-1] == ""
        # unzip leaves `..` out, tar follows it: neither of both places may hold another file.
        without_upwards = "/".join(part for part in parts if part != "..")
        for name in {extracted_name(member.name), extracted_name(without_upwards)}:
            if name is None:
                continue
            if is_folder:
                folders.update((name, *map(str, PurePosixPath(name).parents)))
                continue
            kind = UPWARDS if is_upwards else member.kind
            if name in rows:
                kind = AMBIGUOUS
            rows[name] = (hash64(name), member.start, member.stored, kind, member.crc)
    for name, row in rows.items():
        parents = [str(parent) for parent in PurePosixPath(name).parents]
        folders.update(parents)
        if any(parent in rows for parent in parents):
            rows[name] = (*row[:3], BEHIND_LINK, row[4])
    for name in folders & rows.keys():
        row = rows[name]
        rows[name] = (*row[:3], AMBIGUOUS, row[4])
    return rows


class _Joined:
    """The parts of an archive as one file, as far as `zipfile` needs one to read its directory."""

    def __init__(self, archive: Archive) -> None:
        self.archive, self.position = archive, 0

    def tell(self) -> int:
        return self.position

    def seek(self, offset: int, whence: int = 0) -> int:
        self.position = (0, self.position, self.archive.ends[-1])[whence] + offset
        if self.position < 0:
            raise OSError(f"byte {self.position} of an archive")
        return self.position

    def read(self, size: int = -1) -> bytes:
        piece = self.archive.read(
            self.position, size if size >= 0 else self.archive.ends[-1] - self.position
        )
        self.position += len(piece)
        return piece


def is_archive(path: Path) -> bool:
    """Say whether a file is an archive, or a part of one, by its name."""
    return ".zip" in path.suffix or path.suffix == ".tar"


def open_images(places: Sequence[Path], cache: Path) -> Archive | Folder:
    """Return a folder as Folder, and archive files as Archive.

    Raises: UserError for anything else, as a compressed tar, which cannot be read image by image.
    """
    check_places(places)
    return Folder(places[0]) if places[0].is_dir() else Archive(sorted(places), cache)


def check_places(places: Sequence[Path]) -> None:
    """Raise UserError unless `places` are what `open_images` takes, by their kinds and names."""
    folder = len(places) == 1 and places[0].is_dir()
    for place in places:
        if os.path.lexists(place) and not folder:
            require_regular(place)
    if not folder and not (
        places and all(is_archive(place) and place.is_file() for place in places)
    ):
        raise UserError(
            f"images in {', '.join(map(str, places)) or 'no place'}: required is a folder, a .zip (whole, or all parts of "
            ".zip_aa, .zip_ab, …) or an uncompressed .tar. Unpack anything else into a folder."
        )
