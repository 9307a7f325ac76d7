"""Tables for people that never cut a cell: whatever is shown can be read to its end.

A terminal's width is kept to. Long text wraps between words; where even that does not fit, columns
that the caller can spare go, and at last each row becomes a block of lines, a title and a value
each. What is piped has no width (unless COLUMNS says one): a row is a line then, as tools like it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

UNBROKEN_CHARS = 24
"""Cells that are shorter stay on one line: ids, names, sizes."""

WRAPPED_CHARS_MIN = 20
"""Longer text wraps to this width at most; narrower, it is a tower of words."""

PIPED_CHARS = 10_000
"""A width that no row of ours has."""

PADDING_CHARS = 3
"""What Rich puts around the text of a column; once more around all of them."""


def console() -> Console:
    """Where commands show things to people."""
    from rich.console import Console

    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(highlight=False, markup=False, width=PIPED_CHARS if piped else None)


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    empty: str = "nothing",
    spare: Sequence[str] = (),
) -> None:
    """Show a table, numbers to the right; `spare` are columns that go first if it is too wide."""
    listed = [list(row) for row in rows]
    out = console()
    out.print(table(columns, listed, out.width, spare=spare) if listed else empty)


def print_facts(facts: Mapping[str, str]) -> None:
    """A title and its text on each line, whatever its length: terminals wrap by themselves."""
    wide, out = max(map(len, facts)) + 2, console()
    for title, text in facts.items():
        out.print(f"{title:<{wide}}{text}", soft_wrap=True)


def table(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    width: int,
    *,
    spare: Sequence[str] = (),
) -> Any:
    """The same for whoever composes several: something that Rich prints within `width`."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    cells = [[_cell(value) for value in row] for row in rows]
    needs = [_need(title, [row[n] for row in cells]) for n, title in enumerate(columns)]
    shown = _shown(columns, needs, width, spare)
    if shown is None:
        return Text(_blocks(columns, cells))
    made = Table(box=box.SIMPLE_HEAD)
    for n in shown:
        numeric = bool(rows) and all(isinstance(row[n], int | float) for row in rows)
        made.add_column(
            columns[n],
            justify="right" if numeric else "left",
            overflow="fold",
            min_width=needs[n],
            no_wrap=all(len(row[n]) <= UNBROKEN_CHARS for row in cells),
        )
    for row in cells:
        made.add_row(*(Text(row[n]) for n in shown))
    return made


def _need(title: str, cells: Sequence[str]) -> int:
    """The least width at which a column can be read."""
    longest = max(map(len, cells), default=0)
    if longest > UNBROKEN_CHARS:
        words = [len(word) for cell in cells for word in cell.split()]
        longest = max(WRAPPED_CHARS_MIN, *words)
    return max(len(title), longest)


def _shown(
    columns: Sequence[str], needs: Sequence[int], width: int, spare: Sequence[str]
) -> list[int] | None:
    """Which columns fit, all but as few spare ones as possible; None if they do not fit at all."""
    for dropped in range(len(spare) + 1):
        kept = [n for n, title in enumerate(columns) if title not in spare[:dropped]]
        if sum(needs[n] + PADDING_CHARS for n in kept) + PADDING_CHARS <= width:
            return kept
    return None


def _blocks(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    wide = max(map(len, columns)) + 2
    rows = (
        "\n".join(f"{t:<{wide}}{c}" for t, c in zip(columns, row, strict=True)) for row in cells
    )
    return "\n\n".join(rows)


def _cell(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"
