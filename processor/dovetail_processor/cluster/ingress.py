"""A stream at home here: what sources send, or what a file holds, to the splits of its queries.

    source ── batch (sequence) ─▶ waiting ─▶ every listening split ─▶ acknowledged

A batch goes on when every query that listens has room, so a slow query slows the source. A
sequence that was taken before is acknowledged and dropped. Without a query that listens, what is
sent goes nowhere (queries see a stream from their submission on) and a file waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from dovetail_processor.sources import ReadAhead, open_source
from dovetail_proto.assignment import StreamTask
from dovetail_proto.errors import Domain, InputError, Refusal
from dovetail_proto.handover import SOURCES_MAX, Handover, handover_from_json
from dovetail_proto.ids import QueryName, StreamName

BATCH_ROWS = 64 << 10
"""What the join's kernels are measured with."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A batch that a source sent; `routed` is called with the stream's rows when it is taken."""

    source: str
    sequence: int
    batch: pa.RecordBatch
    routed: Callable[[int], None]


class Ingress:
    """One stream."""

    def __init__(self, task: StreamTask, batch_bytes: int) -> None:
        self.task = task
        self.rows = 0
        self._waiting: deque[Sent] = deque()
        self._last: dict[str, int] = {}  # per source: the highest sequence accepted; newest last
        self.inherited: dict[QueryName, int] = {}  # rows that queries took in at the former home
        self._batch_bytes = batch_bytes
        self._file: ReadAhead | None = None
        self._columns: set[str] = set()  # what is read of the file
        self._file_ended = False
        if task.handover and task.path is None:
            former = handover_from_json(task.handover)
            self.rows, self._last = former.rows, dict(former.marks)
            self.inherited = dict(former.rows_in)

    @property
    def name(self) -> StreamName:
        """The stream's name."""
        return self.task.name

    def accept(self, sent: Sent) -> None:
        """Take a batch from a source, or refuse it with InputError."""
        last = self._last.get(sent.source, 0)
        if sent.sequence <= last:
            sent.routed(self.rows)  # seen before: the answer was lost
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
        if sent.sequence != last + 1:
            raise InputError(
                f"stream {self.name!r}: source {sent.source!r} sent batch {sent.sequence} after "
                f"{last}",
                remedy="send batches in order, numbered from 1",
            )
        self._last.pop(sent.source, None)
        self._last[sent.source] = sent.sequence
        if len(self._last) > SOURCES_MAX:
            del self._last[next(iter(self._last))]
        self._waiting.append(sent)

    @property
    def ready(self) -> bool:
        """Whether a batch is at hand."""
        return bool(self._waiting) or (self._file is not None and self._file.ready)

    @property
    def idle(self) -> bool:
        """Whether nothing waits, and nothing is taken in."""
        return self.task.leaves and not self._waiting

    @property
    def reading(self) -> bool:
        """Whether a file is being read: a batch may be at hand any moment."""
        return self._file is not None

    @property
    def ended(self) -> bool:
        """Whether nothing will come and nothing waits."""
        return (self.task.ended or self._file_ended) and not self._waiting

    @property
    def held_bytes(self) -> int:
        """Bytes that wait here."""
        read = self._file.held_bytes if self._file is not None else 0
        return read + sum(int(s.batch.nbytes) for s in self._waiting)

    def listened(self, columns: set[str]) -> None:
        """Somebody listens, who needs these columns: a file is read from now on.

        Raises InputError if the file is not as declared, or is being read without one of them.
        """
        if self.task.path is None or self._file_ended:
            return
        if self._file is not None:
            if missing := columns - self._columns:
                raise InputError(
                    f"stream {self.name!r} is being read without column {min(missing)!r}",
                    remedy="submit all queries on a file before the first one has started",
                )
            return
        source = open_source(self.task.path)
        if not source.schema.equals(self.task.schema):
            raise InputError(f"{self.task.path!r} has not the declared schema any more")
        self._columns = columns
        names = [n for n in source.schema.names if n in columns]
        batches = source.batches(names, batch_rows=BATCH_ROWS, batch_bytes=self._batch_bytes)
        self._file = ReadAhead(batches, 1)

    def next(self) -> tuple[pa.RecordBatch, Callable[[int], None] | None] | None:
        """The next batch and whom to tell; None if the file has ended. Called when `ready`."""
        if self._waiting:
            sent = self._waiting.popleft()
            self.rows += sent.batch.num_rows
            return sent.batch, sent.routed
        assert self._file is not None
        batch = next(self._file, None)
        if batch is None:
            self._file, self._file_ended = None, True
            return None
        self.rows += batch.num_rows
        return batch, None

    def close(self) -> None:
        """Stop reading; what waits is not acknowledged."""
        if self._file is not None:
            self._file.close()

    def drop(self) -> None:
        """It is not at home here any more: nobody listens, so what waits goes nowhere."""
        self.close()
        for sent in self._waiting:
            sent.routed(self.rows)
        self._waiting.clear()

    def handover(self, rows_in: Mapping[QueryName, int]) -> Handover:
        """What the next home has to know."""
        return Handover(self.rows, self._last, rows_in)
