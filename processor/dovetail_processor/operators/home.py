"""The home of a stream: what sources send, or what a file holds, stamped and given to its readers.

    source ── batch ─▶ queue [ 7 │ 8 │ 9 ] ─▶ reader of query p: takes 8 next
                                           └▶ reader of query q: takes 9 next, ends behind it
    7 was taken by all: it leaves the queue, and its source is answered

Every reader has a place of its own in the queue, so that a slow query slows the source and nobody
else; one whose query closes ends behind what had come by then. Without readers, what is sent goes
nowhere (queries see a stream from their submission on; the source is told) and a file waits.

Invariants: each row is stamped once, with its number in the stream, before anyone sees it. An
acknowledged batch was taken in, once, by every query that read the stream when it came, also by one
that has begun to close since. So a repeated batch is dropped, and answered when the first one is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from dovetail_processor.batches import Stamped, stamped
from dovetail_processor.graph.arc import Arc
from dovetail_processor.graph.node import Statistics, Waiting
from dovetail_processor.operators.file_feed import FileFeed
from dovetail_processor.operators.remainder import Remainder
from dovetail_processor.operators.sources_heard import SourcesHeard
from dovetail_proto.assignment import StreamTask
from dovetail_proto.errors import Domain, DovetailError, InputError, Refusal
from dovetail_proto.handover import Handover, handover_from_json
from dovetail_proto.ids import QueryName, SplitId, StreamName

DEPTH_ADMITTING = 90
"""What is sent is taken in first, while there is room: it waits here instead of on the wire."""

DEPTH_READING = 0
"""A file can wait: it is read when there is nothing else to do."""

REPEATS_MAX = 16
"""Calls that wait for the same batch: a source that sends it again has given the former one up."""

Routed = Callable[[int, int], None]
"""Called with the stream's rows so far and the number of queries that have the batch."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A batch that a source sent; one of `routed` and `refused` is called, once."""

    source: str
    sequence: int
    batch: pa.RecordBatch
    routed: Routed
    refused: Callable[[DovetailError], None]
    rows_left: int | None = None  # rows of the source that follow; None: it did not say


@dataclass(slots=True)
class Reader:
    """One input of a query that reads the stream."""

    query: QueryName
    split: SplitId
    arc: Arc[Stamped]  # where its batches go
    columns: frozenset[str]  # that it needs
    paused: bool = False
    gone: bool = False  # its query has failed: nobody waits for it
    rows: int = 0  # that it has taken
    next: int = 0  # number of the batch that it takes next
    end: int | None = None  # number of the first batch that it does not take: its query closes


@dataclass(frozen=True, slots=True)
class _Queued:
    """A batch that not everyone has taken."""

    batch: Stamped
    sent: Sent | None  # None: it is of a file
    repeats: deque[Sent] = field(default_factory=deque)  # of the same batch, newer calls last


