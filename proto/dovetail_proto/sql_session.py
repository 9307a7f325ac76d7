"""How every process asks DuckDB what an expression means: the same settings, nothing but Arrow.

The planner asks for types, the processor for values; both must get the same answers, so both open
their sessions here. A session reads no file, loads no extension, sees no Python variable, counts
time zones from UTC and cannot be told otherwise. The sessions of a process share one instance of
DuckDB: an instance costs 6 MB, 12 ms and eight threads, a session on it about 0.1 MB and 0.3 ms.

An error inside DuckDB (some timestamps far out of range are enough) ends the instance for all of
its sessions. Those that are opened then are on the next one; whose statement it was shows when it
is tried alone, on an instance that it shares with nobody.
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
_ended: list[str] = []  # names of shared instances that have ended: the next has another

INSTANCE_ENDED = (duckdb.InternalException, duckdb.FatalException)
"""What a statement raises that ends its instance, and every statement on it from then on."""


def open_session(*, alone: bool = False) -> duckdb.DuckDBPyConnection:
    """A session, on the process's shared instance of DuckDB or `alone` on one of its own.

    Not for use by two threads at once. The shared instance may end under it at any time
    (INSTANCE_ENDED), by no fault of its statements; one of its own only by its own.
    """
    with _opening:
        while True:
            # named by process: a forked child must not use its parent's instance
            name = "" if alone else f"dovetail-{os.getpid()}-{len(_ended)}"
            try:
                return _configured(duckdb.connect(f":memory:{name}", config=_SETTINGS))
            except INSTANCE_ENDED:
                if alone:
                    raise
                _ended.append(name)


def _configured(session: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    """With the settings that have to be made by statements, once per instance."""
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
        details, _ = json.JSONDecoder().raw_decode(rest)  # internal errors end with advice
        rest = str(details["exception_message"])
        position = int(details["position"]) if "position" in details else None
    except (ValueError, KeyError, TypeError):
        if not kind.endswith("Error"):
            rest = text
    return rest.strip().splitlines()[0].strip() if rest.strip() else kind, position


def quote(name: str) -> str:
    """`name` as an identifier in SQL."""
    return '"' + name.replace('"', '""') + '"'
