"""A manager whose store is away for a while, or answers no more."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dovetail_manager import loop
from dovetail_manager.server import ManagerServer, ManagerSettings
from dovetail_manager.store.errors import StoreUnavailable
from dovetail_manager.store.sqlite_store import SqliteStore
from dovetail_proto import admin as a
from dovetail_proto.messages import Heard
from dovetail_proto.transport import Unreachable
from kit.scripted_processor import ScriptedProcessor

SCHEMA = pa.schema([("k", pa.int64())]).serialize().to_pybytes()


class Outage:
    """Makes the next writes fail, after or before they were done."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 0
        self.done_all_the_same = False
        self.tried = threading.Semaphore(0)
        real = SqliteStore._write

        def write(store: SqliteStore, claim: str, w: Any) -> None:
            if self.left > 0:
                self.left -= 1
                if self.done_all_the_same:
                    real(store, claim, w)
                self.tried.release()
                raise StoreUnavailable("no answer", unknown=True)
            real(store, claim, w)

        monkeypatch.setattr(SqliteStore, "_write", write)


@pytest.mark.parametrize("done", [False, True])
def test_a_call_outlasts_an_outage_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    """The write is repeated, is done once, and the next manager knows it."""
    outage = Outage(monkeypatch)
    settings = ManagerSettings(store=str(tmp_path / "manager.db"))
    with ManagerServer(settings) as manager:
        processor = ScriptedProcessor(manager.address, "p1")
        assert processor.wait(Heard).member
        outage.left, outage.done_all_the_same = 2, done
        assert manager.admin.create_stream(a.CreateStream("trades", SCHEMA)).home == "p1"
        assert outage.left == 0
        processor.close()
    with ManagerServer(settings) as manager:
        assert [s.name for s in manager.admin.list_streams().streams] == ["trades"]


def test_a_call_is_not_answered_well_while_the_store_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says that the store does not answer; looking still works; members stay."""
    monkeypatch.setattr(loop, "CALL_TIMEOUT_S", 0.5)
    outage = Outage(monkeypatch)
    with ManagerServer(ManagerSettings(store=str(tmp_path / "manager.db"))) as manager:
        processor = ScriptedProcessor(manager.address, "p1")
        assert processor.wait(Heard).member
        outage.left = 1000
        with pytest.raises(Unreachable, match="the manager's store does not answer"):
            manager.admin.create_stream(a.CreateStream("trades", SCHEMA))
        assert outage.tried.acquire(timeout=30)
        assert manager.admin.get_cluster().processors[0].state == "alive"
        assert processor.assignment().streams == ()
        outage.left = 0
        assert processor.assignment(lambda x: bool(x.streams)).streams[0].name == "trades"
        processor.close()
