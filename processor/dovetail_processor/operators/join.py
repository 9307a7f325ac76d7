"""The join instance: batches of n inputs in, combinations out, in chunks of bounded size.

A step starts a batch if none is under way and emits at most one piece of output. Before a batch,
and whenever the state asks for memory, `Relief` may push groups to disk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail_processor.graph.arc import Arc
from dovetail_processor.join.state import JoinState, Short


class Relief(Protocol):
    """Keeps the state within its memory."""

    def before_batch(self) -> None:
        """Called between batches: push if memory is above its threshold."""

    def now(self) -> None:
        """The state cannot go on: see that memory comes free, or raise MemoryLimitError.

        It may be called again at once, if the caller does not wait until there is some.
        """


class Input(Protocol):
    """Where batches come from: an arc, or a queue that a link fills."""

    @property
    def exhausted(self) -> bool:
        """Whether nothing is there and nothing will come."""

    @property
    def urgent(self) -> bool:
        """Whether its first batch should come before those of other inputs."""

    def __len__(self) -> int: ...

    def take(self) -> pa.RecordBatch:
        """Remove the first batch."""


class Join:
    """Joins what comes on `sources`, one arc per input, and offers combinations to `out`.

    `owns` is given the groups of every batch and raises if one must not be joined here.
    """

    def __init__(
        self,
        state: JoinState,
        sources: Sequence[Input],
        out: Arc,
        relief: Relief,
        *,
        piece_bytes: int,
        clock: Callable[[], float],
        owns: Callable[[NDArray[np.int64]], None] | None = None,
    ) -> None:
        self._state = state
        self._sources = sources
        self._out = out
        self._relief = relief
        self._piece_bytes = piece_bytes
        self._clock = clock
        self._owns = owns
        self._columns = state.plan.joined_columns()
        self._schema = state.plan.joined_schema()
        self._turn = 0  # input that is asked first for the next batch
        self._pieces: deque[NDArray[np.uint32]] = deque()  # of the chunk that is being emitted

    @property
    def ready(self) -> bool:
        """Whether there is work under way or waiting, and room for its output."""
        waiting = not self._state.idle or any(len(s) for s in self._sources)
        return self._ended or (self._out.has_room and (bool(self._pieces) or waiting))

    @property
    def finished(self) -> bool:
        """Whether the end was passed on."""
        return self._out.ended

    @property
    def idle(self) -> bool:
        """Whether no batch is under way and nothing of one waits to be emitted."""
        return self._state.idle and not self._pieces

    def step(self) -> None:
        """Emit a piece, or get on with the batch under way, or start the next."""
        if self._pieces:
            self._emit(self._pieces.popleft())
        elif self._ended:
            self._out.end()
        else:
            if self._state.idle:
                self._begin()
            event = self._state.advance()
            if event is Short.OF_MEMORY:
                self._relief.now()
            elif isinstance(event, np.ndarray):
                self._pieces.extend(self._cut(event))
                if self._pieces:
                    self._emit(self._pieces.popleft())

    @property
    def _ended(self) -> bool:
        return self._state.idle and not self._pieces and all(s.exhausted for s in self._sources)

    def _begin(self) -> None:
        self._relief.before_batch()
        n = len(self._sources)
        in_turn = [(self._turn + k) % n for k in range(n)]
        ready = [i for i in in_turn if len(self._sources[i])]
        i = next((i for i in ready if self._sources[i].urgent), ready[0])
        self._turn = (i + 1) % n
        touched = self._state.begin(i, self._sources[i].take(), self._clock())
        if self._owns is not None:
            self._owns(touched)

    def _cut(self, chunk: NDArray[np.uint32]) -> list[NDArray[np.uint32]]:
        """The chunk in pieces whose text is within the bound, one combination at least."""
        if chunk.shape[1] == 0:
            return []
        sizes = self._state.text_sizes(chunk, self._columns)
        if sizes is None:
            return [chunk]
        # A piece is closed by the combination that crosses a multiple of the bound.
        cuts = np.flatnonzero(np.diff(np.cumsum(sizes) // self._piece_bytes)) + 1
        return [np.ascontiguousarray(p) for p in np.split(chunk, cuts, axis=1)]

    def _emit(self, piece: NDArray[np.uint32]) -> None:
        arrays = self._state.materialise(piece, self._columns)
        self._out.offer(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
