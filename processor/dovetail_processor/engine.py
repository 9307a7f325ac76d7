"""One processor's run of one query: sources to sink, within a memory limit.

    source ─▶ evaluate ─▶┐
    source ─▶ evaluate ─▶├─▶ join ─▶ evaluate ─▶ deliver ─▶ sink
    source ─▶ evaluate ─▶┘     │
                               └─▶ pusher ─▶ spill store       (under memory pressure)

`Engine` builds that graph, lets the loop run it, and closes: groups that have generations on disk
are pushed a last time, and the store's record says that the run has ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from dovetail_processor.adaptation.recent_output import RecentOutput
from dovetail_processor.adaptation.victims import VictimOrder
from dovetail_processor.allocators import keep_lean
from dovetail_processor.expressions import above_join, below_join
from dovetail_processor.graph import loop
from dovetail_processor.graph.arc import Arc
from dovetail_processor.graph.node import Node
from dovetail_processor.join.state import JoinState
from dovetail_processor.operators.deliver import Deliver
from dovetail_processor.operators.evaluate import Evaluate
from dovetail_processor.operators.join import Join
from dovetail_processor.operators.source import Source
from dovetail_processor.scheduling.depth_first import DepthFirst
from dovetail_processor.sinks import BackgroundSink, Sink, SinkTotals
from dovetail_processor.sources import FileSource, ReadAhead
from dovetail_processor.spill.pusher import Pusher
from dovetail_processor.spill.relief import DiskRelief, NoRelief
from dovetail_proto.errors import SpillError
from dovetail_proto.memory import shares
from dovetail_proto.query import QueryPlan
from dovetail_proto.spill_format import RunRecord, SpillStore

PROGRESS_EVERY_S = 0.1
"""How often `progress` and `stop` are called: often enough for a person, too seldom to cost."""

CHUNK_ROWS_MIN, CHUNK_ROWS_MAX = 64, 64 << 10
TEXT_BYTES_GUESS = 16


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How a run may use its machine."""

    memory_bytes: int  # for state, queues and output together
    policy: str = "disk"  # or "none"
    victims: str = VictimOrder.LEAST_PRODUCTIVE.value
    push_fraction: float = 0.3
    spill_above_ratio: float = 0.8  # θ_m
    inactive_after_s: float = 60.0  # θ_t
    productivity_half_life_s: float = 0.0  # of P_o; 0: it is a plain sum
    batch_rows: int = 64 << 10
    seed: int = 0
    output: str | None = None  # where the results go, kept in the store's record of the run


