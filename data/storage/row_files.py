"""Tables on disk, addressed by row: JSON lines through an index of byte offsets, parquet through a copy in Arrow.

Neither is held in memory. What is derived (the offsets, the Arrow copy of a parquet file) lies in the cache under a name
that holds the file's size and time of change.
"""

import codecs
import gzip
import os
import weakref
import zlib
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from mmrm.data.errors import RecordError, UserError
from mmrm.data.regular_files import open_descriptor, open_regular, read_bytes, require_regular
from mmrm.data.storage.arrow import open_tables
from mmrm.data.storage.files import copy_limited, derived, digest, stamp, whole_file
from mmrm.data.storage.strict_json import items, parse_json

READ = 1 << 26
"""Bytes read at once while looking for line ends."""
LONGEST_ROW = 1 << 28
"""Bytes of a line of JSON: 256 MiB are dozens of large images inside it."""
KINDS = (".jsonl", ".json", ".gz", ".parquet", ".arrow")
Row = Mapping[str, Any]
"""One row of a table as it was read: column name to value."""


class Rows(Protocol):
    """A table on disk, addressed by row."""

    def __len__(self) -> int:
        """Return the number of rows."""
        ...

    def row(self, index: int) -> Row:
        """Return one row; raise RecordError naming file and row if it cannot be read."""
        ...

    def fingerprint(self) -> str:
        """Return a short text that changes when the files change."""
        ...


class IndexedFiles(ABC):
    """Files read as one by byte position, with an index of what lies where: an array in the cache, made the first time.

    They are read with `pread`, and another process opens its own: nothing that workers could share wrongly.
    """

    def __init__(self, parts: Sequence[Path], index: Path) -> None:
        self.parts, self._index = list(parts), index
        self.ends = list(accumulate(require_regular(part).st_size for part in self.parts))
        if not index.exists():
            entries = self.make_index()
            with whole_file(index, "wb") as file:
                np.save(file, entries)

    @abstractmethod
    def make_index(self) -> npt.NDArray[Any]:
        """Return the index; raise UserError if the files are damaged or incomplete."""

    @cached_property
    def index(self) -> npt.NDArray[Any]:
        """The index, memory-mapped."""
        loaded: npt.NDArray[Any] = np.load(self._index, mmap_mode="r")
        return loaded

    @cached_property
    def _descriptors(self) -> list[int]:
        opened = [open_descriptor(part) for part in self.parts]
        weakref.finalize(self, _close, opened)
        return opened

    def __getstate__(self) -> dict[str, Any]:
        """Leave the open files and the mapping behind."""
        return {
            name: value
            for name, value in vars(self).items()
            if name not in ("index", "_descriptors")
        }

    def read(self, start: int, size: int) -> bytes:
        """Return bytes, counted through all parts."""
        pieces = []
        part, begin = located(self.ends, start)
        while size > 0 and part < len(self.parts):
            pieces.append(os.pread(self._descriptors[part], size, begin))
            size, part, begin = size - len(pieces[-1]), part + 1, 0
        return b"".join(pieces)


def _close(descriptors: Sequence[int]) -> None:
    for one in descriptors:
        os.close(one)


