"""How a row of one input lies in memory: fixed width, all columns together.

    word 0      next row of the same key and input, 0 = none
    word 1 …    validity, one bit per column that may be null (absent if none may)
    then        columns of 8 bytes, of other multiples of 4, text as (address, length), nested
                values as (chunk, row), and last the columns of 1, 2, … bytes

Rows, not lanes of columns: the matches of a probe are scattered over memory, and a match then
costs one cache miss instead of one per column.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail_proto.errors import QueryError

ROW_WORDS_MAX = 16 * 1024 - 2
"""A row must fit the largest page (64 KiB) beside its header."""


class Kind(Enum):
    """How a column's values are kept."""

    WORD = "word"  # 8 bytes
    HALF = "half"  # 4 bytes
    BYTES = "bytes"  # any other fixed width
    BIT = "bit"  # boolean, kept as one byte
    TEXT = "text"  # string or binary
    NESTED = "nested"  # list, struct, map: kept as Arrow
    NULL = "null"  # all null, kept nowhere


@dataclass(frozen=True, slots=True)
class Column:
    """One column's place in a row. `at` counts words, for BYTES and BIT bytes."""

    field: pa.Field
    kind: Kind
    at: int
    width: int  # bytes in the row
    valid_word: int  # word that holds its validity bit, 0 if it is never null
    valid_bit: int


@dataclass(frozen=True, slots=True)
class RowLayout:
    """The row of one input."""

    columns: tuple[Column, ...]
    row_words: int

    @property
    def has_text(self) -> bool:
        """Whether rows reach into a heap of bytes."""
        return any(c.kind is Kind.TEXT for c in self.columns)

    @property
    def nested(self) -> tuple[Column, ...]:
        """The columns kept as Arrow."""
        return tuple(c for c in self.columns if c.kind is Kind.NESTED)


@dataclass(slots=True)
class Placement:
    """Where the rows of a batch go; all arrays in group order, the order of joining."""

    order: NDArray[np.int32]  # a row's position in the batch as it arrived
    group_of: NDArray[np.int32]
    rows_at: NDArray[np.uint32]  # address, once the row has room; 0: it is not kept
    heap_at: NDArray[np.uint32]  # and where its text goes

    def kept(self, first: int, end: int) -> Placement:
        """Of rows first … end − 1 those that are kept."""
        at = first + np.flatnonzero(self.rows_at[first:end])
        return Placement(self.order[at], self.group_of[at], self.rows_at[at], self.heap_at[at])


def row_layout(schema: pa.Schema, key: Sequence[str]) -> RowLayout:
    """Lay out rows of `schema`; key columns are never null, rows with a null key never get here."""
    kinds = {field.name: _kind_of(field.type) for field in schema}
    nullable = [
        f.name
        for f in schema
        if f.nullable and f.name not in key and kinds[f.name][0] is not Kind.NULL
    ]
    valid_words = (len(nullable) + 31) // 32
    at = 1 + valid_words
    nested_at = 0
    places: dict[str, int] = {}
    for field in sorted(schema, key=lambda f: _rank(*kinds[f.name])):
        kind, width = kinds[field.name]
        if kind is Kind.NULL:
            places[field.name] = 0
        elif kind is Kind.NESTED:  # all nested columns of a row share one (chunk, row)
            if nested_at == 0:
                nested_at, at = at, at + 2
            places[field.name] = nested_at
        elif _rank(kind, width) < _RANK_BYTES:
            places[field.name] = at
            at += width // 4
        else:
            break
    byte_at = 4 * at
    for field in schema:
        kind, width = kinds[field.name]
        if _rank(kind, width) == _RANK_BYTES:
            places[field.name] = byte_at
            byte_at += width
    row_words = (byte_at + 3) // 4
    if row_words > ROW_WORDS_MAX:
        raise QueryError(
            f"a row of {4 * row_words} bytes of fixed-width columns is wider than "
            f"{4 * ROW_WORDS_MAX} bytes",
            remedy="select fewer columns",
        )
    columns = []
    for field in schema:
        kind, width = kinds[field.name]
        bit = nullable.index(field.name) if field.name in nullable else -1
        columns.append(
            Column(
                field=field,
                kind=kind,
                at=_column_at(kind, width, places[field.name]),
                width=width,
                valid_word=1 + bit // 32 if bit >= 0 else 0,
                valid_bit=bit % 32 if bit >= 0 else 0,
            )
        )
    return RowLayout(tuple(columns), row_words)


_RANK_BYTES = 4


def _rank(kind: Kind, width: int) -> int:
    if kind is Kind.WORD:
        return 0
    if kind in (Kind.HALF, Kind.BYTES, Kind.BIT) and width % 4 == 0:
        return 1
    return {Kind.TEXT: 2, Kind.NESTED: 3, Kind.NULL: 3}.get(kind, _RANK_BYTES)


def _column_at(kind: Kind, width: int, place: int) -> int:
    counted_in_words = _rank(kind, width) < _RANK_BYTES
    return 4 * place if kind is Kind.BYTES and counted_in_words else place


def _kind_of(t: pa.DataType) -> tuple[Kind, int]:
    if pa.types.is_null(t):
        return Kind.NULL, 0
    if pa.types.is_boolean(t):
        return Kind.BIT, 1
    if pa.types.is_nested(t):
        return Kind.NESTED, 8
    if _is_text(t):
        return Kind.TEXT, 8
    width = t.bit_width // 8
    return {8: Kind.WORD, 4: Kind.HALF}.get(width, Kind.BYTES), width


def _is_text(t: pa.DataType) -> bool:
    tests = ("string", "large_string", "string_view", "binary", "large_binary", "binary_view")
    return any(getattr(pa.types, f"is_{name}")(t) for name in tests)
