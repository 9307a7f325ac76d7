"""A shell that a test drives by hand: jobs wait until it says so, and what is sent is kept.

lane.do()      the first job of a lane is done, and the worker hears of its end
lane.work()    it is done, and its end is heard when the test calls what this returns
shell.do_all() all jobs of all lanes, until none is left
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from dovetail_processor.jobs import Outcome, outcome_of
from dovetail_processor.operators.home import Sent
from dovetail_processor.operators.links import Item
from dovetail_processor.process_memory import ProcessMemory
from dovetail_processor.query import Query
from dovetail_processor.sinks import SinkTotals
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
from dovetail_proto.errors import DovetailError
from dovetail_proto.feeds import LinkAck
from dovetail_proto.ids import Epoch, ProcessorId, QueryName, SplitId, StreamName, split_id
from dovetail_proto.messages import ControlMessage, ReceivePartitions
from dovetail_proto.partition_map import PartitionMap
from dovetail_proto.query import QueryPlan
from dovetail_proto.spill_format import SpillStore

HERE = ProcessorId("p1")
T = TypeVar("T")


class HandLane:
    """See Lane."""

    def __init__(self, name: str = "lane", post: Callable[[Any], None] = lambda e: e()) -> None:
        self.name = name
        self._post = post
        self.jobs: deque[tuple[Callable[[], Any], Callable[[Outcome[Any]], None]]] = deque()
        self.closed = False

    def run(self, work: Callable[[], T], done: Callable[[Outcome[T]], None]) -> None:
        """See Lane: a thread that has ended does no job."""
        assert not self.closed, f"a job for {self.name!r}, which is closed"
        self.jobs.append((work, done))

    def close(self) -> None:
        """See Lane."""
        self.closed = True

    def work(self) -> Callable[[], None]:
        """Do the first job; call what this returns to have its end heard."""
        work, done = self.jobs.popleft()
        outcome = outcome_of(work)
        return lambda: self._post(lambda: done(outcome))

    def do(self) -> None:
        """Do the first job, and have its end heard."""
        self.work()()


class KeptSink:
    """Keeps results in memory; `fails` is raised by whatever is called next, if it is set."""

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.calls: list[str] = []
        self.fails: Exception | None = None
        self.held_bytes = 0
        self.shown: list[pa.RecordBatch] = []
        self.cuts: list[int] = []  # batches shown before each
        self.full = False

    def _called(self, what: str) -> None:
        self.calls.append(what)
        if self.fails is not None:
            raise self.fails

    def show(self, batch: pa.RecordBatch) -> bool:
        """See Sink."""
        self.shown.append(batch)
        return self.full

    def cut(self) -> None:
        """See Sink."""
        self.cuts.append(len(self.shown))

    def write(self, batch: pa.RecordBatch) -> None:
        """See Sink."""
        self._called("write")
        self.batches.append(batch)

    def roll(self) -> None:
        """See Sink."""
        self._called("roll")

    def trim(self) -> None:
        """See Sink."""
        self._called("trim")

    def close(self) -> SinkTotals:
        """See Sink."""
        self._called("close")
        return SinkTotals(sum(b.num_rows for b in self.batches), 0, 0, ())

    def abort(self) -> None:
        """See Sink: it never fails."""
        self.calls.append("abort")


class HandFiles:
    """See Files: sinks that keep, stores in a folder if there is one, sources that were given."""

    def __init__(self, spill: Path | None) -> None:
        self._spill = spill
        self.sources: dict[str, FileSource] = {}
        self.sinks: dict[str, KeptSink] = {}
        self.removed: list[DroppedRun] = []
        self.refuses: DovetailError | None = None  # raised by whatever is opened

    def open_stream(self, task: StreamTask) -> FileSource:
        """See Files."""
        if self.refuses is not None:
            raise self.refuses
        return self.sources[task.name]

    def open_sink(self, task: QueryTask, row_group_bytes: int) -> KeptSink:
        """See Files."""
        if self.refuses is not None:
            raise self.refuses
        return self.sinks.setdefault(task.name, KeptSink())

    def open_store(self, task: QueryTask) -> SpillStore | None:
        """See Files."""
        if self._spill is None:
            return None
        return SpillStore.create(str(self._spill / task.name), task.plan)

    def remove(self, dropped: Sequence[DroppedRun]) -> None:
        """See Files."""
        self.removed += dropped


class HandShell:
    """See Shell."""

    def __init__(self, spill: Path | None = None) -> None:
        self.files = HandFiles(spill)
        self.post: Callable[[Callable[[], None]], None] = lambda event: event()
        self.lanes: dict[str, HandLane] = {}
        self.said: list[ControlMessage] = []
        self.frames: list[tuple[ProcessorId, SplitId, int, Item | None]] = []
        self.acks: list[tuple[ProcessorId, LinkAck]] = []
        self.groups: list[tuple[ProcessorId, ReceivePartitions, Callable[[], None]]] = []
        self.beats = 0

    def lane(self, name: str) -> HandLane:
        """See Lanes; `lanes` has the newest of a name."""
        self.lanes[name] = HandLane(name, self.post)
        return self.lanes[name]

    def do_all(self) -> bool:
        """Do jobs until none is left; whether there was one."""
        worked = False
        while waiting := [lane for lane in self.lanes.values() if lane.jobs]:
            waiting[0].do()
            worked = True
        return worked

    def tell_manager(self, message: ControlMessage) -> None:
        """Keep it."""
        self.said.append(message)

    def send_frame(self, to: ProcessorId, split: SplitId, number: int, item: Item | None) -> None:
        """Keep it."""
        self.frames.append((to, split, number, item))

    def send_ack(self, to: ProcessorId, ack: LinkAck) -> None:
        """Keep it."""
        self.acks.append((to, ack))

    def send_groups(
        self, to: ProcessorId, message: ReceivePartitions, ended: Callable[[], None]
    ) -> None:
        """Keep it."""
        self.groups.append((to, message, ended))

    def beat(self) -> None:
        """Count."""
        self.beats += 1

    def wake(self) -> None:
        """Nobody shares its memory."""

    def give_up(self, error: DovetailError) -> None:
        """A defect."""
        raise error


class HandWorker:
    """A worker `p1` on virtual time with one query, all of whose streams are at home here."""

    def __init__(
        self,
        plan: QueryPlan,
        *,
        memory_bytes: int = 64_000_000,
        owners: Sequence[str] = (HERE,),
        disk: DiskSettings | None = None,
        spill: Path | None = None,
        paths: Mapping[str, str] | None = None,
    ) -> None:
        self.now_s = 0.0
        self.shell = HandShell(spill)
        self.worker = Worker(HERE, ProcessMemory(memory_bytes, 1), self.shell)
        self.shell.post = lambda event: self.worker.handle(event, self.now_s)
        self._plan = plan
        self._name = name = QueryName(plan.name)
        owned = [ProcessorId(owners[g % len(owners)]) for g in range(plan.partitions)]
        self.splits = tuple(split_id(name, i) for i in range(len(plan.inputs)))
        task = QueryTask(
            name,
            plan,
            PartitionMap.initial(name, owned),
            {HERE: self.splits},
            Phase.RUNNING,
            disk or DiskSettings(allowed=spill is not None),
            None if spill is None else str(spill),
            None,
        )
        streams = {i.stream: i.stream_schema for i in plan.inputs}
        self.wanted = Assignment(
            Epoch(1),
            0,
            {ProcessorId(p): Peer() for p in {HERE, *owners}},
            tuple(
                StreamTask(StreamName(s), schema, False, path=(paths or {}).get(s))
                for s, schema in streams.items()
            ),
            (task,),
        )
        self._numbers = dict.fromkeys(streams, 0)
        self.worker.joined = True

    @property
    def query(self) -> Query:
        """As long as it is not dropped."""
        return self.worker.queries[self._name]

    @property
    def sink(self) -> KeptSink:
        """The query's."""
        return self.shell.files.sinks[self._name]

    def lane(self, what: str) -> HandLane:
        """A lane of the query."""
        return self.shell.lanes[f"{self._name}-{what}"]

    def assign(self, **changes: Any) -> None:
        """Have the query run, changed like this."""
        task = replace(self.wanted.queries[0], **changes)
        self.set(queries=(task,))

    def set(self, **changes: Any) -> None:
        """Have the next assignment carried out, changed like this."""
        self.wanted = replace(self.wanted, version=self.wanted.version + 1, **changes)
        self.handle(lambda: self.worker.assign(self.wanted))

    def handle(self, event: Callable[[], None]) -> None:
        """An event, now."""
        self.worker.handle(event, self.now_s)

    def say(self, m: ControlMessage) -> None:
        """A message of the manager."""
        self.handle(lambda: self.worker.control(m))

    def send(self, stream: str, batch: pa.RecordBatch) -> list[tuple[int, int]]:
        """A batch comes; the answer is in the list once it is routed."""
        self._numbers[stream] += 1
        answers: list[tuple[int, int]] = []

        def refused(error: DovetailError) -> None:
            raise error

        sent = Sent("test", self._numbers[stream], batch, lambda *a: answers.append(a), refused)
        self.handle(lambda: self.worker.accept(StreamName(stream), sent))
        return answers

    def work(self) -> None:
        """Step until there is nothing to do but to wait."""
        while self.worker.step(self.now_s):
            pass

    def settle(self) -> None:
        """Step and do jobs, until there is nothing to do."""
        self.work()
        while self.shell.do_all():
            self.work()

    def pass_time(self, seconds: float) -> None:
        """Later, everything that is then to be done is done."""
        self.now_s += seconds
        self.settle()

    def results(self) -> pa.Table:
        """What the sink has."""
        return pa.Table.from_batches(self.sink.batches, schema=self._plan.output_schema)
