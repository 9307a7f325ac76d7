"""A whole cluster over REST: a real manager, processors as processes, and nothing but HTTP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import httpx
import pyarrow as pa
import pytest

from dovetail_manager.server import ManagerServer, ManagerSettings
from dovetail_proto.transport import Security
from kit.admin_standin import ipc

TOKEN = "all"
WAIT_S = 120.0
NAMES = ("p1", "p2")
SQL = "SELECT t.k, t.v AS tv, q.v AS qv FROM trades t JOIN quotes q ON t.k = q.k"
COLUMNS = [{"name": "k", "type": "int64"}, {"name": "v", "type": "text"}]
ARROW = {"Content-Type": "application/vnd.apache.arrow.stream"}


@dataclass(frozen=True, slots=True)
class Cluster:
    """What a test talks to."""

    http: httpx.Client
    processes: dict[str, subprocess.Popen[bytes]]

    def until(self, kind: str, query: str = "", times: int = 1) -> dict[str, object]:
        """Wait until it has happened so often since the start, to a query or none; the event."""
        with self.http.stream("GET", "/v1/events") as answer:
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    event: dict[str, object] = json.loads(line.removeprefix("data: "))
                    times -= (event["kind"], event["query"]) == (kind, query)
                    if not times:
                        return event
        raise AssertionError(f"the stream ended before {kind} {query}")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A manager with REST and two processors."""
    folder = tmp_path_factory.mktemp("cluster")
    settings = ManagerSettings(
        store=str(folder / "manager.db"),
        rest="127.0.0.1:0",
        security=Security(token=TOKEN),
        spill_root=str(folder / "spill"),
        dead_after_s=8.0,
    )
    with ManagerServer(settings) as manager:
        processes = {name: start(name, manager.address, folder) for name in NAMES}
        try:
            base = f"http://{manager.rest_address}"
            token = {"Authorization": f"Bearer {TOKEN}"}
            with httpx.Client(base_url=base, headers=token, timeout=60) as http:
                made = Cluster(http, processes)
                made.until("processor-joined", times=len(NAMES))
                yield made
        finally:
            for process in processes.values():
                process.kill()
                process.wait(WAIT_S)


def start(name: str, manager: str, folder: Path) -> subprocess.Popen[bytes]:
    """A processor as a process."""
    settings = {
        "TOKEN": TOKEN,
        "MEMORY": "64MB",
        "DATA_DIR": str(folder / name),
        "ROOT": str(folder),  # the manager has spilled state beside its store
    }
    return subprocess.Popen(
        [sys.executable, "-m", "dovetail", "processor", name, "--manager", manager],
        env={**os.environ, **{f"DOVETAIL_{k}": v for k, v in settings.items()}},
        stderr=(folder / f"{name}.log").open("wb"),
    )


def test_rows_sent_over_rest_are_joined_and_read_over_rest(cluster: Cluster) -> None:
    """Exactly the join, as a bag, from Arrow and JSON, with a batch that is sent twice."""
    http = cluster.http
    for name in ("trades", "quotes"):
        assert http.post("/v1/streams", json={"name": name, "schema": COLUMNS}).status_code == 201
    submitted = http.post("/v1/queries", json={"name": "prices", "sql": SQL, "partitions": 8})
    assert submitted.status_code == 201, submitted.text
    trades = [{"k": n % 50, "v": f"t{n}"} for n in range(500)]
    quotes = [{"k": n % 40, "v": f"q{n}"} for n in range(100)]
    schema = pa.schema([("k", pa.int64()), ("v", pa.string())])
    body = ipc(pa.RecordBatch.from_pylist(trades, schema=schema))
    numbered = {**ARROW, "Dovetail-Source": "test", "Dovetail-Sequence": "1"}
    for _ in range(2):
        sent = http.post("/v1/streams/trades/batches", content=body, headers=numbered)
        assert sent.json()["stream_rows"] == 500, sent.text
    for part in (quotes[:30], quotes[30:]):
        assert http.post("/v1/streams/quotes/batches", json=part).status_code == 200
    waited = http.post("/v1/queries/prices/wait")
    assert waited.json() == {"rows": 600}
    expected = sorted((t["k"], t["v"], q["v"]) for t in trades for q in quotes if t["k"] == q["k"])
    read = http.get("/v1/queries/prices/results")
    table = pa.ipc.open_stream(read.content).read_all()
    assert sorted(tuple(r.values()) for r in table.to_pylist()) == expected
    lines = http.get("/v1/queries/prices/results", headers={"Accept": "application/x-ndjson"})
    assert len(lines.text.splitlines()) == len(expected)


