"""The whole job on one core, Parquet to Parquet: `dovetail run` beside DuckDB with one thread.

Both are kept to one core, so that background threads cannot hide work. The clock runs from the
first row read to the last result on disk; the start of the interpreter is left out for both.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from dovetail_bench import workloads
from dovetail_bench.commands import Files
from dovetail_bench.report import Report, parse_flags

SMALL_SCALE = 0.1


def main() -> None:
    """W1 and W2, with memory for everything, to Parquet and only counted."""
    flags = parse_flags(__doc__ or "")
    report = Report("whole_run", "whole run on one core, from Parquet", flags.full)
    scale = 1.0 if flags.full else SMALL_SCALE
    for name, make in (("w1", workloads.w1), ("w2", workloads.w2)):
        with tempfile.TemporaryDirectory(prefix="dovetail-bench-") as folder:
            files = Files.write(make(scale), Path(folder))
            for output in (True, False):
                ours = min(
                    (
                        files.dovetail("--memory=4GB", output=output, one_core=True)
                        for _ in range(flags.repeats)
                    ),
                    key=lambda m: float(m.answer["seconds_run"]),
                )
                theirs = min(
                    (files.duckdb(output=output, one_core=True) for _ in range(flags.repeats)),
                    key=lambda m: float(m.answer["seconds"]),
                )
                to = "Parquet" if output else "nowhere"
                for contestant, measured, seconds, results in (
                    ("dovetail", ours, ours.answer["seconds_run"], ours.answer["results_run"]),
                    ("duckdb", theirs, theirs.answer["seconds"], theirs.answer["results"]),
                ):
                    report.add(
                        workload=name,
                        to=to,
                        contestant=contestant,
                        seconds=seconds,
                        process_seconds=measured.wall_seconds,
                        cpu_seconds=measured.cpu_seconds,
                        results=results,
                        peak_rss_mb=measured.peak_rss_bytes / 1e6,
                    )
                if output:
                    report.goal(
                        f"{name} Parquet to Parquet against DuckDB, one core",
                        theirs.answer["seconds"] / ours.answer["seconds_run"],
                        1.0,
                    )
    report.finish(as_json=flags.json)


if __name__ == "__main__":
    main()
