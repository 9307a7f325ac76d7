"""How long a command takes from its start to its end when there is next to nothing to do.

The median of several runs: a start is too short for the best to say much. `python -c pass` beside
them shows what the machine makes of the shortest program.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dovetail_bench.report import Report, parse_flags

RUNS_SMALL, RUNS_FULL = 5, 15
START_S_MAX = 1.0


def main() -> None:
    """A two-row join, its plan, a refusal, help, and a Python that does nothing."""
    flags = parse_flags(__doc__ or "")
    report = Report("startup", "from command to end", flags.full)
    with tempfile.TemporaryDirectory(prefix="dovetail-bench-") as name:
        folder = Path(name)
        for stream in ("a", "b"):
            pq.write_table(pa.table({"k": [1, 2], stream: [10, 20]}), folder / f"{stream}.parquet")
        sql = "SELECT a.k, a.a, b.b FROM a JOIN b USING (k)"
        files = ["--input=a=a.parquet", "--input=b=b.parquet"]
        program = [sys.executable, "-m", "dovetail"]
        commands = {
            "two-row join": [*program, "run", sql, *files, "--output=results"],
            "its plan": [*program, "run", sql, *files, "--explain"],
            "a refusal": [*program, "run", sql.replace("b.b", "b.gone"), *files, "--output=none"],
            "help": [*program, "--help"],
            "python -c pass": [sys.executable, "-c", "pass"],
        }
        taken: dict[str, list[tuple[float, float]]] = {what: [] for what in commands}
        for number in range(1 + (RUNS_FULL if flags.full else RUNS_SMALL)):
            for what, command in commands.items():
                used = _used([w.replace("=results", f"=results{number}") for w in command], folder)
                if number:  # the first one finds cold caches, and may compile
                    taken[what].append(used)
    for what, used_by in taken.items():
        seconds = [wall for wall, _ in used_by]
        report.add(
            command=what,
            seconds=statistics.median(seconds),
            seconds_min=min(seconds),
            seconds_max=max(seconds),
            cpu_seconds=statistics.median(cpu for _, cpu in used_by),
        )
    join = statistics.median(wall for wall, _ in taken["two-row join"])
    report.goal("two-row join, from command to end", join, START_S_MAX, at_most=True)
    report.finish(as_json=flags.json)


def _used(command: list[str], folder: Path) -> tuple[float, float]:
    """Seconds from start to end, and of processor time."""
    began_s, cpu_s = time.perf_counter(), _children_cpu_s()
    subprocess.run(command, cwd=folder, capture_output=True, check=False)
    return time.perf_counter() - began_s, _children_cpu_s() - cpu_s


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
