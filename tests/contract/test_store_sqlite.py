"""What is SQLite's own: the file's settings, whose file it is, a lock that another holds."""

from __future__ import annotations

import sqlite3
import stat
import time
from pathlib import Path

import pytest

from dovetail_manager.journal import Write
from dovetail_manager.store import open_store
from dovetail_manager.store.errors import StoreDamaged, StoreUnavailable
from dovetail_manager.store.sqlite_store import SqliteStore
from dovetail_proto.ids import Epoch


def test_a_commit_waits_for_the_disk_and_the_file_is_private(tmp_path: Path) -> None:
    """Write-ahead log, full synchronisation, the patience as busy time-out."""
    path = tmp_path / "manager.db"
    store = SqliteStore(path, patience_s=2.5)
    settings = ("journal_mode", "synchronous", "busy_timeout", "user_version")
    found = [store._db.execute(f"PRAGMA {name}").fetchone()[0] for name in settings]
    assert found == ["wal", 2, 2500, 2]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    store.close()
    store.close()


def test_a_plain_path_and_both_urls_name_the_same_store(tmp_path: Path) -> None:
    """`sqlite:///path` is how other programs write it."""
    path = tmp_path / "manager.db"
    for epoch, address in enumerate((path, f"{path}", f"sqlite:{path}", f"sqlite://{path}"), 1):
        store = open_store(address)
        assert store.claim("m").epoch == epoch
        store.close()


def test_a_file_of_another_program_is_refused_and_left_alone(tmp_path: Path) -> None:
    """Whether it is a database or not."""
    text = tmp_path / "text"
    text.write_text("no database, but long enough to look like one " * 30)
    with pytest.raises(StoreDamaged, match="file is not a database"):
        open_store(text)
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE theirs (a)")
    other.close()
    before = path.read_bytes()
    with pytest.raises(StoreDamaged, match="is a database of another program"):
        open_store(path)
    assert path.read_bytes() == before


def test_a_store_of_another_version_is_refused(tmp_path: Path) -> None:
    """By its number; nothing of it is read."""
    path = tmp_path / "manager.db"
    open_store(path).close()
    with sqlite3.connect(path) as newer:
        newer.execute("PRAGMA user_version = 1")
    newer.close()
    with pytest.raises(StoreDamaged, match="is of version 1, this Dovetail reads version 2"):
        open_store(path)


def test_a_store_that_another_process_holds_is_unavailable_not_changed(tmp_path: Path) -> None:
    """Within its patience; afterwards the same write is done."""
    path = tmp_path / "manager.db"
    store = open_store(path, patience_s=0.05)
    store.claim("m")
    write = Write(Epoch(1), 1, {"a": "1"})
    backup = sqlite3.connect(path, isolation_level=None)
    backup.execute("BEGIN IMMEDIATE")
    with pytest.raises(
        StoreUnavailable, match=r"is locked; nothing was changed.*another"
    ) as caught:
        store.write(write)
    assert not caught.value.unknown
    assert store.entries() == {}
    backup.execute("ROLLBACK")
    store.write(write)
    assert store.get("a") == "1"
    backup.close()
    store.close()


def test_a_damaged_file_is_told_as_damage(tmp_path: Path) -> None:
    """Not as a lack of answer: repeating would not help."""
    path = tmp_path / "manager.db"
    store = open_store(path)
    lead = store.claim("m")
    store.write(Write(lead.epoch, 1, {f"k/{i}": "x" * 500 for i in range(100)}))
    store.close()
    with open(path, "r+b") as file:
        file.seek(4096)
        file.write(b"\xaa" * (path.stat().st_size - 4096))
    damaged = open_store(path)
    with pytest.raises(StoreDamaged, match="malformed"):
        damaged.claim("m")
    damaged.close()


def test_a_value_that_somebody_else_put_there_is_refused(tmp_path: Path) -> None:
    """Only text is ours."""
    path = tmp_path / "manager.db"
    store = open_store(path)
    with sqlite3.connect(path) as other:
        other.execute("INSERT INTO entries VALUES ('a', x'ff')")
    other.close()
    with pytest.raises(StoreDamaged, match="is not text"):
        store.get("a")
    with pytest.raises(StoreDamaged, match="is not text"):
        store.entries()
    store.close()


def test_opening_waits_for_a_file_that_another_process_is_making(tmp_path: Path) -> None:
    """SQLite itself would not wait for this lock; the patience holds for it all the same."""
    path = tmp_path / "manager.db"
    maker = sqlite3.connect(path, isolation_level=None)
    maker.execute("BEGIN IMMEDIATE")
    started_s = time.monotonic()
    with pytest.raises(StoreUnavailable, match="is locked"):
        open_store(path, patience_s=0.2)
    assert time.monotonic() - started_s >= 0.2
    maker.execute("ROLLBACK")
    open_store(path, patience_s=0.2).close()
    maker.close()
