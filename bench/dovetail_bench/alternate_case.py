"""One case of `alternate`, by the checkout whose Python runs this file: prints a JSON line.

    OLD/.venv/bin/python -P NEW/bench/dovetail_bench/alternate_case.py cluster w1 1.0 FOLDER

It imports the packages of that checkout, so it uses only what old and new have in common.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import psutil

MEMORY_BYTES = 4_000_000_000
PROCESSORS = 2
PARTITIONS = 1200
GROUPS_AT_ONCE = 10
MOVE_FROM_S, MOVE_EVERY_S = 3.0, 1.0
KERNEL_RUNS = 3
"""The first one pays for pages that are touched for the first time, at a price of the moment."""


def kernel(name: str, scale: float, _: str) -> dict[str, Any]:
    """The join alone, results dropped batch by batch; the best of some runs in one process."""
    from dovetail_bench.contest import WARM_UP_SCALE, WORKLOADS, Spec, dovetail_join

    spec, found = Spec("dovetail", name), []
    for size in (WARM_UP_SCALE, *[scale] * KERNEL_RUNS):
        workload = WORKLOADS[name](size)
        tables = [workload.table(i) for i in range(workload.streams)]
        began, used = time.perf_counter(), time.process_time()
        results, _told = dovetail_join(workload, tables, spec)
        found.append((time.process_time() - used, time.perf_counter() - began))
    cpu_s, seconds = (min(x) for x in zip(*found[1:], strict=True))
    return {"seconds": seconds, "cpu_seconds": cpu_s, "results": results}


def cluster(_: str, __: float, folder: str) -> dict[str, Any]:
    """Files to counting sinks, from submission to closed."""
    return _run(Path(folder), moving=False)


def moves(_: str, __: float, folder: str) -> dict[str, Any]:
    """The same while groups go to and fro every second."""
    return _run(Path(folder), moving=True)


def _run(folder: Path, *, moving: bool) -> dict[str, Any]:
    import pyarrow.parquet as pq

    from dovetail.local_cluster import LocalCluster

    sql = (folder / "query.sql").read_text(encoding="utf-8")
    with LocalCluster(PROCESSORS, memory_bytes=MEMORY_BYTES) as local:
        processes = [psutil.Process(p.pid) for p in local.processes.values()]
        for path in sorted(folder.glob("*.parquet")):
            local.cluster.create_stream(path.stem, pq.read_schema(path), path=path)
        began, used = time.perf_counter(), _cpu_s(processes)
        more: dict[str, Any] = {"partitions": PARTITIONS, "policy": "none"} if moving else {}
        query = local.cluster.submit(sql, name="q", counting=True, **more)
        partitions = query.partitions().partitions if moving else []
        owned = {n: [p.group for p in partitions if p.owner == n] for n in ("p1", "p2")}
        done = 0
        while not all(s.ended for s in local.cluster.streams()):
            time.sleep(0.01)
            due_s = MOVE_FROM_S + done * MOVE_EVERY_S
            if moving and time.perf_counter() - began > due_s:
                done += 1
                _move(query, owned, *(("p1", "p2") if done % 2 else ("p2", "p1")))
        status = query.close()
        seconds, cpu_s = time.perf_counter() - began, _cpu_s(processes) - used
        held = _held_ms(local.data_dir / "logs") if moving else []
    found = {"seconds": seconds, "cpu_seconds": cpu_s, "results": status.results}
    if held:
        found["groups_moved"] = len(held)
        found["held_p50_ms"] = held[len(held) // 2]
        found["held_p99_ms"] = held[len(held) * 99 // 100]
    return found


def _move(query: Any, owned: dict[str, list[int]], sender: str, receiver: str) -> None:
    from dovetail_proto.errors import Refusal

    chosen = owned[sender][:GROUPS_AT_ONCE]
    try:
        query.move(sorted(chosen), receiver)
    except Refusal:  # one is under way
        return
    owned[sender] = owned[sender][GROUPS_AT_ONCE:]
    owned[receiver] += chosen


def _held_ms(logs: Path) -> list[float]:
    """Milliseconds that groups were held back, one entry per group and split host, sorted."""
    lines = [x for log in logs.glob("p*.log") for x in log.read_text(encoding="utf-8").splitlines()]
    events = [json.loads(line) for line in lines if '"groups released"' in line]
    return sorted(1000 * float(e["held_s"]) for e in events for _ in range(int(e["groups"])))


def _cpu_s(processes: list[psutil.Process]) -> float:
    return float(sum(sum(p.cpu_times()[:2]) for p in processes))


def main() -> None:
    """What the first argument says."""
    kind, name, scale, folder = sys.argv[1:]
    case = {"kernel": kernel, "cluster": cluster, "moves": moves}[kind]
    print(json.dumps(case(name, float(scale), folder)))


if __name__ == "__main__":
    main()
