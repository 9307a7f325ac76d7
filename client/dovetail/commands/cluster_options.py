"""What the verbs of a cluster share: how it is found, and how answers are shown."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from dovetail.cluster import Cluster

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="The manager's REST; else DOVETAIL_URL, else the cluster that `up` started here.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON on standard output, and nothing else.")]
UNBROKEN_CHARS = 24
"""Cells that are shorter stay on one line: ids, names, sizes."""

QueryName = Annotated[str, typer.Argument(metavar="QUERY", help="Name of a query.")]
StreamName = Annotated[str, typer.Argument(metavar="STREAM", help="Name of a stream.")]


def open_cluster(url: str | None) -> Cluster:
    """The cluster that is meant; a context manager."""
    from dovetail.connecting import connect_by

    return connect_by({"url": url})


def as_plain(value: Any) -> Any:
    """An answer as JSON: schemas as columns, numbers that JSON has no word for as null."""
    if is_dataclass(value):
        named = {f.name: getattr(value, f.name) for f in fields(value)}
        return {name: as_plain(each) for name, each in named.items()}
    if isinstance(value, bytes):
        import pyarrow as pa

        schema = pa.ipc.read_schema(pa.py_buffer(value))
        return [{"name": f.name, "type": str(f.type), "nullable": f.nullable} for f in schema]
    if isinstance(value, tuple | list):
        return [as_plain(each) for each in value]
    if isinstance(value, dict):
        return {k: as_plain(v) for k, v in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def print_json(value: Any) -> None:
    """One line of JSON."""
    print(json.dumps(as_plain(value)))


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str = "nothing"
) -> None:
    """A table for people; numbers to the right."""
    from rich.console import Console

    listed = [list(row) for row in rows]
    console = Console(highlight=False, markup=False)
    if not listed:
        console.print(empty)
        return
    console.print(table(columns, listed))


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Any:
    """The table itself, for whoever composes several."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    made = Table(box=box.SIMPLE_HEAD)
    for place, title in enumerate(columns):
        numeric = all(isinstance(row[place], int | float) for row in rows)
        whole = all(len(_cell(row[place])) <= UNBROKEN_CHARS for row in rows)
        made.add_column(
            title,
            justify="right" if numeric and rows else "left",
            overflow="fold",
            no_wrap=whole,
        )
    for row in rows:
        made.add_row(*(Text(_cell(cell)) for cell in row))
    return made


def _cell(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"
