"""The join: hashed rows of n inputs in, combinations out, in chunks of bounded size.

    link ends ─▶ [ batch under way ] ─▶ chunk ─▶ pieces ─▶ out
                       ▲ between batches: chores, in steps as short as the join's
                       │ (groups that arrived are installed, groups that left are dropped)

A step starts a batch if none is under way and emits at most one piece of output. Before a batch,
and whenever the state asks for memory, `Relief` may push groups to disk; the join waits for that
push, the worker never does. A piece costs some 0.2 ms, whatever its size, so it is larger where the
state leaves memory free: a hot key's result took 74 ns in pieces of 1/64 of 8 MB, and takes 11.

Invariant: a group takes rows only while it is live here; a row of any other group is a defect.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail_processor.graph.arc import Arc
from dovetail_processor.graph.node import Statistics, Waiting
from dovetail_processor.join.state import JoinState, Short
from dovetail_processor.operators.evaluate import Results
from dovetail_processor.operators.link_end import LinkEnd, Marker
from dovetail_proto.memory import OUTPUT_BYTES_MAX, row_bytes_of

CHUNK_ROWS_MIN, CHUNK_ROWS_MAX = 64, 64 << 10
_OVER = object()


class Relief(Protocol):
    """Keeps the state within its memory."""

    def before_batch(self, now_s: float) -> None:
        """Called between batches: push if memory is above its threshold."""

    def now(self, now_s: float) -> None:
        """The state cannot go on: see that memory comes free, or raise MemoryLimitError."""

    @property
    def waits(self) -> bool:
        """Whether nothing can go into the state before memory has come free."""

    @property
    def spare_bytes(self) -> int:
        """What the state does not need now: output may be larger by it."""


class Join:
    """Joins what comes on `inputs`, one link end each, and offers combinations to `out`."""

    def __init__(
        self,
        query: str,
        depth: int,
        *,
        state: JoinState,
        inputs: Sequence[LinkEnd],
        out: Arc[Results],
        relief: Relief,
        piece_bytes: int,
    ) -> None:
        self.owners = (query,)
        self.depth = depth
        self.statistics = Statistics()
        self.state = state
        self.inputs = inputs
        self._out = out
        self._relief = relief
        self._piece_bytes_sure = piece_bytes
        self._piece_bytes = piece_bytes  # of the chunk under way
        self._columns, self._schema = state.plan.emitted()
        self.live = np.zeros(state.partitions, np.bool_)
        """Groups that take rows here."""
        self._turn = 0  # input that is asked first for the next batch
        self._pieces: deque[NDArray[np.uint32]] = deque()  # of the chunk that is being emitted
        self._chores: deque[Iterator[None]] = deque()  # in order, between batches
        self._freeing: list[Iterator[None]] = []  # those of them that give memory back
        self._in_chore = False  # the first of them has begun
        self._begun_s = 0.0  # when the batch under way was begun
        self.peak_bytes = 0
        """The most that the state has held."""

    # The node -------------------------------------------------------------------------------------

    @property
    def waiting(self) -> Waiting:
        """See Node."""
        held = sum(i.held_bytes for i in self.inputs)
        return Waiting(sum(map(len, self.inputs)), held, self._begun_s if held else float("inf"))

    @property
    def ready(self) -> bool:
        """Whether there is work under way or waiting, and room for its output."""
        if self._pieces:
            return self._out.has_room
        if self._relief.waits:
            return self.frees
        if self._may_do_chores:
            return True
        waiting = not self.state.idle or (not self._chores and any(map(len, self.inputs)))
        return waiting and self._out.has_room

    def step(self, now_s: float) -> None:
        """Emit a piece, or do a part of a chore, or get on with a batch."""
        if self._pieces:
            self._emit(self._pieces.popleft(), now_s)
        elif self._may_do_chores:
            if self.frees:  # ahead of what waits for the end of the batch; groups are their own
                self._chores.remove(self._freeing[0])
                self._chores.appendleft(self._freeing[0])
            self._in_chore = True
            if next(self._chores[0], _OVER) is _OVER:
                done = self._chores.popleft()
                self._freeing = [c for c in self._freeing if c is not done]
                self._in_chore = False
        else:
            self._advance(now_s)
        if self.idle:
            self.state.let_go()
        self.peak_bytes = max(self.peak_bytes, self.state.held_bytes)

    @property
    def idle(self) -> bool:
        """Whether no batch is under way and nothing of one waits to be emitted."""
        return self.state.idle and not self._pieces

    @property
    def _may_do_chores(self) -> bool:
        # Results that are not emitted yet are read from the state: what they are made of stays.
        return bool(self._chores) and (self.idle or self._in_chore or self.frees)

    @property
    def frees(self) -> bool:
        """Whether memory is short, and a chore gives some back: in mid-batch, too."""
        return self._relief.waits and bool(self._freeing) and not self._in_chore

    def _advance(self, now_s: float) -> None:
        if self.state.idle:
            self._begin(now_s)
        if self.state.between_chunks:
            self._size_chunk()
        event = self.state.advance()
        if event is Short.OF_MEMORY:
            self._relief.now(now_s)
        elif isinstance(event, np.ndarray):
            self._pieces.extend(self._cut(event))
            if self._pieces:
                self._emit(self._pieces.popleft(), now_s)

    def _begin(self, now_s: float) -> None:
        self._relief.before_batch(now_s)
        n = len(self.inputs)
        in_turn = [(self._turn + k) % n for k in range(n)]
        ready = [i for i in in_turn if len(self.inputs[i])]
        i = next((i for i in ready if self.inputs[i].urgent), ready[0])
        self._turn = (i + 1) % n
        rows = self.inputs[i].take()
        self.statistics.rows_in += rows.count
        self._begun_s = now_s
        touched = self.state.begin(i, rows, now_s)
        if not self.live[touched].all():
            group = int(touched[~self.live[touched]][0])
            raise AssertionError(f"a row of group {group} came here, where it is not live")

    def _size_chunk(self) -> None:
        """Have the next chunk be as large as memory allows now.

        Half of what is spare: the piece before may be on its way, and the next one gets half of
        what is left then.
        """
        most = max(self._piece_bytes_sure, OUTPUT_BYTES_MAX)
        self._piece_bytes = min(self._piece_bytes_sure + self._relief.spare_bytes // 2, most)
        self.state.chunk_rows = chunk_rows(self._schema, len(self.inputs), self._piece_bytes)

    def _cut(self, chunk: NDArray[np.uint32]) -> list[NDArray[np.uint32]]:
        """The chunk in pieces whose values are within the bound, one combination at least."""
        if chunk.shape[1] == 0:
            return []
        sizes = self.state.value_sizes(chunk, self._columns)
        if sizes is None:
            return [chunk]
        # A piece is closed by the combination that crosses a multiple of the bound.
        cuts = np.flatnonzero(np.diff(np.cumsum(sizes) // self._piece_bytes)) + 1
        return [np.ascontiguousarray(p) for p in np.split(chunk, cuts, axis=1)]

    def _emit(self, piece: NDArray[np.uint32], now_s: float) -> None:
        arrays = self.state.materialise(piece, self._columns)
        rows = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        self.statistics.rows_out += rows.num_rows
        self._out.offer(Results(rows, int(rows.nbytes)), now_s)

    # Between batches ------------------------------------------------------------------------------

    def later(self, chore: Iterator[None], *, frees: bool = False) -> None:
        """Have something done to the state between batches, behind what was asked for before.

        What only `frees` groups that are not here any more is done while a batch waits for memory,
        too.
        """
        self._chores.append(chore)
        if frees:
            self._freeing.append(chore)

    @property
    def settled(self) -> bool:
        """Whether all that was taken from the inputs is joined, and no chore is left."""
        return self.idle and not self._chores

    def markers(self) -> list[Marker]:
        """Markers that everything before is joined for; and room for what was joined.

        To be asked when everything is `settled` and its results are handed on. Not before groups
        that have arrived are installed: a marker may send them on.
        """
        found = []
        for i, end in enumerate(self.inputs):
            end.finished()
            while (marker := end.marker()) is not None:
                found.append(marker)
            self.state.ended[i] = end.ended
        return found

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait to be joined."""
        return sum(end.held_bytes for end in self.inputs)


def chunk_rows(schema: pa.Schema, inputs: int, output_bytes: int) -> int:
    """How many combinations make about `output_bytes`, in columns and in row addresses."""
    width = 4 * inputs + row_bytes_of(schema)
    return min(max(output_bytes // width, CHUNK_ROWS_MIN), CHUNK_ROWS_MAX)
