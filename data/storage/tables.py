"""Tables on disk, addressed by row: JSON lines through an index of byte offsets, parquet through a copy in Arrow.

Neither is held in memory. What is derived (the offsets, the Arrow copy of a parquet file) lies in the cache under a name
that holds the file's size and time of change, and is written under a temporary name first.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import zlib
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from data.errors import RecordError, UserError
from data.storage.files import digest, stamp, whole_file, write_whole
from data.storage.rows import Row, Rows

Offsets = npt.NDArray[np.int64]
READ = 1 << 26
"""Bytes read at once while looking for line ends."""


class JsonLines:
    """A file with one JSON object a line. Lines are read with `pread`: no mapping, nothing that workers could share wrongly."""

    def __init__(self, path: Path, cache: Path) -> None:
        """Open the file; the first time, find its lines (about a second for each gigabyte)."""
        self.path = path
        self._index = _line_index(path, cache)
        self._descriptor: int | None = None

    @cached_property
    def offsets(self) -> Offsets:
        """Start and end of each line, memory-mapped: int64 of shape (lines, 2)."""
        loaded: Offsets = np.load(self._index, mmap_mode="r")
        return loaded

    def __len__(self) -> int:
        """Return the number of lines that are not blank."""
        return len(self.offsets)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the open file and the mapping behind: another process opens its own."""
        return {"path": self.path, "_index": self._index, "_descriptor": None}

    def row(self, index: int) -> Row:
        """Return the object on line `index`; raise RecordError if it is not one."""
        if self._descriptor is None:
            self._descriptor = os.open(self.path, os.O_RDONLY)
        start, stop = self.offsets[index]
        try:
            row = json.loads(os.pread(self._descriptor, int(stop - start), int(start)))
        except (ValueError, RecursionError) as error:
            raise RecordError(f"{self.path.name}, row {index} (byte {start}): no valid JSON ({error}).") from error
        if not isinstance(row, dict):
            raise RecordError(
                f"{self.path.name}, row {index} (byte {start}): a JSON {type(row).__name__}; required is an object."
            )
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
        table = int(np.searchsorted(self.ends, index, side="right"))
        return table, index - int(self.ends[table] - len(self.tables[table]))

    def fingerprint(self) -> str:
        """Return a digest of the tables' fingerprints."""
        return digest(" ".join(table.fingerprint() for table in self.tables))


def _line_index(path: Path, cache: Path) -> Path:
    index = cache / "lines" / f"{path.stem}-{digest(str(path.resolve()))}-{stamp(path)}.npy"
    if not index.exists():
        offsets = _line_offsets(path)
        with whole_file(index, "wb") as file:
            np.save(file, offsets)
    return index


def _line_offsets(path: Path) -> Offsets:
    """Return (start, stop) of every line that holds more than white space at its ends: int64 of shape (lines, 2)."""
    ends = []
    position = 0
    with path.open("rb") as file:
        while block := file.read(READ):
            ends.append(np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n")) + position)
            position += len(block)
    stops = np.concatenate([*ends, np.array([position])])
    starts = np.concatenate([np.zeros(1, np.int64), stops[:-1] + 1])
    offsets = np.stack([starts, stops], axis=1)
    return offsets[_filled(path, offsets)]


def _filled(path: Path, offsets: Offsets) -> npt.NDArray[np.bool_]:
    """Tell which lines are not blank; only very short ones are looked at."""
    lengths = offsets[:, 1] - offsets[:, 0]
    filled = lengths > 0
    with path.open("rb") as file:
        for line in np.flatnonzero((lengths > 0) & (lengths < 8)):
            file.seek(int(offsets[line, 0]))
            filled[line] = bool(file.read(int(lengths[line])).strip())
    return filled


def open_rows(paths: Sequence[Path], cache: Path, columns: Sequence[str] = ()) -> Rows:
    """Open files of one kind (.jsonl, .jsonl.gz, .json with a list or with lines, .parquet, .arrow) as one table.

    `columns` must be in every parquet or Arrow file; JSON rows are checked when they are read.

    Raises: UserError for another kind of file, a damaged file, or a missing column.
    """
    from data.storage import arrow as arrow_tables  # pyarrow is slow to import, and a recipe is read without it

    opener: dict[str, Callable[[Sequence[Path], Path, Sequence[str]], list[Rows]]] = {
        ".jsonl": lambda files, folder, _: [JsonLines(file, folder) for file in files],
        ".json": lambda files, folder, _: [JsonLines(_as_lines(file, folder), folder) for file in files],
        ".gz": lambda files, folder, _: [JsonLines(_unpacked(file, folder), folder) for file in files],
        ".parquet": arrow_tables.open_tables,
        ".arrow": arrow_tables.open_tables,
    }
    kinds = sorted({path.suffix for path in paths})
    if len(kinds) != 1 or kinds[0] not in opener:
        raise UserError(f"files of kind {', '.join(kinds)}: required is one kind of {', '.join(opener)}.")
    tables = opener[kinds[0]](paths, cache, columns)
    return tables[0] if len(tables) == 1 else Concatenated(tables)


def _unpacked(path: Path, cache: Path) -> Path:
    """Return the unpacked copy of a gzip file in the cache."""
    lines = cache / "lines" / f"{path.stem}-{digest(str(path.resolve()))}-{stamp(path)}.jsonl"
    if not lines.exists():
        try:
            with gzip.open(path) as source, whole_file(lines, "wb") as target:
                shutil.copyfileobj(source, target, READ)
        except (OSError, EOFError, zlib.error) as error:
            raise UserError(f"{path}: the file cannot be unpacked ({error}). Is it complete?") from error
    return lines


def _as_lines(path: Path, cache: Path) -> Path:
    """Return a JSON file that holds a list as JSON lines: itself if it is such already, else a copy in the cache."""
    with path.open("rb") as file:
        if file.read(64).lstrip()[:1] != b"[":
            return path
    lines = cache / "lines" / f"{path.stem}-{digest(str(path.resolve()))}-{stamp(path)}.jsonl"
    if not lines.exists():
        try:
            rows = json.loads(path.read_bytes())
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}: the file is no valid JSON ({error}). Is it complete?") from error
        write_whole(lines, "".join(json.dumps(row) + "\n" for row in rows))
    return lines
