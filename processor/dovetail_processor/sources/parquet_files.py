"""Parquet files, read a few thousand rows at a time whatever the size of a row group.

pyarrow can stream through a row group: it then holds one page per column and the rows asked for.
How many rows to ask for follows from the footer's sizes. These know nothing of values repeated by
a dictionary, so a batch that came out too large makes the rest of the row group be read anew in
smaller steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dovetail_processor.sources.bounds import Bounds
from dovetail_processor.sources.file_format import FileFormat, FileInfo

_READ_BUFFER_BYTES = 64 << 10
"""Per column; larger buffers were not faster, and each source has one per column."""

_TEXT_STEP_ROWS_MAX = 4096
"""Rows per call where values have no fixed width, so that a few large ones are met early.
Steps of 4096 rows are as fast as steps of 65536; 1024 take twice as long."""

_FIXED_BYTES = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 8, "FLOAT": 4, "DOUBLE": 8}


class ParquetFiles(FileFormat):
    """See `FileFormat`."""

    name = "Parquet"
    extensions = (".parquet", ".pq")

    def inspect(self, path: Path) -> FileInfo:
        """Read the footer."""
        with _open(path) as file:
            return FileInfo(file.schema_arrow, file.metadata.num_rows)

    def read(
        self, path: Path, schema: pa.Schema, columns: Sequence[str], bounds: Bounds
    ) -> Iterator[pa.RecordBatch]:
        """Row group by row group."""
        with _open(path) as file:
            for group in range(file.metadata.num_row_groups):
                yield from _row_group(file, group, list(columns), bounds)


def _open(path: Path) -> pq.ParquetFile:
    return pq.ParquetFile(path, pre_buffer=False, buffer_size=_READ_BUFFER_BYTES)


def _row_group(
    file: pq.ParquetFile, group: int, columns: list[str], bounds: Bounds
) -> Iterator[pa.RecordBatch]:
    rows = file.metadata.row_group(group).num_rows
    step = _step_rows(file.metadata.row_group(group), columns, bounds)
    done = 0
    while done < rows:
        skip = done
        for whole in file.iter_batches(step, [group], columns, use_threads=False):
            batch = whole.slice(min(skip, whole.num_rows))
            skip -= whole.num_rows - batch.num_rows
            if batch.num_rows == 0:
                continue
            done += batch.num_rows
            size = batch.nbytes
            yield batch.select(columns)  # a name that is another's prefix up to a dot brings both
            if size > 2 * bounds.bytes and step > 1:
                step = max(1, step * bounds.bytes // size)
                break
        else:
            if done != rows:
                raise pa.ArrowInvalid(f"row group {group} has {done} of {rows} rows")


def _step_rows(group: pq.RowGroupMetaData, columns: list[str], bounds: Bounds) -> int:
    """How many rows to ask for at a time, so that they take about `bounds` at most."""
    roots = {name.split(".")[0] for name in columns}
    size = 0
    limit = bounds.rows
    for i in range(group.num_columns):
        chunk = group.column(i)
        if chunk.path_in_schema.split(".")[0] not in roots:
            continue
        if chunk.physical_type in _FIXED_BYTES:
            size += chunk.num_values * _FIXED_BYTES[chunk.physical_type]
        else:
            size += chunk.total_uncompressed_size + 4 * chunk.num_values
        if chunk.physical_type == "BYTE_ARRAY" or chunk.num_values != group.num_rows:
            limit = min(limit, _TEXT_STEP_ROWS_MAX)
    return max(1, min(limit, bounds.bytes * int(group.num_rows) // max(1, size)))
