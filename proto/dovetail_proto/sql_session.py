"""How every process asks DuckDB what an expression means: the same settings, nothing but Arrow.

The planner asks for types, the processor for values; both must get the same answers, so both open
their sessions here. A session reads no file, loads no extension, sees no Python variable, counts
time zones from UTC and cannot be told otherwise. All sessions of a process share one instance of
DuckDB: an instance costs 6 MB and eight threads, a session on it about 0.1 MB.
"""

from __future__ import annotations

import json
import os
import threading

import duckdb

SESSION_MEMORY_BYTES_MAX = 128 << 20
"""What all sessions of a process may hold together. Expressions are evaluated 2048 rows at a time,
so this is 64 KiB a row; results leave as Arrow and do not count."""

_SETTINGS = {
    "threads": "1",  # rows stay in order, and the processor decides what runs on which core
    "memory_limit": f"{SESSION_MEMORY_BYTES_MAX}B",
    "enable_external_access": "false",
    "autoload_known_extensions": "false",
    "autoinstall_known_extensions": "false",
    "python_enable_replacements": "false",
    "errors_as_json": "true",
}
_opening = threading.Lock()


def open_session() -> duckdb.DuckDBPyConnection:
    """A session of the process's DuckDB. Not for use by two threads at once."""
    with _opening:
        # named by process: a forked child must not use its parent's instance
        session = duckdb.connect(f":memory:dovetail-{os.getpid()}", config=_SETTINGS)
        if not session.execute("SELECT current_setting('lock_configuration')").fetchall()[0][0]:
            session.execute("SET GLOBAL TimeZone = 'UTC'")
            session.execute("SET GLOBAL lock_configuration = true")
        return session


def reason(error: Exception) -> tuple[str, int | None]:
    """What DuckDB complains of, in one line, and the byte of the SQL it points at, if it does."""
    text = str(error)
    kind, _, rest = text.partition(": ")
    position: int | None = None
    try:
        details = json.loads(rest)
        rest = str(details["exception_message"])
        position = int(details["position"]) if "position" in details else None
    except (ValueError, KeyError, TypeError):
        if not kind.endswith("Error"):
            rest = text
    return rest.strip().splitlines()[0].strip() if rest.strip() else kind, position


def quote(name: str) -> str:
    """`name` as an identifier in SQL."""
    return '"' + name.replace('"', '""') + '"'
