"""A stream's file, read on lanes: batch by batch in order, when its home asks for the next.

    parts of the file     0 ─ lane 0 ─▶ [batch][batch] ──▶ home
                          1 ─ lane 1 ─▶ [batch][batch]      waits for part 0 to end
                          2 ─ the lane that is free next

A file that can be cut into parts (row groups, files of a folder) is decoded by several lanes at
once, each at a part of its own. Rows come in order, so what a lane decodes before its part's turn
is kept. Nothing is decoded ahead before the second batch is asked for: a file whose turn has not
come is begun, and holds its first one.

Invariant: what is held and what lanes are decoding, but for the batch that is awaited now, is
within `ahead_bytes`. A batch that is being decoded counts as one of full length, and with text as
the largest so far if that is more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa

from dovetail_processor.jobs import Lane, Outcome
from dovetail_processor.sources.file_source import FileSource, Part
from dovetail_proto.errors import DovetailError, InputError
from dovetail_proto.ids import StreamName
from dovetail_proto.memory import batch_bytes_max, row_bytes_of

BATCH_ROWS = 64 << 10
"""What the join's kernels are measured with."""

Taken = Callable[[pa.RecordBatch | None], None]
Failed = Callable[[DovetailError], None]


@dataclass(slots=True)
class _Reading:
    """A part that is being read, on a lane."""

    lane: Lane
    part: Part
    batches: deque[tuple[pa.RecordBatch, int]] = field(default_factory=deque)  # with their bytes
    busy: bool = False  # a job is under way
    ended: bool = False  # no more of it can be read
    error: Exception | None = None  # what ended it, if not its end; told when its turn comes
    rows: Iterator[pa.RecordBatch] | None = None  # None: not begun; the lane's

    @property
    def is_over(self) -> bool:
        """Whether all that came of it was handed over."""
        return self.ended and not self.batches

    def next(self) -> pa.RecordBatch | None:
        """On the lane: the next batch, or None at the end."""
        if self.rows is None:
            self.rows = self.part()
        return next(self.rows, None)

    def leave(self) -> None:
        """On the lane: keep nothing open."""
        close = getattr(self.rows, "close", None)
        if close is not None:
            close()


@dataclass(frozen=True, slots=True)
class _Opened:
    """A file that was opened, and its first batch."""

    rows_total: int | None
    first: _Reading
    others: list[Part]
    batch: pa.RecordBatch | None
    batch_bytes: int  # that a batch holds at most
    full_bytes: int  # that one of full length holds, as far as its types tell


