"""One key that holds half of the rows of one stream: it may slow a run, never break its limit."""

from __future__ import annotations

import tempfile
from pathlib import Path

from dovetail.generator import HotKeyWorkload, UniformWorkload, Workload
from dovetail_bench.commands import Files
from dovetail_bench.report import Report, parse_flags

ROWS_FULL = 3_000_000
ROWS_SMALL = 300_000

READ = "--read=interleaved"
"""All files at once: all rows are held, as they are where streams go on."""


def main() -> None:
    """The same number of rows with and without a hot key, with memory and with a quarter of it."""
    flags = parse_flags(__doc__ or "")
    rows = ROWS_FULL if flags.full else ROWS_SMALL
    report = Report("hot_key", "a key with half of the rows of one stream", flags.full)
    with tempfile.TemporaryDirectory(prefix="dovetail-bench-") as folder:
        nothing = Files.write(UniformWorkload(rows=1), Path(folder) / "nothing")
        empty = nothing.dovetail("--memory=64MB", output=False).peak_rss_bytes
        for keys, workload in _workloads(rows):
            files = Files.write(workload, Path(folder) / keys)
            whole = files.dovetail("--memory=8GB", READ, output=False)
            quarter = max(whole.answer["peak_state_bytes"]) // 4
            for limit in (8 * 10**9, quarter):
                measured = files.dovetail(f"--memory={limit}", READ, output=False)
                answer = measured.answer
                assert answer["checksum"] == whole.answer["checksum"], "other results"
                seconds = answer["seconds_run"] + answer["seconds_cleanup"]
                found = answer["results_run"] + answer["results_cleanup"]
                report.add(
                    keys=keys,
                    limit_mb=limit / 1e6,
                    pushes=answer["pushes"],
                    results=found,
                    seconds_run=answer["seconds_run"],
                    seconds_clean_up=answer["seconds_cleanup"],
                    mega_tuples_per_s=3 * rows / seconds / 1e6,
                    mega_results_per_s=found / seconds / 1e6,
                    above_empty_mb=(measured.peak_rss_bytes - empty) / 1e6,
                )
                if keys == "hot" and limit == quarter:
                    report.goal(
                        "hot key, process above the empty one, per limit",
                        (measured.peak_rss_bytes - empty) / limit,
                        1.25,
                        at_most=True,
                    )
    report.finish(as_json=flags.json)


def _workloads(rows: int) -> tuple[tuple[str, Workload], ...]:
    return (
        ("uniform", UniformWorkload(rows=rows, distinct=rows)),
        ("hot", HotKeyWorkload(rows=rows, distinct=rows)),
    )


if __name__ == "__main__":
    main()
