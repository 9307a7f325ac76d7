"""The workers of one program: one query over files, from its first row to its last result.

    sources ─▶ homes ─▶ … the graphs of workers 0, 1, … ─▶ a sink and a spill store each
    worker ── heartbeat ─▶ run_local ── assignment ─▶ every worker

No manager, no other process: what they would say is said here, in assignments. The first starts the
query; where files are read in turn, each end of one lets the next begin; the last, when all have
ended or somebody wants to stop, closes it. Each worker has a thread and some of the groups; what a
split cuts off for a neighbour is handed over in memory, with its hashes.
"""

from __future__ import annotations

import gc
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from dovetail_processor.allocators import keep_lean
from dovetail_processor.batches import Keyed
from dovetail_processor.operators.links import Item
from dovetail_processor.process_memory import ProcessMemory
from dovetail_processor.query import Query
from dovetail_processor.shell.threads import ThreadLane, WorkerLoop
from dovetail_processor.sinks import Sink
from dovetail_processor.sources.file_source import FileSource
from dovetail_processor.worker import Worker
from dovetail_proto.assignment import (
    Assignment,
    DiskSettings,
    DroppedRun,
    Peer,
    Phase,
    QueryTask,
    StreamTask,
)
from dovetail_proto.cluster_memory import check_workers
from dovetail_proto.errors import Domain, DovetailError, Refusal, SpillError
from dovetail_proto.feeds import LinkAck
from dovetail_proto.ids import (
    Epoch,
    ProcessorId,
    QueryName,
    SplitId,
    StreamName,
    split_id,
)
from dovetail_proto.messages import (
    ControlMessage,
    Heartbeat,
    QueryLoad,
    ReceivePartitions,
    Stage,
    all_together,
)
from dovetail_proto.partition_map import PartitionMap
from dovetail_proto.query import QueryPlan
from dovetail_proto.spill_format import SpillStore

REPORT_S = 0.1
"""How often `look` and `stop` are called: often enough for a person, too seldom to cost."""

CLOCK_S = 0.02
"""How often the clock is asked while nothing is heard: it need not be the machine's."""


@dataclass(frozen=True, slots=True)
class WorkerPlaces:
    """Where one worker writes."""

    sink: Sink
    store: SpillStore | None = None  # None: nothing is pushed


@dataclass(frozen=True, slots=True)
class LocalRun:
    """What to join, and what may be used for it."""

    plan: QueryPlan
    sources: Mapping[str, FileSource]  # by stream
    places: Mapping[ProcessorId, WorkerPlaces]  # of every worker
    memory_bytes: int  # of all workers together
    disk: DiskSettings
    output: str | None = None  # where the results go, for the stores' record of the run
    in_turn: tuple[str, ...] = ()  # streams to read one after the other; the others at once


