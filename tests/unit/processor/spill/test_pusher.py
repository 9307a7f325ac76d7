"""Pushing to a place that is full, or broken: rows are in memory until their push is committed."""

from __future__ import annotations

import errno
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from dovetail_processor.join.state import JoinState
from dovetail_processor.spill.pusher import RETRY_S_MAX, RETRY_S_MIN, Pusher
from dovetail_proto.errors import SpillError
from dovetail_proto.spill_format import LocalStorage, RunRecord, SpillStore
from kit import join_cases as cases
from kit.hand_shell import HandLane
from kit.spills import make_plan

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.float64())])
PLAN = make_plan([SCHEMA, SCHEMA])
ROWS = 20_000


class Disk(LocalStorage):
    """A disk with or without room."""

    room = True

    def scratch(self, name: str) -> str:
        """The real device that is always full, while there is no room."""
        return super().scratch(name) if self.room else "/dev/full"

    def discard(self, path: str) -> None:
        """Keep the device."""
        if path != "/dev/full":
            super().discard(path)


class Case:
    """A state with rows, and a pusher on a lane that the test drives."""

    def __init__(self, folder: Path) -> None:
        self.disk = Disk(str(folder))
        store = SpillStore.create_in(self.disk, PLAN)
        self.state = JoinState(PLAN, 16_000_000, chunk_rows=1_000)
        keys = np.arange(ROWS)
        batch = pa.RecordBatch.from_arrays([pa.array(keys), pa.array(keys * 1.0)], schema=SCHEMA)
        cases.begin(self.state, 0, batch)
        while self.state.advance() is not None:
            pass
        self.lane = HandLane()
        self.failures: list[Exception] = []
        self.done = 0
        self.pusher = Pusher(self.state, store, self.lane, 64 << 10, self.failures.append)

    def push(self) -> int:
        """Begin to push everything; the bytes that it holds."""
        held = self.state.held_bytes
        detached = self.state.detach(np.arange(PLAN.partitions))
        self.pusher.start(detached, held, 0.0, self.ended)
        return held

    def ended(self) -> None:
        """Count."""
        self.done += 1


def test_pages_are_given_back_when_the_push_is_committed_and_not_before(tmp_path: Path) -> None:
    """Also written, they stay until the worker has heard of it."""
    case = Case(tmp_path)
    held = case.push()
    assert case.pusher.busy
    assert case.state.held_bytes == held
    heard = case.lane.work()
    assert (case.state.held_bytes, case.pusher.pushes, case.done) == (held, 0, 0)
    heard()
    assert (case.state.held_bytes, case.pusher.pushes, case.done) == (0, 1, 1)
    assert not case.pusher.busy
    assert case.pusher.pushed_bytes == held
    assert case.pusher.spilled_groups == PLAN.partitions
    sql = "SELECT count(*), count(DISTINCT k), sum(v) FROM"
    with duckdb.connect() as db:
        found = db.execute(f"{sql} '{tmp_path}/pushes/*/input-00.parquet'").fetchone()
    assert found == (ROWS, ROWS, ROWS * (ROWS - 1) / 2)


def test_rows_stay_in_memory_until_there_is_room(tmp_path: Path) -> None:
    """It is tried again after a while, that doubles up to a bound, and never in between."""
    case = Case(tmp_path)
    case.disk.room = False
    held = case.push()
    now_s, waits = 0.0, []
    for _ in range(8):
        case.lane.do()
        assert "No space left" in case.pusher.no_room
        assert case.state.held_bytes == held
        assert case.pusher.busy
        waits.append(case.pusher.next_s - now_s)
        case.pusher.tick(case.pusher.next_s - 0.001)
        assert not case.lane.jobs
        now_s = case.pusher.next_s
        case.pusher.tick(now_s)
        case.pusher.tick(now_s)
        assert len(case.lane.jobs) == 1
    assert waits[:3] == pytest.approx([RETRY_S_MIN, 2 * RETRY_S_MIN, 4 * RETRY_S_MIN], abs=0.002)
    assert waits[-1] == pytest.approx(RETRY_S_MAX, abs=0.002)
    case.disk.room = True
    case.lane.do()
    assert (case.pusher.pushes, case.pusher.no_room, case.state.held_bytes) == (1, "", 0)
    assert case.pusher.next_s == float("inf")
    assert case.failures == []


def test_the_record_of_the_run_waits_for_room_as_well(tmp_path: Path) -> None:
    """Then the store is closed."""
    case = Case(tmp_path)
    case.disk.room = False
    case.pusher.close_run(RunRecord((ROWS, 0), 0, 0), 0.0, case.ended)
    case.lane.do()
    assert case.pusher.no_room
    case.disk.room = True
    case.pusher.tick(RETRY_S_MIN)
    case.lane.do()
    assert case.done == 1
    assert SpillStore.open(str(tmp_path)).closed


@pytest.mark.parametrize("when", ["waiting for room", "before it is written", "written"])
def test_a_push_can_be_given_up(when: str, tmp_path: Path) -> None:
    """The worker hears nothing of it; a push that was not committed leaves nothing in the store."""
    case = Case(tmp_path)
    case.disk.room = when != "waiting for room"
    case.push()
    heard = case.lane.work() if when != "before it is written" else lambda: None
    if when == "waiting for room":
        heard()
    case.pusher.stop()
    heard()
    while case.lane.jobs:
        case.lane.do()
    case.pusher.tick(100.0)
    assert (case.done, case.failures, case.pusher.busy) == (0, [], False)
    assert case.lane.closed
    if when != "written":
        assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == ["query.json"]


def test_only_room_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is broken is an error at once: nobody can say that it will be well again."""
    case = Case(tmp_path)

    def broken(name: str) -> str:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(case.disk, "scratch", broken)
    held = case.push()
    case.lane.do()
    [error] = case.failures
    assert isinstance(error, SpillError)
    assert "Input/output error" in str(error)
    assert (case.pusher.busy, case.done, case.state.held_bytes) == (False, 0, held)


def test_the_rest_is_what_memory_holds_of_groups_that_were_pushed(tmp_path: Path) -> None:
    """The others owe nothing: all their rows have met."""
    case = Case(tmp_path)
    held = case.state.group_bytes()
    ids = np.array([1, 3])
    case.pusher.start(case.state.detach(ids), int(held[ids].sum()), 0.0)
    case.lane.do()
    keys = np.arange(ROWS, 2 * ROWS)
    batch = pa.RecordBatch.from_arrays([pa.array(keys), pa.array(keys * 1.0)], schema=SCHEMA)
    cases.begin(case.state, 1, batch)
    while case.state.advance() is not None:
        pass
    case.pusher.push_rest(0.0, case.ended)
    case.lane.do()
    assert np.flatnonzero(case.state.group_bytes() == 0).tolist() == [1, 3]
    pushes = SpillStore.open(str(tmp_path)).pushes()
    assert [p.group.tolist() for p in pushes] == [[1, 3], [1, 3]]
    assert [p.generation.tolist() for p in pushes] == [[0, 0], [1, 1]]
    case.pusher.push_rest(0.0, case.ended)
    assert case.done == 2, "nothing is left"
    assert not case.lane.jobs
