"""Parquet files, read some rows at a time whatever the size of a row group.

pyarrow can stream through a row group: it then holds one page per column and the rows asked for.
How many rows to ask for shows as they come: a row group is begun in small steps, and begun again
from where it was in steps of another size while batches come out far too small or too large. The
footer's sizes would not do: they know nothing of text that a dictionary repeats, and pyarrow
aborts the process when asked for those of a forged footer.

A file of very many columns would take a page of each: see `wide_parquet`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dovetail_processor.sources.bounds import Bounds
from dovetail_processor.sources.file_format import PART_ROWS, FileFormat, FileInfo, FilePart
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
        return _Reading(schema, columns, bounds).row_groups(path, None)

    def parts(
        self, path: Path, schema: pa.Schema, columns: Sequence[str], bounds: Bounds
    ) -> list[FilePart]:
        """Row groups, so many together that they are worth a beginning."""
        with _open(path) as file:
            rows = [file.metadata.row_group(g).num_rows for g in range(file.num_row_groups)]
        reading = _Reading(schema, columns, bounds)
        found: list[FilePart] = []
        first = start = 0
        for group, end in enumerate(accumulate(rows), 1):
            if end - start >= PART_ROWS or group == len(rows):
                groups = range(first, group)
                found.append(FilePart(start, partial(reading.row_groups, path, groups)))
                first, start = group, end
        return found


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
    """The steps in which a file is read; several lanes may be at it.

    Each begins with the step that was learnt last and goes on with its own: another lane may be at
    rows of another size.
    """

    def __init__(self, schema: pa.Schema, columns: Sequence[str], bounds: Bounds) -> None:
        self._schema = pa.schema([schema.field(c) for c in columns])
        self._columns = list(columns)
        self._bounds = bounds
        row_bits = _fixed_bits(list(self._schema))
        if row_bits is None:
            self._step_max = min(bounds.rows, _STEP_ROWS_MAX)
            self._step = min(bounds.rows, _STEP_ROWS_FIRST)  # rows that a lane asks for at first
        else:
            self._step_max = max(1, min(bounds.rows, 8 * bounds.bytes // row_bits))
            self._step = self._step_max

    def row_groups(self, path: Path, groups: range | None) -> Iterator[pa.RecordBatch]:
        """The rows of some row groups, or of all."""
        step = self._step
        with _open(path) as file:
            for group in range(file.num_row_groups) if groups is None else groups:
                rows = file.metadata.row_group(group).num_rows
                blocks = _blocks(self._schema, rows, self._bounds)
                if len(blocks) == 1:
                    step = self._step = yield from self._row_group(file, group, step)
                else:
                    fit = self._bounds.bytes // row_bytes_of(self._schema)
                    yield from turned(file, group, blocks, max(1, min(self._bounds.rows, fit)))

    def _row_group(
        self, file: pq.ParquetFile, group: int, step: int
    ) -> Generator[pa.RecordBatch, None, int]:
        """The rows of a row group, each once; returns the step for the next one."""
        rows = file.metadata.row_group(group).num_rows
        done = 0
        may_grow = True
        while done < rows:
            skip = done
            for whole in file.iter_batches(step, [group], self._columns, use_threads=False):
                batch = whole.slice(min(skip, whole.num_rows))
                skip -= whole.num_rows - batch.num_rows
                if batch.num_rows == 0:
                    continue
                done += batch.num_rows
                size = batch.nbytes
                yield batch.select(self._columns)  # asked for "a", pyarrow also brings "a.b"
                if size > 2 * self._bounds.bytes and step > 1:
                    step = max(1, step * self._bounds.bytes // size)
                    may_grow = False  # or it might go on and on
                    break
                if self._should_grow(step, size) and may_grow and done < rows:
                    fits = step * self._bounds.bytes // (2 * size)
                    step = min(self._step_max, step * _STEP_FACTOR, fits)
                    break
            else:
                if done != rows:
                    raise pa.ArrowInvalid(f"row group {group} has {done} of {rows} rows")
        return step

    def _should_grow(self, step: int, size: int) -> bool:
        return step < self._step_max and 4 * size <= self._bounds.bytes
