"""Workers of one process that reach each other through a net of closures: no gRPC, no manager."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import Self

import pyarrow as pa

from dovetail_processor.cluster.ingress import Sent
from dovetail_processor.cluster.worker import Worker
from dovetail_proto.arrow_bytes import from_bytes
from dovetail_proto.assignment import (
    Assignment,
    DiskSettings,
    Leaving,
    Phase,
    QueryTask,
    StreamTask,
)
from dovetail_proto.errors import DovetailError
from dovetail_proto.feeds import LinkAck, LinkFrame, TupleBatch
from dovetail_proto.ids import Epoch, ProcessorId, QueryName, StreamName, input_of, split_id
from dovetail_proto.messages import Assign, ControlMessage, ReceivePartitions, Stage
from dovetail_proto.partition_map import PartitionMap
from dovetail_proto.query import QueryPlan
from dovetail_proto.roots import Roots

TIMEOUT_S = 60


def _raise(error: DovetailError) -> None:
    raise error


class _Net:
    """The shell of one worker."""

    def __init__(self, all_of_them: LocalWorkers, here: ProcessorId) -> None:
        self._all, self._here = all_of_them, here
        self.news = Event()  # set whenever something got on

    def tell_manager(self, message: ControlMessage) -> None:
        """There is none."""

    def send_frame(self, to: ProcessorId, frame: LinkFrame) -> None:
        """Through bytes, as over gRPC."""
        item: object | None = frame.item
        size = 0
        if isinstance(frame.item, TupleBatch):
            kept = self._all.plan.inputs[input_of(frame.split)].kept
            size, item = len(frame.item.payload), from_bytes(frame.item.payload, kept, "a frame")
        there = self._all.workers[to]
        there.post(lambda: there.frame(frame.split, frame.number, item, size))

    def send_ack(self, to: ProcessorId, ack: LinkAck) -> None:
        """Back to the split's host."""
        there, told = self._all.workers[to], (ack.number, ack.allowed_bytes, ack.done_number)
        there.post(lambda: there.acknowledged(self._here, ack.split, *told))

    def send_groups(self, to: ProcessorId, message: ReceivePartitions) -> None:
        """Nothing moves here."""
        raise NotImplementedError

    def wake(self) -> None:
        """Look again."""
        self._all.workers[self._here].post(lambda: None)

    def beat(self) -> None:
        """Something has got on."""
        self.news.set()

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
        self.nets = {n: _Net(self, n) for n in self.names}
        roots = Roots((str(folder),))
        self.workers = {
            n: Worker(n, memory_bytes, folder / n, self.nets[n], roots=roots) for n in self.names
        }
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
                dict.fromkeys(self.names, "here:1"),
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
            worker.ask(lambda w=worker, d=document: w.control(Assign(Epoch(1), self._version, d)))
        for name, worker in self.workers.items():
            self.until(name, lambda w=worker: w.snapshot.assigned == self._version)

    def until(self, name: ProcessorId, true: Callable[[], bool]) -> None:
        """Wait for a worker's news until it is so."""
        while not true():
            assert self.nets[name].news.wait(TIMEOUT_S), self.workers[name].snapshot
            self.nets[name].news.clear()

    def send(self, stream: str, batch: pa.RecordBatch) -> Event:
        """Send a batch; the event is set when it is routed."""
        routed = Event()
        number = self._sequence[stream] = self._sequence.get(stream, 0) + 1
        sent = Sent("test", number, batch, lambda *_: routed.set(), _raise)
        home = self.workers[self.home]
        home.ask(lambda: home.streams.accept(StreamName(stream), sent))
        return routed

    def close(self) -> Mapping[ProcessorId, int]:
        """Let the query close; results per worker."""
        self.assign(Phase.CLOSING)
        for name, worker in self.workers.items():
            self.until(name, lambda w=worker: w.snapshot.loads[0].stage is not Stage.RUNNING)
            assert worker.snapshot.loads[0].stage is Stage.CLOSED, worker.snapshot
        return {n: w.snapshot.loads[0].results for n, w in self.workers.items()}

    def __enter__(self) -> Self:
        for worker in self.workers.values():
            worker.start()
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers.values():
            worker.stop()
