"""Images in folders and in archives: zip (also one cut into parts, such as `x.zip_aa`), and tar.

Images in an archive are read one at a time, without unpacking it. The first time, the archive's
directory is turned into arrays in the cache, sorted by a hash of the name, so that an archive of
270,000 images opens in a moment and needs no memory.

A name that occurs more than once is refused: extraction leaves the last member with that name,
other readers take the first. Names are compared as extraction writes them, so that `a.png`,
`./a.png` and `/a.png` are one name. Upper and lower case differ, as on Linux. A link is not
followed, and a file behind a linked folder is refused.
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
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from mmrm.data.errors import ImageError, UserError
from mmrm.data.images import ELSEWHERE_ADVICE, image_path
from mmrm.data.preference import EncodedImage
from mmrm.data.regular_files import open_regular, require_regular
from mmrm.data.storage.files import digest, hash64, stamp
from mmrm.data.storage.row_files import IndexedFiles

ENTRY = np.dtype([("name", "u8"), ("start", "i8"), ("stored", "i8"), ("kind", "u1"), ("crc", "u4")])
"""A file in the archive. `start` is the position of the local header in a zip, and of the content
in a tar; `stored` is the number of stored bytes."""
DAMAGED = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, struct.error),
    *(ArithmeticError, EOFError, OSError, RuntimeError, ValueError),
)
"""Errors of the readers of damaged archives; a zip with a password is a RuntimeError."""

# Kinds of files that are read
STORED = zipfile.ZIP_STORED
DEFLATED = zipfile.ZIP_DEFLATED
TAR = 255

# Kinds of members that are no files, or are refused
FOLDER = 249
AMBIGUOUS = 250
LINK = 251
UNSUPPORTED = 252
BEHIND_LINK = 253
UPWARDS = 254
REFUSED = {
    AMBIGUOUS: "its name is in the archive more than once, and extraction may leave another file "
    "than the first. Write the archive again with each name once, or unpack it and check which "
    "file is the right one",
    LINK: "it is a link, or a sparse or special file, which is not read inside an archive. Unpack "
    "the archive into a folder",
    UNSUPPORTED: "it is compressed in a way that is not read here. Unpack the archive into a "
    "folder",
    BEHIND_LINK: "a folder in its path is a link or a file in the archive, so that extraction "
    "would write it elsewhere. Unpack the archive into a folder and check its content",
    UPWARDS: "its path in the archive contains `..` or ends in `.`, and programs differ in where "
    "they extract it to. Write the archive again with plain paths",
}
"""The kinds that are never read, each with the reason and the way out for the error message."""
LOCAL_HEADER = 30
"""Size in bytes of the fixed part of a local header in a zip."""
LARGEST_IMAGE = 1 << 28
"""The largest unpacked file in bytes: 256 MiB, as many as the pixels of the largest image have."""


class Images(Protocol):
    """A folder or archive in which records name images."""

    def find(self, name: str, record: str) -> EncodedImage:
        """Return the image `name`; raise ImageError naming `record` if it is not there."""
        ...


@dataclass(frozen=True)
class Folder:
    """Images as files under a folder.

    No name may leave the folder, except through a link of the folder's owner (see `image_path`).
    """

    root: Path

    def find(self, name: str, record: str) -> EncodedImage:
        """Return the path of image `name`; raise ImageError naming `record` if it is not there."""
        return image_path(self.root, name, record, links=True)

    def __contains__(self, name: str) -> bool:
        """Return True if there is such a file."""
        try:
            self.find(name, "")
        except ImageError:
            return False
        return True


@dataclass(frozen=True, slots=True)
class Member:
    """A file, folder, link or special file in an archive, as its directory lists it."""

    name: str
    start: int
    """The kind of member, with the same values as in ENTRY."""
    stored: int
    kind: int
    crc: int
    """Checksum of the content; 0 in a tar, which has none."""


class Archive(IndexedFiles):
    """Images inside a tar file, or a zip file in one or more parts.

    The index has an ENTRY for each file, sorted by the hash of its name, (files,).
    """

    def __init__(self, parts: Sequence[Path], cache: Path) -> None:
        stamps = " ".join(f"{stamp(part)} {part.resolve()}" for part in parts)
        # Indices of older versions, which contain the first of several equal names, have other
        # keys.
        identity = digest(f"each name once: {stamps}")
        super().__init__(parts, cache / "archives" / f"{parts[0].stem}-{identity}.npy")

    def fingerprint(self) -> str:
        """Return a digest of the parts' names, sizes and times of change."""
        return digest(" ".join(map(stamp, self.parts)))

    def __contains__(self, name: str) -> bool:
        """Return True if the archive contains a file of this name, even if the file is refused."""
        return self._entry(name) is not None

    def find(self, name: str, record: str) -> EncodedImage:
        """Return the bytes of the file `name`.

        Raises: ImageError if it is not there, damaged, or of a kind in `REFUSED`.
        """
        entry = self._entry(name)
        if entry is None:
            raise ImageError(
                f"{record}: the image {name!r} is not in {self.parts[0]}. {ELSEWHERE_ADVICE}"
            )
        reason = REFUSED.get(int(entry["kind"]))
        if reason is not None:
            raise ImageError(
                f"{record}: the image {name!r} in {self.parts[0].name} is not used: {reason}."
            )
        try:
            return self._content(entry)
        except (zlib.error, ValueError, OSError) as error:
            raise ImageError(
                f"{record}: the image {name!r} in {self.parts[0].name} is damaged or too large "
                f"({error}). Replace it, or leave the record out."
            ) from error

    def _entry(self, name: str) -> Any:
        """Return the ENTRY of a file, or None if there is none."""
        extracted = extracted_name(name)
        if extracted is None:
            return None
        hashes = self.index["name"]
        wanted = hash64(extracted)
        position = bisect_left(hashes, wanted)
        if position == len(hashes) or hashes[position] != wanted:
            return None
        return self.index[position]

    def _content(self, entry: Any) -> bytes:
        """Return the unpacked bytes of a file; raise ValueError if it is too large or damaged."""
        start = int(entry["start"])
        stored = int(entry["stored"])
        kind = int(entry["kind"])
        if stored > LARGEST_IMAGE:
            raise ValueError(f"{stored:,} bytes; read are at most {LARGEST_IMAGE:,}")
        if kind == TAR:
            return self.read(start, stored)
        header = self.read(start, LOCAL_HEADER)
        name_length = int.from_bytes(header[26:28], "little")
        extra_length = int.from_bytes(header[28:30], "little")
        content = self.read(start + LOCAL_HEADER + name_length + extra_length, stored)
        if kind == DEFLATED:
            unpacking = zlib.decompressobj(wbits=-15)
            content = unpacking.decompress(content, LARGEST_IMAGE)
            if unpacking.unconsumed_tail:
                raise ValueError(f"it unpacks to more than {LARGEST_IMAGE:,} bytes")
        if zlib.crc32(content) != int(entry["crc"]):
            raise ValueError("its checksum does not agree")
        return content

    def make_index(self) -> npt.NDArray[np.void]:
        """Return an array with an ENTRY for each name in the archive, sorted by the hash of the name.

        Raises: UserError if the archive is damaged or incomplete.
        """
        try:
            is_tar = self.parts[0].suffix == ".tar"
            members = self._tar_members() if is_tar else self._zip_members()
            rows = [
                (hash64(name), file.start, file.stored, file.kind, file.crc)
                for name, file in _files_by_name(members).items()
            ]
            entries = np.array(rows, ENTRY)
        except DAMAGED as error:
            names = ", ".join(part.name for part in self.parts)
            raise UserError(
                f"the archive {names} cannot be read ({error}). Check that all its parts are there "
                "and complete."
            ) from error
        return entries[np.argsort(entries["name"], kind="stable")]

    def _tar_members(self) -> Iterator[Member]:
        """Yield the members of a tar file."""
        with open_regular(self.parts[0]) as file, tarfile.open(fileobj=file, mode="r:") as tar:
            for member in tar:
                # Undocumented, but otherwise tarfile keeps every member in memory.
                tar.members = []  # type: ignore[attr-defined]
                kind = TAR if member.isfile() and not member.issparse() else LINK
                if member.isdir():
                    kind = FOLDER
                yield Member(member.name, member.offset_data, member.size, kind, 0)

    def _zip_members(self) -> Iterator[Member]:
        """Yield the members of a zip file."""
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
    """Return the path to which extraction writes a member, relative to the folder.

    The result is None if that is outside of the folder. A leading `/` is dropped, as unzip and tar
    do, and `..` removes the folder before it.

    Example: `/a//./b/../c.png` becomes `a/c.png`.
    """
    path = posixpath.normpath(name.lstrip("/"))
    if path in (".", "..") or path.startswith("../"):
        return None
    return path


