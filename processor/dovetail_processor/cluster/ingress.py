"""A stream at home here: what sources send, or what a file holds, to the splits of its queries.

    source ── batch (sequence) ─▶ waiting ─▶ every listening split ─▶ acknowledged

A batch goes on when every query that listens has room, so a slow query slows the source. Without a
query that listens, what is sent goes nowhere (queries see a stream from their submission on; the
source is told) and a file waits.

Invariant: an acknowledged batch was taken in, once, by every query that listened when it came, also
by one that has begun to close since. So a sequence that was taken before is dropped, and answered
when its batch is acknowledged, not before; and a query that closes takes in what waits, whatever
the other queries do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from dovetail_processor.cluster.remainder import Remainder
from dovetail_processor.sources import ReadAhead, open_source
from dovetail_proto.assignment import StreamTask
from dovetail_proto.errors import Domain, DovetailError, InputError, Refusal
from dovetail_proto.handover import SOURCES_MAX, Handover, handover_from_json
from dovetail_proto.ids import QueryName, SplitId, StreamName
from dovetail_proto.roots import Roots

BATCH_ROWS = 64 << 10
"""What the join's kernels are measured with."""

REPEATS_MAX = 16
"""Calls that wait for the same batch: a source that sends it again has given the former one up."""

RESEND_S_MAX = 600.0
"""A source that was silent for so long does not send its last batch again: clients of ours give up
after half a minute of silence."""

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


@dataclass(frozen=True, slots=True)
class _Mark:
    """How far a source is, and when it was last heard."""

    sequence: int
    heard_s: float
    over: bool = False  # it says that it sends nothing more


