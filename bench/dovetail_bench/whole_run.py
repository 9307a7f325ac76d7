"""The whole job on one core, Parquet to Parquet: `dovetail run` beside DuckDB with one thread.

Both are kept to one core, so that background threads cannot hide work. The clock runs from the
first row read to the last result on disk; the start of the interpreter is left out for both.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from dovetail_bench import workloads
from dovetail_bench.commands import Files
from dovetail_bench.measure import Measured
from dovetail_bench.report import Report, parse_flags

SMALL_SCALE = 0.1
READ = ("smallest-first", "interleaved")
REACH = {"w1": 1.0, "w2": 1.0, "w3": 0.5}


def main() -> None:
    """W1, W2 and W3, with memory for everything, to Parquet and only counted."""
    flags = parse_flags(__doc__ or "")
    report = Report("whole_run", "whole run on one core, from Parquet", flags.full)
    scale = 1.0 if flags.full else SMALL_SCALE
    for name, make in (("w1", workloads.w1), ("w2", workloads.w2), ("w3", workloads.w3)):
        with tempfile.TemporaryDirectory(prefix="dovetail-bench-") as folder:
            files = Files.write(make(scale), Path(folder))
            for output in (True, False):
                theirs = min(
                    (files.duckdb(output=output, one_core=True) for _ in range(flags.repeats)),
                    key=lambda m: float(m.answer["seconds"]),
                )
                _add(report, name, output, "duckdb", theirs)
                for read in READ:
                    runs = (
                        files.dovetail(
                            "--memory=4GB", f"--read={read}", output=output, one_core=True
                        )
                        for _ in range(flags.repeats)
                    )
                    ours = min(runs, key=lambda m: float(m.answer["seconds_run"]))
                    _add(report, name, output, read, ours)
                    if output:
                        report.goal(
                            f"{name} Parquet to Parquet, {read}, against DuckDB, one core",
                            theirs.answer["seconds"] / ours.answer["seconds_run"],
                            REACH[name],
                        )
    report.finish(as_json=flags.json)


def _add(report: Report, name: str, output: bool, how: str, m: Measured) -> None:
    """A row of the table; `how` is the order of reading, or who else it is."""
    seconds, results = ("seconds", "results") if how == "duckdb" else ("seconds_run", "results_run")
    report.add(
        workload=name,
        to="Parquet" if output else "nowhere",
        contestant=how if how == "duckdb" else f"dovetail, {how}",
        seconds=m.answer[seconds],
        process_seconds=m.wall_seconds,
        cpu_seconds=m.cpu_seconds,
        results=m.answer[results],
        state_mb=max(m.answer.get("peak_state_bytes", [0])) / 1e6,
        peak_rss_mb=m.peak_rss_bytes / 1e6,
    )


if __name__ == "__main__":
    main()
