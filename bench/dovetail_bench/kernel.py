"""The join alone on one core, W1 and W2, beside DuckDB's and Polars' batch joins.

DuckDB and Polars see all of their input before the first result; we get batches of 64 K rows of
each stream in turn and answer each at once. `streamed`: results are dropped batch by batch.
`materialised`: all are held at the end.
"""

from __future__ import annotations

import json

from dovetail_bench.measure import run_module
from dovetail_bench.report import Report, parse_flags

SMALL_SCALE = 0.2

FIELD = (
    # contestant, threads, materialised
    ("dovetail", 1, False),
    ("duckdb", 1, False),
    ("dovetail", 1, True),
    ("duckdb", 1, True),
    ("polars", 1, True),
    ("polars", 2, True),
)


def main() -> None:
    """Run every contestant on both workloads."""
    flags = parse_flags(__doc__ or "")
    report = Report("kernel", "join alone, Arrow to Arrow", flags.full)
    for workload in ("w1", "w2"):
        seconds: dict[tuple[str, int, bool], float] = {}
        for contestant, threads, materialised in FIELD:
            spec = {
                "contestant": contestant,
                "workload": workload,
                "scale": 1.0 if flags.full else SMALL_SCALE,
                "threads": threads,
                "repeats": flags.repeats,
                "materialised": materialised,
            }
            measured = run_module(
                "dovetail_bench.contest",
                [json.dumps(spec)],
                environment={"POLARS_MAX_THREADS": str(threads)},
            )
            answer = measured.answer
            seconds[contestant, threads, materialised] = answer["seconds"]
            report.add(
                workload=workload,
                contestant=contestant,
                threads=threads,
                results_are="materialised" if materialised else "streamed",
                seconds=answer["seconds"],
                mega_tuples_per_s=answer["tuples_per_s"] / 1e6,
                mega_results_per_s=answer["results_per_s"] / 1e6,
                results=answer["results"],
                peak_rss_mb=measured.peak_rss_bytes / 1e6,
            )
        reach = {"w1": 4.0, "w2": 1.0}[workload]
        for materialised in (True, False):
            how = "materialised" if materialised else "streamed"
            report.goal(
                f"{workload} against DuckDB, one thread, {how}",
                seconds["duckdb", 1, materialised] / seconds["dovetail", 1, materialised],
                reach,
            )
        report.goal(
            f"{workload} against Polars, one thread",
            seconds["polars", 1, True] / seconds["dovetail", 1, True],
            1.0,
        )
    report.finish(as_json=flags.json)


if __name__ == "__main__":
    main()
