"""Results on their way out: pieces with their offsets, as an Arrow IPC stream or JSON lines."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pyarrow as pa

from dovetail_manager.admin.rest.rows import json_lines
from dovetail_proto.log_reader import Piece

ROWS_AT_ONCE = 16
"""Rows that are text sooner than a thread begins."""


async def limited(pieces: AsyncGenerator[Piece], rows_max: int | None) -> AsyncGenerator[Piece]:
    """The first `rows_max` rows; all without."""
    left = rows_max
    async with aclosing(pieces):
        async for piece in pieces:
            if left is None:
                yield piece
                continue
            batch = piece.batch.slice(0, left)
            left -= batch.num_rows
            yield Piece(piece.log, piece.at, batch)
            if not left:
                return


async def as_arrow(pieces: AsyncGenerator[Piece], schema: pa.Schema) -> AsyncGenerator[bytes]:
    """One Arrow IPC stream; each batch's metadata says where it was read, to go on from there."""
    sink = _Chunks()
    writer = pa.ipc.new_stream(sink, schema.remove_metadata())
    yield sink.taken()
    async for piece in pieces:
        batch = pa.RecordBatch.from_arrays(piece.batch.columns, schema=schema.remove_metadata())
        writer.write_batch(
            batch,
            custom_metadata={
                "dovetail-log": piece.log,
                "dovetail-segment": str(piece.at.segment),
                "dovetail-row": str(piece.at.row),
            },
        )
        yield sink.taken()
    writer.close()
    yield sink.taken()


async def as_json(pieces: AsyncGenerator[Piece]) -> AsyncGenerator[bytes]:
    """One line per row."""
    async for piece in pieces:
        lines = json_lines(piece.batch)
        if piece.batch.num_rows <= ROWS_AT_ONCE:
            yield b"".join(lines)
            continue
        # In a thread: rows to text takes time, and the loop has other callers.
        while part := await asyncio.to_thread(next, lines, b""):
            yield part


class _Chunks(io.RawIOBase):
    """A file whose bytes are taken away piece by piece."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        part = bytes(memoryview(data))  # type: ignore[arg-type] # Arrow's buffers are buffers
        self._parts.append(part)
        return len(part)

    def taken(self) -> bytes:
        """What was written since the last time."""
        whole = b"".join(self._parts)
        self._parts.clear()
        return whole
