"""How long things take when there is next to nothing to do: one row, one call, no row at all.

    results  one row to each of three streams of an idle cluster, one after the other, each
             acknowledged; from before the first, and from before the last, to the result in a
             follower's hands
    sends    acknowledged sends of one row: by one client, by many, and pipelined (a reader of
             one-row batches)
    calls    a small REST call on a kept connection
    idle     CPU that fifty queries take while nothing is sent, beside that of one query

A machine that does other things besides shows their times as well: compare in one minute.
"""

from __future__ import annotations

import http.client
import json
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import psutil
import pyarrow as pa

from dovetail.local_cluster import LocalCluster
from dovetail.queries import Query
from dovetail_bench.report import Report, parse_flags

STREAMS = ("a", "b", "c")
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.float64())])
SQL = "SELECT a.k, a.v, b.v AS w, c.v AS x FROM a JOIN b ON a.k = b.k JOIN c ON a.k = c.k"
MEMORY_BYTES = 2_000_000_000
PROCESSORS = 2
CLIENTS = 16
IDLE_QUERIES = 50
WARM = 10
"""Tries that are not counted."""

PAUSE_S = 0.02
"""Between two tries, so that each meets an idle cluster."""

RESULT_S_MAX = 30.0
LOOK_S = 0.5


def main() -> None:
    """All of them, with few tries or many."""
    flags = parse_flags(__doc__ or "")
    tries = 1000 if flags.full else 200
    report = Report("latency", "what one row, one call and nothing at all take", flags.full)
    with LocalCluster(PROCESSORS, memory_bytes=MEMORY_BYTES) as local:
        for stream in STREAMS:
            local.cluster.stream(stream, SCHEMA)
        query = local.cluster.submit(SQL, name="latency")
        for way, measure in (("Python", _by_python), ("REST", _by_rest)):
            found, last = measure(local, query, tries)
            _add_times(report, f"results by {way}", found)
            _add_times(report, f"results by {way}, from the last send", last)
            _reach(report, f"result in a follower's hands, {way}", found, 5.0, 25.0)
        _sends(local, tries, report)
        _calls(local, tries, report)
        _idle(local, 10.0 if flags.full else 3.0, report)
    report.finish(as_json=flags.json)


_Latencies = tuple[list[float], list[float]]
"""Seconds to each result: from before its first row was sent, and from before its last one."""


# Results -----------------------------------------------------------------------------------------


def _by_python(local: LocalCluster, query: Query, tries: int) -> _Latencies:
    streams = [local.cluster.stream(name) for name in STREAMS]

    def send(key: int) -> float:
        for stream in streams:
            began = time.perf_counter()
            stream.send(_row(key))
        return began

    with query.results(follow=True) as results:
        keys = (key for batch in results for key in batch["k"].to_pylist())
        return _to_follower(keys, send, tries)


def _by_rest(local: LocalCluster, query: Query, tries: int) -> _Latencies:
    sender, follower = _Rest(local), _Rest(local)
    accept = {"accept": "application/x-ndjson"}
    answer = follower.begin("GET", f"/v1/queries/{query.name}/results?follow=true", headers=accept)

    def send(key: int) -> float:
        for stream in STREAMS:
            began = time.perf_counter()
            sender.send_row(stream, key)
        return began

    try:
        lines = iter(answer.readline, b"")
        return _to_follower((json.loads(line)["k"] for line in lines), send, tries)
    finally:
        sender.close()
        follower.close()


def _to_follower(keys: Iterator[int], send: Callable[[int], float], tries: int) -> _Latencies:
    """Send one key after the other; `send` tells when it began with its last row."""
    came: queue.SimpleQueue[tuple[int, float]] = queue.SimpleQueue()

    def follow() -> None:
        for key in keys:
            came.put((key, time.perf_counter()))
            if key == last:
                return

    first = time.time_ns()
    last = first + tries + WARM - 1
    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    whole, ends = [], []
    for key in range(first, last + 1):
        time.sleep(PAUSE_S)
        began = time.perf_counter()
        began_last = send(key)
        while True:
            got, at = came.get(timeout=RESULT_S_MAX)
            if got == key:
                break
        whole.append(at - began)
        ends.append(at - began_last)
    thread.join()
    return whole[WARM:], ends[WARM:]


# Sends -------------------------------------------------------------------------------------------


