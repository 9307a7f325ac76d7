"""Batches of bounded rows and bytes, whatever sizes a file holds them in.

Large pieces are cut, small ones are joined: a batch comes out when the next piece would carry it
over a bound. A single row that is larger than the bound in bytes passes alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most that a batch may hold; both at least 1."""

    rows: int
    bytes: int


def rebatch(pieces: Iterable[pa.RecordBatch], bounds: Bounds) -> Iterator[pa.RecordBatch]:
    """The rows of `pieces`, in order, in batches within `bounds`; none is empty."""
    pending: list[pa.RecordBatch] = []
    rows = size = 0
    for piece in pieces:
        for part in split(piece, bounds):
            if pending and (
                rows + part.num_rows > bounds.rows or size + part.nbytes > bounds.bytes
            ):
                yield _joined(pending)
                pending, rows, size = [], 0, 0
            pending.append(part)
            rows += part.num_rows
            size += part.nbytes
    if pending:
        yield _joined(pending)


def split(batch: pa.RecordBatch, bounds: Bounds) -> Iterator[pa.RecordBatch]:
    """The rows of `batch`, in order, in slices within `bounds`."""
    at = 0
    while at < batch.num_rows:
        rows = min(bounds.rows, batch.num_rows - at)
        part = batch.slice(at, rows)
        while rows > 1 and (size := part.nbytes) > bounds.bytes:
            rows = max(1, min(rows - 1, rows * bounds.bytes // size))
            part = part.slice(0, rows)
        yield part
        at += rows


def _joined(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    return parts[0] if len(parts) == 1 else pa.concat_batches(parts)