class JsonLines(IndexedFiles):
    """A file with one JSON object a line; the index holds start and end of each line: int64 of shape (lines, 2)."""

    def __init__(self, path: Path, cache: Path) -> None:
        self.path = path
        super().__init__([path], derived(path, cache, "lines", ".npy"))

    def make_index(self) -> npt.NDArray[np.int64]:
        """Find the lines that are not blank, about a second for each gigabyte; only very short ones are looked at."""
        ends = []
        position = 0
        with open_regular(self.path) as file:
            while block := file.read(READ):
                ends.append(np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n")) + position)
                position += len(block)
            stops = np.concatenate([*ends, np.array([position])])
            starts = np.concatenate([np.zeros(1, np.int64), stops[:-1] + 1])
            lengths = stops - starts
            filled = lengths > 0
            for line in np.flatnonzero(filled & (lengths < 8)):
                file.seek(int(starts[line]))
                filled[line] = bool(file.read(int(lengths[line])).strip())
        return np.stack([starts[filled], stops[filled]], axis=1)

    def __len__(self) -> int:
        """Return the number of lines that are not blank."""
        return len(self.index)

    def row(self, index: int) -> Row:
        """Return the object on line `index`; raise RecordError if it is not one."""
        start, stop = map(int, self.index[index])
        where = f"{self.path.name}, row {index} (byte {start})"
        if stop - start > LONGEST_ROW:
            raise RecordError(
                f"{where}: a line of {stop - start:,} bytes; read are at most {LONGEST_ROW:,}."
            )
        try:
            row = parse_json(self.read(start, stop - start))
        except RecordError as error:
            raise RecordError(f"{where}: {error}") from error
        if not isinstance(row, dict):
            raise RecordError(f"{where}: a JSON {type(row).__name__}; required is an object.")
        return row

    def fingerprint(self) -> str:
        """Return name, size and time of change."""
        return stamp(self.path)


class Concatenated:
    """Several tables as one."""

    def __init__(self, tables: Sequence[Rows]) -> None:
        self.tables = tables
        self.ends = list(accumulate(map(len, tables)))

    def __len__(self) -> int:
        """Return the number of rows of all tables."""
        return self.ends[-1]

    def row(self, index: int) -> Row:
        """Return one row, counted through all tables."""
        table, position = self.place(index)
        return self.tables[table].row(position)

    def place(self, index: int) -> tuple[int, int]:
        """Return which table holds row `index`, and its row number there."""
        return located(self.ends, index)

    def fingerprint(self) -> str:
        """Return a digest of the tables' fingerprints."""
        return digest(" ".join(table.fingerprint() for table in self.tables))


def located(ends: Sequence[int], index: int) -> tuple[int, int]:
    """Return which of several parts holds item `index`, and its position there; `ends` are their lengths summed up."""
    part = bisect_right(ends, index)
    return part, index - (ends[part - 1] if part else 0)


def kind_of(paths: Sequence[Path]) -> str:
    """Return the kind of files by the end of their names; raise UserError unless it is the same for all, and one that is read."""
    kinds = sorted({path.suffix for path in paths})
    if len(kinds) != 1 or kinds[0] not in KINDS:
        names = ", ".join(str(path) for path in paths[:3])
        raise UserError(
            f"{names}: files of kind {', '.join(kinds) or 'none'}: required is one kind of {', '.join(KINDS)}."
        )
    return kinds[0]


def open_rows(paths: Sequence[Path], cache: Path, columns: Sequence[str] = ()) -> Rows:
    """Open files of one kind (.jsonl, .jsonl.gz, .json with a list or with lines, .parquet, .arrow) as one table.

    `columns` must be in every parquet or Arrow file; JSON rows are checked when they are read.

    Raises: UserError for another kind of file, a damaged file, or a missing column.
    """
    tables: Sequence[Rows]
    if kind_of(paths) in (".parquet", ".arrow"):
        tables = open_tables(paths, cache, columns)
    else:
        tables = [JsonLines(_as_lines(path, cache), cache) for path in paths]
    return tables[0] if len(tables) == 1 else Concatenated(tables)


def _as_lines(path: Path, cache: Path) -> Path:
    """Return a file as JSON lines: itself if it is such already, else its copy in the cache, unpacked or a line each item."""
    with open_regular(path) as file:
        head = (
            b""
            if path.suffix == ".jsonl"
            else file.read(READ).removeprefix(codecs.BOM_UTF8).lstrip()
        )
    if path.suffix != ".gz" and not head.startswith(b"["):
        return path
    lines = derived(path, cache, "unpacked", ".jsonl")
    if lines.exists():
        return lines
    try:
        with whole_file(lines, "wb") as target:
            if path.suffix == ".gz":
                with open_regular(path) as packed, gzip.open(packed) as source:
                    copy_limited(source, target, path)
            else:  # a byte that is no UTF-8 goes through to the line, and makes that row alone unreadable
                text = (
                    read_bytes(path).removeprefix(codecs.BOM_UTF8).decode(errors="surrogateescape")
                )
                target.writelines(
                    item.encode(errors="surrogateescape") + b"\n" for item in items(text)
                )
    except UserError:
        raise
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: the file is no valid JSON ({error}). Is it complete?") from error
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(
            f"{path}: the file cannot be unpacked ({error}). Is it complete?"
        ) from error
    return lines
