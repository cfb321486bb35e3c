"""Images inside an archive, read one at a time without unpacking: zip (also one cut into parts, as `x.zip_aa`), and tar.

The first time, the archive's directory is turned into arrays in the cache, sorted by a hash of the name, so that an
archive of 270,000 images opens in a moment and costs no memory.
"""

from __future__ import annotations

import os
import tarfile
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from data.errors import ImageError, UserError
from data.images import image_path
from data.preference import EncodedImage
from data.storage.files import digest, hash64, stamp, whole_file

ENTRY = np.dtype([("name", "u8"), ("start", "i8"), ("stored", "i8"), ("kind", "u1"), ("crc", "u4")])
"""A file in the archive; `start` is that of the local header in a zip and of the content in a tar."""
STORED, DEFLATED, TAR = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, 255
LOCAL_HEADER = 30


class Images(Protocol):
    """Where the images lie that records name."""

    def find(self, name: str, record: str) -> EncodedImage:
        """Return the image `name`; raise ImageError naming `record` if it is not there."""
        ...


@dataclass(frozen=True)
class Folder:
    """Images as files under a folder, which no name may leave."""

    root: Path

    def find(self, name: str, record: str) -> EncodedImage:
        """Return the path of image `name`."""
        return image_path(self.root, name, record)

    def __contains__(self, name: str) -> bool:
        """Tell whether there is such a file."""
        return (self.root / name).is_file()


class Archive:
    """Images inside a tar file, or a zip file in one or more parts."""

    def __init__(self, parts: Sequence[Path], cache: Path) -> None:
        """Open the archive; raise UserError if it is damaged or incomplete."""
        self.parts = list(parts)
        self.ends = np.cumsum([part.stat().st_size for part in self.parts])
        identity = digest(" ".join(f"{part.resolve()} {stamp(part)}" for part in self.parts))
        self._index = cache / "archives" / f"{self.parts[0].stem}-{identity}.npy"
        if not self._index.exists():
            entries = self._read_directory()
            with whole_file(self._index, "wb") as file:
                np.save(file, entries)

    @cached_property
    def entries(self) -> npt.NDArray[np.void]:
        """The archive's files by the hash of their name, memory-mapped: (files,) of ENTRY."""
        loaded: npt.NDArray[np.void] = np.load(self._index, mmap_mode="r")
        return loaded

    @cached_property
    def _descriptors(self) -> list[int]:
        return [os.open(part, os.O_RDONLY) for part in self.parts]

    def __getstate__(self) -> dict[str, Any]:
        """Leave the open files and the mapping behind: another process opens its own."""
        return {"parts": self.parts, "ends": self.ends, "_index": self._index}

    def __contains__(self, name: str) -> bool:
        """Tell whether there is such a file."""
        return self._entry(name) is not None

    def find(self, name: str, record: str) -> EncodedImage:
        """Return the bytes of file `name`."""
        entry = self._entry(name)
        if entry is None:
            raise ImageError(f"{record}: the image {name!r} is not in {self.parts[0].name}.")
        try:
            return self._content(entry)
        except (zlib.error, ValueError) as error:
            raise ImageError(f"{record}: the image {name!r} in {self.parts[0].name} is damaged ({error}).") from error

    def read(self, start: int, size: int) -> bytes:
        """Return bytes of the archive, counted through all its parts."""
        pieces = []
        part = int(np.searchsorted(self.ends, start, side="right"))
        while size > 0 and part < len(self.parts):
            begin = int(self.ends[part - 1]) if part else 0
            piece = os.pread(self._descriptors[part], size, start - begin)
            pieces.append(piece)
            start, size, part = start + len(piece), size - len(piece), part + 1
        return b"".join(pieces)

    def _entry(self, name: str) -> npt.NDArray[np.void] | None:
        wanted = np.uint64(hash64(name))
        position = int(np.searchsorted(self.entries["name"], wanted))
        if position == len(self.entries) or self.entries["name"][position] != wanted:
            return None
        entry: npt.NDArray[np.void] = self.entries[position]
        return entry

    def _content(self, entry: npt.NDArray[np.void]) -> bytes:
        start, stored, kind = (int(entry[name]) for name in ("start", "stored", "kind"))
        if kind == TAR:
            return self.read(start, stored)
        header = self.read(start, LOCAL_HEADER)
        skip = LOCAL_HEADER + int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
        content = self.read(start + skip, stored)
        if kind == DEFLATED:
            content = zlib.decompress(content, wbits=-15)
        if zlib.crc32(content) != int(entry["crc"]):
            raise ValueError("its checksum does not agree")
        return content

    def _read_directory(self) -> npt.NDArray[np.void]:
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
                        (hash64(entry.filename), entry.header_offset, entry.compress_size, kind, entry.CRC)
                        for entry in archive.infolist()
                        if not entry.is_dir() and (kind := entry.compress_type) in (STORED, DEFLATED)
                    ]
        except (zipfile.BadZipFile, tarfile.TarError, OSError) as error:
            names = ", ".join(part.name for part in self.parts)
            raise UserError(f"the archive {names} cannot be read ({error}). Are all its parts there and complete?") from error
        entries = np.array(rows, ENTRY)
        return entries[np.argsort(entries["name"], kind="stable")]


class _Joined:
    """The parts of an archive as one file, as far as `zipfile` needs one to read its directory."""

    def __init__(self, archive: Archive) -> None:
        self.archive, self.position = archive, 0

    def tell(self) -> int:
        return self.position

    def seek(self, offset: int, whence: int = 0) -> int:
        self.position = (0, self.position, int(self.archive.ends[-1]))[whence] + offset
        if self.position < 0:
            raise OSError(f"byte {self.position} of an archive")
        return self.position

    def read(self, size: int = -1) -> bytes:
        piece = self.archive.read(self.position, size if size >= 0 else int(self.archive.ends[-1]) - self.position)
        self.position += len(piece)
        return piece


def open_images(places: Sequence[Path], cache: Path) -> Archive | Folder:
    """Return a folder as Folder, and archive files as Archive.

    Raises: UserError for anything else, as a compressed tar, which cannot be read image by image.
    """
    if len(places) == 1 and places[0].is_dir():
        return Folder(places[0])
    if all(".zip" in place.suffix or place.suffix == ".tar" for place in places) and places and all(map(Path.is_file, places)):
        return Archive(sorted(places), cache)
    raise UserError(
        f"images in {', '.join(map(str, places)) or 'no place'}: required is a folder, a .zip (whole, or all parts of .zip_aa, "
        ".zip_ab, …) or an uncompressed .tar. Unpack anything else into a folder."
    )
