"""Seeded bugs: each breaks one rule of the protocol on purpose; the simulator must find it.

A bug is a set of patches of the real code (or, where the rule lives at the edge, of the kit's
shell). `within` is the number of seeds, from `first` on, in which it must be found: some times
what it took when it was written down, as any change of the kit deals the faults anew.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from dovetail_manager import members
from dovetail_manager.journal import Journal
from dovetail_manager.membership import Membership
from dovetail_manager.moves.coordinator import Coordinator
from dovetail_manager.moves.protocol import BEFORE_COMMIT, ChunkState
from dovetail_manager.moves.steps import Steps
from dovetail_processor.moves.instructions import (
    DropGroups,
    ReattachGroups,
    ReleaseGroups,
    ShipGroups,
)
from dovetail_processor.moves.link import Inbox, Outbox
from dovetail_processor.moves.participant import Participant
from dovetail_processor.moves.receiver import Receiver
from dovetail_processor.moves.sender import Sender
from dovetail_processor.moves.split_host import SplitHost
from kit import sim_processor
from kit.sim_manager import SimStore
from kit.sim_processor import SimProcessor


@dataclass(frozen=True, slots=True)
class Bug:
    """One broken rule."""

    rule: str  # what is broken
    patches: Callable[[], list[Any]]
    within: int  # seeds
    first: int = 0  # where to start: rare ones are sought near a seed that shows them


@contextmanager
def planted(bug: Bug) -> Iterator[None]:
    """Run with the bug in place."""
    patches = bug.patches()
    for p in patches:
        p.start()
    try:
        yield
    finally:
        for p in patches:
            p.stop()


def _skip_marker() -> list[Any]:
    """The sender ships without waiting for End-of-Moved-Partitions."""

    def ship(self: Any, out: Any, number: int) -> Any:
        chunk = out.chunks[number]
        if chunk.send is None:
            return []
        chunk.shipped = True
        order = chunk.send
        return [ShipGroups(order.ref, number, chunk.groups, order.receiver)]

    return [patch.object(Sender, "_ship_if_drained", ship), patch.object(Sender, "check", _nothing)]


def _nothing(self: Any, *args: Any, **kwargs: Any) -> None:
    return None


def _stale_epoch() -> list[Any]:
    def fence(self: Any, ref: Any) -> bool:
        return bool(ref.move < self.oldest_open or ref.move in self.ended)

    return [patch.object(Participant, "_fence", fence)]


def _commit_early() -> list[Any]:
    def order(self: Any, move: Any, chunk: Any, now_s: float) -> Any:
        sent = original(self, move, chunk, now_s)
        return [*sent, self.commit(move, chunk)]

    original = Steps.order_sending
    return [patch.object(Steps, "order_sending", order)]


def _marks_left_behind() -> list[Any]:
    original = sim_processor.decode_groups

    def decode(payload: bytes, inputs: int) -> Any:
        groups = original(payload, inputs)
        for group in groups.values():
            group.marks = [0] * inputs
        return groups

    return [patch.object(sim_processor, "decode_groups", decode)]


def _generation_left_behind() -> list[Any]:
    original = sim_processor.decode_groups

    def decode(payload: bytes, inputs: int) -> Any:
        groups = original(payload, inputs)
        for group in groups.values():
            group.generation = 0
        return groups

    return [patch.object(sim_processor, "decode_groups", decode)]


def _held_lost_on_rollback() -> list[Any]:
    def release(self: Any, groups: Any, owner: str) -> None:
        if self.participant.map.version == 1:
            for split in self.sources:
                for g in groups:
                    self.held.pop((split, g), None)
        original(self, groups, owner)

    original = SimProcessor._release
    return [patch.object(SimProcessor, "_release", release)]


def _everyone_at_once() -> list[Any]:
    def send(self: Any, move: Any, chunk: Any, to: Any, now_s: float) -> Any:
        if chunk.state in (ChunkState.ACTIVATING, ChunkState.RESTORING):
            to = self.participants(move)
        return original(self, move, chunk, to, now_s)

    original = Steps.send
    return [patch.object(Steps, "send", send)]


def _moves_forgotten() -> list[Any]:
    return [patch.object(Coordinator, "take_up", lambda self, moves, now_s: [])]


def _store_unfenced() -> list[Any]:
    def write(self: Any, w: Any) -> str:
        return str(original(self, replace(w, epoch=self.epoch, revision=self.revision + 1)))

    original = SimStore.write
    return [patch.object(SimStore, "write", write)]


def _late_deactivate() -> list[Any]:
    """Neither ended chunks nor ended moves are remembered."""

    def fence(self: Any, ref: Any) -> bool:
        original(self, ref)
        return False

    original = Participant._fence
    return [
        patch.object(Participant, "_fence", fence),
        patch.object(Participant, "_check_chunk_open", _nothing),
        patch.object(Participant, "check", _nothing),
    ]


def _waiting_not_withdrawn() -> list[Any]:
    return [patch.object(Outbox, "withdraw", lambda self, belongs: [])]


def _push_in_move() -> list[Any]:
    return [patch.object(Participant, "may_push", lambda self: True)]


def _drop_before_commit() -> list[Any]:
    def ship(self: Any, i: Any) -> None:
        original(self, i)
        for g in i.groups:
            group = self.groups[g]
            self.state_bytes -= group.size
            self.groups[g] = sim_processor.SimGroup(group.inputs, group.generation, group.marks)

    original = SimProcessor._ship
    return [patch.object(SimProcessor, "_ship", ship)]


def _no_reservation() -> list[Any]:
    def receive(self: Any, m: Any, local: Any) -> Any:
        return original(self, m, replace(local, free_bytes=1 << 30))

    original = Receiver.receive
    return [
        patch.object(Receiver, "receive", receive),
        patch.object(Participant, "reserved_bytes", 0),
    ]


def _late_confirmation() -> list[Any]:
    """A confirmation of any revision is taken for the one under way."""

    def confirmed(self: Any, revision: int) -> Any:
        if not self.queue:
            return None, []
        self.revision += 1
        entry = self.queue.popleft()
        return entry, [self._write()] if self.queue else []

    return [patch.object(Journal, "confirmed", confirmed)]


def _copy_kept() -> list[Any]:
    """The sender keeps its copy after the commit."""

    def act(self: Any, out: Any, reply_to: str) -> None:
        original(self, [i for i in out if not isinstance(i, DropGroups)], reply_to)

    original = SimProcessor.act
    return [patch.object(SimProcessor, "act", act)]


def _taken_back_twice() -> list[Any]:
    """The sender takes groups back although the receiver owns them."""

    def reactivate(self: Any, move: Any, chunk: int, owner: str) -> Any:
        out = original(self, move, chunk, owner)
        return [ReattachGroups(i.groups) if isinstance(i, DropGroups) else i for i in out]

    original = Sender.reactivate
    return [patch.object(Sender, "reactivate", reactivate)]


def _released_to_old_owner() -> list[Any]:
    """Splits release to the owner they knew, not to the one of the message."""

    def reactivate(self: Any, m: Any, over: bool) -> Any:
        known = self.map.owner(m.groups[0])
        out = original(self, m, over)
        return [ReleaseGroups(i.groups, known) if isinstance(i, ReleaseGroups) else i for i in out]

    original = Participant._reactivate
    return [patch.object(Participant, "_reactivate", reactivate)]


def _marker_overtakes() -> list[Any]:
    """The inbox takes frames in any order."""

    def take(self: Any, number: int, size_bytes: int) -> bool:
        if number <= self.number:
            return False
        self.number = number
        self.taken_bytes += size_bytes
        return True

    return [patch.object(Inbox, "take", take)]


def _rollback_after_commit_issued() -> list[Any]:
    """A chunk whose commit is being written is rolled back on a time-out."""
    states = (*BEFORE_COMMIT, ChunkState.COMMITTING)

    def give_up(self: Any, move: Any, failure: str, now_s: float) -> Any:
        for chunk in move.chunks:
            if chunk.state in states:
                chunk.state = ChunkState.SENDING
        return original(self, move, failure, now_s)

    original = Steps.give_up
    return [patch.object(Steps, "give_up", give_up)]


def _told_before_written() -> list[Any]:
    """A death is told before it is durable."""

    def heartbeat(state: Any, m: Any) -> Any:
        state.membership.unwritten.clear()
        return original(state, m)

    def tick(self: Any, now_s: float) -> Any:
        self.ticked_s = now_s  # and a manager that slept does not know it
        return original_tick(self, now_s)

    original, original_tick = members.heartbeat, Membership.tick
    return [
        patch.object(members, "heartbeat", heartbeat),
        patch.object(Membership, "tick", tick),
    ]


def _held_for_ever() -> list[Any]:
    return [patch.object(SplitHost, "reactivate", lambda self, move, chunk, owner: [])]


def _uncommitted_record() -> list[Any]:
    """The commit writes the map but not the move's record."""
    original = Steps.commit

    def commit(self: Any, move: Any, chunk: Any) -> Any:
        made = original(self, move, chunk)
        puts = dict(made.puts)
        key = next(k for k in puts if k.startswith("move/"))
        raw = json.loads(str(puts[key]))
        raw["committed"] = [i for i in raw["committed"] if i != chunk.index]
        return replace(made, puts={**puts, key: json.dumps(raw)})

    return [patch.object(Steps, "commit", commit)]


