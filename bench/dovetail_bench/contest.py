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

from dovetail_bench import workloads
from dovetail_bench.workloads import Workload

WARM_UP_SCALE = 0.01
"""Enough rows to load every library and compiled kernel before the clock starts."""

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


def duckdb_join(workload: Workload, tables: list[pa.Table], spec: Spec) -> int:
    """DuckDB's batch join over Arrow, to Arrow."""
    import duckdb

    with duckdb.connect(config={"threads": spec.threads}) as db:
        for name, table in zip(workload.names, tables, strict=True):
            db.register(name, table)
        relation = db.sql(workload.sql)
        if spec.materialised:
            return int(relation.to_arrow_table().num_rows)
        return sum(batch.num_rows for batch in relation.to_arrow_reader(1 << 16))


def polars_join(workload: Workload, tables: list[pa.Table], _: Spec) -> int:
    """Polars' streaming engine; its thread count is fixed by the environment at import.

    Always materialised: the engine hands its results over as one frame.
    """
    import polars as pl

    frames = [pl.from_arrow(table).lazy() for table in tables]
    joined = frames[0]
    for i, frame in enumerate(frames[1:], 1):
        joined = joined.join(frame, on="k", suffix=f"_{i}")
    return int(joined.collect(engine="streaming").height)


CONTESTANTS: dict[str, Callable[[Workload, list[pa.Table], Spec], int]] = {
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
    results = 0
    for _ in range(spec.repeats):
        started = time.perf_counter()
        results = join(workload, tables, spec)
        seconds.append(time.perf_counter() - started)
    best = min(seconds)
    return {
        "seconds": best,
        "all_seconds": seconds,
        "tuples": workload.rows * workload.streams,
        "results": results,
        "tuples_per_s": workload.rows * workload.streams / best,
        "results_per_s": results / best,
    }


def main() -> None:
    """Run what the first argument says."""
    print(json.dumps(run(Spec(**json.loads(sys.argv[1])))))


if __name__ == "__main__":
    main()