def _sends(local: LocalCluster, tries: int, report: Report) -> None:
    stream = local.cluster.stream("a")
    alone = [_timed(partial(stream.send, _row(k))) for k in range(tries)]
    _add_times(report, "one-row send, Python, one client", alone)
    report.goal("one-row send, p50, ms", _percentile_ms(alone, 50), 1.0, at_most=True)

    def client(number: int) -> None:
        own = local.cluster.stream("a")
        for _ in range(tries):
            own.send(_row(-number))

    with ThreadPoolExecutor(CLIENTS) as pool:
        seconds = _timed(lambda: list(pool.map(client, range(CLIENTS))))
    many = CLIENTS * tries / seconds
    report.add(what=f"one-row sends, Python, {CLIENTS} clients", per_s=many)
    rows = 100 * tries
    batches = pa.RecordBatchReader.from_batches(SCHEMA, (_row(-k) for k in range(rows)))
    pipelined = rows / _timed(lambda: stream.send(batches))
    report.add(what="one-row sends, Python, pipelined", per_s=pipelined)
    report.goal("one-row sends a second, many or pipelined", max(many, pipelined), 10_000)
    rest = _Rest(local)
    found = [_timed(partial(rest.send_row, "a", -k)) for k in range(tries)]
    rest.close()
    _add_times(report, "one-row send, REST, one client", found)


def _calls(local: LocalCluster, tries: int, report: Report) -> None:
    rest = _Rest(local)
    found = [_timed(lambda: rest.call("GET", "/v1/streams/a")) for _ in range(tries)]
    rest.close()
    _add_times(report, "REST call, kept connection", found)
    report.goal("REST call, kept connection, p50, ms", _percentile_ms(found, 50), 3.0, at_most=True)


class _Rest:
    """A kept connection."""

    def __init__(self, local: LocalCluster) -> None:
        place = urlsplit(local.url)
        self._connection = http.client.HTTPConnection(place.hostname or "", place.port)
        self._headers = {"authorization": f"Bearer {local.token}"}

    def begin(self, method: str, path: str, body: Any = None, headers: Any = None) -> Any:
        """The answer, whose body is not read yet."""
        sent = {**self._headers, **(headers or {})}
        self._connection.request(method, path, body, sent)
        answer = self._connection.getresponse()
        if answer.status >= 400:
            raise RuntimeError(f"{method} {path}: {answer.status} {answer.read()!r}")
        return answer

    def call(self, method: str, path: str, body: Any = None, headers: Any = None) -> bytes:
        """The answer's body."""
        found: bytes = self.begin(method, path, body, headers).read()
        return found

    def send_row(self, stream: str, key: int) -> None:
        """One row, as JSON."""
        row = json.dumps([{"k": key, "v": 0.5}])
        path = f"/v1/streams/{stream}/batches"
        self.call("POST", path, row, {"content-type": "application/json"})

    def close(self) -> None:
        """Hang up."""
        self._connection.close()


# Idle --------------------------------------------------------------------------------------------


def _idle(local: LocalCluster, seconds: float, report: Report) -> None:
    """Of the processors and the manager, in hundredths of a core."""
    before = _cpu_share(local, seconds)
    for number in range(IDLE_QUERIES - 1):
        local.cluster.submit(SQL, name=f"idle{number}", counting=True)
    time.sleep(LOOK_S)
    after = _cpu_share(local, seconds)
    for name, used in after.items():
        report.add(what=f"idle: {IDLE_QUERIES} queries, {name}", core_percent=used)
        report.add(what=f"idle: 1 query, {name}", core_percent=before[name])
    more = max(after[n] - before[n] for n in after if n != "manager")
    report.goal(
        f"{IDLE_QUERIES} idle queries, more of a core than one, percent", more, 0.5, at_most=True
    )


def _cpu_share(local: LocalCluster, seconds: float) -> dict[str, float]:
    processes = {name: psutil.Process(p.pid) for name, p in local.processes.items()}

    def used() -> dict[str, float]:
        return {name: sum(p.cpu_times()[:2]) for name, p in processes.items()}

    before = used()
    time.sleep(seconds)
    return {name: 100 * (now - before[name]) / seconds for name, now in used().items()}


# Parts -------------------------------------------------------------------------------------------


def _row(key: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array([key], pa.int64()), pa.array([0.5])], schema=SCHEMA)


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _percentile_ms(seconds: list[float], percent: float) -> float:
    return float(np.percentile(seconds, percent)) * 1000


def _add_times(report: Report, what: str, seconds: list[float]) -> None:
    times = {f"p{p}_ms": _percentile_ms(seconds, p) for p in (50, 90, 99)}
    report.add(what=what, tries=len(seconds), **times, per_s=1 / float(np.mean(seconds)))


def _reach(report: Report, what: str, seconds: list[float], p50: float, p99: float) -> None:
    report.goal(f"{what}, p50, ms", _percentile_ms(seconds, 50), p50, at_most=True)
    report.goal(f"{what}, p99, ms", _percentile_ms(seconds, 99), p99, at_most=True)


if __name__ == "__main__":
    main()
