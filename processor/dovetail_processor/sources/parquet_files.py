"""Parquet files, read some rows at a time whatever the size of a row group.

pyarrow can stream through a row group: it then holds one page per column and the rows asked for.
How many rows to ask for shows as they come: a row group is begun in small steps, and begun again
from where it was in steps of another size while batches come out far too small or too large. The
footer's sizes would not do: they know nothing of text that a dictionary repeats, and pyarrow
aborts the process when asked for those of a forged footer.

A file of very many columns would take a page of each: see `wide_parquet`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dovetail_processor.sources.bounds import Bounds
from dovetail_processor.sources.file_format import FileFormat, FileInfo
from dovetail_processor.sources.wide_parquet import WIDE_COLUMNS, blocks_of, turned
from dovetail_proto.memory import READER_WIDE_BATCHES, row_bytes_of

_READ_BUFFER_BYTES = 64 << 10
"""Per column; larger buffers were not faster, and each source has one per column."""

_STEP_ROWS_FIRST = 64
"""Few enough that their text is small, whatever it is."""

_STEP_ROWS_MAX = 4096
"""So that a few large values are met early. Steps of 65536 rows are no faster, of 1024 slower."""

_STEP_FACTOR = 8
"""How much larger steps get at most while batches stay small: two beginnings lead to the largest.
Those of wide rows grow less, to half of a batch."""


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
        read = pa.schema([schema.field(c) for c in columns])
        reading = _Reading(list(columns), bounds, _fixed_bits(list(read)))
        with _open(path) as file:
            for group in range(file.metadata.num_row_groups):
                blocks = _blocks(read, file.metadata.row_group(group).num_rows, bounds)
                if len(blocks) == 1:
                    yield from reading.row_group(file, group)
                else:
                    stretch_rows = max(1, min(bounds.rows, bounds.bytes // row_bytes_of(read)))
                    yield from turned(file, group, blocks, stretch_rows)


def _blocks(read: pa.Schema, rows: int, bounds: Bounds) -> list[list[str]]:
    """The columns, all together unless their pages take far more than a batch."""
    if len(read) <= WIDE_COLUMNS:
        return [read.names]
    return blocks_of(
        list(read),
        rows,
        block_bytes=READER_WIDE_BATCHES * bounds.bytes,
        buffer_bytes=_READ_BUFFER_BYTES,
    )


def _fixed_bits(fields: list[pa.Field]) -> int | None:
    """Bits of a row; None if rows may differ in size."""
    types = [f.type for f in fields]
    if all(pa.types.is_primitive(t) or pa.types.is_decimal(t) for t in types):
        return sum(int(t.bit_width) + 1 for t in types)
    return None


def _open(path: Path) -> pq.ParquetFile:
    return pq.ParquetFile(path, pre_buffer=False, buffer_size=_READ_BUFFER_BYTES)


class _Reading:
    """The steps in which a file is read."""

    def __init__(self, columns: list[str], bounds: Bounds, row_bits: int | None) -> None:
        self._columns = columns
        self._bounds = bounds
        if row_bits is None:
            self._step_max = min(bounds.rows, _STEP_ROWS_MAX)
            self._step = min(bounds.rows, _STEP_ROWS_FIRST)  # rows to ask for at a time
        else:
            self._step_max = max(1, min(bounds.rows, 8 * bounds.bytes // row_bits))
            self._step = self._step_max

    def row_group(self, file: pq.ParquetFile, group: int) -> Iterator[pa.RecordBatch]:
        """The rows of a row group, each once."""
        rows = file.metadata.row_group(group).num_rows
        done = 0
        may_grow = True
        while done < rows:
            skip = done
            for whole in file.iter_batches(self._step, [group], self._columns, use_threads=False):
                batch = whole.slice(min(skip, whole.num_rows))
                skip -= whole.num_rows - batch.num_rows
                if batch.num_rows == 0:
                    continue
                done += batch.num_rows
                size = batch.nbytes
                yield batch.select(self._columns)  # asked for "a", pyarrow also brings "a.b"
                if size > 2 * self._bounds.bytes and self._step > 1:
                    self._step = max(1, self._step * self._bounds.bytes // size)
                    may_grow = False  # or it might go on and on
                    break
                if self._should_grow(size) and may_grow and done < rows:
                    fits = self._step * self._bounds.bytes // (2 * size)
                    self._step = min(self._step_max, self._step * _STEP_FACTOR, fits)
                    break
            else:
                if done != rows:
                    raise pa.ArrowInvalid(f"row group {group} has {done} of {rows} rows")

    def _should_grow(self, size: int) -> bool:
        return self._step < self._step_max and 4 * size <= self._bounds.bytes
