"""Seeded bugs of the move protocol: in its participants, its coordinator, and the manager's store.

See `sim_bugs`.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from dovetail_manager import members
from dovetail_manager.adaptation.admission import Admission
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
from dovetail_processor.moves.participant import Participant
from dovetail_processor.moves.sender import Sender
from dovetail_processor.moves.split_host import SplitHost
from kit.sim_bugs import Bug, around, instead
from kit.sim_store import SimStore


def _nothing(self: Any, *args: Any, **kwargs: Any) -> None:
    return None


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


def _commit_early(order_sending: Any) -> Any:
    def order(self: Any, move: Any, chunk: Any, now_s: float) -> Any:
        return [*order_sending(self, move, chunk, now_s), self.commit(move, chunk)]

    return order


def _everyone_at_once(original: Any) -> Any:
    def send(self: Any, move: Any, chunk: Any, to: Any, now_s: float) -> Any:
        if chunk.state in (ChunkState.ACTIVATING, ChunkState.RESTORING):
            to = self.participants(move)
        return original(self, move, chunk, to, now_s)

    return send


def _store_unfenced(original: Any) -> Any:
    def write(self: Any, w: Any, now_s: float) -> str:
        mine = replace(w, epoch=self.epoch, revision=self.revision + 1)
        return str(original(self, mine, now_s))

    return write


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


def _late_confirmation(self: Any, revision: int) -> Any:
    """A confirmation of any revision is taken for the one under way."""
    if not self.queue:
        return None, []
    self.revision += 1
    entry = self.queue.popleft()
    return entry, [self._write()] if self.queue else []


def _taken_back_twice(original: Any) -> Any:
    """The sender takes groups back although the receiver owns them."""

    def reactivate(self: Any, move: Any, chunk: int, owner: str) -> Any:
        out = original(self, move, chunk, owner)
        return [ReattachGroups(i.groups) if isinstance(i, DropGroups) else i for i in out]

    return reactivate


def _copy_kept(original: Any) -> Any:
    """The sender keeps its copy after the commit."""

    def reactivate(self: Any, move: Any, chunk: int, owner: str) -> Any:
        return [i for i in original(self, move, chunk, owner) if not isinstance(i, DropGroups)]

    return reactivate


def _released_to_old_owner(original: Any) -> Any:
    """Splits release to the owner they knew, not to the one of the message."""

    def reactivate(self: Any, m: Any, over: bool) -> Any:
        known = self.map.owner(m.groups[0])
        out = original(self, m, over)
        return [ReleaseGroups(i.groups, known) if isinstance(i, ReleaseGroups) else i for i in out]

    return reactivate


def _rollback_after_commit_issued(original: Any) -> Any:
    """A chunk whose commit is being written is rolled back on a time-out."""
    states = (*BEFORE_COMMIT, ChunkState.COMMITTING)

    def give_up(self: Any, move: Any, failure: str, now_s: float) -> Any:
        for chunk in move.chunks:
            if chunk.state in states:
                chunk.state = ChunkState.SENDING
        return original(self, move, failure, now_s)

    return give_up


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


def _uncommitted_record(original: Any) -> Any:
    """The commit writes the map but not the move's record."""

    def commit(self: Any, move: Any, chunk: Any) -> Any:
        made = original(self, move, chunk)
        puts = dict(made.puts)
        key = next(k for k in puts if k.startswith("move/"))
        raw = json.loads(str(puts[key]))
        raw["committed"] = [i for i in raw["committed"] if i != chunk.index]
        return replace(made, puts={**puts, key: json.dumps(raw)})

    return commit


def _forced_not_counted(self: Any, processor: Any, size_bytes: int) -> None:
    self.ordered.pop(processor, None)


MOVE_BUGS = {
    "skipped marker": Bug(
        "ship only when every split's marker is in", _skip_marker, scene="slow sinks"
    ),
    "commit before Received": Bug(
        "commit only what the receiver has",
        around(Steps, "order_sending", _commit_early),
        scene="far receiver",
    ),
    "everyone at once": Bug(
        "the owner is told before the splits",
        around(Steps, "send", _everyone_at_once),
        scene="far receiver",
    ),
    "moves forgotten": Bug(
        "a new manager takes up open moves",
        instead(Coordinator, "take_up", lambda self, moves, now_s: []),
        scene="manager dies",
    ),
    "store not fenced": Bug(
        "a manager that was replaced cannot write",
        around(SimStore, "write", _store_unfenced),
        scene="manager replaced",
    ),
    "late step accepted": Bug(
        "a reactivated chunk stays over", _late_deactivate, scene="late messages"
    ),
    "late confirmation": Bug(
        "a write is confirmed by its revision",
        instead(Journal, "confirmed", _late_confirmation),
    ),
    "copy not dropped": Bug(
        "after the commit the sender drops",
        around(Sender, "reactivate", _copy_kept),
        scene="slow sinks",
    ),
    "taken back": Bug("the sender obeys the map", around(Sender, "reactivate", _taken_back_twice)),
    "released to old owner": Bug(
        "splits release to the new owner",
        around(Participant, "_reactivate", _released_to_old_owner),
    ),
    "rollback while committing": Bug(
        "an issued commit goes forward",
        around(Steps, "give_up", _rollback_after_commit_issued),
        scene="manager cut off",
    ),
    "told before written": Bug(
        "final words follow the write", _told_before_written, scene="manager replaced"
    ),
    "held for ever": Bug(
        "step 8 releases", instead(SplitHost, "reactivate", lambda self, move, chunk, owner: [])
    ),
    "record without commit": Bug(
        "map and record are one write",
        around(Steps, "commit", _uncommitted_record),
        scene="manager dies",
    ),
    "forced bytes not counted": Bug(
        "M_query − M_cluster bounds all orders",
        instead(Admission, "pushed", _forced_not_counted),
        scene="forced pushes",
    ),
}
"""By name."""
