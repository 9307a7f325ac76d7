"""How costs grow: one curve per thing that may grow, with the slope of every step.

A slope of 1 is linear: twice the size, twice the time. A curve is a line in `CURVES` and a function
that measures one of its points; beside it, where there is one, an opponent at the same job.
"""

from __future__ import annotations

import math
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dovetail_bench.commands import DUCKDB_PROGRAM
from dovetail_bench.measure import Measured, run_command
from dovetail_bench.report import Report, parse_flags

COLUMNS_ROWS_SMALL, COLUMNS_ROWS_FULL = 4_000, 200_000
WIDE_MEMORY = "4GB"
"""For all of the state, so that the curve is of the columns alone."""

LITTLE_ROWS_SMALL, LITTLE_ROWS_FULL = 4_000, 20_000
LITTLE_MEMORY = "64MB"
"""Batches of 1 000 columns have 80 rows then; what the process takes is what the curve is for."""


@dataclass(frozen=True, slots=True)
class Point:
    """One size of a curve."""

    seconds: float
    measured: Measured  # of the whole process
    opponent_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Curve:
    """What grows, to which sizes, and how one of them is measured."""

    name: str
    small: tuple[int, ...]
    full: tuple[int, ...]
    measure: Callable[[int, bool, Path], Point]  # of a size, full or small, in a new folder
    opponent_times_max: float | None = None  # at the last size, against the opponent
    slope_max: float | None = None  # of the last step


def columns(size: int, full: bool, folder: Path) -> Point:
    """Rows of `size` columns (integers, floats, text), joined with narrow ones, one by one."""
    rows = COLUMNS_ROWS_FULL if full else COLUMNS_ROWS_SMALL
    return _joined(size, rows, WIDE_MEMORY, folder)


def columns_little(size: int, full: bool, folder: Path) -> Point:
    """Likewise, fewer rows with little memory."""
    rows = LITTLE_ROWS_FULL if full else LITTLE_ROWS_SMALL
    return _joined(size, rows, LITTLE_MEMORY, folder)


def _joined(size: int, rows: int, memory: str, folder: Path) -> Point:
    write_wide(folder / "wide.parquet", rows, size)
    write_wide(folder / "narrow.parquet", rows, 2)
    sql = "SELECT w.*, n.c1 AS n1 FROM wide w JOIN narrow n ON w.k = n.k"
    files = [f"{name}={folder / name}.parquet" for name in ("wide", "narrow")]
    flags = [f"--input={file}" for file in files]
    flags += [f"--output={folder / 'results'}", f"--memory={memory}", "--cleanup=local"]
    ours = run_command([sys.executable, "-m", "dovetail", "run", sql, *flags, "--json"])
    shutil.rmtree(folder / "results")
    place = str(folder / "duckdb.parquet")
    theirs = run_command([sys.executable, "-c", DUCKDB_PROGRAM, sql, place, "1", *files])
    assert ours.answer["results_run"] == theirs.answer["results"] == rows
    return Point(float(ours.answer["seconds_run"]), ours, float(theirs.answer["seconds"]))


def write_wide(path: Path, rows: int, columns: int) -> None:
    """A key, each value once and in no order, and columns c1, c2, … of three kinds."""
    random = np.random.default_rng(columns)
    words = pa.array([f"word {i:05}" for i in range(50_000)])
    kinds = (
        lambda: pa.array(random.integers(0, 1 << 40, rows)),
        lambda: pa.array(random.random(rows)),
        lambda: words.take(pa.array(random.integers(0, len(words), rows))),
    )
    made = {"k": pa.array(random.permutation(rows))}
    made |= {f"c{i}": kinds[i % 3]() for i in range(1, columns)}
    pq.write_table(pa.table(made), path)


CURVES = (
    Curve("columns", (3, 30, 200), (3, 30, 200, 1000), columns, opponent_times_max=3.0),
    Curve(f"columns, {LITTLE_MEMORY}", (3, 200), (3, 200, 1000), columns_little),
)


def main() -> None:
    """All curves, one after the other."""
    flags = parse_flags(__doc__ or "")
    report = Report("growth_curves", "how costs grow", flags.full)
    for curve in CURVES:
        sizes = curve.full if flags.full else curve.small
        before: tuple[int, Point] | None = None
        for size in sizes:
            with tempfile.TemporaryDirectory(prefix="dovetail-bench-") as folder:
                point = min(
                    (_measured(curve, size, flags.full, folder) for _ in range(flags.repeats)),
                    key=lambda p: p.seconds,
                )
            slope = None if before is None else slope_between(before, (size, point))
            report.add(
                curve=curve.name,
                size=size,
                seconds=point.seconds,
                cpu_seconds=point.measured.cpu_seconds,
                peak_rss_mb=point.measured.peak_rss_bytes / 1e6,
                opponent_seconds="" if point.opponent_seconds is None else point.opponent_seconds,
                slope="" if slope is None else slope,
            )
            before = (size, point)
        if curve.opponent_times_max is not None and point.opponent_seconds is not None:
            times = point.seconds / point.opponent_seconds
            what = f"{curve.name}: {sizes[-1]} against the opponent"
            report.goal(what, times, curve.opponent_times_max, at_most=True)
        if curve.slope_max is not None and slope is not None:
            what = f"{curve.name}: slope of the last step"
            report.goal(what, slope, curve.slope_max, at_most=True)
    report.finish(as_json=flags.json)


def _measured(curve: Curve, size: int, full: bool, folder: str) -> Point:
    place = Path(tempfile.mkdtemp(dir=folder))
    try:
        return curve.measure(size, full, place)
    finally:
        shutil.rmtree(place)


def slope_between(before: tuple[int, Point], after: tuple[int, Point]) -> float:
    """The exponent with which seconds grow from one size to the next."""
    (size_0, point_0), (size_1, point_1) = before, after
    return math.log(point_1.seconds / point_0.seconds) / math.log(size_1 / size_0)


if __name__ == "__main__":
    main()
