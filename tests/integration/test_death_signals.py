"""SIGTERM to a processor: it leaves, so that nothing is lost; whatever would keep it gives way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kit.cluster_faults import WAIT_S, FaultyCluster, until
from kit.clusters import PAIR_SQL, gone, pair, same_bag

LEFT, RIGHT = pair(seed=26, rows=150_000, keys=150_000)
SQL = PAIR_SQL.format(left="l", right="r")
MEMORY_BYTES = 9_000_000
"""Less than the streams take, so that state goes to disk."""


def test_the_first_to_end_leaves_and_the_last_closes_its_queries(tmp_path: Path) -> None:
    """Pinned groups move, streams get another home, and the clean-up finds all that is owed."""
    with FaultyCluster(processors=2, memory_bytes=MEMORY_BYTES) as local:
        cluster = local.cluster
        streams = {n: cluster.stream(n, t.schema) for n, t in (("l", LEFT), ("r", RIGHT))}
        query = cluster.submit(SQL, name="q", partitions=40)
        owners = {p.group: p.owner for p in query.partitions().partitions}
        query.pin([g for g, owner in owners.items() if owner == "p2"][:3])
        _send(streams, 0, 75_000)
        local.processes["p2"].send_signal(signal.SIGTERM)
        until(lambda: not local.processes["p2"].running, "p2 has left")
        assert _states(local) == {"p1": "alive", "p2": "left"}
        assert query.status().state == "running"
        _send(streams, 75_000, 75_000)
        query.wait()

        local.kill("manager")
        local.processes["p1"].send_signal(signal.SIGTERM)
        local.restart_manager()
        until(lambda: not local.processes["p1"].running, "p1 has left")
        assert (query.status().state, query.status().cause) == ("closed", "")
        assert query.status().spilled_bytes > 0
        owed = query.cleanup(tmp_path, master="local").results
        assert owed > 0
        local.start_processor("p1")
        found = pa.concat_tables(
            [query.results().to_arrow(), pq.read_table(tmp_path, partitioning=None)]
        )
        assert same_bag(found.select(["k", "v", "w"]), SQL, l=LEFT, r=RIGHT)


def test_processors_that_end_together_close_their_queries() -> None:
    """As when a whole cluster is shut down; one was paused. A second signal ends one at once."""
    with FaultyCluster(processors=2) as local:
        cluster = local.cluster
        streams = {n: cluster.stream(n, t.schema) for n, t in (("l", LEFT), ("r", RIGHT))}
        query = cluster.submit(SQL, name="q", partitions=40)
        paused = cluster.submit(SQL, name="paused", partitions=40)
        _send(streams, 0, 150_000)
        for one in (query, paused):
            one.wait()
        paused.pause()
        for name in ("p1", "p2"):
            local.processes[name].send_signal(signal.SIGTERM)
        for name in ("p1", "p2"):
            until(lambda n=name: not local.processes[n].running, f"{name} has left")  # type: ignore[misc]
        assert _states(local) == {"p1": "left", "p2": "left"}
        assert "ends, and nobody is left to go on with the query" in _why_closed(local, "q")
        for name in ("p1", "p2"):
            local.start_processor(name)
        for one in (query, paused):
            assert one.status().state == "closed"
            assert same_bag(one.results().to_arrow(), SQL, l=LEFT, r=RIGHT)

        local.kill("manager")
        for number in (signal.SIGTERM, signal.SIGINT):
            local.processes["p1"].send_signal(number)
        until(lambda: not local.processes["p1"].running, "p1 has ended")
        assert "ends without having left" not in local.processes["p1"].tail(), "it did not wait"


@pytest.mark.parametrize("service", ["manager", "processor"])
def test_a_tethered_service_ends_with_its_pipe(service: str, tmp_path: Path) -> None:
    """Whoever keeps the other end may be killed: nothing is left that holds the port."""
    words = [service, *(["p1", "--manager", "127.0.0.1:1"] if service == "processor" else [])]
    process = subprocess.Popen(
        [sys.executable, "-m", "dovetail", *words, "--tethered"],
        cwd=tmp_path,
        env={**os.environ, "DOVETAIL_LISTEN": "127.0.0.1:0", "DOVETAIL_REST": "127.0.0.1:0"},
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stderr is not None
        while b"listens" not in process.stderr.readline():
            assert process.poll() is None
        assert process.stdin is not None
        process.stdin.close()
        process.wait(WAIT_S)
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
    assert gone(process.pid)


def _send(streams: dict[str, object], start: int, rows: int) -> None:
    for name, table in (("l", LEFT), ("r", RIGHT)):
        streams[name].send(table.slice(start, rows))  # type: ignore[attr-defined]


def _why_closed(local: FaultyCluster, query: str) -> str:
    """As the events that REST tells say."""
    head = {"Authorization": f"Bearer {local.token}"}
    with httpx.stream("GET", f"{local.url}/v1/events", headers=head, timeout=WAIT_S) as events:
        told = (json.loads(x[len("data:") :]) for x in events.iter_lines() if x[:5] == "data:")
        closing = (e for e in told if (e["kind"], e["query"]) == ("query-closing", query))
        return str(next(closing)["text"])


def _states(local: FaultyCluster) -> dict[str, str]:
    return {p.name: p.state for p in local.cluster.status().processors}