class Home:
    """One stream; a node of the graph. `file` reads the stream's file, if it has one."""

    def __init__(
        self,
        task: StreamTask,
        file: FileFeed | None,
        failed: Callable[[DovetailError], None],
        now_s: float,
    ) -> None:
        self.task = task
        self._file = file
        self._failed = failed  # the file cannot be read: nothing more will come
        self._queue: deque[_Queued] = deque()
        self._gone = 0  # batches that have left the queue; numbers those that are in it
        self.readers: dict[SplitId, Reader] = {}
        self.rows = 0
        """Rows stamped so far; also the sequence of the next one."""
        self._sources = SourcesHeard(task.name)
        self._remainder = Remainder()
        self.inherited: dict[QueryName, int] = {}
        """Rows that queries took in at the former home."""
        self.statistics = Statistics()
        self._queued_bytes = 0  # of the batches in the queue
        self._now_s = now_s
        if task.handover and task.path is None:
            former = handover_from_json(task.handover)
            self.rows = former.rows
            self._sources.restore(former.marks, now_s)
            self.inherited = dict(former.rows_in)

    @property
    def name(self) -> StreamName:
        """The stream's name."""
        return self.task.name

    @property
    def held_bytes(self) -> int:
        """Bytes of the batches in the queue, and of those that are decoded before their turn."""
        return self._queued_bytes + (0 if self._file is None else self._file.held_bytes)

    def set_task(self, task: StreamTask) -> None:
        """What is wanted of the stream from now on."""
        self.task = task
        self.read_on()

    # What comes -----------------------------------------------------------------------------------

    def accept(self, sent: Sent, now_s: float) -> None:
        """Take a batch from a source; raises InputError or Refusal."""
        self._now_s = now_s
        if sent.sequence <= self._sources.last(sent.source):
            self._repeated(sent)
            return
        if self.task.leaves:
            raise Refusal(
                Domain.QUERY,
                f"stream {self.name!r} gets another home",
                remedy="ask the manager in a moment where it is",
                reason="home",
            )
        if self.task.path is not None:
            raise InputError(f"stream {self.name!r} is read from {self.task.path!r}")
        if self.task.ended:
            raise InputError(
                f"stream {self.name!r} has ended", remedy="create another stream, or do not end it"
            )
        waiting = {q.sent.source for q in self._queue if q.sent is not None}
        self._sources.heard(sent.source, sent.sequence, waiting, now_s)
        self._remainder.sent(sent.source, sent.rows_left)
        self._append(sent.batch, sent)

    def forget(self, source: str) -> None:
        """A source has all its answers and sends nothing more."""
        self._sources.forget(source)

    def _repeated(self, sent: Sent) -> None:
        """The answer was lost, or is still to come: the batch may wait for a query."""
        for queued in self._queue:
            first = queued.sent
            if first is not None and (first.source, first.sequence) == (sent.source, sent.sequence):
                if len(queued.repeats) == REPEATS_MAX:
                    queued.repeats.popleft().refused(_sent_again(self.name))
                queued.repeats.append(sent)
                return
        sent.routed(self.rows_routed, len(self._queries))

    def _append(self, batch: pa.RecordBatch, sent: Sent | None) -> None:
        if batch.num_rows:
            queued = _Queued(stamped(batch, self.rows), sent)
            self.rows += batch.num_rows
            self._queued_bytes += queued.batch.size_bytes
            self._queue.append(queued)
        elif sent is not None:
            sent.routed(self.rows_routed, len(self._queries))
        self.settle()

    # Readers --------------------------------------------------------------------------------------

    def add_reader(self, reader: Reader) -> None:
        """A query reads the stream, from now on; InputError if its file is read without a column.

        A file that somebody reads is opened and read from now on.
        """
        reader.next = self._gone + len(self._queue)
        if self._file is not None:
            self._file.want(reader.columns)
        self.readers[reader.split] = reader
        self.read_on()

    def remove_reader(self, split: SplitId) -> None:
        """A query reads the stream no longer, or not here."""
        if self.readers.pop(split, None) is not None:
            self.settle()

    def end_reader(self, split: SplitId) -> None:
        """A query closes: it takes in what has come by now, and nothing more."""
        reader = self.readers[split]
        if reader.end is None:
            reader.end = self._gone + len(self._queue)
        self.settle()

    def has_fed(self, split: SplitId) -> bool:
        """Whether a reader has taken all that it will get: its query closes, or nothing follows."""
        reader = self.readers[split]
        if reader.end is not None:
            return reader.next >= reader.end
        return self._over and reader.next == self._gone + len(self._queue)

    def waits_for(self, split: SplitId) -> tuple[int, int, int]:
        """Of a reader: the sequence it takes next, that of its end so far, and the rows between."""
        reader = self.readers[split]
        end = self._gone + len(self._queue) if reader.end is None else reader.end
        left = [self._at(n) for n in range(reader.next, end)]
        if not left:
            return self._sequence_at(reader.next), self._sequence_at(reader.next), 0
        rows = sum(q.rows.num_rows for q in left)
        return left[0].first, left[-1].highest + 1, rows

    def _sequence_at(self, number: int) -> int:
        """Of the first row of a batch, or of the next one that is still known or will come."""
        at = max(number, self._gone)  # one that has closed may be behind what the others have left
        return self._at(at).first if at < self._gone + len(self._queue) else self.rows

    def _at(self, number: int) -> Stamped:
        return self._queue[number - self._gone].batch

    # The node -------------------------------------------------------------------------------------

    @property
    def owners(self) -> tuple[str, ...]:
        """See Node."""
        return tuple(r.query for r in self._reading) or (self.name,)

    @property
    def depth(self) -> int:
        """See Node."""
        return DEPTH_READING if self._file is not None else DEPTH_ADMITTING

    @property
    def waiting(self) -> Waiting:
        """See Node."""
        return Waiting(len(self._queue), self.held_bytes, self._now_s)

    @property
    def ready(self) -> bool:
        """Whether a reader takes its next batch."""
        return bool(self._queue) and any(map(self._takes, self._reading))

    def step(self, now_s: float) -> None:
        """Give the reader that is furthest behind its next batch."""
        self._now_s = now_s
        reader = min(filter(self._takes, self._reading), key=lambda r: r.next)
        batch = self._at(reader.next)
        reader.next += 1
        reader.rows += batch.rows.num_rows
        reader.arc.offer(batch, now_s)
        self.statistics.rows_in += batch.rows.num_rows
        self.statistics.rows_out += batch.rows.num_rows
        self.settle()

    def _takes(self, reader: Reader) -> bool:
        end = self._gone + len(self._queue) if reader.end is None else reader.end
        # A file whose turn has not come is begun, so that its first batch is there when it comes.
        waits = reader.paused or (self.task.waits and reader.end is None)
        return reader.next < end and not waits and reader.arc.has_room

    def settle(self) -> None:
        """Let batches go that everyone has taken, and answer their sources."""
        while self._queue and not any(
            r.next <= self._gone and (r.end is None or r.end > self._gone) for r in self._reading
        ):
            queued = self._queue.popleft()
            queries = {r.query for r in self._reading if r.end is None or r.end > self._gone}
            self._gone += 1
            self._queued_bytes -= queued.batch.size_bytes
            if queued.sent is not None:
                self._sources.answered(queued.sent.source, self._now_s)
                for one in (queued.sent, *queued.repeats):
                    one.routed(self.rows_routed, len(queries))
        self.read_on()

    @property
    def _queries(self) -> set[QueryName]:
        return {r.query for r in self._reading if r.end is None}

    @property
    def _reading(self) -> list[Reader]:
        return [r for r in self.readers.values() if not r.gone]

    # The file -------------------------------------------------------------------------------------

    def read_on(self) -> None:
        """Have the next batch of the file read, if somebody will want it and none waits."""
        wanted = any(r.end is None for r in self._reading)
        if self._file is not None and wanted and not self._queue:
            self._file.read(self._read, self._failed)

    def _read(self, batch: pa.RecordBatch | None) -> None:
        if batch is not None:
            self._append(batch, None)

    # Reports --------------------------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        """Whether nothing will come and nothing waits."""
        return self._over and not self._queue

    @property
    def _over(self) -> bool:
        """Whether nothing will come."""
        return self._file.ended if self._file is not None else self.task.ended

    @property
    def idle(self) -> bool:
        """Whether nothing waits, and nothing is taken in."""
        return self.task.leaves and not self._queue

    @property
    def rows_left(self) -> int | None:
        """Rows still to be routed, as far as its file or its sources told; None: unknown."""
        if self._file is not None:
            total = self.rows if self._file.ended else self._file.rows_total
            return None if total is None else max(0, total - self.rows_routed)
        follow = 0 if self.task.ended else self._remainder.announced
        return None if follow is None else follow + self.rows - self.rows_routed

    @property
    def rows_routed(self) -> int:
        """Rows that every reader has taken."""
        return self._queue[0].batch.first if self._queue else self.rows

    # The end --------------------------------------------------------------------------------------

    def drop(self) -> None:
        """It is not at home here any more: whoever sent what waits has to look for it."""
        if self._file is not None:
            self._file.close()
        for queued in self._queue:
            for sent in (queued.sent, *queued.repeats):
                if sent is not None:
                    sent.refused(not_here(self.name))
        self._queue.clear()

    def handover(self, rows_in: Mapping[QueryName, int]) -> Handover:
        """What the next home has to know."""
        return Handover(self.rows, self._sources.marks(), rows_in)


def _sent_again(stream: StreamName) -> Refusal:
    return Refusal(
        Domain.BUSY,
        f"stream {stream!r}: the batch waits, and was sent again many times since",
        remedy="wait for the answer to the last of these calls",
        reason="busy",
    )


def not_here(stream: StreamName) -> Refusal:
    """The error if a stream is hosted elsewhere, or nowhere."""
    return Refusal(
        Domain.QUERY,
        f"stream {stream!r} is not hosted here",
        remedy="ask the manager where it is",
        reason="home",
    )
