"""A query's part in adaptations: what its participant says, done to its links and its join.

    control message, marker ─▶ participant ─▶ instructions ─▶ links hold, mark, release
                                                           └▶ groups leave, arrive, are dropped

Groups that are sent away are read by a job, a chunk at a time. Invariant: while a job reads a
group, its pages stay: it is not pushed, and it is dropped only afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import structlog
from numpy.typing import NDArray

from dovetail_processor.adaptation.recent_output import RecentOutput
from dovetail_processor.adaptation.victims import GroupStats, choose_groups_to_move
from dovetail_processor.jobs import Lane, Outcome
from dovetail_processor.join.transfer import Arrived, counters, encode, install
from dovetail_processor.moves import instructions as do
from dovetail_processor.moves.participant import Participant
from dovetail_processor.operators.join import Join
from dovetail_processor.operators.links import Links
from dovetail_processor.shell.interface import Shell
from dovetail_processor.state_memory import StateMemory
from dovetail_proto.assignment import QueryTask
from dovetail_proto.errors import Refusal
from dovetail_proto.ids import Epoch, GroupId, ProcessorId
from dovetail_proto.messages import (
    EndOfMovedPartitions,
    Groups,
    MoveRequest,
    Pushed,
    PushPartitions,
    ReceivePartitions,
    Refused,
)

log = structlog.get_logger("processor")


class GroupMoves:
    """See the module."""

    def __init__(
        self,
        task: QueryTask,
        here: ProcessorId,
        *,
        links: Links,
        join: Join,
        memory: StateMemory,
        output: RecentOutput,
        shell: Shell,
        lane: Lane,
        now_s: float,
    ) -> None:
        self.participant = Participant(task.name, here, task.map, links.splits)
        self._task = task
        self._links = links
        self._join = join
        self._state = join.state
        self._memory = memory
        self._output = output
        self._shell = shell
        self._lane = lane
        self._now_s = now_s
        self._shipping: set[tuple[str, int]] = set()  # chunks that are being read or sent
        self._shipped_bytes: dict[tuple[str, int], int] = {}  # of those that were read
        self._reads: dict[tuple[str, int], frozenset[GroupId]] = {}  # of those that are being read
        self._after_read: list[tuple[frozenset[GroupId], Callable[[], None]]] = []  # what waits
        self._order: PushPartitions | None = None  # a forced push that waits or is under way
        self._taken_bytes: int | None = None  # that it takes from memory; None: it has not begun
        self._ordered: tuple[Epoch, int, int] | None = None  # the last one done, and its bytes
        self._arrivals: dict[tuple[str, int], Arrived] = {}  # received and not installed yet
        self._installing: Sequence[int] = ()  # groups of the one that is being installed
        self._received_s = np.full(task.plan.partitions, -np.inf)  # when a group came
        self.moved_in = 0
        """Combinations that groups brought with them, less what others took."""
        join.live[task.map.groups_of(here)] = True

    # Messages -------------------------------------------------------------------------------------

    def marker(self, m: EndOfMovedPartitions, now_s: float) -> None:
        """All of a split's rows for a chunk that leaves are joined."""
        self.act(self.participant.marker(m), now_s)

    def handle(
        self, m: MoveRequest | PushPartitions, arrived: Arrived | None, now_s: float
    ) -> None:
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
        if arrived is not None and isinstance(m, ReceivePartitions):
            arrived = replace(arrived, state_bytes=m.size_bytes)
        self.act(out, now_s, arrived)

    def _local(self) -> do.Local:
        return do.Local(self._memory.reservable_bytes, self._memory.pushing, self.reading)

    @property
    def frees(self) -> bool:
        """Whether groups wait for a move's end, and their memory with them.

        Not those that are being installed: that may wait for memory itself.
        """
        return int(np.count_nonzero(self._state.locked)) > len(self._installing)

    @property
    def coming_bytes(self) -> int:
        """Groups that come: reserved, or arrived and not installed yet."""
        arrived = sum(a.held_bytes for a in self._arrivals.values())
        return self.participant.reserved_bytes + arrived

    def act(self, out: list[do.Instruction], now_s: float, arrived: Arrived | None = None) -> None:
        """Carry out what the participant says, in order."""
        self._now_s = now_s
        for i in out:
            match i:
                case do.Reply(message):
                    self._shell.tell_manager(message)
                case do.ChooseGroups():
                    self._choose(i)
                case do.ShipGroups():
                    self._ship(i)
                case do.ReattachGroups(groups):
                    self._stay(groups)
                case do.DropGroups(groups):
                    self._drop(groups)
                case do.StoreInert(move, chunk):
                    assert arrived is not None
                    self._arrivals[move, chunk] = arrived
                    self._join.later(self._install(move, chunk))
                case do.ActivateGroups(_, _, groups):
                    self._activate(groups)
                case do.DropInert(move, chunk, groups):
                    if self._arrivals.pop((move, chunk), None) is None:
                        self._drop(groups)
                case do.HoldGroups(groups):
                    self._links.hold(groups, now_s)
                case do.SendMarkers(move, chunk, to, splits):
                    self._links.mark(move, chunk, to, splits, now_s)
                case do.ReleaseGroups(groups, owner):
                    held_s = self._links.release(groups, owner, now_s)
                    log.info(
                        "groups released",
                        query=self._task.name,
                        groups=len(groups),
                        owner=owner,
                        held_s=round(held_s, 4),
                    )
                case do.AdoptMap(known):
                    self._links.adopt(known)

    def leaving(self, m: EndOfMovedPartitions) -> NDArray[np.bool_]:
        """The groups that were offered for a marker's move, as a mask."""
        mask = np.zeros(self._state.partitions, np.bool_)
        mask[list(self.participant.sender.leaving(m.move))] = True
        return mask

    # Groups that leave ----------------------------------------------------------------------------

    def _choose(self, i: do.ChooseGroups) -> None:
        chosen: Groups = i.groups or self._worth(i.want_bytes, i.exclude)
        viewed = self._state.view(np.array(chosen, np.int64))
        sizes = tuple(self._state.bytes_of(viewed).tolist())
        self.act(self.participant.groups_chosen(i.ref.move, chosen, sizes), self._now_s)

    def _worth(self, want_bytes: int, excluded: Sequence[GroupId]) -> Groups:
        """Groups worth `want_bytes`, not those that came a short while ago."""
        movable = self._received_s <= self._now_s - self._task.settle_s
        movable[list(excluded)] = False
        held = np.where(self._join.live & ~self._state.locked, self._state.group_bytes(), 0)
        ids = choose_groups_to_move(
            GroupStats(held, self._output.counted(self._now_s), self._state.last_insert_s),
            want_bytes,
            movable=movable,
            spilled=self._state.generation > 0,
            paper_restrictions=self._task.paper_restrictions,
        )
        return tuple(GroupId(int(g)) for g in ids)

    def _ship(self, i: do.ShipGroups) -> None:
        """Read the groups and send them; an order that comes again meanwhile changes nothing."""
        key = (i.ref.move, i.chunk)
        if key in self._shipping:
            return
        self._shipping.add(key)
        state, ids = self._state, np.array(i.groups, np.int64)
        self._join.live[ids] = False
        state.locked[ids] = True
        viewed = state.view(ids)
        held = int(state.bytes_of(viewed).sum())
        known = counters(state, ids, self._output, self._now_s)

        def send(read: Outcome[memoryview]) -> None:
            self._read(key)
            message = ReceivePartitions(i.ref, i.chunk, i.groups, held, read.result())
            self._shipped_bytes[key] = len(message.payload)
            self._shell.send_groups(i.receiver, message, lambda: self._sent(key))

        if any(layout.nested for layout in state.layouts):
            send(Outcome(encode(state, viewed, known)))  # nested values cannot be read beside it
        else:
            self._reads[key] = frozenset(i.groups)
            self._lane.run(lambda: encode(state, viewed, known), send)

    def _sent(self, key: tuple[str, int]) -> None:
        """A chunk is on its way no longer, whether it arrived or not."""
        self._shipping.discard(key)
        self._shipped_bytes.pop(key, None)

    @property
    def shipped_bytes(self) -> int:
        """Bytes of chunks that were read and are being sent."""
        return sum(self._shipped_bytes.values())

    def _read(self, key: tuple[str, int]) -> None:
        """A job has read its groups: what waited for that is done."""
        self._reads.pop(key, None)
        waiting, self._after_read = self._after_read, []
        for groups, act in waiting:
            self._when_read(groups, act)

    def _when_read(self, groups: frozenset[GroupId], act: Callable[[], None]) -> None:
        """Do something to groups when no job reads them any more."""
        if any(groups & read for read in self._reads.values()):
            self._after_read.append((groups, act))
        else:
            act()

    @property
    def reading(self) -> bool:
        """Whether a job reads groups: their pages have to stay."""
        return bool(self._reads)

    def _stay(self, groups: Groups) -> None:
        """They are live here (again)."""
        ids = np.array(groups, np.int64)
        self._join.live[ids] = True

        def unlock() -> None:
            self._state.locked[ids] = False
            self._memory.unlocked()

        self._when_read(frozenset(groups), unlock)

    def _drop(self, groups: Groups) -> None:
        """They live elsewhere: free them, between batches."""
        ids = np.array(groups, np.int64)
        self._join.live[ids] = False

        def free() -> Iterator[None]:
            taken = self._state.produced[ids].sum() + self._state.produced_before[ids].sum()
            self.moved_in -= int(taken)
            self._state.drop(ids)
            self._memory.unlocked()
            yield

        self._when_read(frozenset(groups), lambda: self._join.later(free(), frees=True))

    # Groups that come -----------------------------------------------------------------------------

    def _install(self, move: str, chunk: int) -> Iterator[None]:
        """Arrived groups go in between batches, and stay inert."""
        arrived = self._arrivals.pop((move, chunk), None)
        if arrived is not None:
            self._installing = arrived.counters.groups
            self._memory.set_limit(self._state.limit_bytes + arrived.held_bytes)  # kept for it
            make_room = lambda: self._memory.now(self._now_s)  # noqa: E731 - it is its name
            yield from install(self._state, arrived, make_room, self._now_s)
            known = arrived.counters
            ids = np.array(known.groups, np.int64)
            self._output.arrived(ids, known.recent, self._now_s)
            self.moved_in += sum(known.produced) + sum(known.produced_before)
            self._installing = ()

    def _activate(self, groups: Groups) -> None:
        """Arrived groups are live from now on; they are in the state before the next batch.

        Those that are there may be pushed at once: a batch under way may wait for their memory.
        """
        ids = np.array(groups, np.int64)
        self._join.live[ids] = True
        self._received_s[ids] = self._now_s
        coming = {g for a in self._arrivals.values() for g in a.counters.groups}

        def unlock() -> Iterator[None]:
            self._state.locked[ids] = False
            self._memory.unlocked()
            yield

        if coming.union(self._installing).isdisjoint(groups):
            next(unlock())
        else:
            self._join.later(unlock())

    # Forced pushes --------------------------------------------------------------------------------

    def _ordered_push(self, m: PushPartitions) -> None:
        """A forced push (active-disk), as soon as it can be; a repeated order is done once.

        One from before the last that was done is late: nobody waits for its answer.
        """
        last = (0, 0) if self._ordered is None else self._ordered[:2]
        if self._ordered is not None and (m.epoch, m.order) == last:
            self._shell.tell_manager(Pushed(m.query, m.epoch, m.order, self._ordered[2]))
        elif self._order is None and (m.epoch, m.order) > last:
            self._order = m

    def follow_up(self, now_s: float) -> None:
        """Go on with what waited for the end of a push; begin an ordered one, if it can be.

        An order waits for the end of a batch, of another push and of a move.
        """
        self._now_s = now_s
        if self._memory.pushing:
            return
        if self._taken_bytes is not None:
            self._order_done(self._taken_bytes)
        self.act(self.participant.push_finished(), now_s)
        if self._order is not None and self.participant.may_push() and self._join.idle:
            self._taken_bytes = self._memory.push(self._order.size_bytes, now_s)
            if self._taken_bytes == 0:
                self._order_done(0)

    def _order_done(self, taken_bytes: int) -> None:
        assert self._order is not None
        m, self._order, self._taken_bytes = self._order, None, None
        self._ordered = (m.epoch, m.order, taken_bytes)
        self._shell.tell_manager(Pushed(m.query, m.epoch, m.order, taken_bytes))

    def stop(self) -> None:
        """Take part in nothing any more."""
        self._lane.close()
