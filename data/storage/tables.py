"""Tables on disk, addressed by row: JSON lines through an index of byte offsets, parquet through a copy in Arrow.

Neither is held in memory. What is derived (the offsets, the Arrow copy of a parquet file) lies in the cache under a name
that holds the file's size and time of change.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import zlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from data.errors import RecordError, UserError
from data.storage.arrow import open_tables
from data.storage.files import derived, digest, stamp, whole_file

READ = 1 << 26
"""Bytes read at once while looking for line ends."""
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


class JsonLines:
    """A file with one JSON object a line. Lines are read with `pread`: no mapping, nothing that workers could share wrongly."""

    def __init__(self, path: Path, cache: Path) -> None:
        """Open the file; the first time, find its lines (about a second for each gigabyte)."""
        self.path = path
        self._index = derived(path, cache, "lines", ".npy")
        if not self._index.exists():
            offsets = _line_offsets(path)
            with whole_file(self._index, "wb") as file:
                np.save(file, offsets)

    @cached_property
    def offsets(self) -> npt.NDArray[np.int64]:
        """Start and end of each line, memory-mapped: int64 of shape (lines, 2)."""
        loaded: npt.NDArray[np.int64] = np.load(self._index, mmap_mode="r")
        return loaded

    @cached_property
    def _descriptor(self) -> int:
        return os.open(self.path, os.O_RDONLY)

    def __len__(self) -> int:
        """Return the number of lines that are not blank."""
        return len(self.offsets)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the open file and the mapping behind: another process opens its own."""
        return {"path": self.path, "_index": self._index}

    def row(self, index: int) -> Row:
        """Return the object on line `index`; raise RecordError if it is not one."""
        start, stop = self.offsets[index]
        where = f"{self.path.name}, row {index} (byte {start})"
        try:
            row = json.loads(os.pread(self._descriptor, int(stop - start), int(start)))
        except (ValueError, RecursionError) as error:
            raise RecordError(f"{where}: no valid JSON ({error}).") from error
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
        self.ends = np.cumsum([len(table) for table in tables])

    def __len__(self) -> int:
        """Return the number of rows of all tables."""
        return int(self.ends[-1])

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


def located(ends: npt.NDArray[np.int64], index: int) -> tuple[int, int]:
    """Return which of several parts holds item `index`, and its position there; `ends` are their lengths summed up."""
    part = int(np.searchsorted(ends, index, side="right"))
    return part, index - (int(ends[part - 1]) if part else 0)


def open_rows(paths: Sequence[Path], cache: Path, columns: Sequence[str] = ()) -> Rows:
    """Open files of one kind (.jsonl, .jsonl.gz, .json with a list or with lines, .parquet, .arrow) as one table.

    `columns` must be in every parquet or Arrow file; JSON rows are checked when they are read.

    Raises: UserError for another kind of file, a damaged file, or a missing column.
    """
    kinds = sorted({path.suffix for path in paths})
    if len(kinds) != 1 or kinds[0] not in KINDS:
        raise UserError(f"files of kind {', '.join(kinds)}: required is one kind of {', '.join(KINDS)}.")
    tables: Sequence[Rows]
    if kinds[0] in (".parquet", ".arrow"):
        tables = open_tables(paths, cache, columns)
    else:
        tables = [JsonLines(_as_lines(path, cache), cache) for path in paths]
    return tables[0] if len(tables) == 1 else Concatenated(tables)


def _line_offsets(path: Path) -> npt.NDArray[np.int64]:
    """Return (start, stop) of every line that is not blank: int64 of shape (lines, 2). Only very short ones are looked at."""
    ends = []
    position = 0
    with path.open("rb") as file:
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


def _as_lines(path: Path, cache: Path) -> Path:
    """Return a file as JSON lines: itself if it is such already, else its copy in the cache, unpacked or a line each item."""
    with path.open("rb") as file:
        if path.suffix == ".jsonl" or (path.suffix == ".json" and file.read(64).lstrip()[:1] != b"["):
            return path
    lines = derived(path, cache, "lines", ".jsonl")
    if lines.exists():
        return lines
    try:
        with whole_file(lines, "wb") as target:
            if path.suffix == ".gz":
                with gzip.open(path) as source:
                    shutil.copyfileobj(source, target, READ)
            else:
                target.writelines(json.dumps(row).encode() + b"\n" for row in json.loads(path.read_bytes()))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: the file is no valid JSON ({error}). Is it complete?") from error
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: the file cannot be unpacked ({error}). Is it complete?") from error
    return lines
