"""One query on one processor: its splits, its join instance, and its duties in adaptations.

    stream's batches ─▶ splits ─▶ frames to every instance, ours too
    frames ─▶ instance's queues ─▶ join ─▶ results; markers ─▶ duties

Everything here runs in the worker's thread, except sending groups and closing, which have threads
of their own and touch nothing that changes meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from dovetail_processor.cluster.duties import Duties, Shell
from dovetail_processor.cluster.input_queue import Marker
from dovetail_processor.cluster.instance import Instance
from dovetail_processor.cluster.keeping import open_sink, open_store
from dovetail_processor.cluster.sharing import Claim
from dovetail_processor.cluster.splits import Item, Piece, Splits
from dovetail_processor.cluster.transit import Arrived
from dovetail_processor.sinks import SinkTotals
from dovetail_proto.assignment import Phase, QueryTask
from dovetail_proto.cluster_memory import ClusterShares
from dovetail_proto.errors import DovetailError
from dovetail_proto.feeds import EndOfInput, LinkAck, LinkFrame, TupleBatch
from dovetail_proto.ids import MapVersion, ProcessorId, SplitId, input_of
from dovetail_proto.messages import (
    EndOfMovedPartitions,
    FinishMove,
    MoveRequest,
    PushPartitions,
    QueryLoad,
    ReactivatePartitions,
    Stage,
)


class QueryRun:
    """See the module."""

    def __init__(
        self,
        task: QueryTask,
        here: ProcessorId,
        *,
        data_dir: Path,
        bounds: ClusterShares,
        memory_bytes: int,
        shell: Shell,
        clock: Callable[[], float],
    ) -> None:
        self.task = task
        self.here = here
        self._shell = shell
        self._host_of = _hosts(task)
        self._processors = task.map.processors  # that ever owned a group
        mine = task.split_hosts.get(here, ())
        self.splits = Splits(
            task.name,
            here,
            task.plan,
            mine,
            task.map,
            piece_bytes=bounds.shares.batch,
            post=self._post,
            clock=clock,
        )
        self.instance = Instance(
            task.plan,
            task.map.groups_of(here),
            open_sink(data_dir, here, task, bounds.shares.output),
            open_store(here, task),
            bounds=bounds,
            slab_bytes=memory_bytes - bounds.fixed,
            disk=task.disk,
            clock=clock,
            moving=lambda: not self.duties.participant.may_push(),
            wake=shell.wake,
        )
        self.duties = Duties(task, here, self.splits, self.instance, shell)
        self.stage = Stage.RUNNING
        self.cause = ""
        self.leaving = False  # the processor's groups are being moved away
        self.totals: SinkTotals | None = None  # once closed
        self._fair_bytes = bounds.shares.state  # for state, if all queries here had the same
        self._closing: threading.Thread | None = None

    def set_task(self, task: QueryTask) -> None:
        """Go on with what is wanted now; a split may have another host.

        An instance that has closed, to leave, still answers what splits send to it.
        """
        hosts = _hosts(task)
        self._processors = task.map.processors
        self.task = replace(task, map=self.task.map)
        for split in set(hosts) - set(self._host_of):
            self.instance.queues[input_of(split)].relink()
        changed, self._host_of = hosts != self._host_of, hosts
        if changed and self._closing is None:
            mine = task.split_hosts.get(self.here, ())
            self.splits.host(mine)
            self.duties.act(self.duties.participant.host(mine, task.map))

    # Work -----------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether `step` would get on."""
        return self.stage is Stage.RUNNING and self._closing is None and self.instance.ready

    def step(self) -> None:
        """One piece of the join's work, and what follows from it."""
        self.guard(self.instance.step)
        self.follow_up()

    def follow_up(self) -> None:
        """Markers that came through, pushes that ended, acknowledgements, the end."""
        if self.stage is Stage.RUNNING and self._closing is None:
            self.guard(self._follow_up)
        elif self.stage is not Stage.FAILED:
            self._acknowledge()  # once more for a split that did not hear it

    def _follow_up(self) -> None:
        self.instance.collect_pushed()
        self.duties.look_at_pushes()
        for marker in self.instance.markers():
            if isinstance(marker, EndOfMovedPartitions):
                self.duties.marker(marker)
        self._acknowledge()
        closing = self.task.phase is Phase.CLOSING
        if (closing and self._finished) or ((closing or self.leaving) and self._drained):
            self._closing = threading.Thread(target=self._close, name="close", daemon=True)
            self._closing.start()

    @property
    def _finished(self) -> bool:
        """Whether all input has come and is joined, and all that our splits sent has arrived."""
        return self.instance.exhausted and self.splits.delivered

    @property
    def _drained(self) -> bool:
        """Whether nothing of the query is here any more, and nothing will come.

        Such an instance waits for no end of input: whoever would send it may have closed before
        this processor joined.
        """
        participant = self.duties.participant
        if participant.owned or participant.adapting or self.splits.splits:
            return False
        return self.instance.empty

    def guard(self, work: Callable[[], object]) -> None:
        """Do `work`; whatever it raises fails the query here, and nothing else."""
        try:
            work()
        except Exception as e:  # a defect, too, must not take the other queries along
            self.fail(cause_of(e))

    def fail(self, cause: str) -> None:
        """The query cannot go on here; the manager hears it with the next heartbeat."""
        if self.stage is Stage.RUNNING:
            self.stop(cause)
            self.stage, self.cause = Stage.FAILED, cause

    def stop(self, cause: str) -> None:
        """Drop the query; results stay."""
        self.stage, self.cause = Stage.FAILED, cause
        if self._closing is None:
            self.instance.stop()
        elif self.instance.pusher is not None:
            self.instance.pusher.cancel()  # it may wait for room

    @property
    def closing(self) -> bool:
        """Whether everything is being closed, by another thread."""
        return self._closing is not None

    def _close(self) -> None:
        try:
            output = self.task.results
            processors = self._processors
            self.totals = self.instance.close(self.rows_in, output, self.here, processors)
            if self.stage is Stage.RUNNING:
                self.stage = Stage.CLOSED
        except Exception as e:
            if self.stage is Stage.RUNNING:
                self.stage, self.cause = Stage.FAILED, cause_of(e)
            self.instance.stop()
        self._shell.wake()

    # Input ----------------------------------------------------------------------------------------

    @property
    def takes(self) -> bool:
        """Whether its splits take another batch now; not while paused or behind."""
        if self.task.phase is Phase.PAUSED and self.stage is Stage.RUNNING:
            return False
        return self.stage is not Stage.RUNNING or self.splits.has_room

    @property
    def listens(self) -> bool:
        """Whether its splits want what comes on their streams."""
        return self.stage is Stage.RUNNING and self.task.phase is not Phase.CLOSING

    @property
    def closes(self) -> bool:
        """Whether it takes in what was accepted for it, and then closes."""
        return self.stage is Stage.RUNNING and self.task.phase is Phase.CLOSING

    def take(self, split: SplitId, batch: pa.RecordBatch) -> None:
        """Route a batch of the split's stream."""
        self.guard(lambda: self.splits.take(split, batch))

    @property
    def rows_in(self) -> tuple[int, ...]:
        """Rows that splits here took in, per input."""
        rows = [0] * len(self.task.plan.inputs)
        for split, one in self.splits.splits.items():
            rows[input_of(split)] = one.rows
        return tuple(rows)

    def frame(
        self, split: SplitId, number: int, item: pa.RecordBatch | Marker | None, size_bytes: int
    ) -> None:
        """A frame arrived for our instance; of a host that we do not know, it comes again."""
        if split not in self._host_of:
            return
        index = input_of(split)
        new = self.instance.queues[index].arrived(number, item, size_bytes)
        if new and isinstance(item, EndOfMovedPartitions):
            self.instance.overtake(index, self.duties.participant.sender.leaving(item.move))

    def _post(self, split: SplitId, to: ProcessorId, frames: list[tuple[int, Item | None]]) -> None:
        if to == self.here:
            for number, item in frames:
                content = item.content if isinstance(item, Piece) else item
                size = item.size_bytes if isinstance(item, Piece) else 0
                self.frame(split, number, content, size)
            return
        for number, item in frames:
            if isinstance(item, Piece):
                assert isinstance(item.content, bytes)
                sent: TupleBatch | EndOfMovedPartitions | EndOfInput | None = TupleBatch(
                    self.task.name,
                    split,
                    self.task.plan.inputs[input_of(split)].stream,
                    item.sequence,
                    MapVersion(self.duties.participant.map.version),
                    item.rows,
                    item.content,
                )
            else:
                sent = item
            self._shell.send_frame(to, LinkFrame(split, number, sent))

    def _acknowledge(self) -> None:
        for split, host in self._host_of.items():
            told = self.instance.queues[input_of(split)].news()
            if told is None:
                continue
            if host == self.here:
                self.splits.acknowledged(split, self.here, *told)
            else:
                number, allowed, done = told
                ack = LinkAck(self.task.name, split, number, allowed, done)
                self._shell.send_ack(host, ack)

    def tick(self, peers: Mapping[ProcessorId, str], leaving: bool, *, fed: bool) -> None:
        """Now and then: send again what was not acknowledged, end what has to end.

        `fed` says that no stream here holds something which was accepted for it.
        """
        self.leaving = leaving
        if self.stage is not Stage.RUNNING:
            return
        for gone in {to for _, to in self.splits.links} - set(peers):
            self.splits.forget(gone)
        self.splits.resend()
        if self.task.phase is Phase.CLOSING and fed:
            self.splits.end(peers)
        self.follow_up()

    # Reports --------------------------------------------------------------------------------------

    def control(self, m: MoveRequest | PushPartitions, arrived: Arrived | None = None) -> None:
        """What the manager wants, or groups that arrived.

        An instance that has closed, to leave, takes part in no move, but says again that one is
        over: the answer may have been lost, and the manager waits for it.
        """
        active = self.stage is Stage.RUNNING and self._closing is None
        again = isinstance(m, ReactivatePartitions | FinishMove) and self.stage is not Stage.FAILED
        if active or again:
            self.guard(lambda: self.duties.handle(m, arrived))
            self.follow_up()

    @property
    def claim(self) -> Claim:
        """What it has of the memory for state."""
        instance = self.instance
        borrowed = self.splits.borrowed_bytes
        return Claim(
            held=self._kept_bytes + borrowed,
            minimum=instance.bounds.minimum,
            spills=instance.spills,
            short=instance.short is not None,
            frees=self.closing or borrowed > 0,
        )

    @property
    def _kept_bytes(self) -> int:
        """State, and groups that come: reserved, or arrived and not installed yet."""
        coming = self.duties.participant.reserved_bytes + self.instance.arrived_bytes
        return int(self.instance.state.held_bytes) + coming

    def set_room(self, state_bytes: int, fair_bytes: int) -> None:
        """So much memory for state is its own or free; `fair_bytes` is its part of all of it.

        Rows may be held back in half of what is free: the other half is for rows that are queued
        already. And never in the minimum, nor in the batch that may come on top.
        """
        self._fair_bytes = fair_bytes
        instance = self.instance
        most = state_bytes - instance.bounds.minimum - instance.bounds.shares.batch
        self.splits.lent_bytes = max(0, min((state_bytes - self._kept_bytes) // 2, most))
        room = instance.state.limit_bytes = max(0, state_bytes - self.splits.borrowed_bytes)
        free = room - instance.state.held_bytes
        if instance.short is not None and free > instance.short:
            instance.short = None
        if free < 0 and instance.spills and instance.settled and self._closing is None:
            self.guard(instance.before_batch)  # it pushes, though no batch comes
        if self._closing is None:
            instance.state.slab.trim(room)

    @property
    def used_bytes(self) -> int:
        """Whatever counts against the limit."""
        if self.stage is not Stage.RUNNING:
            return 0
        queued = self.instance.queued_bytes + self.splits.queued_bytes
        return self._kept_bytes + queued + self.instance.sink.held_bytes

    @property
    def adapting(self) -> bool:
        """Whether a push or a move is under way."""
        if self.stage is not Stage.RUNNING:
            return False
        return self.duties.participant.adapting is not None or self.instance.pushing

    def load(self) -> QueryLoad:
        """What the manager hears of it."""
        instance, pusher = self.instance, self.instance.pusher
        running = self.stage is Stage.RUNNING
        return QueryLoad(
            query=self.task.name,
            groups=len(self.duties.participant.owned),
            held_bytes=instance.state.held_bytes if running else 0,
            spilled_bytes=pusher.spilled_bytes if pusher else 0,
            produced=instance.produced,
            rows_in=self.rows_in,
            results=instance.results if self.totals is None else self.totals.rows,
            checksum=0 if self.totals is None else self.totals.checksum,
            pushes=instance.pushes,
            spilled_groups=pusher.spilled_groups if pusher else 0,
            queued_bytes=instance.queued_bytes + self.splits.queued_bytes if running else 0,
            peak_state_bytes=instance.peak_state_bytes,
            pushed_bytes=pusher.pushed_bytes if pusher else 0,
            state_limit_bytes=self._fair_bytes if running else 0,
            stage=self.stage,
            cause=self.cause or (pusher.no_room if pusher and running else ""),
        )


def cause_of(error: Exception) -> str:
    """Why a query cannot go on, for whoever asks; a defect says of which kind it is."""
    return str(error) if isinstance(error, DovetailError) else f"{type(error).__name__}: {error}"


def _hosts(task: QueryTask) -> dict[SplitId, ProcessorId]:
    return {s: p for p, splits in task.split_hosts.items() for s in splits}
