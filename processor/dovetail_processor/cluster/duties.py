"""A query's part in adaptations: what its participant says, done to its splits and its instance.

    control message, marker ─▶ participant ─▶ instructions ─▶ splits hold, mark, release
                                                            └▶ instance leaves, arrives, drops

Groups that are sent away are read here, a chunk at a time, which takes a few milliseconds; only the
sending has a thread of its own.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Protocol

import structlog

from dovetail_processor.cluster.instance import Instance
from dovetail_processor.cluster.splits import Splits
from dovetail_processor.cluster.transit import Arrived, encode
from dovetail_processor.moves import instructions as do
from dovetail_processor.moves.participant import Participant
from dovetail_proto.assignment import QueryTask
from dovetail_proto.errors import DovetailError, Refusal
from dovetail_proto.feeds import LinkAck, LinkFrame
from dovetail_proto.ids import Epoch, ProcessorId
from dovetail_proto.messages import (
    ControlMessage,
    EndOfMovedPartitions,
    Groups,
    MoveRequest,
    Pushed,
    PushPartitions,
    ReceivePartitions,
    Refused,
)

log = structlog.get_logger("processor")


class Shell(Protocol):
    """What a query needs of the world outside its processor."""

    def tell_manager(self, message: ControlMessage) -> None:
        """Send, or lose it."""

    def send_frame(self, to: ProcessorId, frame: LinkFrame) -> None:
        """Send a frame to another processor's instance, or lose it."""

    def send_ack(self, to: ProcessorId, ack: LinkAck) -> None:
        """Tell a split on another processor how far its instance here is, or lose it."""

    def send_groups(self, to: ProcessorId, message: ReceivePartitions) -> None:
        """Send state; takes as long as it takes. Raises DovetailError if it did not arrive."""

    def wake(self) -> None:
        """Something changed that the worker should look at."""

    def give_up(self, error: DovetailError) -> None:
        """The processor cannot go on: end the process."""

    def beat(self) -> None:
        """Something changed that the manager should hear of: send a heartbeat now."""


class Duties:
    """See the module. Runs in the worker's thread."""

    def __init__(
        self, task: QueryTask, here: ProcessorId, splits: Splits, instance: Instance, shell: Shell
    ) -> None:
        self.participant = Participant(task.name, here, task.map, splits.splits)
        self._task = task
        self.splits = splits
        self.instance = instance
        self._shell = shell
        self._shipments: dict[
            tuple[str, int], threading.Thread
        ] = {}  # being sent, or the last ones
        self._order: PushPartitions | None = None  # a forced push that waits or is under way
        self._taken_bytes: int | None = None  # that it takes from memory; None: it has not begun
        self._ordered: tuple[Epoch, int, int] | None = None  # the last one done, and its bytes
        self._pushes = 0  # of the instance, when they were last looked at

    def marker(self, m: EndOfMovedPartitions) -> None:
        """All of a split's rows for a chunk that leaves are joined."""
        self.act(self.participant.marker(m))

    def handle(self, m: MoveRequest | PushPartitions, arrived: Arrived | None) -> None:
        """Take part in a move, or push on an order; a refusal is answered."""
        if isinstance(m, PushPartitions):
            self._ordered_push(m)
            return
        try:
            out = self.participant.handle(m, self._local())
        except Refusal as e:
            self._shell.tell_manager(
                Refused(
                    m.ref,
                    getattr(m, "chunk", -1),
                    type(m).__name__,
                    e.domain,
                    e.message,
                    self.participant.epoch,
                    self.participant.map.version,
                )
            )
            return
        self.act(out, arrived)

    def _local(self) -> do.Local:
        state = self.instance.state
        coming = self.participant.reserved_bytes + self.instance.arrived_bytes
        free = state.limit_bytes - state.held_bytes - coming
        return do.Local(max(0, free), self.instance.pushing)

    def act(self, out: list[do.Instruction], arrived: Arrived | None = None) -> None:
        """Carry out what the participant says, in order."""
        for i in out:
            match i:
                case do.Reply(message):
                    self._shell.tell_manager(message)
                case do.ChooseGroups():
                    self._choose(i)
                case do.ShipGroups():
                    self._ship(i)
                case do.ReattachGroups(groups):
                    self.instance.stay(groups)
                case do.DropGroups(groups):
                    self.instance.drop(groups)
                case do.StoreInert(move, chunk):
                    assert arrived is not None
                    self.instance.arrive(move, chunk, arrived)
                case do.ActivateGroups(_, _, groups):
                    self.instance.activate(groups)
                case do.DropInert(move, chunk, groups):
                    self.instance.refuse(move, chunk, groups)
                case do.HoldGroups(groups):
                    self.splits.hold(groups)
                case do.SendMarkers(move, chunk, to, splits):
                    self.splits.mark(move, chunk, to, splits)
                case do.ReleaseGroups(groups, owner):
                    held_s = self.splits.release(groups, owner)
                    log.info(
                        "groups released",
                        query=self._task.name,
                        groups=len(groups),
                        owner=owner,
                        held_s=round(held_s, 4),
                    )
                case do.AdoptMap(known):
                    self.splits.adopt(known)

    def _choose(self, i: do.ChooseGroups) -> None:
        chosen: Groups = i.groups or self.instance.choose(
            i.want_bytes, i.exclude, self._task.settle_s, self._task.paper_restrictions
        )
        sizes = tuple(self.instance.sizes(chosen))
        self.act(self.participant.groups_chosen(i.ref.move, chosen, sizes))

    def _ship(self, i: do.ShipGroups) -> None:
        key = (i.ref.move, i.chunk)
        self._shipments = {k: s for k, s in self._shipments.items() if s.is_alive()}
        if key in self._shipments:
            return
        viewed, known, held = self.instance.leave(i.groups)
        payload = encode(self.instance.state, viewed, known)
        message = ReceivePartitions(i.ref, i.chunk, i.groups, held, payload)

        def send() -> None:
            with suppress(DovetailError):  # the manager asks again, or rolls back
                self._shell.send_groups(i.receiver, message)

        thread = self._shipments[key] = threading.Thread(target=send, name="ship", daemon=True)
        thread.start()

    def _ordered_push(self, m: PushPartitions) -> None:
        """A forced push (active-disk), as soon as it can be; a repeated order is done once."""
        if self._ordered is not None and (m.epoch, m.order) == self._ordered[:2]:
            self._shell.tell_manager(Pushed(m.query, m.epoch, m.order, self._ordered[2]))
        elif self._order is None:
            self._order = m

    def look_at_pushes(self) -> None:
        """Go on with what waited for a push, if one has ended; begin an ordered one, if it can be.

        An order waits for the end of a batch, of another push and of a move.
        """
        if self.instance.pushes > self._pushes:
            self._pushes = self.instance.pushes
            if self._taken_bytes is not None:
                self._order_done(self._taken_bytes)
            if not self.instance.pushing:
                self.act(self.participant.push_finished())
        if self._order is not None and self._taken_bytes is None and self.participant.may_push():
            self._taken_bytes = self.instance.push(self._order.size_bytes)
            if self._taken_bytes == 0:
                self._order_done(0)

    def _order_done(self, taken_bytes: int) -> None:
        assert self._order is not None
        m, self._order, self._taken_bytes = self._order, None, None
        self._ordered = (m.epoch, m.order, taken_bytes)
        self._shell.tell_manager(Pushed(m.query, m.epoch, m.order, taken_bytes))
