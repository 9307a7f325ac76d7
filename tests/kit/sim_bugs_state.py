"""Seeded bugs of state: groups that come and go, disk, memory, forced pushes. See `sim_bugs`."""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from dovetail_processor import group_moves
from dovetail_processor.group_moves import GroupMoves
from dovetail_processor.join.state import JoinState
from dovetail_processor.memory_pool import MemoryPool
from dovetail_processor.operators.join import Join
from dovetail_processor.query import Query
from dovetail_processor.shell.result_log import LogRead
from dovetail_processor.spill.pusher import Pusher
from dovetail_processor.state_memory import StateMemory
from dovetail_proto.errors import OutputError
from dovetail_proto.feeds import ResultBatch
from dovetail_proto.messages import Pushed
from dovetail_proto.spill_format import SpillStore
from kit import sim_disk
from kit.sim_bugs import Bug, around, instead

# Groups -------------------------------------------------------------------------------------------


def _installed(field: str) -> Callable[[Any], Any]:
    """Something of a group is not installed where it arrives."""

    def made(install: Any) -> Any:
        def without(state: Any, arrived: Any, make_room: Any, now_s: float) -> Any:
            known = arrived.counters
            nothing = np.zeros_like(np.array(getattr(known, field))).tolist()
            changed = replace(known, **{field: nothing})
            return install(state, replace(arrived, counters=changed), make_room, now_s)

        return without

    return made


def _every_row_is_new(begin: Any) -> Any:
    def without(self: Any, i: int, of: Any, now_s: float, *, silent: bool = False) -> Any:
        marks, self.marks = self.marks, np.full_like(self.marks, -1)
        touched = begin(self, i, of, now_s, silent=silent)
        np.maximum(self.marks, marks, out=marks)
        self.marks = marks
        return touched

    return without


def _chores_first() -> list[Any]:
    """Defect 4: groups come and go while results are still to be read from them."""

    def now(self: Any) -> bool:
        return self._pieces and self._chores and self.state.idle and not self._relief.waits

    def ready(self: Any) -> bool:
        return now(self) or original_ready.fget(self)

    def step(self: Any, now_s: float) -> None:
        if not now(self):
            original_step(self, now_s)
            return
        pieces, self._pieces = self._pieces, deque()
        original_step(self, now_s)
        self._pieces = pieces

    original_ready: Any = Join.ready
    original_step = Join.step
    return [patch.object(Join, "ready", property(ready)), patch.object(Join, "step", step)]


def _dropped_when_sent(sent: Any) -> Any:
    """The sender frees groups as soon as they are sent."""

    def made(self: Any, key: Any) -> None:
        sent(self, key)
        out = self.participant.sender.outgoing
        if out is not None and key[1] in out.chunks:
            ids = np.array(out.chunks[key[1]].groups, np.int64)
            if self._join.idle:
                self._state.release(self._state.detach(ids))
                self._state.generation[ids] -= 1

    return made


def _every_group_is_whole(advance: Any) -> Any:
    """Rows are not kept although rows of ended inputs are on disk."""

    def made(self: Any) -> Any:
        generation, self.generation = self.generation, np.zeros_like(self.generation)
        try:
            return advance(self)
        finally:
            self.generation = generation

    return made


# Disk ---------------------------------------------------------------------------------------------


def _no_room_is_done(begin: Any) -> Any:
    """A push that found no room counts as committed: rows are given back."""

    def made(self: Any, work: Any, done: Any, now_s: float) -> None:
        def or_nothing() -> Any:
            try:
                return work()
            except Exception:
                return PUSHED_NOTHING

        begin(self, or_nothing, done, now_s)

    class Nothing:
        bytes, group = 0, []

    PUSHED_NOTHING = Nothing()  # noqa: N806 - a manifest of nothing
    return made


def _generation_stays(detach: Any) -> Any:
    def made(self: Any, ids: Any) -> Any:
        detached = detach(self, ids)
        self.generation[ids] = detached.generations
        return detached

    return made


def _rest_left(self: Any, now_s: float, done: Any) -> None:
    done()


def _deletes_its_store(here: Any, task: Any) -> Any:
    """Defect 8: who comes back deletes what it spilled before."""
    place = Path(task.spill) / here
    if place.exists() and SpillStore.open(str(place)).closed:
        shutil.rmtree(place)
    return OPEN_STORE(here, task)


OPEN_STORE = sim_disk.open_store


