"""Parquet and Arrow files as tables addressed by row: parquet cannot be read by row, so each file is copied to Arrow once.

A copy is made file by file, in parallel, and a finished file is never copied again. A damaged row group does not spoil
the rest of its file: its rows are remembered with the reason, and reading one of them raises.

A row is read as its small batch, with ordinary reads and not through a memory map: Arrow asks the kernel to page in
all of what it maps, which for a set with images would be the whole file on opening and megabytes for each row.
pyarrow is slow to import, and a recipe is read without it: it is imported where it is needed.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.progress import track

from mmrm.data.errors import RecordError, UserError
from mmrm.data.regular_files import require_regular
from mmrm.data.storage.files import derived, mapped, stamp, whole_file, write_whole
from mmrm.data.storage.output_lock import waiting_lock

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

ROWS_OF_TEXT, ROWS_OF_BINARY = 64, 4
"""Rows of a batch, which is read whole for one of its rows: some hundred kilobytes either way."""
Damage = list[tuple[int, int, str]]
"""First row, row after the last, and why they cannot be read."""
BEYOND_PYTHON = (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError)
"""What a value raises that Arrow can hold and Python cannot: text that is no UTF-8, a date beyond all years, a time zone that
nobody knows, a struct with a field twice. Arrow's own errors are among them."""


class ArrowTable:
    """The copy of a parquet or Arrow file."""

    def __init__(self, original: Path, copy: Path) -> None:
        """Open `copy`; errors name `original`."""
        self.original, self.copy = original, copy
        contents = json.loads(_contents_of(copy).read_text())
        self.damaged: Damage = contents["damaged"]
        self.ends = np.cumsum(contents["batches"])
        self._reader: pa.RecordBatchFileReader | None = None
        self._last: tuple[int, pa.RecordBatch] = (-1, None)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the open file behind: another process opens its own."""
        return self.__dict__ | {"_reader": None, "_last": (-1, None)}

    def __len__(self) -> int:
        """Return the number of rows, the damaged ones included."""
        return int(self.ends[-1]) if len(self.ends) else 0

    def row(self, index: int) -> dict[str, Any]:
        """Return one row; raise RecordError if it lies in a damaged part of the original."""
        import pyarrow as pa

        for start, stop, reason in self.damaged:
            if start <= index < stop:
                raise RecordError(
                    f"{self.original.name}, row {index}: rows {start} to {stop - 1} cannot be read ({reason})."
                )
        if self._reader is None:
            options = pa.ipc.IpcReadOptions(
                use_threads=False
            )  # one small batch at a time, also in forked workers
            self._reader = pa.ipc.open_file(pa.OSFile(str(self.copy)), options=options)
        number = bisect_right(self.ends, index)
        if self._last[0] != number:  # the last batch is kept for reading in order
            self._last = (number, self._reader.get_batch(number))
        batch = self._last[1]
        try:
            row: dict[str, Any] = batch.slice(
                index - int(self.ends[number] - batch.num_rows), 1
            ).to_pylist()[0]
        except BEYOND_PYTHON as error:
            raise RecordError(
                f"{self.original.name}, row {index}: a value that Python cannot hold ({error})."
            ) from error
        return row

    def fingerprint(self) -> str:
        """Return name, size and time of change of the original."""
        return stamp(self.original)


def open_tables(paths: Sequence[Path], cache: Path, columns: Sequence[str]) -> list[ArrowTable]:
    """Open parquet or Arrow files, copying those that have no copy yet.

    Raises: UserError naming the file if it is none, or if one of `columns` is missing.
    """
    for path in paths:
        found = _opened(path, [])[0].names
        refuse_repeated_columns(path, found)
        missing = [column for column in columns if column not in found]
        if missing:
            raise UserError(
                f"{path}: there is no column {', '.join(map(repr, missing))}; found are {', '.join(map(repr, found))}, required "
                f"are {', '.join(map(repr, columns))}. Has the data set changed? Pin its revision, or rename the columns."
            )
    copies = [(path, derived(path, cache, "tables", ".arrow")) for path in paths]
    new = [(path, copy) for path, copy in copies if not copy.exists()]
    with mapped(_copy, new, os.cpu_count() or 1) as copied:
        for _ in track(copied, "copying to Arrow", total=len(new), transient=True, disable=not new):
            pass
    return [ArrowTable(path, copy) for path, copy in copies]


def refuse_repeated_columns(path: Path, columns: Sequence[str]) -> None:
    """Raise UserError if a column is there twice: readers differ in which one they take."""
    repeated = sorted({column for column in columns if columns.count(column) > 1})
    if repeated:
        raise UserError(
            f"{path}: the column {repeated[0]!r} stands there twice, and nobody can tell which one counts. Rename or drop one."
        )


def _contents_of(copy: Path) -> Path:
    """Return the file beside a copy that holds the rows of each batch and the damaged rows."""
    return copy.with_suffix(".json")


def _opened(path: Path, damaged: Damage) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Return the schema and the rows of a parquet file, or of an Arrow file in either format (`datasets` writes the stream)."""
    import pyarrow as pa
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    require_regular(path)
    try:
        if path.suffix == ".parquet":
            schema = pq.read_schema(path)
            return schema, _parquet_batches(path, schema, damaged)
        source = pa.OSFile(str(path))
        try:
            file = pa.ipc.open_file(source)
            return file.schema, map(file.get_batch, range(file.num_record_batches))
        except pa.ArrowInvalid:
            source.seek(0)
            stream = pa.ipc.open_stream(source)
            return stream.schema, iter(stream)
    except (OSError, pa.ArrowException) as error:
        raise UserError(
            f"{path}: the file cannot be opened ({error}). Is it complete? Fetch it again."
        ) from error


def _copy(job: tuple[Path, Path]) -> None:
    """Copy a file in small batches; beside it, note the rows of each and what cannot be read."""
    import pyarrow as pa

    path, copy = job
    copy.parent.mkdir(parents=True, exist_ok=True)
    with waiting_lock(copy.with_suffix(".lock")):
        if copy.exists():
            return
        damaged: Damage = []
        sizes: list[int] = []
        schema, batches = _opened(path, damaged)
        most = (
            ROWS_OF_BINARY if any("binary" in str(field.type) for field in schema) else ROWS_OF_TEXT
        )
        with whole_file(copy, "wb") as file:
            with pa.ipc.new_file(file, schema) as writer:
                for batch in batches:
                    for start in range(0, batch.num_rows, most):
                        part = batch.slice(start, most)
                        writer.write_batch(part)
                        sizes.append(part.num_rows)
            write_whole(_contents_of(copy), json.dumps({"batches": sizes, "damaged": damaged}))


def _parquet_batches(path: Path, schema: pa.Schema, damaged: Damage) -> Iterator[pa.RecordBatch]:
    """Yield the rows; for what is left of a damaged row group as many empty rows, noted in `damaged`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    done = 0
    with pq.ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            end = done + file.metadata.row_group(group).num_rows
            try:
                for batch in file.iter_batches(
                    batch_size=ROWS_OF_TEXT, row_groups=[group], use_threads=False
                ):
                    yield batch
                    done += batch.num_rows
            except (OSError, pa.ArrowException) as error:
                damaged.append((done, end, f"row group {group} of {path.name} is damaged: {error}"))
                yield pa.record_batch(
                    [pa.nulls(end - done, field.type) for field in schema], schema=schema
                )
                done = end
