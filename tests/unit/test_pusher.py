"""Pushing to a place that is full, or broken: rows are in memory until their push is committed."""

from __future__ import annotations

import errno
from pathlib import Path
from threading import Event

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from dovetail_processor.join.state import JoinState
from dovetail_processor.spill.pusher import Pusher
from dovetail_proto.errors import SpillError
from dovetail_proto.spill_format import LocalStorage, RunRecord, SpillStore
from kit.spills import make_plan

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.float64())])
PLAN = make_plan([SCHEMA, SCHEMA])
ROWS = 20_000


class FullDisk(LocalStorage):
    """A disk without room until `room` is set."""

    def __init__(self, root: Path) -> None:
        super().__init__(str(root))
        self.room = Event()

    def scratch(self, name: str) -> str:
        """The real device that is always full, while there is no room."""
        return super().scratch(name) if self.room.is_set() else "/dev/full"

    def discard(self, path: str) -> None:
        """Keep the device."""
        if path != "/dev/full":
            super().discard(path)


class Case:
    """A state with rows, and a pusher whose disk is full."""

    def __init__(self, folder: Path) -> None:
        self.disk = FullDisk(folder)
        self.disk.room.set()
        store = SpillStore.create_in(self.disk, PLAN)
        self.disk.room.clear()
        self.state = JoinState(PLAN, 16_000_000, chunk_rows=1_000)
        keys = np.arange(ROWS)
        batch = pa.RecordBatch.from_arrays([pa.array(keys), pa.array(keys * 1.0)], schema=SCHEMA)
        self.state.begin(0, batch, 0.0)
        while self.state.advance() is not None:
            pass
        self.pusher = Pusher(self.state, store, 64 << 10)

    def push(self) -> int:
        """Begin to push everything; the bytes that it holds."""
        held = self.state.held_bytes
        self.pusher.start(self.state.detach(np.arange(PLAN.partitions)), held)
        return held


def test_rows_stay_in_memory_until_there_is_room(tmp_path: Path) -> None:
    """Of the push, and of the record that ends the run."""
    case = Case(tmp_path)
    held = case.push()

    def look() -> None:
        if case.pusher.no_room and not case.disk.room.is_set():
            assert "No space left" in case.pusher.no_room
            assert case.state.held_bytes == held
            case.disk.room.set()

    case.pusher.finish(look)
    assert (case.pusher.pushes, case.pusher.no_room, case.state.held_bytes) == (1, "", 0)
    sql = "SELECT count(*), count(DISTINCT k), sum(v) FROM"
    with duckdb.connect() as db:
        found = db.execute(f"{sql} '{tmp_path}/pushes/*/input-00.parquet'").fetchone()
    assert found == (ROWS, ROWS, ROWS * (ROWS - 1) / 2)
    held = 0
    case.disk.room.clear()
    case.pusher.close_run(RunRecord((ROWS, 0), 0, 0), look)
    assert SpillStore.open(str(tmp_path)).closed


def test_a_push_that_waits_can_be_given_up(tmp_path: Path) -> None:
    """It ends at once, and the store has nothing of it."""
    case = Case(tmp_path)
    case.push()

    def look() -> None:
        if case.pusher.no_room:
            case.pusher.cancel()

    with pytest.raises(SpillError, match="push 1 cannot be written"):
        case.pusher.finish(look)
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == ["query.json"]


def test_only_room_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is broken is an error at once: nobody can say that it will be well again."""
    case = Case(tmp_path)

    def broken(name: str) -> str:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(case.disk, "scratch", broken)
    case.push()
    with pytest.raises(SpillError, match="Input/output error"):
        case.pusher.finish()
