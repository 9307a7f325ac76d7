"""Refusals of one query: every one names the query, points into its SQL and says what to do.

`Refuse.at` takes the place as a node of the syntax tree (its first token is pointed at) or as an
offset into the text.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

import pyarrow as pa
from sqlglot import exp

from dovetail_proto.errors import QueryError


class Refuse:
    """Makes the errors of one query; `declare` says how a stream comes to be."""

    def __init__(self, name: str, sql: str, declare: str = "") -> None:
        self.name = name
        self.sql = sql
        self.declare = declare

    def at(self, place: exp.Expr | int | None, message: str, remedy: str = "") -> QueryError:
        """An error at `place`; without one, about the query as a whole."""
        offset = start_of(place) if isinstance(place, exp.Expr) else place
        line, column = (0, 0) if offset is None else self._line_column(offset)
        return QueryError(
            f"query {self.name!r}: {message}", line=line, column=column, remedy=remedy
        )

    def at_byte(self, byte: int | None, message: str, remedy: str = "") -> QueryError:
        """An error at a byte of the SQL's UTF-8 form, as DuckDB counts."""
        if byte is None:
            return self.at(None, message, remedy)
        head = self.sql.encode()[: max(byte, 0)].decode(errors="ignore")
        return self.at(len(head), message, remedy)

    def _line_column(self, offset: int) -> tuple[int, int]:
        head = self.sql[:offset]
        return head.count("\n") + 1, offset - (head.rfind("\n") + 1) + 1


def start_of(node: exp.Expr) -> int | None:
    """Where the text of `node` starts; of the nearest node around it if it bears no position."""
    around: exp.Expr | None = node
    while around is not None:
        starts = [n.meta["start"] for n in around.walk() if "start" in n.meta]
        if starts:
            return int(min(starts))
        around = around.parent
    return None


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    """A guess at the slip: `did you mean 'symbol'?`, or nothing."""
    by_fold = {c.casefold(): c for c in candidates}
    close = difflib.get_close_matches(word.casefold(), by_fold, n=1, cutoff=0.65)
    return f"did you mean {by_fold[close[0]]!r}?" if close else ""


def listed(names: Sequence[str], *, most: int = 20) -> str:
    """Names for a message: all of them, or the first `most` and how many more there are."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def type_name(t: pa.DataType) -> str:
    """An Arrow type in the words of an error message."""
    if pa.types.is_string(t) or pa.types.is_large_string(t) or pa.types.is_string_view(t):
        return "text"
    if pa.types.is_binary(t) or pa.types.is_large_binary(t) or pa.types.is_binary_view(t):
        return "binary"
    if pa.types.is_boolean(t):
        return "boolean"
    if pa.types.is_floating(t):
        return f"float{t.bit_width}"
    return str(t)