def _rest_by_policy(close: Any) -> Any:
    """Defect 1: the rest is pushed only if the policy of the moment uses the disk."""

    def made(self: Any) -> None:
        pusher = self.pusher
        if not self.memory.spills and pusher is not None and not self.memory.pushing:
            with patch.object(pusher, "push_rest", lambda now_s, done: done()):
                close(self)
        else:
            close(self)

    return made


# Results ------------------------------------------------------------------------------------------


def _absent_is_empty(batches: Any) -> Any:
    """Defect 5: a log that is not there is read as one without results."""

    def made(self: Any) -> Any:
        try:
            yield from batches(self)
        except OutputError:
            yield ResultBatch(0, 0, b"", True)

    return made


# Forced pushes ------------------------------------------------------------------------------------


def _file_bytes(done: Any) -> Any:
    """Defect 17: an ordered push is reported in bytes of its files."""
    return lambda self, taken_bytes: done(self, taken_bytes // 3)


def _lost_in_a_batch(ordered: Any) -> Any:
    """Defect 18: an order that comes in the middle of a batch is answered with 0."""

    def made(self: Any, m: Any) -> None:
        if not self._join.idle or self._memory.pushing or not self.participant.may_push():
            self._shell.tell_manager(Pushed(m.query, m.epoch, m.order, 0))
        else:
            ordered(self, m)

    return made


def _done_twice(ordered: Any) -> Any:
    def made(self: Any, m: Any) -> None:
        self._ordered = None
        ordered(self, m)

    return made


STATE_BUGS = {
    "marks not installed": Bug(
        "marks move with a group", around(group_moves, "install", _installed("marks"))
    ),
    "marks not asked": Bug(
        "replayed rows are dropped", around(JoinState, "begin", _every_row_is_new)
    ),
    "generation not installed": Bug(
        "the generation moves",
        around(group_moves, "install", _installed("generation")),
        scene="slow sinks",
    ),
    "counts not installed": Bug(
        "what was produced moves", around(group_moves, "install", _installed("produced"))
    ),
    "unkept though on disk": Bug(
        "a row is kept while a generation of its group is on disk",
        around(JoinState, "advance", _every_group_is_whole),
    ),
    "unkept not installed": Bug(
        "what was found without being kept moves",
        around(group_moves, "install", _installed("unkept")),
        scene="ended inputs",
    ),
    "dropped when sent": Bug(
        "the sender keeps its copy",
        around(GroupMoves, "_sent", _dropped_when_sent),
        scene="manager dies",
    ),
    "groups change under results": Bug(
        "defect 4: results are read before groups change", _chores_first, scene="slow sinks"
    ),
    "no room is done": Bug(
        "rows stay until they are on disk", around(Pusher, "_begin", _no_room_is_done)
    ),
    "generation stays": Bug(
        "a push begins a generation", around(JoinState, "detach", _generation_stays)
    ),
    "rest not pushed": Bug(
        "the rest is pushed at the end", instead(Pusher, "push_rest", _rest_left)
    ),
    "policy loses the rest": Bug(
        "defect 1: whatever the policy is then",
        around(Query, "_close", _rest_by_policy),
        scene="policies",
    ),
    "store deleted": Bug(
        "defect 8: who comes back keeps what it wrote",
        instead(sim_disk, "open_store", _deletes_its_store),
        scene="come back",
    ),
    "absent log empty": Bug(
        "defect 5: what cannot be read is an error",
        around(LogRead, "batches", _absent_is_empty),
        scene="another folder",
    ),
    "file bytes reported": Bug(
        "defect 17: bytes of memory are reported",
        around(GroupMoves, "_order_done", _file_bytes),
        scene="forced pushes",
    ),
    "orders lost": Bug(
        "defect 18: an order waits for the batch",
        around(GroupMoves, "_ordered_push", _lost_in_a_batch),
        scene="forced pushes",
    ),
    "orders done twice": Bug(
        "a repeated order is done once",
        around(GroupMoves, "_ordered_push", _done_twice),
        scene="forced pushes",
    ),
    "memory not shared": Bug(
        "state stays within the limit",
        instead(MemoryPool, "share", lambda self, anew=False: None),
        scene="crowded",
    ),
    "no relief": Bug(
        "who is short of memory pushes or waits",
        instead(StateMemory, "now", lambda self, now_s: None),
        scene="crowded",
    ),
}
"""By name; two or more for each mechanism."""
