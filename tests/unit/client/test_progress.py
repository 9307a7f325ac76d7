"""Progress: sparse lines for a log, a picture for a terminal, and nothing on standard output."""

from __future__ import annotations

import io
from dataclasses import dataclass, field

import pytest
from rich.console import Console
from rich.live import Live

from dovetail.generator import UniformWorkload
from dovetail.progress import PLAIN_LINE_S, Panel, PlainLines
from dovetail_bench.kernel_join import join_plan

PLAN = join_plan(UniformWorkload())


@dataclass
class Clock:
    """Time that passes when told to."""

    now: float = 100.0

    def __call__(self) -> float:
        """The time."""
        return self.now


@dataclass
class Told:
    """What an engine would tell."""

    rows_in: list[int] = field(default_factory=lambda: [1000, 2000, 3000])
    rows_expected: list[int | None] = field(default_factory=lambda: [4000, 4000, 4000])
    results: int = 12345
    held_bytes: int = 40_000_000
    pushes: int = 3
    spilled_bytes: int = 90_000_000
    waits_for: str = ""


@dataclass
class Cleaning:
    """What a clean-up would tell."""

    owed: int
    results: int = 777
    bytes_read: int = 5_000_000


def test_a_log_gets_a_line_every_few_seconds_and_no_more(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """However often the engine reports."""
    clock = Clock()
    lines = PlainLines(64_000_000, clock)
    for _ in range(25):
        clock.now += PLAIN_LINE_S / 10
        lines.running(Told())
    told = capsys.readouterr()
    assert told.out == ""
    line = "run: rows in 6,000 (50 %), results 12,345, memory 40.0 MB of 64.0 MB, pushes 3"
    assert told.err.splitlines() == [f"{line} (90.0 MB)"] * 2


def test_a_stream_of_unknown_length_has_no_percentage(capsys: pytest.CaptureFixture[str]) -> None:
    """Text files do not say how many rows they hold."""
    clock = Clock()
    lines = PlainLines(64_000_000, clock)
    clock.now += PLAIN_LINE_S
    lines.running(Told(rows_expected=[4000, None, 4000]))
    assert "rows in 6,000, results" in capsys.readouterr().err


def test_a_terminal_sees_rows_memory_pushes_and_the_clean_up() -> None:
    """Each input with its alias."""
    clock = Clock()
    console = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=100)
    with Live(console=console, auto_refresh=False) as live:
        panel = Panel(64_000_000, live, clock)
        panel.planned(PLAN)
        clock.now += 7
        panel.running(Told(rows_expected=[4000, None, 4000]))
        live.refresh()
        clock.now += 1
        panel.cleaning(Cleaning(owed=0))
        live.refresh()
        clock.now += 1
        panel.cleaning(Cleaning(owed=9_999))
        live.refresh()
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    for words in ("s0", "1,000 rows in", "40.0 MB of 64.0 MB", "results out 12,345", "7 s"):
        assert words in text
    for words in ("counting what is owed, 5.0 MB read", "777 of 9,999 owed combinations"):
        assert words in text


def test_a_run_that_waits_says_so_at_once_and_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever reads the log can make room; when there is some, the lines go on."""
    clock = Clock()
    lines = PlainLines(64_000_000, clock)
    for _ in range(25):
        clock.now += PLAIN_LINE_S / 10
        lines.running(Told(waits_for="the disk is full"))
    assert capsys.readouterr().err == "run: waits: the disk is full\n"
    clock.now += PLAIN_LINE_S
    lines.running(Told())
    assert "rows in" in capsys.readouterr().err
    lines.running(Told(waits_for="it is full again"))
    assert "it is full again" in capsys.readouterr().err
    screen = io.StringIO()
    console = Console(file=screen, width=100, force_terminal=True)
    with Live(console=console, transient=True, refresh_per_second=1) as live:
        panel = Panel(64_000_000, live, clock)
        panel.planned(PLAN)
        clock.now += 1
        panel.running(Told(waits_for="the disk is full"))
        live.refresh()
    assert "waits: the disk is full" in screen.getvalue()
