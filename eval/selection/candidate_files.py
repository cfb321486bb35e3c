"""Write records as JSON lines or parquet: the records of a file with added columns, or new records.

A file is written completely or not at all. Records of parquet and Arrow files are copied to parquet
unchanged, images included, without being converted to Python objects.
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
"""A row group of parquet is written once it has this many rows."""
BYTES = 1 << 26
"""A row group of parquet is written once it has this many bytes."""
New = Mapping[str, Any] | None
"""The columns to add to a record, by name. None leaves the record out."""


def columns_added() -> dict[str, pa.DataType]:
    """Return the columns that may be added to a record, with their types in parquet."""
    import pyarrow as pa

    numbers = pa.list_(pa.float64())
    texts = pa.list_(pa.string())
    return {
        "scores": numbers,
        "order": pa.list_(pa.int64()),
        "margin": pa.float64(),
        "normalised": numbers,
        "rewards": numbers,
        "right": pa.list_(pa.bool_()),
        "judgements": pa.int64(),
        "unread": pa.int64(),
        "critiques": texts,
        "response": pa.string(),
        "score": pa.float64(),
    }


def check_kind(path: Path) -> None:
    """Raise UserError unless the ending of `path` is .jsonl or .parquet."""
    if path.suffix not in (".jsonl", ".parquet"):
        raise UserError(
            f"{path}: files of kind {path.suffix or 'none'} are not written; required is .jsonl or .parquet."
        )


def schema_for(rows: Rows, path: Path) -> pa.Schema | None:
    """Return the schema of records that will be written to a parquet file, or None for JSON lines.

    Args:
        rows: The records.
        path: The file to write.

    Raises:
        UserError: If a file of this kind cannot hold the records. Commands call this before they
            judge anything.
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
    schema = pa.schema([])
    try:
        for start in range(0, len(rows), ROWS):
            end = min(start + ROWS, len(rows))
            chunk = [readable(rows, number) or {} for number in range(start, end)]
            names = dict.fromkeys(name for row in chunk for name in row)
            columns: list[tuple[str, pa.DataType]] = []
            for name in names:
                values = pa.array([row.get(name) for row in chunk])
                columns.append((name, values.type))
            chunk_schema = pa.schema(columns)
            schema = pa.unify_schemas([schema, chunk_schema], promote_options="permissive")
    except (pa.ArrowException, OverflowError) as error:
        raise UserError(
            f"{path}: a column of parquet has one type, and the records do not ({error}). Write JSON lines: name a .jsonl file."
        ) from error
    return schema


def readable(rows: Rows, number: int) -> Row | None:
    """Return the row with this number, or None if it cannot be read."""
    try:
        return rows.row(number)
    except RecordError:
        return None


def write_with(
    path: Path, rows: Rows, schema: pa.Schema | None, names: Sequence[str], new: Iterable[New]
) -> None:
    """Write the records of a file with added columns.

    Args:
        path: The file to write.
        rows: The records.
        schema: The schema of the records, as `schema_for` returned it for `path`.
        names: The names of the added columns. They replace the record's own columns of these names.
        new: The values of the added columns, for each record in turn. A record for which it has None,
            and a record that cannot be read, is left out.
    """
    import pyarrow as pa

    if schema is None:
        write_lines(path, _merged_rows(rows, new))
        return
    own_fields = [field for field in schema if field.name not in names]
    type_by_name = columns_added()
    added_fields = [pa.field(name, type_by_name[name]) for name in names]
    output_schema = pa.schema([*own_fields, *added_fields], metadata=schema.metadata)
    remaining = iter(new)
    with parquet(path, output_schema) as write:
        for batch in _batches(rows, schema):
            added_columns = list(islice(remaining, batch.num_rows))
            is_kept = [columns is not None for columns in added_columns]
            kept_rows = batch.filter(pa.array(is_kept, pa.bool_()))
            added_to_kept = [columns for columns in added_columns if columns is not None]
            arrays = [kept_rows.column(field.name) for field in own_fields]
            for field in added_fields:
                values = [columns[field.name] for columns in added_to_kept]
                arrays.append(pa.array(values, field.type))
            write(pa.record_batch(arrays, schema=output_schema))


def _merged_rows(rows: Rows, new: Iterable[New]) -> Iterator[dict[str, Any]]:
    """Yield each record with its added columns, without the records that are left out."""
    for number, columns in enumerate(new):
        row = readable(rows, number)
        if row is not None and columns is not None:
            yield {**row, **columns}


def _batches(rows: Rows, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the records in batches of arrays. A record that cannot be read has null in every column."""
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
    """Open a parquet file, and yield a function that writes record batches to it.

    The function collects batches until they have ROWS rows or BYTES bytes, and writes them as one row
    group.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    waiting: list[pa.RecordBatch] = []
    num_rows = 0
    num_bytes = 0

    def write(batch: pa.RecordBatch) -> None:
        nonlocal num_rows, num_bytes
        waiting.append(batch)
        num_rows += batch.num_rows
        num_bytes += batch.nbytes
        if num_rows >= ROWS or num_bytes >= BYTES:
            flush()

    def flush() -> None:
        nonlocal num_rows, num_bytes
        writer.write_table(pa.Table.from_batches(waiting, schema))
        waiting.clear()
        num_rows = 0
        num_bytes = 0

    with whole_file(path, "wb") as file, pq.ParquetWriter(file, schema) as writer:
        yield write
        flush()


def write_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Write records as JSON lines. Values that JSON does not have, such as dates, are written as text."""
    with whole_file(path) as file:
        file.writelines(
            json.dumps(record, ensure_ascii=False, default=str) + "\n" for record in records
        )


def write_records(path: Path, records: Iterable[Mapping[str, Any]], schema: pa.Schema) -> None:
    """Write records as JSON lines or parquet, by the ending of `path`.

    All records have the columns of `schema`, which is used only for parquet.
    """
    import pyarrow as pa

    if path.suffix == ".jsonl":
        write_lines(path, records)
        return
    with parquet(path, schema) as write:
        for record in records:
            write(pa.RecordBatch.from_pylist([record], schema=schema))
