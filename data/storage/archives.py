"""Images inside an archive, read one at a time without unpacking: zip (also one cut into parts, as `x.zip_aa`), and tar.

The first time, the archive's directory is turned into arrays in the cache, sorted by a hash of the name, so that an
archive of 270,000 images opens in a moment and costs no memory.
"""

import struct
import tarfile
import zipfile
import zlib
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from data.errors import ImageError, UserError
from data.images import ELSEWHERE, image_path
from data.preference import EncodedImage
from data.storage.files import digest, hash64, stamp
from data.storage.tables import IndexedFiles

ENTRY = np.dtype([("name", "u8"), ("start", "i8"), ("stored", "i8"), ("kind", "u1"), ("crc", "u4")])
"""A file in the archive; `start` is that of the local header in a zip and of the content in a tar."""
DAMAGED = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, struct.error),
    *(ArithmeticError, EOFError, OSError, RuntimeError, ValueError),
)
"""What the readers of damaged archives raise; a zip under a password is a RuntimeError."""
STORED, DEFLATED, TAR = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, 255
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


class Archive(IndexedFiles):
    """Images inside a tar file, or a zip file in one or more parts; its files by the hash of their name: (files,) of ENTRY."""

    def __init__(self, parts: Sequence[Path], cache: Path) -> None:
        identity = digest(" ".join(f"{part.resolve()} {stamp(part)}" for part in parts))
        super().__init__(parts, cache / "archives" / f"{parts[0].stem}-{identity}.npy")

    def fingerprint(self) -> str:
        """Return a digest of the parts' names, sizes and times of change."""
        return digest(" ".join(map(stamp, self.parts)))

    def __contains__(self, name: str) -> bool:
        """Tell whether there is such a file."""
        return self._entry(name) is not None

    def find(self, name: str, record: str) -> EncodedImage:
        """Return the bytes of file `name`."""
        entry = self._entry(name)
        if entry is None:
            raise ImageError(f"{record}: the image {name!r} is not in {self.parts[0]}. {ELSEWHERE}")
        try:
            return self._content(entry)
        except (zlib.error, ValueError, OSError) as error:
            raise ImageError(
                f"{record}: the image {name!r} in {self.parts[0].name} is damaged or too large ({error})."
            ) from error

    def _entry(self, name: str) -> Any:
        names, wanted = self.index["name"], hash64(name)
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
        """Read the directory."""
        rows = []
        try:
            if self.parts[0].suffix == ".tar":
                with tarfile.open(self.parts[0], "r:") as tar:
                    for member in tar:
                        if member.isfile():
                            name = hash64(member.name.removeprefix("./"))
                            rows.append((name, member.offset_data, member.size, TAR, 0))
                        tar.members = []  # type: ignore[attr-defined]  # undocumented, but else tarfile remembers every file
            else:
                with zipfile.ZipFile(_Joined(self)) as archive:
                    rows = [
                        (
                            hash64(entry.filename),
                            entry.header_offset,
                            entry.compress_size,
                            kind,
                            entry.CRC,
                        )
                        for entry in archive.infolist()
                        if not entry.is_dir()
                        and (kind := entry.compress_type) in (STORED, DEFLATED)
                    ]
            entries = np.array(rows, ENTRY)
        except DAMAGED as error:
            names = ", ".join(part.name for part in self.parts)
            raise UserError(
                f"the archive {names} cannot be read ({error}). Are all its parts there and complete?"
            ) from error
        return entries[np.argsort(entries["name"], kind="stable")]


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
    if not folder and not (
        places and all(is_archive(place) and place.is_file() for place in places)
    ):
        raise UserError(
            f"images in {', '.join(map(str, places)) or 'no place'}: required is a folder, a .zip (whole, or all parts of "
            ".zip_aa, .zip_ab, …) or an uncompressed .tar. Unpack anything else into a folder."
        )
