"""The join's state and its one verb: take a batch of one input, give the combinations it makes.

    state.begin(i, rows)                   hashed rows are put in group order; repeated ones go
    while (event := state.advance()):      combinations, chunk by chunk, or the wish for memory
        …                                  between batches, or when memory is short, groups may be
    detached = state.detach(groups)        pushed: they start afresh as the next generation, and
    …                                      `detached` can be read in another thread until
    state.release(detached)                their pages are given back

A combination's row of the batch under way is read from the batch, all others from pages. So a row
that can meet nobody any more (see `ended`) takes no page at all.

Kept at every step: `marks[i, g]` is the last sequence of input i that group g has taken, and no row
at or below it is taken again; a row that is linked is complete; the pages handed out are within the
limit; `produced[g]` is the number of combinations of group g's current generation; a row that is
not kept has met all rows that it ever can. Not promised: any order of results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail_processor.batches import Keyed
from dovetail_processor.join.detached import Detached
from dovetail_processor.join.kernels import advance as adv
from dovetail_processor.join.kernels import columns as kernels
from dovetail_processor.join.kernels import groups as whole
from dovetail_processor.join.kernels import index
from dovetail_processor.join.kernels.parts import PART_FIELDS, ROWS
from dovetail_processor.join.layout import Column, Kind, Placement, RowLayout, row_layout
from dovetail_processor.join.nested import NestedStore
from dovetail_processor.join.rows import Encoder, check_nulls, decode, pick, text_bytes, value_bytes
from dovetail_processor.join.slab import Slab
from dovetail_proto.key_types import is_bijective
from dovetail_proto.query import QueryPlan

FUEL_ROWS = 32 << 10
"""Rows after which `advance` lets others have a turn: some 2 ms."""

_NO_TEXT = np.zeros(0, np.uint32)
_NO_KEYS = (np.zeros(1, np.int64), np.zeros(0, np.uint8))


class Short(Enum):
    """What `advance` says when it cannot go on without memory."""

    OF_MEMORY = "memory"


@dataclass(slots=True)
class _Work:
    """The batch under way."""

    i: int
    batch: pa.RecordBatch
    encoder: Encoder | None  # None: none of its rows is kept
    ended: NDArray[np.bool_]  # of the other inputs, those that no row will come of
    place: Placement
    hashes: NDArray[np.uint64]  # in group order
    key_offsets: NDArray[np.int64]  # in the order of arrival
    key_data: NDArray[np.uint8]
    silent: bool  # its rows have met the others elsewhere: no combinations
    scattered: int = 0  # rows whose columns are in place
    filling: bool = False  # the chunk has room and was not given away


class JoinState:
    """Partition groups of one join instance, in pages of a slab of `state_bytes`."""

    def __init__(self, plan: QueryPlan, state_bytes: int, *, chunk_rows: int) -> None:
        self.plan = plan
        self.n = len(plan.inputs)
        self.partitions = plan.partitions
        self.layouts: list[RowLayout] = [row_layout(i.kept, i.key) for i in plan.inputs]
        self._columns = [{c.field.name: c for c in x.columns} for x in self.layouts]
        self.limit_bytes = state_bytes
        """Of what the state may take; may be lowered and raised again, up to what it began with."""
        self.slab = Slab(state_bytes)
        self.generation = np.zeros(self.partitions, np.int64)
        self.produced = np.zeros(self.partitions, np.int64)
        self.produced_before = np.zeros(self.partitions, np.int64)
        """Combinations of earlier generations; with `produced` the lifetime sum."""
        self.unkept = np.zeros(self.partitions, np.int64)
        """Of the lifetime sum, combinations whose last row was not kept: no disk will know them."""
        self.ended = np.zeros(self.n, np.bool_)
        """Inputs whose end has come behind their last row: no row of theirs comes any more."""
        self.last_insert_s = np.zeros(self.partitions, np.float64)
        self.marks = np.full((self.n, self.partitions), -1, np.int64)
        """Per input and group: the last sequence taken."""
        self.rows_repeated = 0
        """Rows that were dropped because their group had taken them before."""
        self._highest_mark = np.full(self.n, -1, np.int64)  # at least the highest of each input
        self.locked = np.zeros(self.partitions, np.bool_)
        """Groups on their way to or from another processor: not to be pushed."""
        self._groups = np.zeros((self.partitions, index.GROUP_FIELDS), np.uint32)
        self._parts = np.zeros((self.partitions * self.n, PART_FIELDS), np.uint32)
        self._keyed = 0 if is_bijective(plan.key_types) else 1
        self._memory = self._memory_of(self._groups, self._parts)
        self._nested = [NestedStore(x) if x.nested else None for x in self.layouts]
        self._has_nested = any(s is not None for s in self._nested)
        self._with_nulls: list[set[str]] = [set() for _ in self.layouts]
        self.chunk_rows = chunk_rows  # of the next chunk, at most
        self._chunk = np.empty((self.n, chunk_rows), np.uint32)
        self._cursor = np.zeros(adv.POSITIONS + 2 * self.n, np.int64)
        self._work: _Work | None = None
        self._own: tuple[int, pa.RecordBatch] | None = None  # input and rows of the chunk's batch

    def begin(self, i: int, of: Keyed, now_s: float, *, silent: bool = False) -> NDArray[np.int64]:
        """Start on rows of input `i` (its kept columns); those before must be done.

        Returns the groups that they touch. Rows that a group has taken before are dropped. A
        `silent` batch makes no combinations and moves no marks: its rows belong to a group that
        comes from elsewhere, where they have met.
        """
        assert self._work is None
        batch, keys, positions = of.rows, of.keys, of.positions
        if not silent and of.stamped.lowest <= self._highest_mark[i]:
            taken = self.marks[i, of.groups[positions]]
            positions = positions[of.stamped.sequences()[positions] > taken]
            self.rows_repeated += of.count - positions.size
        order, starts, group_of, hashes = kernels.in_group_order(
            of.groups, keys.hashes, positions, self.partitions
        )
        touched = np.flatnonzero(np.diff(starts))
        self.last_insert_s[touched] = now_s
        if not silent and order.size:
            last = order[starts[touched + 1] - 1]
            offsets = of.stamped.offsets
            self.marks[i, touched] = of.stamped.first + (last if offsets is None else offsets[last])
            self._highest_mark[i] = max(self._highest_mark[i], of.stamped.highest)
        key_offsets, key_data = _NO_KEYS
        if keys.offsets is not None and keys.data is not None:
            key_offsets, key_data = keys.offsets, keys.data
        ended = self.ended & (np.arange(self.n) != i) & (not silent)
        encoder = None
        if ended.sum() < self.n - 1 or self.generation[touched].any():
            encoder = Encoder(self.layouts[i], batch, order)
            self._with_nulls[i].update(encoder.with_nulls)
        else:  # nothing is pushed before it is done: no row of it asks for memory
            check_nulls(self.layouts[i], batch)
        self._own = (i, batch)
        self._work = _Work(
            i=i,
            batch=batch,
            encoder=encoder,
            ended=ended,
            place=Placement(
                order=order,
                group_of=group_of,
                rows_at=np.empty(order.size, np.uint32),
                heap_at=np.empty(order.size, np.uint32),
            ),
            hashes=hashes,
            key_offsets=key_offsets,
            key_data=key_data,
            silent=silent,
        )
        self._cursor[:] = 0
        return touched

    @property
    def idle(self) -> bool:
        """Whether no batch is under way."""
        return self._work is None

    @property
    def between_chunks(self) -> bool:
        """Whether `advance` begins a chunk, of `chunk_rows`."""
        return self._work is None or not self._work.filling

    def advance(self) -> NDArray[np.uint32] | Short | None:
        """Go on with the batch: None when it is done, else a chunk or the wish for memory.

        A chunk is an array [input, combination] of row addresses, for the batch's own input of
        places in the batch, valid until the next call or `let_go`; it may be empty: others had to
        get a turn. After Short.OF_MEMORY groups may be detached and released, and it goes on.
        """
        w = self._work
        if w is None:
            return None
        if not w.filling:
            self._cursor[adv.EMITTED] = 0
            if self._chunk.shape[1] != self.chunk_rows:
                self._chunk = np.empty((self.n, self.chunk_rows), np.uint32)
        self.slab.limit(self.limit_bytes - self._nested_bytes)
        end = min(int(self._cursor[adv.ROW]) + FUEL_ROWS, w.hashes.size)
        status = adv.advance(
            self._memory, w.hashes[:end], w.place.group_of, w.place.order, w.key_offsets,
            w.key_data, _NO_TEXT if w.encoder is None else w.encoder.heap_need, self.produced, w.i,
            int(w.silent), w.ended, self.generation, self.unkept, self.layouts[w.i].row_words,
            w.place.rows_at, w.place.heap_at, self._chunk, self._cursor,
        )  # fmt: skip
        reached = int(self._cursor[adv.ROW] + self._cursor[adv.MID_ROW])
        if reached > w.scattered and w.encoder is not None:
            self._keep(w, w.encoder, w.scattered, reached)
            w.scattered = reached
        w.filling = status == adv.DONE and end < w.hashes.size
        if w.filling:
            return self._chunk[:, :0]
        emitted = int(self._cursor[adv.EMITTED])
        if status == adv.DONE:
            self._work = None
        if emitted:
            return self._chunk[:, :emitted]
        if status == adv.MEMORY_SHORT:
            return Short.OF_MEMORY
        return None if self._work is None else self._chunk[:, :0]

    def _keep(self, w: _Work, encoder: Encoder, first: int, end: int) -> None:
        """Copy the columns of rows first … end − 1 to where they have room."""
        place = w.place
        if w.ended.any():
            place = place.kept(first, end)
            first, end = 0, place.order.size
        encoder.scatter(self.slab, place, first, end)
        nested = self._nested[w.i]
        if nested is not None and first < end:
            nested.append(self.slab, w.batch, place, first, end)

    def let_go(self) -> None:
        """All chunks of the batch that is done were read."""
        self._own = None

    def materialise(
        self, chunk: NDArray[np.uint32], columns: Sequence[tuple[int, str]]
    ) -> list[pa.Array]:
        """The given (input, column) of each combination in a chunk."""
        out: dict[tuple[int, str], pa.Array] = {}
        assert self._own is not None
        own, batch = self._own
        for i in range(self.n):
            wanted = [self._column(i, name) for j, name in columns if j == i]
            if i == own:
                arrays = pick(batch, wanted, chunk[i])
            else:
                arrays = decode(self.slab, wanted, chunk[i], self._nested[i], self._with_nulls[i])
            out |= {(i, c.field.name): a for c, a in zip(wanted, arrays, strict=True)}
        return [out[c] for c in columns]

    def value_sizes(
        self, chunk: NDArray[np.uint32], columns: Sequence[tuple[int, str]]
    ) -> NDArray[np.int64] | None:
        """Bytes of text and, about, of nested values in each combination of a chunk; None if no
        column has either.
        """
        assert self._own is not None
        own, batch = self._own
        total: NDArray[np.int64] | None = None
        for i, name in columns:
            column, nested = self._column(i, name), self._nested[i]
            if i == own and column.kind in (Kind.TEXT, Kind.NESTED):
                sizes = value_bytes(column, batch.column(name), chunk[i])
            elif column.kind is Kind.TEXT:
                sizes = text_bytes(self.slab, column, chunk[i]).astype(np.int64)
            elif column.kind is Kind.NESTED and nested is not None:
                sizes = nested.value_bytes(column, self.slab, chunk[i])
            else:
                continue
            total = sizes if total is None else total + sizes
        return total

    @property
    def held_bytes(self) -> int:
        """Pages handed out plus nested values: all that the state takes."""
        return self.slab.used_bytes + self._nested_bytes

    @property
    def _nested_bytes(self) -> int:
        return sum(s.held_bytes for s in self._nested if s is not None) if self._has_nested else 0

    def group_bytes(self) -> NDArray[np.int64]:
        """P_s: what each group holds."""
        out = np.zeros(self.partitions, np.int64)
        whole.group_bytes(self._memory, out)
        for store in self._nested:
            if store is not None:
                store.group_bytes(out)
        return out

    def bytes_of(self, viewed: Detached) -> NDArray[np.int64]:
        """P_s of some groups, without a look at the others."""
        out = np.zeros(viewed.ids.size, np.int64)
        whole.group_bytes(self._memory_of(viewed.groups, viewed.parts), out)
        nested = np.zeros(self.partitions, np.int64)
        for store in self._nested:
            if store is not None:
                store.group_bytes(nested)
        return out + nested[viewed.ids]

    def group_rows(self) -> NDArray[np.int64]:
        """Rows held, per group (row) and input (column)."""
        return self._parts[:, ROWS].reshape(-1, self.n).astype(np.int64)

    def detach(self, ids: NDArray[np.int64]) -> Detached:
        """Take groups out as their generation; they start afresh as the next one.

        A group may hold an index and no row yet, when memory ran short in the middle of a batch:
        nothing of it will be on disk, so its generation stays. Not while a combination of rows is
        half emitted.
        """
        assert self._cursor[adv.MID_ROW] == 0
        parts = self._parts.reshape(self.partitions, self.n * PART_FIELDS)
        detached = Detached(
            ids=ids,
            generations=self.generation[ids],
            groups=self._groups[ids],
            parts=np.ascontiguousarray(parts[ids]).reshape(-1, PART_FIELDS),
            nested=[s.detach(ids.tolist()) if s is not None else [] for s in self._nested],
        )
        self._groups[ids] = 0
        parts[ids] = 0
        self.generation[ids] += detached.rows(self.n).any(axis=1)
        self.produced_before[ids] += self.produced[ids]
        self.produced[ids] = 0
        return detached

    def view(self, ids: NDArray[np.int64]) -> Detached:
        """Groups to be read while they stay; no row may be added meanwhile."""
        parts = self._parts.reshape(self.partitions, self.n * PART_FIELDS)
        return Detached(
            ids=ids,
            generations=self.generation[ids],
            groups=self._groups[ids],
            parts=np.ascontiguousarray(parts[ids]).reshape(-1, PART_FIELDS),
            nested=[[] for _ in self._nested],
        )

    def drop(self, ids: NDArray[np.int64]) -> None:
        """Forget groups that live elsewhere from now on, and their counters with them."""
        self.release(self.detach(ids))
        for counter in (self.generation, self.produced, self.produced_before, self.unkept):
            counter[ids] = 0
        self.marks[:, ids] = -1
        self.locked[ids] = False

    def set_marks(self, ids: NDArray[np.int64], marks: NDArray[np.int64]) -> None:
        """The marks of groups that come from elsewhere, per input (row) and group (column)."""
        self.marks[:, ids] = marks
        np.maximum(self._highest_mark, marks.max(axis=1, initial=-1), out=self._highest_mark)

    def collect(self, detached: Detached) -> list[NDArray[np.uint32]]:
        """Per input the rows of detached groups, group after group in key-hash order.

        Reads only what belongs to the detached groups: safe beside the join.
        """
        starts, rows_at = self._room_for(detached.rows(self.n))
        memory = self._memory_of(detached.groups, detached.parts)
        whole.collect(memory, detached.ids.size, starts, rows_at)
        return [rows_at[starts[j] : starts[j + 1]] for j in range(self.n)]

    def rows_of(
        self, viewed: Detached, since: NDArray[np.int64] | None = None
    ) -> list[NDArray[np.uint32]]:
        """Per input the rows of the groups, in no order. As safe as `collect`, and quicker.

        `since` has, per group and input, how many rows that came first are left out.
        """
        skipped = np.zeros((viewed.ids.size, self.n), np.int64) if since is None else since
        starts, rows_at = self._room_for(viewed.rows(self.n) - skipped)
        memory = self._memory_of(viewed.groups, viewed.parts)
        row_words = np.array([layout.row_words for layout in self.layouts], np.int64)
        whole.rows_of(memory, viewed.ids.size, row_words, skipped, starts, rows_at)
        return [rows_at[starts[j] : starts[j + 1]] for j in range(self.n)]

    def _room_for(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
        """Where each input's rows start, and room for all of them; `rows` per group and input."""
        starts = np.zeros(self.n + 1, np.int64)
        np.cumsum(rows.sum(axis=0), out=starts[1:])
        return starts, np.empty(int(starts[-1]), np.uint32)

    def read_rows(self, i: int, rows_at: NDArray[np.uint32]) -> pa.Table:
        """The kept columns of input i's rows at the given addresses."""
        arrays = decode(
            self.slab, self.layouts[i].columns, rows_at, self._nested[i], self._with_nulls[i]
        )
        return pa.Table.from_arrays(arrays, schema=self.plan.inputs[i].kept)

    def release(self, detached: Detached) -> None:
        """Give back what detached groups hold."""
        memory = self._memory_of(detached.groups, detached.parts)
        whole.release(memory, detached.ids.size)
        for store, groups in zip(self._nested, detached.nested, strict=True):
            if store is not None:
                store.release(groups)

    def _column(self, i: int, name: str) -> Column:
        return self._columns[i][name]

    def _memory_of(self, groups: NDArray[np.uint32], parts: NDArray[np.uint32]) -> tuple[int, ...]:
        return self.slab.memory(groups, parts, self.n, self._keyed)
