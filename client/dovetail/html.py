"""Small tables for notebooks: what `_repr_html_` of clusters, streams and queries shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape


def facts(title: str, rows: Mapping[str, object]) -> str:
    """A title and one line per fact."""
    lines = "".join(
        f"<tr><th style='text-align:left'>{_text(k)}</th>"
        f"<td style='text-align:left'>{_text(v)}</td></tr>"
        for k, v in rows.items()
    )
    return f"<b>{_text(title)}</b><table>{lines}</table>"


def grid(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table with a head."""
    head = "".join(f"<th>{_text(c)}</th>" for c in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _text(value: object) -> str:
    return escape(str(value))
