"""A worker alone in this process: one query over files, from its first row to its last result.

    sources ─▶ homes ─▶ … the worker's graph … ─▶ sink, spill store

No manager, no other processor: what they would say is said here, in two assignments. The first
starts the query, the second, when its files have ended or somebody wants to stop, closes it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from dovetail_processor.allocators import keep_lean
from dovetail_processor.operators.links import Item
from dovetail_processor.query import Query
from dovetail_processor.shell.threads import ThreadLane, WorkerLoop
from dovetail_processor.sinks import Sink
from dovetail_processor.sources.file_source import FileSource
from dovetail_processor.worker import Worker
from dovetail_proto.assignment import (
    Assignment,
    DiskSettings,
    DroppedRun,
    Phase,
    QueryTask,
    StreamTask,
)
from dovetail_proto.cluster_memory import cluster_shares
from dovetail_proto.errors import Domain, DovetailError, Refusal, SpillError
from dovetail_proto.feeds import LinkAck
from dovetail_proto.ids import Epoch, ProcessorId, QueryName, SplitId, StreamName, split_id
from dovetail_proto.messages import (
    ControlMessage,
    Heartbeat,
    QueryLoad,
    ReceivePartitions,
    Stage,
)
from dovetail_proto.partition_map import PartitionMap
from dovetail_proto.query import QueryPlan
from dovetail_proto.spill_format import SpillStore

HERE = ProcessorId("local")

REPORT_S = 0.1
"""How often `look` and `stop` are called: often enough for a person, too seldom to cost."""


@dataclass(frozen=True, slots=True)
class LocalRun:
    """What to join, and what may be used for it."""

    plan: QueryPlan
    sources: Mapping[str, FileSource]  # by stream
    sink: Sink
    store: SpillStore | None  # None: nothing is pushed
    memory_bytes: int
    disk: DiskSettings
    output: str | None = None  # where the results go, for the store's record of the run


def run_local(
    run: LocalRun,
    *,
    look: Callable[[Heartbeat], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[QueryLoad, bool]:
    """Join everything that the sources hold, or what was read until `stop` says so.

    What was done, and whether it was stopped. Afterwards the sink is closed and the store, if any,
    is closed for the clean-up. Raises what ended the query; then the sink keeps nothing unfinished
    and the store is not closed. Sets this process's allocators (`allocators.keep_lean`).
    """
    keep_lean()
    inputs = len(run.plan.inputs)
    # Refused before anything is begun.
    cluster_shares(
        run.memory_bytes, inputs=inputs, partitions=run.plan.partitions, hosted=inputs, peers=1
    )
    shell = LocalShell(run)
    worker = shell.loop.worker = Worker(
        HERE, run.memory_bytes, shell, cpu_s=time.thread_time, now_s=clock()
    )
    following = _Following(run, worker, look, stop, clock)
    worker.assign(following.assignment)
    shell.loop.run(following.over)
    if shell.defect is not None:
        raise shell.defect
    for error in worker.unstarted.values():
        raise error
    query = following.query
    if query.stage is not Stage.CLOSED:
        raise query.error or Refusal(Domain.QUERY, query.cause)
    look(worker.heartbeat())
    return query.load(), following.interrupted


class _Following:
    """Sees a query through: closes it when its files have ended, tells how it goes."""

    def __init__(
        self,
        run: LocalRun,
        worker: Worker,
        look: Callable[[Heartbeat], None],
        stop: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        self._worker = worker
        self._look = look
        self._stop = stop
        self._clock = clock
        self._name = QueryName(run.plan.name)
        self._next_look_s = clock()
        self.interrupted = False
        self.assignment = _assignment(run)

    @property
    def query(self) -> Query:
        """The query."""
        return self._worker.queries[self._name]

    def over(self) -> bool:
        """Whether the query has ended; called after every step."""
        if self._name in self._worker.unstarted:
            return True
        query = self.query
        if query.stage is not Stage.RUNNING:
            return True
        if not self._closing and all(home.ended for home in self._worker.streams.homes.values()):
            self._close()
        if self._clock() >= self._next_look_s:
            self._next_look_s = self._clock() + REPORT_S
            self._report()
        return False

    @property
    def _closing(self) -> bool:
        return self.assignment.queries[0].phase is Phase.CLOSING

    def _report(self) -> None:
        self._look(self._worker.heartbeat())
        if not self.interrupted and self._stop():
            self.interrupted = True
            if not self._closing:
                self._close()
        pusher = self.query.pusher
        if self.interrupted and pusher is not None and pusher.no_room:
            self.query.fail(
                SpillError(f"the run was stopped while it waited for room: {pusher.no_room}")
            )

    def _close(self) -> None:
        (task,) = self.assignment.queries
        closing = replace(task, phase=Phase.CLOSING)
        self.assignment = replace(self.assignment, version=2, queries=(closing,))
        self._worker.assign(self.assignment)


class LocalShell:
    """See `interface.Shell`, and `interface.Files`: of one run."""

    def __init__(self, run: LocalRun) -> None:
        self._run = run
        self.files = self
        self.loop = WorkerLoop(HERE, self.give_up)
        self.defect: DovetailError | None = None

    def lane(self, name: str) -> ThreadLane:
        """See Lanes."""
        return self.loop.lane(name)

    def open_stream(self, task: StreamTask) -> FileSource:
        """See Files."""
        return self._run.sources[task.name]

    def open_sink(self, task: QueryTask, row_group_bytes: int) -> Sink:
        """See Files."""
        return self._run.sink

    def open_store(self, task: QueryTask) -> SpillStore | None:
        """See Files."""
        return self._run.store

    def remove(self, dropped: Sequence[DroppedRun]) -> None:
        """See Files: nothing was there before."""

    def tell_manager(self, message: ControlMessage) -> None:
        """See Shell: there is none."""

    def send_frame(self, to: ProcessorId, split: SplitId, number: int, item: Item | None) -> None:
        """See Shell: there is nobody else."""

    def send_ack(self, to: ProcessorId, ack: LinkAck) -> None:
        """See Shell: there is nobody else."""

    def send_groups(
        self, to: ProcessorId, message: ReceivePartitions, ended: Callable[[], None]
    ) -> None:
        """See Shell: there is nobody else."""

    def beat(self) -> None:
        """See Shell: whoever wants to know is told by `look`."""

    def give_up(self, error: DovetailError) -> None:
        """See Shell."""
        self.defect = error


def _assignment(run: LocalRun) -> Assignment:
    name, inputs = QueryName(run.plan.name), range(len(run.plan.inputs))
    task = QueryTask(
        name,
        run.plan,
        PartitionMap.initial(name, [HERE] * run.plan.partitions),
        {HERE: tuple(split_id(name, i) for i in inputs)},
        Phase.RUNNING,
        run.disk,
        spill=None,
        results=run.output,
    )
    streams = {i.stream: i.stream_schema for i in run.plan.inputs}
    return Assignment(
        Epoch(1),
        1,
        {HERE: ""},
        tuple(StreamTask(StreamName(s), schema, False, path=s) for s, schema in streams.items()),
        (task,),
    )