def run_local(
    run: LocalRun,
    *,
    look: Callable[[QueryLoad, int], None] = lambda *_: None,
    stop: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[QueryLoad, bool]:
    """Join everything that the sources hold, or what was read until `stop` says so.

    What was done, by all workers together, and whether it was stopped; `look` hears of it
    meanwhile, and of the bytes in use. Afterwards sinks are closed, and stores for the clean-up.
    Raises what ended the query; then the sinks keep nothing unfinished and the stores are not
    closed. Sets this process's allocators (`allocators.keep_lean`).
    """
    keep_lean()
    check_workers(run.memory_bytes, len(run.places), run.plan)
    local = _LocalWorkers(run, clock)
    gc.freeze()  # what is there stays: looking through it again and again would hold all threads up
    try:
        local.see_through(look, stop)
    finally:
        local.end()
        gc.unfreeze()
    local.raise_failure()
    loads = [query.load() for query in local.queries]
    look(all_together(loads), 0)
    return all_together(loads), local.interrupted


class _LocalWorkers:
    """The workers of a run, and what a manager would do for them."""

    def __init__(self, run: LocalRun, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._name = QueryName(run.plan.name)
        self._heard: queue.SimpleQueue[tuple[ProcessorId, Heartbeat]] = queue.SimpleQueue()
        self._beats: dict[ProcessorId, Heartbeat] = {}  # the newest of each worker
        self.interrupted = False
        self._in_turn = run.in_turn  # the first is being read
        names = list(run.places)
        self._shells = {
            here: LocalShell(here, run, places, self._heard) for here, places in run.places.items()
        }
        memory = ProcessMemory(run.memory_bytes, len(names))
        for here, shell in self._shells.items():
            shell.neighbours = self._shells
            shell.loop.worker = Worker(
                here,
                memory,
                shell,
                cpu_s=time.thread_time,
                now_s=clock(),
            )
        self._assignments = _assignments(run, names)
        for here, shell in self._shells.items():
            shell.loop.post(partial(shell.loop.worker.assign, self._assignments[here]))
        for shell in self._shells.values():
            shell.loop.start()

    @property
    def queries(self) -> list[Query]:
        """The query at every worker; once they have ended."""
        return [s.loop.worker.queries[self._name] for s in self._shells.values()]

    def see_through(self, look: Callable[[QueryLoad, int], None], stop: Callable[[], bool]) -> None:
        """Until the query is closed everywhere, or has failed anywhere."""
        next_look_s = self._clock()
        while not self._over:
            self._read_next()
            if self._all_read:
                self._close()
            if self._clock() >= next_look_s:
                next_look_s = self._clock() + REPORT_S
                self._tell(look)
                if not self.interrupted and stop():
                    self.interrupted = True
                    self._close()
                if self.interrupted:
                    self._stop_waiting_for_room()
            try:
                here, beat = self._heard.get(timeout=CLOCK_S)
                self._beats[here] = beat
            except queue.Empty:
                continue

    def end(self) -> None:
        """End the threads."""
        for shell in self._shells.values():
            shell.loop.stop()

    def raise_failure(self) -> None:
        """What has failed the query, if it has."""
        for shell in self._shells.values():
            if shell.defect is not None:
                raise shell.defect
            for error in shell.loop.worker.unstarted.values():
                raise error
        for query in self.queries:
            if query.error is not None:
                raise query.error
        for query in self.queries:
            if query.stage is not Stage.CLOSED:
                raise Refusal(Domain.QUERY, query.cause)

    @property
    def _over(self) -> bool:
        stages = [load.stage for beat in self._beats.values() for load in beat.loads]
        broken = any(shell.defect is not None for shell in self._shells.values())
        closed = len(stages) == len(self._shells) and all(s is Stage.CLOSED for s in stages)
        return broken or closed or Stage.FAILED in stages

    @property
    def _all_read(self) -> bool:
        streams = [s for beat in self._beats.values() for s in beat.streams]
        return len(self._beats) == len(self._shells) and all(s.ended for s in streams)

    def _tell(self, look: Callable[[QueryLoad, int], None]) -> None:
        beats = [shell.loop.snapshot for shell in self._shells.values()]
        if loads := [load for beat in beats for load in beat.loads]:
            look(all_together(loads), sum(beat.used_bytes for beat in beats))

    def _read_next(self) -> None:
        """Let a file be read once every join knows that the one before it has ended.

        What is read of the workers here are flags that never fall again.
        """
        queries = [s.loop.worker.queries.get(self._name) for s in self._shells.values()]
        if not self._in_turn or not all(q and q.has_ended(self._in_turn[0]) for q in queries):
            return
        self._in_turn = self._in_turn[1:]
        for here, former in self._assignments.items():
            streams = (replace(s, waits=s.name in self._in_turn[1:]) for s in former.streams)
            self._assign(here, streams=tuple(streams))

    def _close(self) -> None:
        for here, former in self._assignments.items():
            (task,) = former.queries
            if task.phase is not Phase.CLOSING:
                self._assign(here, queries=(replace(task, phase=Phase.CLOSING),))

    def _assign(self, here: ProcessorId, **changes: Any) -> None:
        former, loop = self._assignments[here], self._shells[here].loop
        self._assignments[here] = replace(former, version=former.version + 1, **changes)
        loop.post(partial(loop.worker.assign, self._assignments[here]))

    def _stop_waiting_for_room(self) -> None:
        """Whoever stops a run need not wait until a full disk has room again."""
        for shell in self._shells.values():
            shell.loop.post(partial(_fail_without_room, shell.loop.worker.queries))


def _fail_without_room(queries: Mapping[QueryName, Query]) -> None:
    for query in queries.values():
        if query.pusher is not None and (full := query.pusher.no_room):
            query.fail(SpillError(f"the run was stopped while it waited for room: {full}"))


class LocalShell:
    """See `interface.Shell`, and `interface.Files`: of one worker of a run."""

    neighbours: Mapping[ProcessorId, LocalShell]  # all workers of the run

    def __init__(
        self,
        here: ProcessorId,
        run: LocalRun,
        places: WorkerPlaces,
        heard: queue.SimpleQueue[tuple[ProcessorId, Heartbeat]],
    ) -> None:
        self._here = here
        self._run = run
        self._places = places
        self._heard = heard
        self.files = self
        self.loop = WorkerLoop(here, self.give_up)
        self.defect: DovetailError | None = None

    def lane(self, name: str) -> ThreadLane:
        """See Lanes."""
        return self.loop.lane(name)

    def open_stream(self, task: StreamTask) -> FileSource:
        """See Files."""
        return self._run.sources[task.name]

    def open_sink(self, task: QueryTask, row_group_bytes: int) -> Sink:
        """See Files."""
        return self._places.sink

    def open_store(self, task: QueryTask) -> SpillStore | None:
        """See Files."""
        return self._places.store

    def remove(self, dropped: Sequence[DroppedRun]) -> None:
        """See Files: nothing was there before."""

    def tell_manager(self, message: ControlMessage) -> None:
        """See Shell: there is none."""

    def send_frame(self, to: ProcessorId, split: SplitId, number: int, item: Item | None) -> None:
        """See Shell."""
        loop = self.neighbours[to].loop
        size_bytes = item.size_bytes if isinstance(item, Keyed) else 0
        loop.post(partial(loop.worker.frame, split, number, item, size_bytes))

    def send_ack(self, to: ProcessorId, ack: LinkAck) -> None:
        """See Shell."""
        loop = self.neighbours[to].loop
        news = (ack.split, ack.number, ack.allowed_bytes, ack.done_number)
        loop.post(partial(loop.worker.acknowledged, self._here, *news))

    def send_groups(
        self, to: ProcessorId, message: ReceivePartitions, ended: Callable[[], None]
    ) -> None:
        """See Shell: nobody asks for a move."""

    def beat(self) -> None:
        """See Shell."""
        self._heard.put((self._here, self.loop.worker.heartbeat()))

    def wake(self) -> None:
        """See Shell."""
        self.loop.wake()

    def give_up(self, error: DovetailError) -> None:
        """See Shell."""
        self.defect = error
        self._heard.put((self._here, self.loop.worker.heartbeat()))


def _assignments(run: LocalRun, names: Sequence[ProcessorId]) -> dict[ProcessorId, Assignment]:
    """Groups and streams are dealt in turn; a stream's splits are where it is read."""
    query, plan = QueryName(run.plan.name), run.plan
    streams = {i.stream: i.stream_schema for i in plan.inputs}
    home_of = {stream: names[n] for stream, n in plan.dealt(len(names)).items()}
    task = QueryTask(
        query,
        plan,
        PartitionMap.initial(query, [names[g % len(names)] for g in range(plan.partitions)]),
        {
            here: tuple(
                split_id(query, i) for i, x in enumerate(plan.inputs) if home_of[x.stream] == here
            )
            for here in names
        },
        Phase.RUNNING,
        run.disk,
        spill=None,
        results=run.output,
    )
    return {
        here: Assignment(
            Epoch(1),
            1,
            dict.fromkeys(names, Peer()),
            tuple(
                StreamTask(StreamName(s), schema, False, path=s, waits=s in run.in_turn[1:])
                for s, schema in streams.items()
                if home_of[s] == here
            ),
            (task,),
        )
        for here in names
    }
