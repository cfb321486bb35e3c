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
from mmrm.eval.candidates import STD

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

ROWS_PER_GROUP = 1000
"""A row group of parquet is written once it has this many rows."""
BYTES_PER_GROUP = 1 << 26
"""A row group of parquet is written once it has this many bytes."""
ATTRIBUTE_PREFIX = "score_"
"""Beginning of the name of a column with a further number of each response, such as `score_std`."""
STD_COLUMN = f"{ATTRIBUTE_PREFIX}{STD}"
"""The column with the standard deviation that a judge states for each score."""
AddedColumns = Mapping[str, Any] | None
"""The columns to add to a record, by name. None leaves the record out of the written file."""


def added_column_type(name: str) -> pa.DataType:
    """Return the parquet type of the column `name`, which a command adds to the records."""
    import pyarrow as pa

    numbers = pa.list_(pa.float64())
    texts = pa.list_(pa.string())
    comparison = pa.struct(
        {"shown": pa.list_(pa.int64()), "named": pa.int64(), "probability": pa.float64()}
    )
    if name.startswith(ATTRIBUTE_PREFIX):
        return numbers
    type_by_name = {
        "scores": numbers,
        "order": pa.list_(pa.int64()),
        "margin": pa.float64(),
        "normalised": numbers,
        "rewards": numbers,
        "right": pa.list_(pa.bool_()),
        "judgements": pa.int64(),
        "unread": pa.int64(),
        "tokens": pa.int64(),
        "comparisons": pa.list_(comparison),
        "critiques": texts,
        "response": pa.string(),
        "score": pa.float64(),
        "lower_bound": pa.float64(),
    }
    return type_by_name[name]


def require_jsonl_or_parquet(path: Path) -> None:
    """Raise UserError unless the name of the output file `path` ends in .jsonl or .parquet."""
    if path.suffix not in (".jsonl", ".parquet"):
        raise UserError(
            f"{path}: files of kind {path.suffix or 'none'} are not written; required is .jsonl or "
            ".parquet."
        )


def parquet_schema_of(rows: Rows, path: Path) -> pa.Schema | None:
    """Return the schema with which records are written to a parquet file.

    Returns None if `path` ends in .jsonl, because JSON lines have no schema.

    Args:
        rows: The records of the input file.
        path: The file to write.

    Raises:
        UserError: If a file of this kind cannot hold the records. Commands call this before they
            judge anything.
    """
    import pyarrow as pa

    is_json_lines = path.suffix == ".jsonl"
    if isinstance(rows, ArrowTable):
        table_schema = pa.ipc.open_file(pa.OSFile(str(rows.copy))).schema
        binary_columns = [field.name for field in table_schema if "binary" in str(field.type)]
        if is_json_lines and binary_columns:
            raise UserError(
                f"{path}: {', '.join(binary_columns)} of {rows.original.name} hold bytes, which "
                "JSON cannot. Name a .parquet file."
            )
        return None if is_json_lines else table_schema
    if is_json_lines:
        return None
    # JSON has no types of columns, so they are inferred from all values, chunk by chunk.
    schema = pa.schema([])
    try:
        for start in range(0, len(rows), ROWS_PER_GROUP):
            end = min(start + ROWS_PER_GROUP, len(rows))
            chunk = [row_if_readable(rows, number) or {} for number in range(start, end)]
            names = dict.fromkeys(name for row in chunk for name in row)
            columns: list[tuple[str, pa.DataType]] = []
            for name in names:
                values = pa.array([row.get(name) for row in chunk])
                columns.append((name, values.type))
            chunk_schema = pa.schema(columns)
            schema = pa.unify_schemas([schema, chunk_schema], promote_options="permissive")
    except (pa.ArrowException, OverflowError) as error:
        raise UserError(
            f"{path}: a column of parquet has one type, and the records do not ({error}). Write "
            "JSON lines: name a .jsonl file."
        ) from error
    return schema


def row_if_readable(rows: Rows, number: int) -> Row | None:
    """Return the record in the row `number`, or None if the record cannot be read."""
    try:
        return rows.row(number)
    except RecordError:
        return None