BUGS = {
    "skipped marker": Bug("ship only when every split's marker is in", _skip_marker, 100),
    "stale epoch accepted": Bug("refuse a lower epoch", _stale_epoch, 100),
    "commit before Received": Bug("commit only what the receiver has", _commit_early, 100),
    "marks left behind": Bug("dedupe marks move with the group", _marks_left_behind, 100),
    "generation left behind": Bug("the generation moves", _generation_left_behind, 100),
    "held tuples lost": Bug("a rollback releases what was held", _held_lost_on_rollback, 100),
    "everyone at once": Bug("the owner is told before the splits", _everyone_at_once, 100),
    "moves forgotten": Bug("a new manager takes up open moves", _moves_forgotten, 100),
    "store not fenced": Bug("a deposed manager cannot write", _store_unfenced, 100, first=400),
    "late step accepted": Bug("a reactivated chunk stays over", _late_deactivate, 400),
    "waiting not withdrawn": Bug("tuples without credit are held too", _waiting_not_withdrawn, 200),
    "push during a move": Bug("nodiskAdaptation keeps pushes out", _push_in_move, 100),
    "dropped before commit": Bug("the sender keeps its copy", _drop_before_commit, 100),
    "no reservation": Bug("received state fits the limit", _no_reservation, 300),
    "late confirmation": Bug("a write is confirmed by its revision", _late_confirmation, 400),
    "copy not dropped": Bug("after the commit the sender drops", _copy_kept, 100),
    "taken back": Bug("the sender obeys the map", _taken_back_twice, 100),
    "released to old owner": Bug("splits release to the new owner", _released_to_old_owner, 100),
    "frames out of order": Bug("a link delivers in order", _marker_overtakes, 100),
    "rollback while committing": Bug(
        "an issued commit goes forward", _rollback_after_commit_issued, 200, first=900
    ),
    "told before written": Bug(
        "final words follow the write", _told_before_written, 200, first=600
    ),
    "held for ever": Bug("step 8 releases", _held_for_ever, 100),
    "record without commit": Bug("map and record are one write", _uncommitted_record, 100),
}
