"""The end of the graph: results into a sink, which a lane writes to.

What can be followed is shown to its readers first: nobody waits for a disk to see a result.

The bytes on their way are bounded: a sink that cannot keep up is not ready for more, which stops
the join, which stops the sources. A batch larger than the bound passes alone.

Invariant: after a sink has raised, nothing but `abort` is called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from dovetail_processor.graph.arc import Arc
from dovetail_processor.graph.node import Statistics, Waiting
from dovetail_processor.jobs import Lane, Outcome
from dovetail_processor.operators.evaluate import Results
from dovetail_processor.sinks import Sink, SinkTotals
from dovetail_proto.errors import OutputError

SEGMENT_S = 10.0
"""How old the oldest row may get that is in no finished file of a log: it bounds what a process
that dies takes along, and a log that gets a row now and then has no more files than this."""

TRIM_S = 10.0
"""Between two looks for results that are older than they are kept."""

T = TypeVar("T")


class Deliver:
    """Writes batches from `source` to `sink` on `lane`; `failed` hears what the sink raises."""

    def __init__(
        self,
        query: str,
        depth: int,
        *,
        source: Arc[Results],
        sink: Sink,
        lane: Lane,
        bound_bytes: int,
        failed: Callable[[Exception], None],
        roll_s: float | None = None,
        trims: bool = False,
    ) -> None:
        """`roll_s`: nothing stays out of a finished file for longer than this; None: it may.

        `trims`: what the sink has written grows too old at some time.
        """
        self.owners = (query,)
        self.depth = depth
        self.statistics = Statistics()
        self._source = source
        self._sink = sink
        self._lane = lane
        self._bound_bytes = bound_bytes
        self._failed = failed
        self._roll_s = roll_s
        self._trim_s = 0.0 if trims else float("inf")  # when it is looked for old results again
        self._since_s: float | None = None  # when the oldest row came that no `roll` is behind
        self.under_way_bytes = 0
        """Bytes on the way to the sink."""
        self._broken = False  # the sink has raised; the lane's
        self._ending = False  # the sink is being closed or dropped, or was
        self.ended = False
        """Whether the sink is closed or dropped: what is not written now never will be."""

    @property
    def waiting(self) -> Waiting:
        """See Node."""
        return Waiting(len(self._source), self._source.held_bytes, self._source.since_s)

    @property
    def ready(self) -> bool:
        """Whether there is a batch, and room for it."""
        first = self._source.first
        if first is None:
            return False
        return self.under_way_bytes <= max(0, self._bound_bytes - first.size_bytes)

    @property
    def held_bytes(self) -> int:
        """Bytes on the way to the sink and inside it."""
        return self.under_way_bytes + self._sink.held_bytes

    @property
    def rows(self) -> int:
        """Results handed to the sink."""
        return self.statistics.rows_out

    def step(self, now_s: float) -> None:
        """Hand over one batch."""
        batch = self._source.take()
        self.statistics.rows_in += batch.rows.num_rows
        self.statistics.rows_out += batch.rows.num_rows
        self.under_way_bytes += batch.size_bytes
        if self._since_s is None:
            self._since_s = now_s
        sink, rows, size_bytes = self._sink, batch.rows, batch.size_bytes

        def written(outcome: Outcome[None]) -> None:
            self.under_way_bytes -= size_bytes
            self._heard(outcome)

        full = sink.show(rows)
        self._lane.run(lambda: self._call(lambda: sink.write(rows)), written)
        if full:
            self.roll()

    @property
    def roll_at_s(self) -> float:
        """When `tick` has something to do."""
        if self._roll_s is None or self._since_s is None or self._ending:
            return float("inf")
        return self._since_s + self._roll_s

    def tick(self, now_s: float) -> None:
        """Now and then: have old rows put into a finished file, and too old ones removed."""
        if now_s >= self.roll_at_s:
            self.roll()
        if now_s >= self._trim_s and not self._ending:
            self._trim_s = now_s + TRIM_S
            self._lane.run(lambda: self._call(self._sink.trim), self._heard)

    def roll(self) -> None:
        """Have all that was handed over so far made durable, in a file that is finished."""
        if self._ending:
            return
        self._since_s = None
        self._sink.cut()
        self._lane.run(lambda: self._call(self._sink.roll), self._heard)

    def _heard(self, outcome: Outcome[None]) -> None:
        if outcome.error is not None:
            self._failed(outcome.error)

    def close(self, done: Callable[[Outcome[SinkTotals]], None]) -> None:
        """Have everything written, and the sink closed; nothing half written stays."""

        def end() -> SinkTotals:
            try:
                return self._call(self._sink.close)
            except BaseException:
                self._sink.abort()
                raise

        def closed(outcome: Outcome[SinkTotals]) -> None:
            self.ended = True
            done(outcome)

        self._ending = True
        self._lane.run(end, closed)
        self._lane.close()

    def stop(self) -> None:
        """Keep what was found so far, for it is right; a sink that is being closed goes on."""
        self._source.clear()
        if not self._ending:
            self.close(lambda _: None)

    def _call(self, what: Callable[[], T]) -> T:
        """Ask the sink for something, on the lane."""
        if self._broken:
            raise OutputError("results that came before could not be written")
        try:
            return what()
        except BaseException:
            self._broken = True
            raise