def _files_by_name(members: Iterable[Member]) -> dict[str, Member]:
    """Return the file that extraction writes to each name, with its kind.

    If several members have one name, the kind is AMBIGUOUS. All names are
    in memory while the index is made.
    """
    files: dict[str, Member] = {}
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
            if name in files:
                kind = AMBIGUOUS
            files[name] = Member(name, member.start, member.stored, kind, member.crc)
    for name, file in files.items():
        parents = [str(parent) for parent in PurePosixPath(name).parents]
        folders.update(parents)
        if any(parent in files for parent in parents):
            files[name] = replace(file, kind=BEHIND_LINK)
    for name in folders & files.keys():
        files[name] = replace(files[name], kind=AMBIGUOUS)
    return files


class _Joined:
    """The parts of a divided archive as one file, with the methods that `zipfile` needs."""

    def __init__(self, archive: Archive) -> None:
        self.archive = archive
        self.position = 0

    def tell(self) -> int:
        return self.position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        bases = {
            os.SEEK_SET: 0,
            os.SEEK_CUR: self.position,
            os.SEEK_END: self.archive.ends[-1],
        }
        self.position = bases[whence] + offset
        if self.position < 0:
            raise OSError(f"byte {self.position} of an archive")
        return self.position

    def read(self, size: int = -1) -> bytes:
        if size < 0:
            size = self.archive.ends[-1] - self.position
        piece = self.archive.read(self.position, size)
        self.position += len(piece)
        return piece


def is_archive(path: Path) -> bool:
    """Return True if a file is an archive, or a part of one, by its name."""
    return ".zip" in path.suffix or path.suffix == ".tar"


def open_images(places: Sequence[Path], cache: Path) -> Archive | Folder:
    """Open a folder of images, or the files of an archive.

    Raises: UserError for anything else, such as a compressed tar, which cannot be read image by
    image.
    """
    check_places(places)
    if places[0].is_dir():
        return Folder(places[0])
    return Archive(sorted(places), cache)


def check_places(places: Sequence[Path]) -> None:
    """Raise UserError if `open_images` cannot open the paths `places`.

    Only their names and kinds are checked. Nothing is opened.
    """
    if len(places) == 1 and places[0].is_dir():
        return
    for place in places:
        if os.path.lexists(place):
            require_regular(place)
    are_archives = all(is_archive(place) and place.is_file() for place in places)
    if not places or not are_archives:
        raise UserError(
            f"images in {', '.join(map(str, places)) or 'no place'}: required is a folder, a .zip "
            "(whole, or all parts of .zip_aa, .zip_ab, …) or an uncompressed .tar. Unpack anything "
            "else into a folder."
        )