class FileFeed:
    """See the module. `open_file` raises InputError if the file is not as declared."""

    def __init__(
        self,
        stream: StreamName,
        lanes: Sequence[Lane],
        open_file: Callable[[], FileSource],
        *,
        batch_bytes: int,
        ahead_bytes: int = 0,
    ) -> None:
        self._stream = stream
        self._lanes = tuple(lanes)
        self._open_file = open_file
        self._batch_bytes = batch_bytes
        self._ahead_bytes = ahead_bytes
        self._columns: frozenset[str] = frozenset()  # that readers need; more may come until begun
        self._begun = False
        self._parts: deque[Part] = deque()  # that no lane reads yet
        self._reading: deque[_Reading] = deque()  # in order; all rows before the first are taken
        self._first: _Reading | None = None  # its first part, once it is open; the first lane's
        self._asked: tuple[Taken, Failed] | None = None  # who waits for the next batch
        self._next_bytes = batch_bytes  # that a batch is expected to hold
        self._may_decode_ahead = False  # its turn has come: it was asked for a second batch
        self._closed = False
        self._error: DovetailError | None = None  # why no more can be read
        self.held_bytes = 0
        """Bytes of batches that were decoded before they were asked for."""
        self.ended = False
        """Whether all of it was read."""
        self.rows_total: int | None = None
        """Rows of the file, if it says and was opened."""

    def want(self, columns: frozenset[str]) -> None:
        """A reader needs these; InputError if the file is being read without one of them.

        Raises what has ended the reading.
        """
        if self._error is not None:
            raise self._error
        if not self._begun:
            self._columns |= columns
        elif missing := columns - self._columns:
            raise InputError(
                f"stream {self._stream!r} is being read without column {min(missing)!r}",
                remedy="submit all queries on a file before the first one has started",
            )

    def read(self, taken: Taken, failed: Failed) -> None:
        """Have the next batch handed to `taken`, or None at the end; one at a time."""
        if self._asked is not None or self.ended or self._closed:
            return
        self._asked = (taken, failed)
        if self._begun:
            self._may_decode_ahead = True
            self._go_on()
        else:
            self._begun = True
            self._lanes[0].run(self._open, self._opened)

    def close(self) -> None:
        """Read nothing more."""
        if not self._closed:
            self._closed = True
            for one in self._reading:
                one.lane.run(one.leave, lambda _: None)
            if self._begun and not self._reading:  # it may still be being opened
                self._lanes[0].run(self._leave_first, lambda _: None)
            for lane in self._lanes:
                lane.close()
            self._reading.clear()
            self.held_bytes = 0

    def _opened(self, outcome: Outcome[_Opened]) -> None:
        if self._closed:
            return
        if outcome.error is not None:
            self._fail(outcome.error)
            return
        found = outcome.result()
        self.rows_total = found.rows_total
        self._batch_bytes, self._next_bytes = found.batch_bytes, found.full_bytes
        self._reading.append(found.first)
        self._parts.extend(found.others)
        self._came(found.first, Outcome(found.batch))

    def _came(self, one: _Reading, outcome: Outcome[pa.RecordBatch | None]) -> None:
        one.busy = False
        if self._closed:
            return
        one.error = outcome.error
        batch = None if one.error is not None else outcome.result()
        if batch is None:
            one.ended = True
        else:
            size_bytes = batch.nbytes
            one.batches.append((batch, size_bytes))
            self.held_bytes += size_bytes
            self._next_bytes = min(self._batch_bytes, max(self._next_bytes, size_bytes))
        self._go_on()

    def _fail(self, error: Exception) -> None:
        asked, self._asked = self._asked, None
        assert asked is not None
        self.close()
        self._error = error if isinstance(error, DovetailError) else InputError(str(error))
        asked[1](self._error)

    def _go_on(self) -> None:
        """Hand over the next batch, if somebody waits for it, and have more decoded."""
        while self._reading and self._reading[0].is_over:
            if self._reading[0].error is not None:
                if self._asked is not None:
                    self._fail(self._reading[0].error)
                return
            self._reading.popleft()
        if not self._reading and not self._parts:
            self.ended = True
            self.close()
        asked, batch = self._asked, None
        if self._reading and self._reading[0].batches and asked is not None:
            batch, size_bytes = self._reading[0].batches.popleft()
            self.held_bytes -= size_bytes
        if batch is not None or self.ended:
            self._asked = None
        self._decode()
        if asked is not None and self._asked is None:
            asked[0](batch)

    def _decode(self) -> None:
        """Have every lane at work that may be."""
        useful = 1 + self._ahead_bytes // self._next_bytes  # more would have no room for a batch
        taken = [one.lane for one in self._reading]
        for lane in self._lanes:
            if lane not in taken and self._parts and len(taken) < useful:
                self._reading.append(_Reading(lane, self._parts.popleft()))
                taken.append(lane)
        first = self._reading[0] if self._reading else None
        awaited = first if first and not first.batches and self._asked is not None else None
        busy = sum(one.busy for one in self._reading if one is not awaited)
        room_bytes = self._ahead_bytes - self.held_bytes - busy * self._next_bytes
        for one in self._reading:
            has_room = self._may_decode_ahead and room_bytes >= self._next_bytes
            if not (one.busy or one.ended) and (one is awaited or has_room):
                room_bytes -= 0 if one is awaited else self._next_bytes
                one.busy = True
                one.lane.run(one.next, partial(self._came, one))

    def _open(self) -> _Opened:
        """On the first lane."""
        source = self._open_file()
        names = [n for n in source.schema.names if n in self._columns]
        width = row_bytes_of(pa.schema([source.schema.field(n) for n in names]))
        batch_bytes = min(self._batch_bytes, batch_bytes_max(width))
        full_bytes = BATCH_ROWS * (8 * width + len(names)) // 8  # a bit of each value says: null
        parts = source.parts(names, batch_rows=BATCH_ROWS, batch_bytes=batch_bytes)
        self._first = first = _Reading(self._lanes[0], parts[0])
        return _Opened(
            source.rows_total,
            first,
            parts[1:],
            first.next(),
            batch_bytes,
            min(batch_bytes, full_bytes),
        )

    def _leave_first(self) -> None:
        """On the first lane."""
        if self._first is not None:
            self._first.leave()
