"""The store as one SQLite file: embedded, the default.

Every change is one `BEGIN IMMEDIATE` transaction, which is SQLite's lock between processes: the
head cannot change between its reading and the commit. Write-ahead log with `synchronous=FULL`: a
commit returns when the log is on disk. The file must lie on a local disk, as SQLite's locks and
shared memory do not work over a network.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from dovetail_manager.journal import Write
from dovetail_manager.store.errors import StoreDamaged, StoreUnavailable
from dovetail_manager.store.fencing import (
    SCHEMA_VERSION,
    VALUE_BYTES_MAX,
    Head,
    check_key,
    check_leader,
    claimed,
    to_be_done,
    written,
)
from dovetail_manager.store.interface import PATIENCE_S, Leadership, Store
from dovetail_proto.errors import ConfigError
from dovetail_proto.ids import Epoch

APPLICATION_ID = 0x44_4F_56_54
"""`DOVT` in the file's header, so that a file of another program is told apart."""

TABLES = (
    "CREATE TABLE head (one INTEGER PRIMARY KEY CHECK (one = 1), epoch INTEGER NOT NULL,"
    " claim TEXT NOT NULL, holder TEXT NOT NULL, revision INTEGER NOT NULL,"
    " write_id TEXT NOT NULL)",
    "INSERT INTO head VALUES (1, 0, '', '', 0, '')",
    "CREATE TABLE entries (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE history (name TEXT NOT NULL, number INTEGER NOT NULL, value TEXT NOT NULL,"
    " PRIMARY KEY (name, number))",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)

BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
NOT_OURS = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)

LOCK_POLL_S = 0.01
"""Between two tries to switch the log on, the one lock that SQLite does not wait for itself."""