def test_a_query_is_steered_and_closed_over_rest(cluster: Cluster) -> None:
    """A follower of its results sees the end, and then its name is free."""
    http = cluster.http
    for name in ("bids", "asks"):
        http.post("/v1/streams", json={"name": name, "schema": COLUMNS})
    sql = "SELECT b.k FROM bids b JOIN asks a ON b.k = a.k"
    made = http.post("/v1/queries", json={"name": "steered", "sql": sql, "partitions": 4})
    assert made.status_code == 201, made.text
    owners = http.get("/v1/queries/steered/partitions").json()["partitions"]
    assert {p["owner"] for p in owners} == set(NAMES)
    mine = [p["group"] for p in owners if p["owner"] == "p1"]
    moved = http.post("/v1/queries/steered/move", json={"groups": mine, "to": "p2"})
    assert moved.status_code == 202, moved.text
    cluster.until("move-ended", "steered")
    after = http.get("/v1/queries/steered/partitions").json()["partitions"]
    assert {p["owner"] for p in after} == {"p2"}
    for stream in ("bids", "asks"):
        assert http.post(f"/v1/streams/{stream}/batches", json=[{"k": 1, "v": ""}]).is_success
    followed = {"follow": "true", "limit": "1"}
    accept = {"Accept": "application/x-ndjson"}
    row = http.get("/v1/queries/steered/results", params=followed, headers=accept)
    assert row.json() == {"k": 1}
    assert http.post("/v1/queries/steered/close").json()["phase"] == "closing"
    cluster.until("query-closed", "steered")
    assert http.post("/v1/queries/steered/wait").json() == {"rows": 2}
    assert http.delete("/v1/queries/steered").status_code == 200
    assert http.get("/v1/queries/steered").status_code == 404


def test_what_was_accepted_is_joined_before_a_query_closes(cluster: Cluster) -> None:
    """A batch that waits for a paused query is not acknowledged, however often it is sent.

    `wait` knows of it, and closing takes it in, also while another query of the stream is paused.
    """
    http = cluster.http
    for name in ("here", "there"):
        http.post("/v1/streams", json={"name": name, "schema": COLUMNS})
    sql = "SELECT h.k, h.v AS hv, t.v AS tv FROM here h JOIN there t ON h.k = t.k"
    for query in ("kept", "beside"):
        made = http.post("/v1/queries", json={"name": query, "sql": sql, "partitions": 4})
        assert made.status_code == 201, made.text
    left = [{"k": n, "v": f"h{n}"} for n in range(20)]
    sent = http.post("/v1/streams/here/batches", json=left)
    assert sent.json()["readers"] == 2
    for query in ("kept", "beside"):
        assert http.post(f"/v1/queries/{query}/wait").json() == {"rows": 20}
        assert http.post(f"/v1/queries/{query}/pause").is_success
    right = [{"k": n % 20, "v": f"t{n}"} for n in range(50)]
    numbered = {"Dovetail-Source": "again", "Dovetail-Sequence": "1"}
    path = "/v1/streams/there/batches"
    with ThreadPoolExecutor() as pool:
        calls = [pool.submit(http.post, path, json=right, headers=numbered) for _ in range(3)]
        until_s = time.monotonic() + WAIT_S
        waited = http.post("/v1/queries/kept/wait", json={"timeout_s": 0.5})
        while waited.is_success and time.monotonic() < until_s:  # the batch is not there yet
            waited = http.post("/v1/queries/kept/wait", json={"timeout_s": 0.5})
        assert waited.status_code == 409, waited.text
        assert "not joined within" in waited.json()["message"]
        assert not any(call.done() for call in calls)
        assert http.post("/v1/queries/kept/close").is_success
        cluster.until("query-closed", "kept")
        assert not any(call.done() for call in calls)
        assert http.post("/v1/queries/beside/resume").is_success
        for call in calls:
            assert (call.result().status_code, call.result().json()["readers"]) == (200, 1)
    assert http.post("/v1/queries/beside/wait").json() == {"rows": 70}
    expected = sorted((h["k"], h["v"], t["v"]) for h in left for t in right if h["k"] == t["k"])
    for query in ("kept", "beside"):
        read = http.get(f"/v1/queries/{query}/results")
        table = pa.ipc.open_stream(read.content).read_all()
        assert sorted(tuple(r.values()) for r in table.to_pylist()) == expected, query


def test_metrics_tell_of_the_real_cluster(cluster: Cluster) -> None:
    """Under the names that dashboards are built on."""
    text = cluster.http.get("/metrics").text
    assert f'dovetail_build_info{{version="{version("dovetail")}"}} 1.0' in text
    assert 'dovetail_processors{state="alive"} 2.0' in text
    assert 'dovetail_processor_memory_limit_bytes{processor="p2"} 6.4e+07' in text


def test_a_processor_that_dies_is_told_over_rest(cluster: Cluster) -> None:
    """Its queries have failed with the cause, and what needs it is not to be reached."""
    for name in ("deals", "offers"):
        cluster.http.post("/v1/streams", json={"name": name, "schema": COLUMNS})
    sql = "SELECT d.k FROM deals d JOIN offers o ON d.k = o.k"
    made = cluster.http.post("/v1/queries", json={"name": "doomed", "sql": sql, "partitions": 4})
    assert made.status_code == 201, made.text
    cluster.processes["p2"].kill()
    died = cluster.until("processor-died")
    assert died["processor"] == "p2"
    cluster.until("query-failed", "doomed")
    waited = cluster.http.post("/v1/queries/doomed/wait")
    assert waited.status_code == 409
    assert "p2" in waited.json()["message"]
    assert cluster.http.get("/v1/queries/doomed/results").status_code == 503
    rest = cluster.http.get("/v1/queries/doomed/results?log=p1")
    assert rest.status_code == 200