@dataclass(slots=True)
class Progress:
    """Where a run stands."""

    rows_in: list[int]
    rows_expected: list[int | None]
    results: int
    state_bytes: int
    held_bytes: int  # state, queues and output
    pushes: int
    spilled_bytes: int
    waits_for: str  # why it stands still: the place for state on disk is full; empty if it does not


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What a run did."""

    rows_in: list[int]
    combinations: int  # before conditions that span inputs
    results: int
    checksum: int
    pushes: int
    spilled_bytes: int
    spilled_groups: int
    peak_state_bytes: int
    peak_held_bytes: int
    interrupted: bool
    seconds: float


class Engine:
    """A run that is ready to start. Use it once."""

    def __init__(
        self,
        plan: QueryPlan,
        sources: Sequence[FileSource],
        sink: Sink,
        store: SpillStore | None,
        settings: EngineSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`sources`: one per input of the plan. `store` may be None if the policy is `none`.

        Raises MemoryLimitError if the limit is too small to work with. Sets this process's
        allocators (`allocators.keep_lean`).
        """
        keep_lean()
        self._plan = plan
        self._files = sources
        self._outer_sink = sink
        self._store = store
        self._settings = settings
        self._clock = clock
        self._bounds = shares(
            settings.memory_bytes, inputs=len(plan.inputs), partitions=plan.partitions
        )
        self._state = JoinState(
            plan, self._bounds.state, chunk_rows=chunk_rows(plan, self._bounds.output)
        )
        self._peak_state_bytes = 0
        self._peak_held_bytes = 0
        self._next_report_s = clock()
        self._interrupted = False
        self._progress: Callable[[Progress], None] | None = None
        self._stop: Callable[[], bool] | None = None

    def run(
        self,
        *,
        progress: Callable[[Progress], None] | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> RunSummary:
        """Join everything that the sources hold, or what they gave until `stop` says so.

        Afterwards the sink is closed and the store, if any, is closed for the clean-up. Raises
        DovetailError; then the sink is aborted and the store is not closed.
        """
        self._progress, self._stop = progress, stop
        started = self._clock()
        with ExitStack() as on_failure:
            nodes = self._build(on_failure)
            loop.run(nodes, DepthFirst(self._depths), between=self._between)
            if self._pusher is not None:
                self._pusher.push_rest(self._while_waiting)
            totals = self._sink.close()
            summary = self._summary(totals, self._clock() - started)
            self._close_store(summary)
            on_failure.pop_all()
        return summary

    def _build(self, on_failure: ExitStack) -> list[Node]:
        """The graph, in topological order; what must be undone goes to `on_failure`."""
        bounds, settings, n = self._bounds, self._settings, len(self._plan.inputs)
        self._sink = BackgroundSink(self._outer_sink, bounds.output)
        on_failure.callback(self._sink.abort)
        self._pusher: Pusher | None = None
        self._relief: NoRelief | DiskRelief = NoRelief(bounds)
        if settings.policy != "none":
            assert self._store is not None
            self._pusher = Pusher(self._state, self._store, bounds.spill)
            on_failure.callback(self._pusher.stop)
            self._relief = DiskRelief(
                self._state,
                self._pusher,
                bounds,
                spill_above_ratio=settings.spill_above_ratio,
                push_fraction=settings.push_fraction,
                victims=VictimOrder(settings.victims),
                inactive_after_s=settings.inactive_after_s,
                output=RecentOutput(
                    self._state.produced, self._state.generation, settings.productivity_half_life_s
                ),
                clock=self._clock,
                seed=settings.seed,
            )
        read = [Arc(bounds.batch) for _ in range(n)]
        kept = [Arc(bounds.batch) for _ in range(n)]
        joined, results = Arc(bounds.output), Arc(bounds.output)
        self._arcs = [*read, *kept, joined, results]
        evaluators = [below_join(i) for i in self._plan.inputs]
        self._sources: list[Source] = []
        for file, evaluator, out in zip(self._files, evaluators, read, strict=True):
            batches = file.batches(
                evaluator.reads, batch_rows=settings.batch_rows, batch_bytes=bounds.batch
            )
            # A single byte of depth: one batch is decoded while another is joined.
            self._sources.append(Source(ReadAhead(batches, 1), out))
            on_failure.callback(self._sources[-1].stop)
        below = [Evaluate(e, a, b) for e, a, b in zip(evaluators, read, kept, strict=True)]
        join = Join(self._state, kept, joined, self, piece_bytes=bounds.output, clock=self._clock)
        self._deliver = Deliver(results, self._sink)
        above = Evaluate(above_join(self._plan), joined, results)
        self._depths = [0] * n + [1] * n + [2, 3, 4]
        return [*self._sources, *below, join, above, self._deliver]

    def before_batch(self) -> None:
        """See Relief."""
        self._relief.before_batch()

    def now(self) -> None:
        """See Relief: returns when a push has made room."""
        self._relief.now()
        assert self._pusher is not None
        self._pusher.finish(self._while_waiting)

    def _while_waiting(self) -> None:
        """Nothing can be done until a push has ended; who does not want to wait for room need not.

        Raises SpillError then.
        """
        self._between()
        assert self._pusher is not None
        if self._interrupted and (full := self._pusher.no_room):
            raise SpillError(f"the run was stopped while it waited for room: {full}")

    def _between(self) -> None:
        """After every step: note peaks; now and then tell how it goes, and ask whether to stop."""
        self._peak_state_bytes = max(self._peak_state_bytes, self._state.held_bytes)
        self._peak_held_bytes = max(self._peak_held_bytes, self._held_bytes())
        now = self._clock()
        if now < self._next_report_s:
            return
        self._next_report_s = now + PROGRESS_EVERY_S
        if self._stop is not None and not self._interrupted and self._stop():
            self._interrupted = True
            for source in self._sources:
                source.stop()
        if self._progress is not None:
            self._progress(
                Progress(
                    rows_in=[s.rows for s in self._sources],
                    rows_expected=[f.rows_total for f in self._files],
                    results=self._deliver.rows,
                    state_bytes=self._state.held_bytes,
                    held_bytes=self._held_bytes(),
                    pushes=self._pusher.pushes if self._pusher else 0,
                    spilled_bytes=self._pusher.spilled_bytes if self._pusher else 0,
                    waits_for=self._pusher.no_room if self._pusher else "",
                )
            )

    def _held_bytes(self) -> int:
        """State, queues and output together."""
        queued = sum(a.held_bytes for a in self._arcs) + sum(s.held_bytes for s in self._sources)
        return self._state.held_bytes + queued + self._deliver.held_bytes

    def _summary(self, totals: SinkTotals, seconds: float) -> RunSummary:
        return RunSummary(
            rows_in=[s.rows for s in self._sources],
            combinations=int((self._state.produced + self._state.produced_before).sum()),
            results=totals.rows,
            checksum=totals.checksum,
            pushes=self._pusher.pushes if self._pusher else 0,
            spilled_bytes=self._pusher.spilled_bytes if self._pusher else 0,
            spilled_groups=self._pusher.spilled_groups if self._pusher else 0,
            peak_state_bytes=self._peak_state_bytes,
            peak_held_bytes=self._peak_held_bytes,
            interrupted=self._interrupted,
            seconds=seconds,
        )

    def _close_store(self, summary: RunSummary) -> None:
        if self._pusher is None:
            return
        produced = self._state.produced + self._state.produced_before
        groups = produced.nonzero()[0].tolist()
        self._pusher.close_run(
            RunRecord(
                rows_in=tuple(summary.rows_in),
                results_run=summary.results,
                checksum=summary.checksum,
                produced={g: int(produced[g]) for g in groups},
                interrupted=summary.interrupted,
                output=self._settings.output,
            ),
            self._while_waiting,
        )


def chunk_rows(plan: QueryPlan, output_bytes: int) -> int:
    """How many combinations make about `output_bytes`, in columns and in row addresses."""
    width = 4 * len(plan.inputs)
    for field in plan.joined_schema():
        try:
            width += max(1, field.type.bit_width // 8)
        except ValueError:
            width += TEXT_BYTES_GUESS
    return min(max(output_bytes // width, CHUNK_ROWS_MIN), CHUNK_ROWS_MAX)
