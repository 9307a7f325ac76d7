"""What a benchmark program has in common with the others: its flags, its table, its JSON file.

A benchmark is a module with a `main()` that builds `Report` rows; `python -m dovetail_bench`
runs them all. Small sizes by default, so that all of them end in a few minutes; `--full` takes
the sizes that docs/benchmarks.md speaks of.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dovetail_bench.measure import machine

FOLDER = Path(".benchmarks")
"""Where the JSON files go, below the folder that the program is started in."""

TABLE_COLUMNS = 140
"""Width of a table that is written to a file: wide enough for every benchmark."""


@dataclass(slots=True)
class Report:
    """Rows of one benchmark, as measured, and what they were to reach."""

    name: str
    title: str
    full: bool
    rows: list[dict[str, Any]] = field(default_factory=list)
    goals: list[dict[str, Any]] = field(default_factory=list)

    def add(self, **row: Any) -> None:
        """Add a row; its keys are the table's columns."""
        self.rows.append(row)

    def goal(self, what: str, measured: float, reach: float, *, at_most: bool = False) -> None:
        """State a figure beside what it should be: at least `reach`, or at most."""
        met = measured <= reach if at_most else measured >= reach
        self.goals.append(
            {
                "what": what,
                "measured": round(measured, 3),
                "reach": f"{'≤' if at_most else '≥'} {reach:g}",
                "met": met,
            }
        )

    def finish(self, *, as_json: bool) -> None:
        """Write the JSON file, and print it or the table."""
        whole = {
            "benchmark": self.name,
            "title": self.title,
            "full": self.full,
            "machine": machine(),
            "measured_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "rows": self.rows,
            "goals": self.goals,
        }
        FOLDER.mkdir(exist_ok=True)
        name = self.name if self.full else f"{self.name}-small"
        (FOLDER / f"{name}.json").write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
        if as_json:
            print(json.dumps(whole))
        else:
            self._print_tables()

    def _print_tables(self) -> None:
        from rich import box
        from rich.console import Console
        from rich.table import Table

        console = Console() if sys.stdout.isatty() else Console(width=TABLE_COLUMNS)
        for title, rows in ((self.title, self.rows), ("to reach", self.goals)):
            if not rows:
                continue
            table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
            columns = list(dict.fromkeys(key for row in rows for key in row))
            for column in columns:
                numeric = all(isinstance(r.get(column, 0), int | float) for r in rows)
                table.add_column(column.replace("_", " "), justify="right" if numeric else "left")
            for row in rows:
                table.add_row(*(show_value(row.get(column, "")) for column in columns))
            console.print(table)


def parse_flags(description: str) -> argparse.Namespace:
    """The flags that every benchmark has: full, json, repeats."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--full", action="store_true", help="the sizes of docs/benchmarks.md")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--repeats", type=int, default=3, help="take the best of so many")
    return parser.parse_args()


def show_value(value: Any) -> str:
    """A figure as tables show it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.3g}" if abs(value) < 100 else f"{value:,.0f}"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)
