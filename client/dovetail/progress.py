"""Live progress on standard error: a small panel on a terminal, sparse plain lines elsewhere.

Standard output is never touched: it belongs to results.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from dovetail.quantities import format_bytes, format_count

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live
    from rich.progress_bar import ProgressBar

    from dovetail_proto.query import QueryPlan

REDRAWS_PER_S = 8
"""Fast enough to look alive, slow enough to cost nothing."""

PLAIN_LINE_S = 5.0
"""A log file wants a line now and then, not eight a second."""


@dataclass(frozen=True, slots=True)
class RunProgress:
    """Where a run stands."""

    rows_in: list[int]
    rows_expected: list[int | None]
    results: int
    held_bytes: int
    pushes: int
    spilled_bytes: int
    waits_for: str  # why it stands still; empty if it does not


class CleanupProgress(Protocol):
    """What a clean-up tells while it works."""

    @property
    def results(self) -> int:
        """Owed combinations made so far."""

    @property
    def owed(self) -> int | None:
        """Combinations to make; nothing while they are still being counted."""

    @property
    def bytes_read(self) -> int:
        """Bytes of pushed state read in this stage."""


class Watcher:
    """Gets every report of a run and its clean-up; this one ignores them."""

    def planned(self, plan: QueryPlan) -> None:
        """The query is understood and its inputs are open."""

    def running(self, progress: RunProgress) -> None:
        """The run goes on."""

    def noted(self, line: str) -> None:
        """Something takes a while before the clean-up can go on."""

    def cleaning(self, progress: CleanupProgress) -> None:
        """The clean-up goes on."""


@contextmanager
def watch_on_stderr(memory_bytes: int) -> Iterator[Watcher]:
    """A watcher that shows what it is told on standard error for as long as the context lasts."""
    if not sys.stderr.isatty():
        yield PlainLines(memory_bytes)
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)
    with Live(console=console, refresh_per_second=REDRAWS_PER_S, transient=True) as live:
        yield Panel(memory_bytes, live)


class _Seldom:
    """Says yes at most once per `interval_s`."""

    def __init__(self, interval_s: float, clock: Callable[[], float]) -> None:
        self._interval_s = interval_s
        self._clock = clock
        self._last_s = clock()

    def due(self) -> bool:
        now = self._clock()
        if now - self._last_s < self._interval_s:
            return False
        self._last_s = now
        return True


class PlainLines(Watcher):
    """A line every few seconds, as a log file wants it."""

    def __init__(self, memory_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._memory_bytes = memory_bytes
        self._seldom = _Seldom(PLAIN_LINE_S, clock)
        self._waited = False  # when last told

    def running(self, progress: RunProgress) -> None:
        """The run goes on, or waits: that is said at once, and once."""
        waited, self._waited = self._waited, bool(progress.waits_for)
        if self._waited:
            if not waited:
                _line(f"run: waits: {progress.waits_for}")
        elif self._seldom.due():
            _line(
                f"run: rows in {format_count(sum(progress.rows_in))}{_share(progress)}, "
                f"results {format_count(progress.results)}, "
                f"memory {format_bytes(progress.held_bytes)} of "
                f"{format_bytes(self._memory_bytes)}, pushes {progress.pushes} "
                f"({format_bytes(progress.spilled_bytes)})"
            )

    def noted(self, line: str) -> None:
        """Something takes a while before the clean-up can go on."""
        _line(f"clean-up: {line}")

    def cleaning(self, progress: CleanupProgress) -> None:
        """The clean-up goes on."""
        if self._seldom.due():
            _line(f"clean-up: {_made(progress)}")


class Panel(Watcher):
    """A picture that is redrawn a few times a second, as a terminal wants it."""

    def __init__(
        self, memory_bytes: int, live: Live, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._memory_bytes = memory_bytes
        self._live = live
        self._names: list[str] = []
        self._clock = clock
        self._started_s = clock()
        self._seldom = _Seldom(1 / REDRAWS_PER_S, clock)

    def planned(self, plan: QueryPlan) -> None:
        """The query is understood and its inputs are open."""
        self._names = [i.alias for i in plan.inputs]
        self._started_s = self._clock()

    def running(self, progress: RunProgress) -> None:
        """The run goes on."""
        if self._seldom.due():
            self._live.update(self._picture(progress))

    def noted(self, line: str) -> None:
        """Something takes a while before the clean-up can go on."""
        self._live.update(f"clean-up: {line} …")

    def cleaning(self, progress: CleanupProgress) -> None:
        """The clean-up goes on."""
        from rich.table import Table

        if self._seldom.due():
            grid = Table.grid(padding=(0, 2))
            grid.add_row("clean-up", _bar(progress.results, progress.owed), _made(progress))
            self._live.update(grid)

    def _picture(self, progress: RunProgress) -> Group:
        from rich.console import Group
        from rich.table import Table

        grid = Table.grid(padding=(0, 2))
        for name, rows, expected in zip(
            self._names, progress.rows_in, progress.rows_expected, strict=True
        ):
            grid.add_row(name, _bar(rows, expected), f"{format_count(rows)} rows in")
        grid.add_row(
            "memory",
            _bar(progress.held_bytes, self._memory_bytes),
            f"{format_bytes(progress.held_bytes)} of {format_bytes(self._memory_bytes)}",
        )
        elapsed = self._clock() - self._started_s
        facts = (
            f"results out {format_count(progress.results)}   pushes {progress.pushes} "
            f"({format_bytes(progress.spilled_bytes)})   {elapsed:.0f} s"
        )
        return Group(grid, facts, *([f"waits: {why}"] if (why := progress.waits_for) else []))


def _bar(done: int, total: int | None) -> ProgressBar:
    from rich.progress_bar import ProgressBar

    return ProgressBar(total=total or None, completed=done, width=40, pulse=not total)


def _made(progress: CleanupProgress) -> str:
    if not progress.owed:
        return f"counting what is owed, {format_bytes(progress.bytes_read)} read"
    return f"{format_count(progress.results)} of {format_count(progress.owed)} owed combinations"


def _share(progress: RunProgress) -> str:
    expected = [e for e in progress.rows_expected if e is not None]
    if len(expected) < len(progress.rows_expected) or not sum(expected):
        return ""
    return f" ({100 * sum(progress.rows_in) / sum(expected):.0f} %)"


def _line(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