class Ingress:
    """One stream."""

    def __init__(
        self, task: StreamTask, batch_bytes: int, roots: Roots, clock: Callable[[], float]
    ) -> None:
        self.task = task
        self._roots = roots
        self.rows = 0
        self._clock = clock
        self._waiting: deque[Sent] = deque()
        self._gone = 0  # batches that have left `_waiting`; numbers those that are in it
        self._repeats: dict[tuple[str, int], deque[Sent]] = {}  # of batches that wait
        self._closing: dict[SplitId, range] = {}  # of `_waiting`, for queries that close
        self._marks: dict[str, _Mark] = {}  # of sources that may send again; heard last: last
        self.inherited: dict[QueryName, int] = {}  # rows that queries took in at the former home
        self._batch_bytes = batch_bytes
        self._remainder = Remainder()
        self._file: ReadAhead | None = None
        self._columns: set[str] = set()  # what is read of the file
        self._file_ended = False
        if task.handover and task.path is None:
            former = handover_from_json(task.handover)
            self.rows = former.rows
            self._marks = {s: _Mark(n, clock()) for s, n in former.marks.items()}
            self.inherited = dict(former.rows_in)

    @property
    def name(self) -> StreamName:
        """The stream's name."""
        return self.task.name

    def accept(self, sent: Sent, readers: int) -> None:
        """Take a batch from a source, or refuse it; `readers` queries listen now."""
        last = self._marks[sent.source].sequence if sent.source in self._marks else 0
        if sent.sequence <= last:
            self._repeated(sent, readers)
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
            raise self._out_of_order(sent, last)
        if not last:
            self._make_room()
        self._heard(sent.source, sent.sequence)
        self._waiting.append(sent)
        self._remainder.sent(sent.source, sent.rows_left)

    def forget(self, source: str) -> None:
        """A source has all its answers and sends nothing more.

        Its mark stays until there are too many: a call that it gave up may still bring a batch.
        """
        if source in self._marks:
            self._marks[source] = replace(self._marks[source], over=True)

    def _repeated(self, sent: Sent, readers: int) -> None:
        """The answer was lost, or is still to come: the batch may wait for a query."""
        if any((s.source, s.sequence) == (sent.source, sent.sequence) for s in self._waiting):
            key = sent.source, sent.sequence
            self._repeats.setdefault(key, deque(maxlen=REPEATS_MAX)).append(sent)
        else:
            sent.routed(self.rows, readers)

    def _out_of_order(self, sent: Sent, last: int) -> DovetailError:
        if last:
            return InputError(
                f"stream {self.name!r}: source {sent.source!r} sent batch {sent.sequence} after "
                f"{last}",
                remedy="send batches in order, numbered from 1",
            )
        return Refusal(
            Domain.STREAM,
            f"stream {self.name!r} knows no batch of source {sent.source!r} before batch "
            f"{sent.sequence}: its home was started again or died, or the source was silent for "
            f"more than {RESEND_S_MAX:.0f} s",
            remedy="see whether the queries that read it have failed, then send everything again "
            "under another source's name, from batch 1 on",
            reason="source",
        )

    def _make_room(self) -> None:
        """Forget a source that is over, or was silent for longest, unless it may send again."""
        if len(self._marks) < SOURCES_MAX:
            return
        over = next((source for source, mark in self._marks.items() if mark.over), None)
        oldest = over or next(iter(self._marks))
        waits = any(s.source == oldest for s in self._waiting)
        if over is None and (waits or self._clock() - self._marks[oldest].heard_s < RESEND_S_MAX):
            raise Refusal(
                Domain.BUSY,
                f"stream {self.name!r} has {SOURCES_MAX} sources that may send their last batch "
                "again",
                remedy="send through fewer sources, or try again in some minutes",
                reason="busy",
            )
        del self._marks[oldest]

    def _heard(self, source: str, sequence: int) -> None:
        self._marks.pop(source, None)
        self._marks[source] = _Mark(sequence, self._clock())

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
    def rows_left(self) -> int | None:
        """Rows still to be routed, as far as its file or its sources told; None: unknown."""
        if self.task.path is not None:
            total = self.rows if self._file_ended else self._remainder.file_rows
            return None if total is None else max(0, total - self.rows)
        follow = 0 if self.task.ended else self._remainder.announced
        return None if follow is None else follow + sum(s.batch.num_rows for s in self._waiting)

    @property
    def waiting(self) -> tuple[int, int]:
        """Batches that wait to be routed, and their rows."""
        return len(self._waiting), sum(s.batch.num_rows for s in self._waiting)

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
        source = open_source(
            self.task.path, check=lambda file: self._roots.check("path", str(file))
        )
        if not source.schema.equals(self.task.schema):
            raise InputError(f"{self.task.path!r} has not the declared schema any more")
        self._columns = columns
        self._remainder.file_rows = source.rows_total
        names = [n for n in source.schema.names if n in columns]
        batches = source.batches(names, batch_rows=BATCH_ROWS, batch_bytes=self._batch_bytes)
        self._file = ReadAhead(batches, 1)

    def closes(self, split: SplitId) -> None:
        """A query takes in, of this stream, what waits now, and nothing more."""
        self._closing.setdefault(split, range(self._gone, self._gone + len(self._waiting)))

    def owes(self, split: SplitId) -> tuple[int, int]:
        """Batches that wait for the split of a query that closes, and their rows."""
        left = self._closing.get(split, range(0))
        return len(left), sum(self._waiting[n - self._gone].batch.num_rows for n in left)

    def keep_closing(self, splits: set[SplitId]) -> None:
        """Of the queries that close only those of these splits go on."""
        self._closing = {s: left for s, left in self._closing.items() if s in splits}

    def next_for(self, split: SplitId) -> pa.RecordBatch:
        """The next batch for a query that closes; called when `owes`."""
        left = self._closing[split]
        self._closing[split] = left[1:]
        return self._waiting[left[0] - self._gone].batch

    def awaits(self, split: SplitId) -> bool:
        """Whether the next batch has to be taken in by the split of a query that closes."""
        left = self._closing.get(split, range(0))
        return bool(left) and left[0] == self._gone

    def next(self) -> tuple[pa.RecordBatch, Routed | None] | None:
        """The next batch and whom to tell; None if the file has ended.

        Called when `ready`, and it `awaits` nobody.
        """
        if self._waiting:
            sent = self._waiting.popleft()
            self._gone += 1
            self.rows += sent.batch.num_rows
            return sent.batch, self._answer(sent)
        assert self._file is not None
        batch = next(self._file, None)
        if batch is None:
            self._file, self._file_ended = None, True
            return None
        self.rows += batch.num_rows
        return batch, None

    def _answer(self, sent: Sent) -> Routed:
        repeats = self._repeats.pop((sent.source, sent.sequence), ())
        if sent.source in self._marks:
            self._heard(sent.source, self._marks[sent.source].sequence)

        def routed(rows: int, readers: int) -> None:
            for one in (sent, *repeats):
                one.routed(rows, readers)

        return routed

    def close(self) -> None:
        """Stop reading; what waits is not acknowledged."""
        if self._file is not None:
            self._file.close()

    def drop(self) -> None:
        """It is not at home here any more: whoever sent what waits has to look for it."""
        self.close()
        for sent in (*self._waiting, *(s for again in self._repeats.values() for s in again)):
            sent.refused(not_here(self.name))
        self._waiting.clear()
        self._repeats.clear()

    def handover(self, rows_in: Mapping[QueryName, int]) -> Handover:
        """What the next home has to know."""
        marks = {source: mark.sequence for source, mark in self._marks.items()}
        return Handover(self.rows, marks, rows_in)


def not_here(stream: StreamName) -> Refusal:
    """The error if a stream has its home elsewhere, or nowhere."""
    return Refusal(
        Domain.QUERY,
        f"stream {stream!r} is not at home on this processor",
        remedy="ask the manager where it is",
        reason="home",
    )
