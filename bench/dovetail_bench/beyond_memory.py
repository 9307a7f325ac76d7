"""State at 1, 2, 4 and 8 times the memory limit: time, and memory seen from outside.

The first run has memory for everything; its peak state sets the limits of the others. Every run
must find the same results, by number and checksum.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from dovetail.generator import UniformWorkload
from dovetail_bench import workloads
from dovetail_bench.commands import Files
from dovetail_bench.report import Report, parse_flags

SMALL_SCALE = 0.2
TIMES = (1, 2, 4, 8)

HEADROOM_SHARE = 0.25
"""How far the process may exceed the limit and the empty process together."""

READ = "--read=interleaved"
"""All files at once: all rows are held, as they are where streams go on."""


def main() -> None:
    """W2, Parquet to Parquet."""
    flags = parse_flags(__doc__ or "")
    report = Report("beyond_memory", "W2 with state beyond the limit", flags.full)
    with tempfile.TemporaryDirectory(prefix="dovetail-bench-") as folder:
        nothing = Files.write(UniformWorkload(rows=1), Path(folder) / "nothing")
        empty = nothing.dovetail("--memory=64MB", output=True).peak_rss_bytes
        files = Files.write(workloads.w2(1.0 if flags.full else SMALL_SCALE), Path(folder) / "w2")
        whole = files.dovetail("--memory=8GB", READ, output=True)
        state = max(whole.answer["peak_state_bytes"])
        seconds_whole = whole.answer["seconds_run"]
        for times in (0, *TIMES):
            limit = 8 * 10**9 if times == 0 else state // times
            runs = [
                files.dovetail(f"--memory={limit}", READ, output=True) for _ in range(flags.repeats)
            ]
            best = min(
                runs, key=lambda m: float(m.answer["seconds_run"] + m.answer["seconds_cleanup"])
            )
            answer = best.answer
            found = answer["results_run"] + answer["results_cleanup"]
            assert found == whole.answer["results_run"], "a run lost or repeated a result"
            assert answer["checksum"] == whole.answer["checksum"], "a run found other results"
            seconds = answer["seconds_run"] + answer["seconds_cleanup"]
            if times == 0:
                seconds_whole = min(seconds_whole, seconds)
            peak = max(m.peak_rss_bytes for m in runs)
            report.add(
                state_over_limit=str(times) if times else "memory for all",
                limit_mb=limit / 1e6,
                pushes=answer["pushes"],
                spilled_mb=answer["spilled_bytes"] / 1e6,
                results_in_run=answer["results_run"],
                results_by_clean_up=answer["results_cleanup"],
                seconds_run=answer["seconds_run"],
                seconds_clean_up=answer["seconds_cleanup"],
                times_whole=seconds / seconds_whole,
                peak_rss_mb=peak / 1e6,
                above_empty_mb=(peak - empty) / 1e6,
            )
            if times >= 2:
                report.goal(
                    f"process above the empty one ({empty / 1e6:.0f} MB), per limit, {times} ×",
                    (peak - empty) / limit,
                    1 + HEADROOM_SHARE,
                    at_most=True,
                )
            if times == 4:
                report.goal(
                    "run and clean-up per run with memory for all, 4 ×",
                    seconds / seconds_whole,
                    2.0,
                    at_most=True,
                )
    report.finish(as_json=flags.json)


if __name__ == "__main__":
    main()