class SqliteStore(Store):
    """A store in the file `path`; made, readable by its owner only, if there is none."""

    def __init__(self, path: Path, *, patience_s: float = PATIENCE_S) -> None:
        super().__init__()
        self.path = path
        self._patience_s = patience_s
        self._lock = threading.Lock()  # one connection, one transaction at a time
        try:
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        except OSError as e:
            raise ConfigError(
                f"store {str(path)!r} cannot be opened: {e.strerror}",
                remedy="name a file in a folder that exists and can be written",
            ) from e
        with self._translated("opened"):
            # Transactions are begun and ended by hand; the lock takes the threads' turns.
            self._db = sqlite3.connect(
                path, timeout=patience_s, isolation_level=None, check_same_thread=False
            )
            try:
                self._prepare()
            except BaseException:
                self._db.close()
                raise

    def get(self, key: str) -> str | None:
        """See Store."""
        check_key(key)
        with self._lock, self._translated("read"):
            row = self._db.execute("SELECT value FROM entries WHERE key = ?", (key,)).fetchone()
        return None if row is None else _text(row[0])

    def entries(self, prefix: str = "") -> dict[str, str]:
        """See Store."""
        with self._lock, self._translated("read"):
            return self._entries(prefix)

    def close(self) -> None:
        """See Store."""
        with self._lock:
            self._db.close()

    def _take_lead(self, claim: str, holder: str) -> Leadership:
        with self._changing("the claim") as head:
            mine = claimed(head, claim, holder)
            self._set_head(mine)
            entries = self._entries("")
        return Leadership(Epoch(mine.epoch), mine.revision, entries)

    def _write(self, claim: str, w: Write) -> None:
        with self._changing(f"revision {w.revision}") as head:
            if not to_be_done(head, claim, w):
                return
            gone = [(key,) for key, value in w.puts.items() if value is None]
            self._db.executemany("DELETE FROM entries WHERE key = ?", gone)
            self._db.executemany(
                "INSERT OR REPLACE INTO entries VALUES (?, ?)",
                [(key, value) for key, value in w.puts.items() if value is not None],
            )
            self._set_head(written(head, w))

    def _record(
        self, claim: str, epoch: Epoch, history: str, records: Mapping[int, str], keep: int
    ) -> None:
        with self._changing(f"a record of history {history!r}") as head:
            check_leader(head, claim, epoch)
            self._db.executemany(
                "INSERT OR REPLACE INTO history VALUES (?, ?, ?)",
                [(history, number, text) for number, text in records.items()],
            )
            self._db.execute(
                "DELETE FROM history WHERE name = ?1 AND number <= (SELECT number FROM history"
                " WHERE name = ?1 ORDER BY number DESC LIMIT 1 OFFSET ?2)",
                (history, keep),
            )

    def _records(self, history: str, newest: int, before: int | None) -> list[tuple[int, str]]:
        bound = "" if before is None else " AND number < ?3"
        values = (history, newest) if before is None else (history, newest, before)
        with self._lock, self._translated("read"):
            rows = self._db.execute(
                f"SELECT number, value FROM history WHERE name = ?1{bound}"
                " ORDER BY number DESC LIMIT ?2",
                values,
            ).fetchall()
        return [(int(number), _text(value)) for number, value in rows]

    def _entries(self, prefix: str) -> dict[str, str]:
        rows = self._db.execute("SELECT key, value FROM entries ORDER BY key").fetchall()
        return {_text(k): _text(v) for k, v in rows if k.startswith(prefix)}

    def _set_head(self, head: Head) -> None:
        self._db.execute(
            "UPDATE head SET epoch = ?, claim = ?, holder = ?, revision = ?, write_id = ?",
            (head.epoch, head.claim, head.holder, head.revision, head.write_id),
        )

    def _head(self) -> Head:
        row = self._db.execute(
            "SELECT epoch, claim, holder, revision, write_id FROM head"
        ).fetchone()
        if row is None:
            raise StoreDamaged(f"store {str(self.path)!r} has no head", remedy="restore it")
        return Head(*row)

    @contextmanager
    def _changing(self, what: str) -> Iterator[Head]:
        """A transaction that begins with the head and ends with a commit, or leaves no trace."""
        with self._lock, self._translated("written") as trouble:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._head()
                trouble["unknown"] = f"whether {what} was written is unknown"
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                    trouble.clear()
                raise

    @contextmanager
    def _translated(self, done: str) -> Iterator[dict[str, str]]:
        """SQLite's errors as ours; whoever does something with unknown outcome notes it."""
        trouble: dict[str, str] = {}
        try:
            yield trouble
        except sqlite3.Error as e:
            problem = f"store {str(self.path)!r} cannot be {done}: {e}"
            code = getattr(e, "sqlite_errorcode", 0) & 0xFF
            if code in NOT_OURS:
                raise StoreDamaged(problem, remedy="restore the file, or name another one") from e
            unknown = trouble.get("unknown", "")
            remedy = "another process holds it" if code in BUSY else "see to its disk"
            raise StoreUnavailable(
                f"{problem}; {unknown or 'nothing was changed'}",
                unknown=bool(unknown),
                remedy=f"{remedy}; then repeat the call, it is done once",
            ) from e

    def _prepare(self) -> None:
        """Switch the log on, make the tables if the file is empty, and check whose they are."""
        until_s = time.monotonic() + self._patience_s
        while True:
            try:
                # A file of another program is refused before anything is changed in it.
                self._db.execute("BEGIN")  # one picture: another manager may be making the tables
                with self._db:
                    self._check_ours()
                self._db.execute("PRAGMA journal_mode = WAL")
                break
            except sqlite3.OperationalError as e:
                if e.sqlite_errorcode & 0xFF not in BUSY or time.monotonic() > until_s:
                    raise
                time.sleep(LOCK_POLL_S)
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 2 * VALUE_BYTES_MAX)
        self._db.execute("BEGIN IMMEDIATE")
        with self._db:
            if self._check_ours():
                for statement in TABLES:
                    self._db.execute(statement)

    def _check_ours(self) -> bool:
        """Whether the file is empty; StoreDamaged unless it is that or a store of this version."""
        [application] = self._db.execute("PRAGMA application_id").fetchone()
        [version] = self._db.execute("PRAGMA user_version").fetchone()
        [tables] = self._db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if (application, version, tables) == (0, 0, 0):
            return True
        if application != APPLICATION_ID:
            raise StoreDamaged(
                f"{str(self.path)!r} is a database of another program", remedy="name another file"
            )
        if version != SCHEMA_VERSION:
            raise StoreDamaged(
                f"store {str(self.path)!r} is of version {version}, this Dovetail reads version "
                f"{SCHEMA_VERSION}",
                remedy="run the Dovetail that made it, or name another file",
            )
        return False


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise StoreDamaged(f"{value!r:.100} in the store is not text", remedy="restore it")
    return value
