"""Nested columns (lists, structs, maps) of one input: kept as Arrow, found by (chunk, row).

Every group appends the nested values of its rows as chunks of its own, so that dropping the group
frees them. A row holds a chunk number and its row in that chunk; chunk numbers are stable, the
table `_home` says which Arrow chunk they are in now, so small chunks can be merged:

    row: (chunk 7, row 2) ── _home[7] = (merged chunk M, from row 40) ──▶ M[42]

This is the only part of the state that costs Python calls per group.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail_processor.join.kernels import columns as kernels
from dovetail_processor.join.layout import Column, Placement, RowLayout
from dovetail_processor.join.slab import Slab

CHUNK_OVERHEAD_BYTES = 2048
"""What a chunk costs beside its values: 20 000 chunks of three short lists took 1.9 KB each."""

CHUNKS_MERGE_AT = 16
"""A group's chunks are merged when there are this many of one size class: copies stay few."""


@dataclass(slots=True)
class _Chunk:
    data: pa.RecordBatch
    numbers: list[int]  # chunk numbers that live in it


@dataclass(slots=True)
class GroupNested:
    """The nested values of one group, handed out when it is detached."""

    chunks: list[_Chunk] = field(default_factory=list)

    @property
    def held_bytes(self) -> int:
        """What its chunks take."""
        return sum(c.data.nbytes + CHUNK_OVERHEAD_BYTES for c in self.chunks)


class NestedStore:
    """All groups' nested values of one input."""

    def __init__(self, layout: RowLayout) -> None:
        self._columns = layout.nested
        self._names = [c.field.name for c in self._columns]
        self._groups: dict[int, GroupNested] = {}
        self._home: dict[int, tuple[_Chunk, int]] = {}
        self._free_numbers: list[int] = []
        self.held_bytes = 0
        """Bytes of all chunks, of detached groups too until they are released."""

    def append(
        self, slab: Slab, batch: pa.RecordBatch, place: Placement, first: int, end: int
    ) -> None:
        """Keep the values of rows first … end − 1 (in group order), and write where into them."""
        rows_at, order, group_of = place.rows_at, place.order, place.group_of
        at = self._columns[0].at
        values = batch.select(self._names)
        cuts = np.flatnonzero(np.diff(group_of[first:end])) + first + 1
        edges = [first, *cuts.tolist(), end]
        for a, b in pairwise(edges):
            group = self._groups.setdefault(int(group_of[a]), GroupNested())
            number = self._free_numbers.pop() if self._free_numbers else len(self._home)
            chunk = _Chunk(values.take(pa.array(order[a:b])), [number])
            self._home[number] = (chunk, 0)
            group.chunks.append(chunk)
            self.held_bytes += chunk.data.nbytes + CHUNK_OVERHEAD_BYTES
            kernels.fill_4(slab.words, rows_at, at, number, a, b)
            rows = np.arange(b - a, dtype=np.uint32)
            kernels.scatter_4(slab.words, rows_at[a:b], at + 1, rows, rows.view(np.int32), 0, b - a)
            self._merge_small(group)

    def take(self, column: Column, slab: Slab, rows_at: NDArray[np.uint32]) -> pa.Array:
        """The values of `column` in the rows at `rows_at`."""
        numbers = np.empty(rows_at.size, np.uint32)
        rows = np.empty(rows_at.size, np.uint32)
        kernels.gather_4(slab.words, rows_at, column.at, numbers)
        kernels.gather_4(slab.words, rows_at, column.at + 1, rows)
        if not rows_at.size:
            return pa.array([], column.field.type)
        wanted, place = np.unique(numbers, return_inverse=True)
        starts = np.empty(wanted.size, np.int64)
        arrays: list[pa.Array] = []
        start_of: dict[int, int] = {}
        total = 0
        for k, number in enumerate(wanted.tolist()):
            chunk, offset = self._home[number]
            if id(chunk) not in start_of:
                start_of[id(chunk)] = total
                total += chunk.data.num_rows
                arrays.append(chunk.data.column(column.field.name))
            starts[k] = start_of[id(chunk)] + offset
        taken = pa.chunked_array(arrays).take(pa.array(starts[place] + rows))
        return taken.combine_chunks() if isinstance(taken, pa.ChunkedArray) else taken

    def value_bytes(
        self, column: Column, slab: Slab, rows_at: NDArray[np.uint32]
    ) -> NDArray[np.int64]:
        """About how large the value in each row is: the mean of its chunk, at least 1."""
        numbers = np.empty(rows_at.size, np.uint32)
        kernels.gather_4(slab.words, rows_at, column.at, numbers)
        wanted, place = np.unique(numbers, return_inverse=True)
        means = [self._mean_bytes(number, column.field.name) for number in wanted.tolist()]
        return np.array(means, np.int64)[place]

    def _mean_bytes(self, number: int, name: str) -> int:
        values = self._home[number][0].data.column(name)
        return 1 + int(values.nbytes) // max(1, len(values))

    def detach(self, groups: Iterable[int]) -> list[GroupNested]:
        """Hand out the groups' values: they are read until `release`, and grow no more."""
        return [self._groups.pop(g, GroupNested()) for g in groups]

    def release(self, detached: Iterable[GroupNested]) -> None:
        """Forget the values of detached groups."""
        for group in detached:
            self.held_bytes -= group.held_bytes
            for chunk in group.chunks:
                for number in chunk.numbers:
                    del self._home[number]
                    self._free_numbers.append(number)
            group.chunks.clear()

    def group_bytes(self, out: NDArray[np.int64]) -> None:
        """Add to out[g] what group g holds."""
        for g, group in self._groups.items():
            out[g] += group.held_bytes

    def _merge_small(self, group: GroupNested) -> None:
        """Merge the newest chunks once there are many of a size, as a log-structured tree does."""
        while len(group.chunks) >= CHUNKS_MERGE_AT:
            tail = group.chunks[-CHUNKS_MERGE_AT:]
            if tail[0].data.num_rows > CHUNKS_MERGE_AT * max(1, tail[-1].data.num_rows):
                return
            merged = _Chunk(
                pa.Table.from_batches([c.data for c in tail]).combine_chunks().to_batches()[0], []
            )
            self.held_bytes += merged.data.nbytes + CHUNK_OVERHEAD_BYTES
            start = 0
            for chunk in tail:
                for number in chunk.numbers:
                    self._home[number] = (merged, start + self._home[number][1])
                    merged.numbers.append(number)
                start += chunk.data.num_rows
                self.held_bytes -= chunk.data.nbytes + CHUNK_OVERHEAD_BYTES
            group.chunks[-CHUNKS_MERGE_AT:] = [merged]
