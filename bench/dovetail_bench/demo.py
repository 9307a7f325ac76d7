"""The main job, shown: `make demo`.

Makes three streams in three formats, joins them once with memory for everything to learn how
large the state is, joins them again with a quarter of that, and has DuckDB check every result.
Ends with 1 if a single row differs.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dovetail.quantities import format_bytes, format_count
from dovetail.stream_files import write_stream
from dovetail_bench.oracle import Comparison, compare

FOLDER = Path("demo-out")
SYMBOLS = 150_000
TRADES = 900_000
QUOTES = 600_000
REVIEWS = 300_000
SEED = 2005

SQL = """\
SELECT t.symbol, t.trade_id, t.traded_at, t.price, q.venue, q.ask - q.bid AS spread,
       r.analyst, r.rating
FROM trades t
JOIN quotes q ON q.symbol = t.symbol
JOIN reviews r ON r.symbol = t.symbol
WHERE t.size >= 100 AND r.rating > 1 AND t.price BETWEEN q.bid AND q.ask
"""


def main() -> int:
    """Run the demo; 0 if Dovetail's answer is DuckDB's."""
    started = time.monotonic()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    _say("making three streams in three formats …")
    inputs = make_streams(FOLDER)
    (FOLDER / "prices.sql").write_text(SQL, encoding="utf-8")
    _say("joining them with memory for everything, to learn how large the state is …")
    whole = _run(inputs, "--output", "none", "--memory", "2GB")
    limit = max(whole["peak_state_bytes"]) // 4
    results = FOLDER / "results"
    _say(f"joining them with a quarter of that, {format_bytes(limit)} …")
    quarter = _run(inputs, "--output", str(results), "--memory", str(limit), "--cleanup", "spark")
    _say("asking DuckDB for the same join …")
    checked = compare(
        results,
        SQL,
        {
            "trades": f"'{inputs['trades']}'",
            "quotes": f"'{inputs['quotes']}'",
            "reviews": f"read_json('{inputs['reviews']}')",
        },
    )
    return _summary(whole, quarter, checked, time.monotonic() - started)


def make_streams(folder: Path) -> dict[str, Path]:
    """Trades as Parquet, quotes as CSV, reviews as JSON lines."""
    rng = np.random.default_rng(SEED)
    symbols = pa.array([f"SYM{i:06d}" for i in range(SYMBOLS)])
    middle = rng.uniform(5, 500, SYMBOLS)

    def draw(rows: int) -> tuple[np.ndarray[Any, Any], pa.Array]:
        drawn = rng.integers(0, SYMBOLS, rows)
        return drawn, symbols.take(pa.array(drawn))

    drawn, symbol = draw(TRADES)
    opening = np.datetime64("2005-06-14T09:30:00", "us")
    trades = pa.table(
        {
            "symbol": symbol,
            "trade_id": np.arange(TRADES),
            "traded_at": opening + np.sort(rng.integers(0, 23_400_000_000, TRADES)),
            "price": np.round(middle[drawn] * rng.uniform(0.97, 1.03, TRADES), 2),
            "size": rng.integers(1, 1000, TRADES),
        }
    )
    drawn, symbol = draw(QUOTES)
    half = middle[drawn] * rng.uniform(0.005, 0.03, QUOTES)
    quotes = pa.table(
        {
            "symbol": symbol,
            "venue": pa.array(["XNYS", "XNAS", "ARCX", "BATS"]).take(
                pa.array(rng.integers(0, 4, QUOTES))
            ),
            "bid": np.round(middle[drawn] - half, 2),
            "ask": np.round(middle[drawn] + half, 2),
        }
    )
    _, symbol = draw(REVIEWS)
    reviews = pa.table(
        {
            "symbol": symbol,
            "analyst": pa.array([f"analyst {i}" for i in range(40)]).take(
                pa.array(rng.integers(0, 40, REVIEWS))
            ),
            "rating": rng.integers(1, 6, REVIEWS),
        }
    )
    paths = {}
    for name, table, suffix in (
        ("trades", trades, "parquet"),
        ("quotes", quotes, "csv"),
        ("reviews", reviews, "jsonl"),
    ):
        paths[name] = folder / f"{name}.{suffix}"
        write_stream(table.to_reader(max_chunksize=1 << 16), paths[name])
    return paths


def _run(inputs: dict[str, Path], *flags: str) -> dict[str, Any]:
    """`dovetail run` as a user types it, its progress on our standard error."""
    declared = [word for name, path in inputs.items() for word in ("--input", f"{name}={path}")]
    command = ["run", str(FOLDER / "prices.sql"), *declared, "--read", "interleaved", *flags]
    _say(f"  $ dovetail {' '.join(command)}")
    done = subprocess.run(
        [sys.executable, "-m", "dovetail", *command, "--json"],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(done.returncode)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _summary(
    whole: dict[str, Any], quarter: dict[str, Any], checked: Comparison, seconds: float
) -> int:
    from rich.console import Console
    from rich.table import Table

    total = quarter["results_run"] + quarter["results_cleanup"]
    table = Table(title="\nthe same join twice", title_justify="left")
    table.add_column("")
    table.add_column("memory for everything", justify="right")
    table.add_column("a quarter of it", justify="right")
    right = _figures(quarter)
    for title, figure in _figures(whole).items():
        table.add_row(title, figure, right[title])
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 100)
    console.print(table)
    problems = []
    if not checked.equal:
        problems.append(
            f"{format_count(checked.missing)} results are missing and "
            f"{format_count(checked.surplus)} are too many"
        )
    if total != checked.rows:
        problems.append(
            f"{format_count(total)} results were reported, DuckDB has {format_count(checked.rows)}"
        )
    if whole["checksum"] != quarter["checksum"]:
        problems.append("the two runs have different checksums")
    if quarter["pushes"] == 0:
        problems.append("nothing was pushed, so nothing was shown")
    if problems:
        console.print(f"DIFFERENT from DuckDB: {'; '.join(problems)}", style="bold red")
        return 1
    console.print(
        f"EQUAL: all {format_count(checked.rows)} results are exactly DuckDB's, "
        f"each as often ({seconds:.0f} s in all; the results are in {FOLDER / 'results'})",
        style="bold green",
    )
    return 0


def _figures(report: dict[str, Any]) -> dict[str, str]:
    return {
        "memory limit": format_bytes(report["memory_limit_bytes"][0]),
        "peak state": format_bytes(report["peak_state_bytes"][0]),
        "peak of the whole process": format_bytes(report["peak_rss_bytes"][0]),
        "rows in": format_count(sum(report["rows_in"].values())),
        "pushes to disk": f"{report['pushes']} ({format_bytes(report['spilled_bytes'])})",
        "results while input arrived": format_count(report["results_run"]),
        "results by the clean-up": format_count(report["results_cleanup"]),
        "checksum": f"{report['checksum']:016x}",
        "seconds": f"{report['seconds_run']:.1f} + {report['seconds_cleanup']:.1f}",
    }


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
