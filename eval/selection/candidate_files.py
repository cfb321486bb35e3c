"""Writing records: those of a file with more columns, and records of a form of their own; JSON lines or parquet, in one step.

Parquet and Arrow records go to parquet as they are, images included, and never through Python.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmrm.data.errors import RecordError, UserError
from mmrm.data.storage.arrow import ArrowTable
from mmrm.data.storage.files import whole_file
from mmrm.data.storage.row_files import Row, Rows

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

ROWS = 1000
"""About the most rows of a row group."""
BYTES = 1 << 26
"""About the most bytes of a row group."""
New = Mapping[str, Any] | None
"""What is added to a record; None leaves the record out."""


def columns_added() -> dict[str, pa.DataType]:
    """Return the columns that may be added to a record, with their types in parquet."""
    import pyarrow as pa

    numbers = pa.list_(pa.float64())
    texts = pa.list_(pa.string())
    return {
        **{
            "scores": numbers,
            "order": pa.list_(pa.int64()),
            "margin": pa.float64(),
            "normalised": numbers,
            "rewards": numbers,
        },
        **{
            "right": pa.list_(pa.bool_()),
            "judgements": pa.int64(),
            "unread": pa.int64(),
            "critiques": texts,
        },
        **{"response": pa.string(), "score": pa.float64()},
    }


def check_kind(path: Path) -> None:
    """Raise UserError for another kind of file than is written."""
    if path.suffix not in (".jsonl", ".parquet"):
        raise UserError(
            f"{path}: files of kind {path.suffix or 'none'} are not written; required is .jsonl or .parquet."
        )


def schema_for(rows: Rows, path: Path) -> pa.Schema | None:
    """Return the columns of records that will be written to `path` as parquet; None for JSON lines.

    Raises: UserError, before anything is judged, for records that it cannot hold.
    """
    import pyarrow as pa

    if isinstance(rows, ArrowTable):
        schema = pa.ipc.open_file(pa.OSFile(str(rows.copy))).schema
        binary = [field.name for field in schema if "binary" in str(field.type)]
        if path.suffix == ".jsonl" and binary:
            raise UserError(
                f"{path}: {', '.join(binary)} of {rows.original.name} hold bytes, which JSON cannot. Name a .parquet file."
            )
        return schema if path.suffix == ".parquet" else None
    if path.suffix == ".jsonl":
        return None
    found = pa.schema([])
    try:
        for start in range(0, len(rows), ROWS):
            end = min(start + ROWS, len(rows))
            chunk = [readable(rows, number) or {} for number in range(start, end)]
            names = dict.fromkeys(name for row in chunk for name in row)
            columns: list[tuple[str, pa.DataType]] = []
            for name in names:
                values = pa.array([row.get(name) for row in chunk])
                columns.append((name, values.type))
            found = pa.unify_schemas([found, pa.schema(columns)], promote_options="permissive")
    except (pa.ArrowException, OverflowError) as error:
        raise UserError(
            f"{path}: a column of parquet has one type, and the records do not ({error}). Write JSON lines: name a .jsonl file."
        ) from error
    return found


def readable(rows: Rows, number: int) -> Row | None:
    """Return a row, or None for one that cannot be read."""
    try:
        return rows.row(number)
    except RecordError:
        return None


def write_with(
    path: Path, rows: Rows, schema: pa.Schema | None, names: Sequence[str], new: Iterable[New]
) -> None:
    """Write the records of `rows` with the columns `names` of `new`, which has one for each record.

    `schema` is what `schema_for` returned. A column that is there already under such a name is replaced.
    """
    import pyarrow as pa

    if schema is None:
        both = ((readable(rows, number), one) for number, one in enumerate(new))
        write_lines(
            path, ({**row, **one} for row, one in both if row is not None and one is not None)
        )
        return
    fields = [field for field in schema if field.name not in names]
    more = [pa.field(name, columns_added()[name]) for name in names]
    whole = pa.schema([*fields, *more], metadata=schema.metadata)
    remaining = iter(new)
    with parquet(path, whole) as write:
        for batch in _batches(rows, schema):
            added = list(islice(remaining, batch.num_rows))
            is_kept = [columns is not None for columns in added]
            kept = batch.filter(pa.array(is_kept, pa.bool_()))
            arrays = [kept.column(field.name) for field in fields]
            added_to_kept = [columns for columns in added if columns is not None]
            for field in more:
                values = [columns[field.name] for columns in added_to_kept]
                arrays.append(pa.array(values, field.type))
            write(pa.record_batch(arrays, schema=whole))


def _batches(rows: Rows, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the records in batches; a record that cannot be read is an empty one."""
    import pyarrow as pa

    if isinstance(rows, ArrowTable):
        file = pa.ipc.open_file(pa.OSFile(str(rows.copy)))
        yield from map(file.get_batch, range(file.num_record_batches))
        return
    for start in range(0, len(rows), ROWS):
        end = min(start + ROWS, len(rows))
        chunk = [dict(readable(rows, number) or {}) for number in range(start, end)]
        yield pa.RecordBatch.from_pylist(chunk, schema=schema)


@contextmanager
def parquet(path: Path, schema: pa.Schema) -> Iterator[Any]:
    """Give a function that takes record batches and writes them in row groups of a fair size."""
    import pyarrow as pa
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    waiting: list[pa.RecordBatch] = []
    held = [0, 0]

    def write(batch: pa.RecordBatch) -> None:
        waiting.append(batch)
        held[:] = held[0] + batch.num_rows, held[1] + batch.nbytes
        if held[0] >= ROWS or held[1] >= BYTES:
            flush()

    def flush() -> None:
        writer.write_table(pa.Table.from_batches(waiting, schema))
        waiting.clear()
        held[:] = 0, 0

    with whole_file(path, "wb") as file, pq.ParquetWriter(file, schema) as writer:
        yield write
        flush()


def write_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Write JSON lines; a date and the like of parquet as text."""
    with whole_file(path) as file:
        file.writelines(
            json.dumps(record, ensure_ascii=False, default=str) + "\n" for record in records
        )


def write_records(path: Path, records: Iterable[Mapping[str, Any]], schema: pa.Schema) -> None:
    """Write records of one form; `schema` counts for parquet alone."""
    import pyarrow as pa

    if path.suffix == ".jsonl":
        write_lines(path, records)
        return
    with parquet(path, schema) as write:
        for record in records:
            write(pa.RecordBatch.from_pylist([record], schema=schema))
