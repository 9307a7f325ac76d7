"""Two checkouts by turns: what a change costs or gains, on a machine that others use as well.

    python -m dovetail_bench.alternate ../before/.venv/bin/python .venv/bin/python --full
    python -m dovetail_bench.alternate OLD NEW --only "w1 counted" --rounds 9

Each case is run by the first checkout, then by the second, and so on; the next round begins with
the second. The table has medians and before / after: 1.1 is a tenth faster, 0.9 a tenth slower.
`cpu` is what the processes used, user and system: where others keep the cores busy, judge by it.
For `dovetail run` it is that of the whole process; `work` is less what a run of one row takes
(`start`), median less median: where `cpu` would hide what a run itself costs.

Both need nothing but `dovetail run` and what `alternate_case` uses: an old checkout has them, too.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dovetail.generator import UniformWorkload
from dovetail_bench import text_workload, workloads
from dovetail_bench.commands import Files
from dovetail_bench.measure import run_command
from dovetail_bench.report import Report

REACH = 0.95
"""What is lost in a change that is not about speed must be less than a twentieth."""

SMALL_SCALE = 0.1
CASE_PROGRAM = Path(__file__).with_name("alternate_case.py")
LONG_ROWS = 9_000_000
TEXT_SCALE = 1 / 3
STATE_BYTES = 402_000_000
"""Of W2 at full size (docs/benchmarks.md), of which a limit of a quarter is taken."""

RUNS = {
    # case: (data, what is written, share of the state that memory holds; 0 is all and more)
    "start": ("one", True, 0.0),
    "w1 to Parquet": ("w1", True, 0.0),
    "w1 counted": ("w1", False, 0.0),
    "w2 to Parquet": ("w2", True, 0.0),
    "w2 counted": ("w2", False, 0.0),
    "w3 to Parquet": ("w3", True, 0.0),
    "w2, state 4 x the limit": ("w2", True, 0.25),
}
OTHERS = {
    # case: (what `alternate_case` does, data)
    "kernel w1": ("kernel", "w1"),
    "kernel w2": ("kernel", "w2"),
    "cluster w1": ("cluster", "w1"),
    "cluster w2": ("cluster", "w2"),
    "moves": ("moves", "long"),
}


@dataclass(frozen=True, slots=True)
class Data:
    """The files of all cases, written once and read by both."""

    folder: Path
    scale: float

    def of(self, name: str) -> Path:
        """The folder with a case's streams and query, written when it is first asked for."""
        place = self.folder / name
        if (place / "query.sql").exists():
            return place
        place.mkdir(parents=True, exist_ok=True)
        if name == "w3":
            text_workload.write(place, TEXT_SCALE * self.scale)
        elif name == "long":
            rows = int(LONG_ROWS * self.scale)
            Files.write(UniformWorkload(rows=rows, distinct=rows), place)
        elif name == "one":
            Files.write(UniformWorkload(rows=1), place)
        else:
            Files.write({"w1": workloads.w1, "w2": workloads.w2}[name](self.scale), place)
        return place


def measure(python: str, case: str, data: Data) -> dict[str, Any]:
    """A case by one checkout: seconds, CPU seconds, and what else it tells."""
    if case in OTHERS:
        kind, name = OTHERS[case]
        command = [python, "-P", str(CASE_PROGRAM), kind, name, str(data.scale)]
        return run_command([*command, str(data.of(name)) if kind != "kernel" else ""]).answer
    name, output, share = RUNS[case]
    place, results = data.of(name), data.folder / "results"
    limit = int(STATE_BYTES * data.scale * share) or 8 * 10**9
    streams = [f"--input={p.stem}={p}" for p in sorted(place.glob("*.parquet"))]
    to = f"--output={results if output else 'none'}"
    command = [python, "-m", "dovetail", "run", str(place / "query.sql"), *streams, to]
    shutil.rmtree(results, ignore_errors=True)  # of one that was killed
    try:
        found = run_command([*command, "--cleanup=local", f"--memory={limit}", "--json"])
    finally:
        shutil.rmtree(results, ignore_errors=True)
    if found.exit_code:
        raise RuntimeError(found.errors)
    told = found.answer
    return {
        "seconds": found.wall_seconds
        if case == "start"
        else told["seconds_run"] + told["seconds_cleanup"],
        "cpu_seconds": found.cpu_seconds,
        "results": told["results_run"] + told["results_cleanup"],
        "peak_rss_mb": found.peak_rss_bytes / 1e6,
    }


def main() -> None:
    """Alternate, then state medians and ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", help="the Python of one checkout")
    parser.add_argument("after", help="the Python of the other")
    parser.add_argument("--only", action="append", choices=[*RUNS, *OTHERS], help="these cases")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each checkout")
    parser.add_argument("--full", action="store_true", help="the sizes of docs/benchmarks.md")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--folder", type=Path, help="keep the data here, for the next time")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dovetail-bench-") as temporary:
        scale = 1.0 if flags.full else SMALL_SCALE
        data = Data((flags.folder or Path(temporary)) / f"{scale:g}", scale)
        report = Report("alternate", "two checkouts by turns", flags.full)
        cases = dict.fromkeys(["start", *(flags.only or [*RUNS, *OTHERS])])
        starts = [0.0, 0.0]
        for case in cases:
            found = _alternated([flags.before, flags.after], case, data, flags.rounds)
            _state(report, case, found, starts if case in RUNS else [0.0, 0.0])
            if case == "start":
                starts = [_median(runs, "cpu_seconds") for runs in found]
    report.finish(as_json=flags.json)


def _alternated(
    pythons: list[str], case: str, data: Data, rounds: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    found: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
    for number in range(rounds):
        for i in (0, 1) if number % 2 == 0 else (1, 0):
            found[i].append(measure(pythons[i], case, data))
    results = {run["results"] for runs in found for run in runs}
    if len(results) > 1:
        raise RuntimeError(f"{case}: the checkouts differ in results: {sorted(results)}")
    print(f"{case}: {found}", file=sys.stderr, flush=True)
    return found


def _state(
    report: Report,
    case: str,
    found: tuple[list[dict[str, Any]], list[dict[str, Any]]],
    starts: list[float],
) -> None:
    seconds = [_median(runs, "seconds") for runs in found]
    cpu = [_median(runs, "cpu_seconds") for runs in found]
    report.add(
        case=case,
        results=found[0][0]["results"],
        seconds_before=seconds[0],
        seconds_after=seconds[1],
        seconds_ratio=seconds[0] / seconds[1],
        cpu_before=cpu[0],
        cpu_after=cpu[1],
        cpu_ratio=cpu[0] / cpu[1],
        work_ratio=(cpu[0] - starts[0]) / (cpu[1] - starts[1]),
        **{
            f"{key}_{when}": _median(runs, key)
            for key in ("held_p50_ms", "held_p99_ms")
            for when, runs in zip(("before", "after"), found, strict=True)
            if all(key in run for run in runs)
        },
    )
    report.goal(f"{case}: CPU, before / after", cpu[0] / cpu[1], REACH)


def _median(runs: list[dict[str, Any]], key: str) -> float:
    return float(statistics.median(run[key] for run in runs))


if __name__ == "__main__":
    main()
