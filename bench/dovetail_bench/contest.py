"""One contestant on one workload, in this process: prints a JSON line with its times.

    python -m dovetail_bench.contest '{"contestant": "duckdb", "workload": "w1", "repeats": 3}'

All contestants get the same Arrow tables in memory and must produce every column of every result.
`streamed` results are produced batch by batch and dropped, as a consumer that keeps up sees them;
`materialised` results are held until the last one is there.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from dovetail.generator import Workload
from dovetail_bench import workloads
from dovetail_proto.query import PARTITIONS_DEFAULT

WARM_UP_SCALE = 0.01
"""Enough rows to load every library and compiled kernel before the clock starts."""

STATE_BYTES_MAX = 8 << 30
"""More than any of the workloads needs; the slab takes memory from the system only as it fills."""

WORKLOADS: dict[str, Callable[[float], Workload]] = {
    "w1": workloads.w1,
    "w2": workloads.w2,
    "mixed": workloads.mixed_ratios,
}


@dataclass(frozen=True, slots=True)
class Spec:
    """What to run."""

    contestant: str
    workload: str
    scale: float = 1.0
    threads: int = 1
    repeats: int = 3
    materialised: bool = False
    partitions: int = PARTITIONS_DEFAULT


Outcome = tuple[int, dict[str, Any]]
"""The number of results, and what else the contestant has to tell."""


def dovetail_join(workload: Workload, tables: list[pa.Table], spec: Spec) -> Outcome:
    """Our join's state and kernels, with memory for everything; always one thread."""
    from dovetail_bench.kernel_join import join_all, join_plan

    plan = join_plan(workload, spec.partitions)
    results, held = join_all(plan, tables, state_bytes=STATE_BYTES_MAX, keep=spec.materialised)
    arrow = sum(table.nbytes for table in tables)
    return results, {
        "held_bytes_per_tuple": held / (workload.rows * workload.streams),
        "arrow_bytes_per_tuple": arrow / (workload.rows * workload.streams),
    }


def duckdb_join(workload: Workload, tables: list[pa.Table], spec: Spec) -> Outcome:
    """DuckDB's batch join over Arrow, to Arrow."""
    import duckdb

    with duckdb.connect(config={"threads": spec.threads}) as db:
        for name, table in zip(workload.names, tables, strict=True):
            db.register(name, table)
        relation = db.sql(workload.sql)
        if spec.materialised:
            return int(relation.to_arrow_table().num_rows), {}
        return sum(batch.num_rows for batch in relation.to_arrow_reader(1 << 16)), {}


def polars_join(_: Workload, tables: list[pa.Table], __: Spec) -> Outcome:
    """Polars' streaming engine; its thread count is fixed by the environment at import.

    Always materialised: the engine hands its results over as one frame.
    """
    import polars as pl

    frames = [pl.from_arrow(table).lazy() for table in tables]
    joined = frames[0]
    for i, frame in enumerate(frames[1:], 1):
        joined = joined.join(frame, on="k", suffix=f"_{i}")
    return int(joined.collect(engine="streaming").height), {}


CONTESTANTS: dict[str, Callable[[Workload, list[pa.Table], Spec], Outcome]] = {
    "dovetail": dovetail_join,
    "duckdb": duckdb_join,
    "polars": polars_join,
}


def run(spec: Spec) -> dict[str, Any]:
    """Warm up, then time `repeats` runs; the best is what the contestant can do."""
    make = WORKLOADS[spec.workload]
    join = CONTESTANTS[spec.contestant]
    small = make(WARM_UP_SCALE)
    join(small, [small.table(i) for i in range(small.streams)], spec)
    workload = make(spec.scale)
    tables = [workload.table(i) for i in range(workload.streams)]
    seconds = []
    results, told = 0, dict[str, Any]()
    for _ in range(spec.repeats):
        started = time.perf_counter()
        results, told = join(workload, tables, spec)
        seconds.append(time.perf_counter() - started)
    best = min(seconds)
    return {
        "seconds": best,
        "all_seconds": seconds,
        "tuples": workload.rows * workload.streams,
        "results": results,
        "tuples_per_s": workload.rows * workload.streams / best,
        "results_per_s": results / best,
        **told,
    }


def main() -> None:
    """Run what the first argument says."""
    print(json.dumps(run(Spec(**json.loads(sys.argv[1])))))


if __name__ == "__main__":
    main()
