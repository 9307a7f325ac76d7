"""How the cost of spilling grows: with partitions, with pushes, with inputs, and at a hot key.

Each curve doubles or more one thing and leaves the rows as they are, so its slope is the power that
the cost grows with: 0 is free, 1 is in proportion. Processor seconds are those of the whole command
less those of a join of one row: they say the same on a busy machine.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dovetail.generator import RangeWorkload, UniformWorkload
from dovetail_bench.commands import Files
from dovetail_bench.measure import Measured
from dovetail_bench.report import Report, parse_flags

HEADROOM_BYTES = 32 << 20
"""How far a process with a limit below 64 MB may be beyond it, a quarter and the empty process."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is measured."""

    rows: int  # of each of W2's three streams
    partitions: tuple[int, ...]
    partitions_bytes: int  # memory limit of that curve: the most partitions need the most
    state_over_limit: tuple[int, ...]
    inputs: tuple[int, ...]
    inputs_rows: int  # of each stream
    hot_rows: int  # of two streams, all of one key
    hot_limits_mb: tuple[int, ...]


SMALL = Sizes(300_000, (300, 3_000), 56 * 10**6, (4, 8), (2, 8), 100_000, 2_000, (8, 64))
FULL = Sizes(
    5_000_000, (300, 3_000, 30_000), 450 * 10**6, (4, 16, 64), (2, 4, 8, 16), 200_000, 4_000,
    (8, 16, 64, 1_000),
)  # fmt: skip


def main() -> None:
    """All curves, Parquet to Parquet; the hot key's results are only counted."""
    flags = parse_flags(__doc__ or "")
    sizes = FULL if flags.full else SMALL
    report = Report("spill_curves", "what spilling costs, as one thing grows", flags.full)
    with tempfile.TemporaryDirectory(prefix="dovetail-bench-") as folder:
        curves = _Curves(Path(folder), sizes, report)
        for curve in (curves.partitions, curves.pushes, curves.inputs, curves.hot_key):
            points = dict(curve())
            (x0, y0), (x1, y1) = min(points.items()), max(points.items())
            report.add(
                curve=f"{curve.__name__.replace('_', ' ')}: slope",
                at=f"{x0:g} … {x1:g}",
                slope=math.log(max(y1, 1e-3) / max(y0, 1e-3)) / math.log(x1 / x0),
            )
    report.finish(as_json=flags.json)


class _Curves:
    def __init__(self, folder: Path, sizes: Sizes, report: Report) -> None:
        self._folder = folder
        self._sizes = sizes
        self._report = report
        nothing = Files.write(UniformWorkload(rows=1), folder / "nothing")
        nothing.dovetail("--memory=64MB", output=True)  # whatever is made once per machine
        self._empty = nothing.dovetail("--memory=64MB", output=True)
        rows = sizes.rows
        self._w2 = Files.write(UniformWorkload(rows=rows, distinct=rows), folder / "w2")
        self._whole = self._w2.dovetail("--memory=8GB", output=True)

    def partitions(self) -> Iterator[tuple[float, float]]:
        """Processor seconds by P, under one limit."""
        limit = self._sizes.partitions_bytes
        cost = {}
        for p in self._sizes.partitions:
            found = self._w2.dovetail(f"--memory={limit}", f"--partitions={p}", output=True)
            self._same_results(found)
            cost[p] = self._add("partitions", p, found)
            yield p, cost[p]
        first, last = min(cost), max(cost)
        self._goal(f"P = {last:,} per P = {first}", cost[last] / cost[first], 1.5)

    def pushes(self) -> Iterator[tuple[float, float]]:
        """Processor seconds by the state's size over the limit."""
        state = max(self._whole.answer["peak_state_bytes"])
        seconds = {}
        for times in self._sizes.state_over_limit:
            limit = state // times
            found = self._w2.dovetail(f"--memory={limit}", output=True)
            self._same_results(found)
            yield times, self._add("pushes: state over limit", times, found)
            seconds[times] = found.answer["seconds_run"]
            above = found.peak_rss_bytes - self._empty.peak_rss_bytes
            bound = 1.25 * limit + (HEADROOM_BYTES if limit < 64 << 20 else 0)
            self._goal(f"memory above the empty process per its bound, {times} ×", above / bound, 1)
            if times == 4:
                seconds_4 = found.answer["seconds_run"] + found.answer["seconds_cleanup"]
                ratio = seconds_4 / self._whole.answer["seconds_run"]
                self._goal("run and clean-up per run with memory for all, 4 ×", ratio, 2)
        first, last = min(seconds), max(seconds)
        self._goal(f"run at {last} × per run at {first} ×", seconds[last] / seconds[first], 3)

    def inputs(self) -> Iterator[tuple[float, float]]:
        """The clean-up's seconds per input, by inputs: every key is once in each stream."""
        rows = self._sizes.inputs_rows
        for n in self._sizes.inputs:
            workload = RangeWorkload(streams=n, rows=rows, tuple_range=rows)
            files = Files.write(workload, self._folder / f"inputs-{n}")
            whole = files.dovetail("--memory=8GB", output=True)
            limit = max(whole.answer["peak_state_bytes"]) // 3
            found = files.dovetail(f"--memory={limit}", "--partitions=60", output=True)
            assert found.answer["checksum"] == whole.answer["checksum"], "other results"
            self._add("inputs", n, found)
            yield n, found.answer["seconds_cleanup"]

    def hot_key(self) -> Iterator[tuple[float, float]]:
        """Nanoseconds a result, by the limit."""
        rows = self._sizes.hot_rows
        workload = UniformWorkload(streams=2, rows=rows, distinct=1)
        files = Files.write(workload, self._folder / "hot")
        for limit_mb in self._sizes.hot_limits_mb:
            found = files.dovetail(f"--memory={limit_mb}MB", output=False)
            assert found.answer["results_run"] + found.answer["results_cleanup"] == rows**2
            seconds = self._add("hot key: limit in MB", limit_mb, found)
            yield limit_mb, 1e9 * seconds / rows**2

    def _same_results(self, found: Measured) -> None:
        assert found.answer["checksum"] == self._whole.answer["checksum"], "other results"

    def _add(self, curve: str, at: float, found: Measured) -> float:
        """A row of the report; its processor seconds."""
        answer = found.answer
        seconds = max(0.0, found.cpu_seconds - self._empty.cpu_seconds)
        results = answer["results_run"] + answer["results_cleanup"]
        self._report.add(
            curve=curve,
            at=f"{at:g}",
            pushes=answer["pushes"],
            seconds_run=answer["seconds_run"],
            seconds_clean_up=answer["seconds_cleanup"],
            processor_seconds=seconds,
            nanoseconds_per_result=1e9 * seconds / max(1, results),
            above_empty_mb=(found.peak_rss_bytes - self._empty.peak_rss_bytes) / 1e6,
        )
        return seconds

    def _goal(self, what: str, measured: float, reach: float) -> None:
        self._report.goal(what, measured, reach, at_most=True)


if __name__ == "__main__":
    main()
