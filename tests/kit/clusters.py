"""Small clusters of real processes, for tests of the client and the command line."""

from __future__ import annotations

from typing import Any

import duckdb
import numpy as np
import psutil
import pyarrow as pa

from dovetail.local_cluster import LocalCluster

MEMORY_BYTES = 64_000_000
"""More than any test sends; what spills is for tests that say so."""

PAIR_SQL = "SELECT l.k, l.v, r.w FROM {left} l JOIN {right} r ON l.k = r.k"


def small_cluster(**settings: Any) -> LocalCluster:
    """Two processors; heartbeats are fast, so that nobody waits for one."""
    return LocalCluster(
        **{"processors": 2, "memory_bytes": MEMORY_BYTES, "heartbeat_s": 0.2, **settings}
    )


def pair(seed: int, rows: int = 3_000, keys: int = 400) -> tuple[pa.Table, pa.Table]:
    """Two tables that join on `k`; some keys are null."""
    rng = np.random.default_rng(seed)

    def column() -> pa.Array:
        return pa.array(rng.integers(0, keys, rows), mask=rng.random(rows) < 0.02)

    left = pa.table({"k": column(), "v": rng.random(rows)})
    words = pa.array([f"w{i}" for i in range(50)]).take(pa.array(rng.integers(0, 50, rows)))
    return left, pa.table({"k": column(), "w": words})


def same_bag(found: pa.Table, sql: str, **tables: pa.Table) -> bool:
    """Whether `found` is what DuckDB says, as a bag; a query with no rows would prove nothing."""
    with duckdb.connect() as connection:
        for name, table in {**tables, "found": found}.items():
            connection.register(name, table)
        counts = connection.execute(
            f"""SELECT (SELECT count(*) FROM ({sql})),
                (SELECT count(*) FROM (({sql}) EXCEPT ALL (FROM found))),
                (SELECT count(*) FROM ((FROM found) EXCEPT ALL ({sql})))"""
        ).fetchone()
    assert counts is not None
    assert counts[0] > 0
    return counts[1:] == (0, 0)


def gone(pid: int) -> bool:
    """Whether a process has ended."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
