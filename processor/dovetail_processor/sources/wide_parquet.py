"""A Parquet row group of very many columns, read a few columns at a time by way of the disk.

For every column that it reads, pyarrow keeps a page, packed and unpacked, and a dictionary: a
gigabyte and a half for a thousand columns, however few rows are asked for. So the columns are read
block by block, which needs the memory of one block, and go to a temporary file in stretches of
rows; then the stretches are read, each with all of its columns.

        read ▼ a block at a time         file          give ▶ a stretch at a time
             a   b   c                a0 a1 b0 b1 …         a0 b0 c0
             a   b   c                c0 c1                 a1 b1 c1

Bytes are written and read once each. The file has no name: it goes whatever becomes of the process.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

from dovetail_proto.errors import InputError
from dovetail_proto.memory import TEXT_BYTES_GUESS

WIDE_COLUMNS = 100
"""Files of fewer columns are read whole: their pages are some ten megabytes, seldom a hundred."""

BLOCK_BYTES_MIN = 16 << 20
"""What a block may need at least: with less memory it would be read in hundreds of passes."""

PAGE_BYTES = 1 << 20
"""About what writers make pages and dictionaries of, unpacked."""

PAGES = 3
"""That a column takes: packed, unpacked, and its dictionary. It agrees with the 1.5 MB a column by
which a process grew over 60 000 rows of 1 000 columns."""


def blocks_of(
    fields: Sequence[pa.Field], rows: int, *, block_bytes: int, buffer_bytes: int
) -> list[list[str]]:
    """The columns in blocks, each of which needs about `block_bytes` or is a single column."""
    blocks: list[list[str]] = [[]]
    needed = 0
    for field in fields:
        try:
            width = max(1, field.type.bit_width // 8)
        except ValueError:
            width = TEXT_BYTES_GUESS
        need = buffer_bytes + PAGES * min(rows * width, PAGE_BYTES)
        if blocks[-1] and needed + need > max(block_bytes, BLOCK_BYTES_MIN):
            blocks.append([])
            needed = 0
        blocks[-1].append(field.name)
        needed += need
    return blocks


def turned(
    file: pq.ParquetFile, group: int, blocks: Sequence[list[str]], stretch_rows: int
) -> Iterator[pa.RecordBatch]:
    """The rows of a row group, in stretches, with the columns of all blocks in their order.

    ArrowInvalid if columns differ in their rows; InputError if the disk is full.
    """
    with tempfile.TemporaryFile(prefix="dovetail-") as turning:
        stretches: list[list[int]] = []  # of each: bytes of each block, in the order of blocks
        for number, block in enumerate(blocks):
            pieces = file.iter_batches(stretch_rows, [group], block, use_threads=False)
            for at, piece in enumerate(pieces):
                if number == 0:
                    stretches.append([])
                if at >= len(stretches):
                    raise pa.ArrowInvalid(f"row group {group}: columns differ in their rows")
                stretches[at].append(_write(turning, piece.select(block)))
        starts = _starts(stretches, len(blocks))
        done = 0
        for at, sizes in enumerate(stretches):
            if len(sizes) != len(blocks):
                raise pa.ArrowInvalid(f"row group {group}: columns differ in their rows")
            whole = _together([_read(turning, starts[k][at], n) for k, n in enumerate(sizes)])
            done += whole.num_rows
            yield whole
        rows = file.metadata.row_group(group).num_rows
        if done != rows:
            raise pa.ArrowInvalid(f"row group {group} has {done} of {rows} rows")


def _starts(stretches: list[list[int]], blocks: int) -> list[list[int]]:
    """Where each block's stretches begin in the file: block after block, stretch after stretch."""
    starts: list[list[int]] = []
    place = 0
    for block in range(blocks):
        starts.append([])
        for sizes in stretches:
            starts[-1].append(place)
            place += sizes[block] if block < len(sizes) else 0
    return starts


def _write(turning: IO[bytes], piece: pa.RecordBatch) -> int:
    """Add a piece, with its dictionaries; its bytes."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, piece.schema) as writer:
        writer.write_batch(piece)
    packed = sink.getvalue()
    try:
        turning.write(packed)
    except OSError as e:
        raise InputError(
            f"its many columns cannot be turned in {tempfile.gettempdir()}: {e.strerror}",
            remedy="set TMPDIR to a folder with room for the file unpacked, or give more memory",
        ) from e
    return int(packed.size)


def _read(turning: IO[bytes], start: int, size: int) -> pa.RecordBatch:
    turning.seek(start)
    return pa.ipc.open_stream(pa.py_buffer(turning.read(size))).read_next_batch()


def _together(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    if any(p.num_rows != parts[0].num_rows for p in parts):
        raise pa.ArrowInvalid("columns differ in their rows")
    fields = [f for p in parts for f in p.schema]
    arrays = [a for p in parts for a in p.columns]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
