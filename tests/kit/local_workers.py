"""Workers of one process that reach each other through a net of closures: no gRPC, no manager."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import Self, TypeVar

import pyarrow as pa

from dovetail_processor.operators.home import Sent
from dovetail_processor.operators.links import Item
from dovetail_processor.process_memory import ProcessMemory
from dovetail_processor.shell.files import ProcessorFiles
from dovetail_processor.shell.frames import pack, unpack
from dovetail_processor.shell.threads import ThreadLane, WorkerLoop
from dovetail_processor.worker import Worker
from dovetail_proto.assignment import (
    Assignment,
    DiskSettings,
    Leaving,
    Peer,
    Phase,
    QueryTask,
    StreamTask,
)
from dovetail_proto.errors import DovetailError
from dovetail_proto.feeds import LinkAck
from dovetail_proto.ids import Epoch, ProcessorId, QueryName, SplitId, StreamName, split_id
from dovetail_proto.messages import Assign, ControlMessage, Heartbeat, ReceivePartitions, Stage
from dovetail_proto.partition_map import PartitionMap
from dovetail_proto.query import QueryPlan
from dovetail_proto.roots import Roots

TIMEOUT_S = 60
T = TypeVar("T")


def _raise(error: DovetailError) -> None:
    raise error


class _Net:
    """The shell of one worker."""

    def __init__(self, all_of_them: LocalWorkers, here: ProcessorId, folder: Path) -> None:
        self._all, self._here = all_of_them, here
        self.news = Event()  # set whenever something got on
        self.files = ProcessorFiles(here, folder / here, Roots((str(folder),)))
        self.loop = WorkerLoop(here, _raise)
        self.snapshot: Heartbeat

    def lane(self, name: str) -> ThreadLane:
        """Threads of its own."""
        return self.loop.lane(name)

    def tell_manager(self, message: ControlMessage) -> None:
        """There is none."""

    def send_frame(self, to: ProcessorId, split: SplitId, number: int, item: Item | None) -> None:
        """Through bytes, as over gRPC."""
        there = self._all.nets[to].loop
        received = unpack(pack(split, number, item), lambda _: self._all.plan)
        there.post(lambda: there.worker.frame(*received))

    def send_ack(self, to: ProcessorId, ack: LinkAck) -> None:
        """Back to the split's host."""
        there, news = self._all.nets[to].loop, (ack.number, ack.allowed_bytes, ack.done_number)
        there.post(lambda: there.worker.acknowledged(self._here, ack.split, *news))

    def send_groups(
        self, to: ProcessorId, message: ReceivePartitions, ended: Callable[[], None]
    ) -> None:
        """Nothing moves here."""
        raise NotImplementedError

    def beat(self) -> None:
        """Something has got on."""
        self.snapshot = self.loop.worker.heartbeat()
        self.news.set()

    def wake(self) -> None:
        """See Shell."""
        self.loop.wake()

    def give_up(self, error: DovetailError) -> None:
        """A defect."""
        raise error


class LocalWorkers:
    """Some workers that run one query; every stream has its home at the first, or where told."""

    def __init__(
        self,
        plan: QueryPlan,
        names: Sequence[str],
        memory_bytes: int,
        folder: Path,
        *,
        disk: bool = True,
    ) -> None:
        self.plan = plan
        self._disk = DiskSettings(allowed=disk)
        self.names = [ProcessorId(n) for n in names]
        self.nets = {n: _Net(self, n, folder) for n in self.names}
        self.workers: dict[ProcessorId, Worker] = {}
        for n, net in self.nets.items():
            worker = Worker(n, ProcessMemory(memory_bytes, 1), net, now_s=time.monotonic())
            self.workers[n] = net.loop.worker = worker
            net.snapshot = worker.heartbeat()
        self.give_groups(*self.names)
        self._spill = str(folder / "spill")
        self._version = 0
        self._sequence: dict[str, int] = {}
        self.home, self.hosting = self.names[0], 1  # of all streams; how many homes there were
        self.leaving: set[ProcessorId] = set()

    def give_groups(self, *owners: ProcessorId) -> None:
        """Deal the groups out to these."""
        groups = range(self.plan.partitions)
        owned = [owners[g % len(owners)] for g in groups]
        self._map = PartitionMap.initial(QueryName(self.plan.name), owned)

    def assign(
        self,
        phase: Phase = Phase.RUNNING,
        *,
        leaves: bool = False,
        handovers: Mapping[str, str] | None = None,
    ) -> None:
        """Start the query, let it close, or have its streams leave their home or be handed over.

        Returns when every worker says in its heartbeat that it carries this out.
        """
        self._version += 1
        inputs = range(len(self.plan.inputs))
        query_name = QueryName(self.plan.name)
        hosts = {self.home: tuple(split_id(query_name, i, self.hosting) for i in inputs)}
        query = QueryTask(
            QueryName(self.plan.name), self.plan, self._map, hosts, phase,
            self._disk, self._spill, None,
        )  # fmt: skip
        streams = {i.stream: i.stream_schema for i in self.plan.inputs}
        for name, worker in self.workers.items():
            mine = streams if name == self.home else {}
            document = Assignment(
                Epoch(1),
                self._version,
                dict.fromkeys(self.names, Peer("here:1")),
                tuple(
                    StreamTask(
                        StreamName(s),
                        schema,
                        False,
                        leaves=leaves,
                        handover=(handovers or {}).get(s, ""),
                    )
                    for s, schema in mine.items()
                ),
                (query,),
                leaving=Leaving(self.home, {}) if name in self.leaving else None,
            ).to_json()
            told = Assign(Epoch(1), self._version, document)
            self.ask(name, lambda w=worker, m=told: w.control(m))
        for name, net in self.nets.items():
            self.until(name, lambda n=net: n.snapshot.assigned == self._version)

    def ask(self, name: ProcessorId, question: Callable[[], T]) -> T:
        """On a worker's thread."""
        return self.nets[name].loop.ask(question)

    def until(self, name: ProcessorId, true: Callable[[], bool]) -> None:
        """Wait for a worker's news until it is so."""
        while not true():
            assert self.nets[name].news.wait(TIMEOUT_S), self.nets[name].snapshot
            self.nets[name].news.clear()

    def send(self, stream: str, batch: pa.RecordBatch) -> Event:
        """Send a batch; the event is set when it is routed."""
        routed = Event()
        number = self._sequence[stream] = self._sequence.get(stream, 0) + 1
        sent = Sent("test", number, batch, lambda *_: routed.set(), _raise)
        home = self.workers[self.home]
        self.ask(self.home, lambda: home.accept(StreamName(stream), sent))
        return routed

    def close(self) -> Mapping[ProcessorId, int]:
        """Let the query close; results per worker."""
        self.assign(Phase.CLOSING)
        for name, net in self.nets.items():
            self.until(name, lambda n=net: n.snapshot.loads[0].stage is not Stage.RUNNING)
            assert net.snapshot.loads[0].stage is Stage.CLOSED, net.snapshot
        return {n: net.snapshot.loads[0].results for n, net in self.nets.items()}

    def __enter__(self) -> Self:
        for net in self.nets.values():
            net.loop.start()
        return self

    def __exit__(self, *_: object) -> None:
        for net in self.nets.values():
            net.loop.stop()
