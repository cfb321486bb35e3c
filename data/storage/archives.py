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
"""The type of an index's row about one file in an archive. `name` is a hash of the file's name.
`start` is the position of the local header in a zip, and of the content in a tar. `stored` is the
number of stored bytes. `kind` is one of the constants below. `crc` is the checksum, 0 in a tar."""
ERRORS_OF_DAMAGED_ARCHIVES = (
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
    """A folder or an archive with the images of records."""

    def find(self, name: str, record: str) -> EncodedImage:
        """Return the image with the name `name`, still encoded.

        `record` is the name of the image's record, for messages.

        Raises: ImageError if there is no such image, or if it cannot be used.
        """
        ...


@dataclass(frozen=True)
class Folder:
    """Images as files under a folder.

    No name may leave the folder, except through a link of the folder's owner (see `image_path`).
    """

    root: Path
    advice: str = ELSEWHERE_ADVICE
    """The sentence of a message about a missing image that tells how to name another folder."""

    def find(self, name: str, record: str) -> EncodedImage:
        """Return the path of the image with the relative path `name`.

        `record` is the name of the image's record, for messages.

        Raises: ImageError if there is no such file, or if the path leads out of the folder.
        """
        return image_path(self.root, name, record, links=True, advice=self.advice)

    def __contains__(self, name: str) -> bool:
        """Return True if `find` returns a path for `name`."""
        try:
            self.find(name, "")
        except ImageError:
            return False
        return True


@dataclass(frozen=True, slots=True)
class Member:
    """A file, folder, link or special file in an archive, as the archive's directory lists it."""

    name: str
    start: int
    """The position of the local header in a zip, and of the content in a tar."""
    stored: int
    """The number of stored bytes."""
    kind: int
    """STORED, DEFLATED or TAR for a file that is read, FOLDER, or one of the keys of REFUSED."""
    crc: int
    """Checksum of the content; 0 in a tar, which has none."""


class Archive(IndexedFiles):
    """Images inside a tar file, or a zip file in one or more parts.

    The index has a row of type ENTRY for each file, sorted by the hash of its name, (files,).
    """

    def __init__(self, parts: Sequence[Path], cache: Path) -> None:
        """Open the archive, and write its index into the folder `cache` if it is not there.

        `parts` are the files of the archive in order; a tar has only one.

        Raises: UserError if the archive is damaged or incomplete.
        """
        stamps = " ".join(f"{stamp(part)} {part.resolve()}" for part in parts)
        # The text in front gives these indices other names than the indices of older versions,
        # which contain the first of several files with one name.
        identity = digest(f"each name once: {stamps}")
        super().__init__(parts, cache / "archives" / f"{parts[0].stem}-{identity}.npy")

    def fingerprint(self) -> str:
        """Return a digest of the parts' names, sizes and times of change."""
        return digest(" ".join(map(stamp, self.parts)))

    def __contains__(self, name: str) -> bool:
        """Return True if the archive contains a file of this name, even if the file is refused."""
        return self._entry(name) is not None

    def find(self, name: str, record: str) -> EncodedImage:
        """Return the bytes of the file with the name `name` in the archive.

        `record` is the name of the image's record, for messages.

        Raises: ImageError if the file is not there, damaged, or of a kind in `REFUSED`.
        """
        entry = self._entry(name)
        if entry is None:
            raise ImageError(
                f"{record}: the file {name!r} is not in {self.parts[0]}. {ELSEWHERE_ADVICE}"
            )
        reason = REFUSED.get(int(entry["kind"]))
        if reason is not None:
            raise ImageError(
                f"{record}: the file {name!r} in {self.parts[0].name} is not used: {reason}."
            )
        try:
            return self._content(entry)
        except (zlib.error, ValueError, OSError) as error:
            raise ImageError(
                f"{record}: the file {name!r} in {self.parts[0].name} is damaged or too large "
                f"({error}). Replace it, or leave the record out."
            ) from error

    def _entry(self, name: str) -> Any:
        """Return the row of the index about the file `name`, or None if there is no such file."""
        # The index has the names as unpacking would write them; None for a name that it would refuse.
        unpacked_name = extracted_name(name)
        if unpacked_name is None:
            return None
        # It has a hash of 64 bits in place of each name. Two of two million names have the same hash
        # with a probability of 1e-7, which is accepted.
        sorted_hashes = self.index["name"]
        hash_of_name = hash64(unpacked_name)
        position = bisect_left(sorted_hashes, hash_of_name)
        if position == len(sorted_hashes) or sorted_hashes[position] != hash_of_name:
            return None
        return self.index[position]

    def _content(self, entry: Any) -> bytes:
        """Return the unpacked bytes of the file in a row of the index.

        Raises: ValueError or zlib.error if the file is too large or damaged.
        """
        start = int(entry["start"])
        num_stored = int(entry["stored"])
        kind = int(entry["kind"])
        if num_stored > LARGEST_IMAGE:
            raise ValueError(f"{num_stored:,} bytes; read are at most {LARGEST_IMAGE:,}")
        if kind == TAR:
            return self.read(start, num_stored)
        # In a zip, the name and an extra field of the file are between its header and its content.
        header = self.read(start, LOCAL_HEADER)
        name_length = int.from_bytes(header[26:28], "little")
        extra_length = int.from_bytes(header[28:30], "little")
        content_start = start + LOCAL_HEADER + name_length + extra_length
        content = self.read(content_start, num_stored)
        if kind == DEFLATED:
            decompressor = zlib.decompressobj(wbits=-15)  # without the header of a zlib stream
            content = decompressor.decompress(content, LARGEST_IMAGE)
            if decompressor.unconsumed_tail:
                raise ValueError(f"it unpacks to more than {LARGEST_IMAGE:,} bytes")
        if zlib.crc32(content) != int(entry["crc"]):
            raise ValueError("its checksum does not agree")
        return content

    def make_index(self) -> npt.NDArray[np.void]:
        """Return the index: a row with the position, size and kind of each file in the archive.

        The rows have the type ENTRY and are sorted by the hash of the file's name, (files,).

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
        except ERRORS_OF_DAMAGED_ARCHIVES as error:
            names = ", ".join(part.name for part in self.parts)
            raise UserError(
                f"the archive {names} cannot be read ({error}). Check that all its parts are there "
                "and complete."
            ) from error
        return entries[np.argsort(entries["name"], kind="stable")]

    def _tar_members(self) -> Iterator[Member]:
        """Yield the files, folders and links in the archive, which is a tar file."""
        with open_regular(self.parts[0]) as file, tarfile.open(fileobj=file, mode="r:") as tar:
            for member in tar:
                # Undocumented, but otherwise tarfile keeps every member in memory.
                tar.members = []  # type: ignore[attr-defined]
                is_plain_file = member.isfile() and not member.issparse()
                kind = TAR if is_plain_file else LINK
                if member.isdir():
                    kind = FOLDER
                yield Member(member.name, member.offset_data, member.size, kind, crc=0)

    def _zip_members(self) -> Iterator[Member]:
        """Yield the files, folders and links in the archive, which is a zip file."""
        with zipfile.ZipFile(_Joined(self)) as archive:
            for entry in archive.infolist():
                if not entry.filename:
                    continue  # `is_dir` would raise for an empty name
                kind = entry.compress_type
                if kind not in (STORED, DEFLATED):
                    kind = UNSUPPORTED
                # The upper 16 bits are the file's mode, if the zip was written on Unix.
                if stat.S_ISLNK(entry.external_attr >> 16):
                    kind = LINK
                if entry.is_dir():
                    kind = FOLDER
                size = entry.compress_size
                yield Member(entry.filename, entry.header_offset, size, kind, entry.CRC)


def extracted_name(name: str) -> str | None:
    """Return the path to which a member of an archive is extracted, relative to the target folder.

    The result is None if the path is outside of that folder. A leading `/` is dropped, as unzip and
    tar do, and `..` removes the folder before it.

    Example: `/a//./b/../c.png` becomes `a/c.png`.
    """
    path = posixpath.normpath(name.lstrip("/"))
    if path in (".", "..") or path.startswith("../"):
        return None
    return path


def _files_by_name(members: Iterable[Member]) -> dict[str, Member]:
    """Return the members that are no folders by the path to which they are extracted.

    A file that must not be read has the kind for the reason. For example, the kind is AMBIGUOUS if
    several members have one path.
    """
    files: dict[str, Member] = {}
    folders = set[str]()
    for member in members:
        components = member.name.split("/")
        is_upwards = ".." in components or components[-1] == "."
        is_folder = member.kind == FOLDER or components[-1] == ""
        # tar follows `..`, and unzip leaves it out. Another file may be at neither of both paths.
        path_with_tar = extracted_name(member.name)
        path_with_unzip = extracted_name("/".join(part for part in components if part != ".."))
        for path in {path_with_tar, path_with_unzip}:
            if path is None:
                continue
            if is_folder:
                folders.update((path, *_parents(path)))
                continue
            kind = UPWARDS if is_upwards else member.kind
            if path in files:
                kind = AMBIGUOUS
            files[path] = replace(member, name=path, kind=kind)
    # Extraction would write a file elsewhere, if one of its folders is a link or a file.
    for path, file in files.items():
        parents = _parents(path)
        folders.update(parents)
        if any(parent in files for parent in parents):
            files[path] = replace(file, kind=BEHIND_LINK)
    # A path may be that of a file and of a folder.
    for path in folders & files.keys():
        files[path] = replace(files[path], kind=AMBIGUOUS)
    return files


def _parents(path: str) -> list[str]:
    """Return the paths of the folders that contain a relative path, and "." at the end."""
    return [str(parent) for parent in PurePosixPath(path).parents]


class _Joined:
    """The parts of a divided archive as one open file, with the methods that `zipfile` needs."""

    def __init__(self, archive: Archive) -> None:
        self.archive = archive
        self.position = 0
        """The position of the next byte, counted through all parts."""

    def tell(self) -> int:
        """Return the position of the next byte."""
        return self.position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set and return the position of the next byte; arguments as for any Python file."""
        starts = {
            os.SEEK_SET: 0,
            os.SEEK_CUR: self.position,
            os.SEEK_END: self.archive.ends[-1],
        }
        self.position = starts[whence] + offset
        if self.position < 0:
            raise OSError(f"byte {self.position} of an archive")
        return self.position

    def read(self, size: int = -1) -> bytes:
        """Return the next `size` bytes, or all bytes up to the end if `size` is negative."""
        if size < 0:
            size = self.archive.ends[-1] - self.position
        content = self.archive.read(self.position, size)
        self.position += len(content)
        return content


def is_archive(path: Path) -> bool:
    """Return True if a file has the name of an archive, or of a part of one."""
    return ".zip" in path.suffix or path.suffix == ".tar"


def open_images(paths: Sequence[Path], cache: Path) -> Archive | Folder:
    """Open a folder of images, or an archive of images.

    Args:
        paths: The folder alone, or all files of the archive.
        cache: The folder of the cache, for the index of an archive.

    Raises:
        UserError: The paths are something else, such as a compressed tar, which cannot be read
            image by image. Or the archive is damaged.
    """
    check_image_paths(paths)
    if paths[0].is_dir():
        return Folder(paths[0])
    return Archive(sorted(paths), cache)


def check_image_paths(paths: Sequence[Path]) -> None:
    """Raise UserError unless `paths` are a folder, or the files of an archive.

    Names and kinds of files are checked, and no file is opened.
    """
    if len(paths) == 1 and paths[0].is_dir():
        return
    for path in paths:
        if os.path.lexists(path):
            require_regular(path)
    are_archives = all(is_archive(path) and path.is_file() for path in paths)
    if not paths or not are_archives:
        raise UserError(
            f"images in {', '.join(map(str, paths)) or 'no place'}: required is a folder, a .zip "
            "(whole, or all parts of .zip_aa, .zip_ab, …) or an uncompressed .tar. Unpack anything "
            "else into a folder."
        )