def write_with_added_columns(
    path: Path,
    rows: Rows,
    schema: pa.Schema | None,
    names: Sequence[str],
    added_by_record: Iterable[AddedColumns],
    removed_names: Sequence[str] = (),
) -> None:
    """Write the records of a file with added columns.

    Args:
        path: The file to write.
        rows: The records of the input file.
        schema: The schema of the records, as `parquet_schema_of` returned it for `path`. None
            writes JSON lines.
        names: The names of the added columns. They replace the record's own columns of these names.
        added_by_record: The values of the added columns for each record, in the order of `rows`. A
            record with None instead of values is left out, as is a record that cannot be read.
        removed_names: The names of the record's own columns that are left out.
    """
    import pyarrow as pa

    if schema is None:
        write_lines(path, _merged_rows(rows, added_by_record, removed_names))
        return
    replaced_or_removed = {*names, *removed_names}
    kept_fields = [field for field in schema if field.name not in replaced_or_removed]
    added_fields = [pa.field(name, added_column_type(name)) for name in names]
    output_schema = pa.schema([*kept_fields, *added_fields], metadata=schema.metadata)
    remaining_added = iter(added_by_record)
    with parquet_writer(path, output_schema) as writer:
        for batch in _batches(rows, schema):
            added_in_batch = list(islice(remaining_added, batch.num_rows))
            is_kept = [columns is not None for columns in added_in_batch]
            kept_rows = batch.filter(pa.array(is_kept, pa.bool_()))
            added_to_kept_rows = [columns for columns in added_in_batch if columns is not None]
            arrays = [kept_rows.column(field.name) for field in kept_fields]
            for field in added_fields:
                values = [columns[field.name] for columns in added_to_kept_rows]
                arrays.append(pa.array(values, field.type))
            writer.write(pa.record_batch(arrays, schema=output_schema))


def _merged_rows(
    rows: Rows, added_by_record: Iterable[AddedColumns], removed_names: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Yield each record without the removed columns, together with its added columns.

    A record that cannot be read, or whose added columns are None, is left out.
    """
    for number, columns in enumerate(added_by_record):
        row = row_if_readable(rows, number)
        if row is None or columns is None:
            continue
        kept_columns = {name: value for name, value in row.items() if name not in removed_names}
        yield {**kept_columns, **columns}


def _batches(rows: Rows, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the records of a file as Arrow batches, in the order of the file.

    A record that cannot be read has null in every column, so that the rows keep their numbers.
    """
    import pyarrow as pa

    if isinstance(rows, ArrowTable):
        file = pa.ipc.open_file(pa.OSFile(str(rows.copy)))
        yield from map(file.get_batch, range(file.num_record_batches))
        return
    for start in range(0, len(rows), ROWS_PER_GROUP):
        end = min(start + ROWS_PER_GROUP, len(rows))
        chunk = [dict(row_if_readable(rows, number) or {}) for number in range(start, end)]
        yield pa.RecordBatch.from_pylist(chunk, schema=schema)


class RowGroupWriter:
    """Collects record batches, and writes them to a parquet file in row groups.

    A row group is written once it has ROWS_PER_GROUP rows or BYTES_PER_GROUP bytes.
    """

    def __init__(self, writer: pq.ParquetWriter, schema: pa.Schema) -> None:
        self.writer = writer
        self.schema = schema
        self.collected: list[pa.RecordBatch] = []
        self.num_rows = 0
        self.num_bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Add a batch of rows, and write a row group once enough rows are collected."""
        self.collected.append(batch)
        self.num_rows += batch.num_rows
        self.num_bytes += batch.nbytes
        if self.num_rows >= ROWS_PER_GROUP or self.num_bytes >= BYTES_PER_GROUP:
            self.flush()

    def flush(self) -> None:
        """Write the batches that are collected so far to the file, as one row group."""
        import pyarrow as pa

        self.writer.write_table(pa.Table.from_batches(self.collected, self.schema))
        self.collected.clear()
        self.num_rows = 0
        self.num_bytes = 0


@contextmanager
def parquet_writer(path: Path, schema: pa.Schema) -> Iterator[RowGroupWriter]:
    """Open a parquet file for the block, and yield the object that writes record batches to it."""
    import pyarrow.parquet as pq

    with whole_file(path, "wb") as file, pq.ParquetWriter(file, schema) as parquet_file:
        writer = RowGroupWriter(parquet_file, schema)
        yield writer
        writer.flush()


def write_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> int:
    """Write records as JSON lines, and return their number.

    Values that JSON does not have, such as dates, are written as text.
    """
    num_records = 0
    with whole_file(path) as file:
        for record in records:
            file.write(json.dumps(record, ensure_ascii=False, default=str) + "\n")
            num_records += 1
    return num_records


def write_records(path: Path, records: Iterable[Mapping[str, Any]], schema: pa.Schema) -> int:
    """Write records to a file, and return their number.

    They are written as JSON lines if `path` ends in .jsonl, and as parquet otherwise. All records
    have the columns of `schema`, which is used only for parquet.
    """
    import pyarrow as pa

    if path.suffix == ".jsonl":
        return write_lines(path, records)
    num_records = 0
    with parquet_writer(path, schema) as writer:
        for record in records:
            writer.write(pa.RecordBatch.from_pylist([record], schema=schema))
            num_records += 1
    return num_records
