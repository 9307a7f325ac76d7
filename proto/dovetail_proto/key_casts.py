"""Key values in the type that they are compared in, as DuckDB would cast them.

Casts of Arrow serve where they are exact. Three are ours, since a key that is off by one bit
matches nothing:

    decimal ─▶ float    the nearest one; Arrow divides by an inexact power of ten: 0.3 is not 0.3
    moment  ─▶ moment   infinity stays infinity; what the finer unit cannot hold is null, for it
                        equals no value that the other side can have
    boolean ─▶ decimal  by way of an integer: Arrow has no such cast

`tests/property/test_key_types.py` compares every pair of types with DuckDB, value by value.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail_proto.columns import fixed_view, validity, word_view

UNITS_PER_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}

_EXACT = {32: (1 << 24, 10), 64: (1 << 53, 22)}
"""Per bits of a float: up to which integer, and which power of ten, it has every one exactly. The
quotient of two such numbers is the nearest float: that is how IEEE 754 divides."""

_HUGE_DIGITS = 19
"""From here on DuckDB keeps a decimal in 128 bits, and casts it without a scale as a HUGEINT."""

_INFINITE = (1 << 63) - 1
"""DuckDB's infinite timestamp, of any unit; its negative is the one before all others."""

_INFINITE_DAY = (1 << 31) - 1


def as_key_type(column: pa.Array, t: pa.DataType) -> pa.Array:
    """`column` in the key's type; comparing floats with wider integers rounds, as in DuckDB."""
    given = column.type
    if given == t:
        return column
    if pa.types.is_boolean(given) and pa.types.is_decimal(t):
        column = column.cast(pa.int8())
    if pa.types.is_floating(t):
        if pa.types.is_decimal(given):
            return _decimal_to_float(column, t)
        return column.cast(t, safe=False)
    if pa.types.is_timestamp(t):
        return _moment(column, t)
    if pa.types.is_fixed_size_binary(given) and pa.types.is_binary(t):
        return column.cast(pa.large_binary()).cast(t)
    return column.cast(t)


def _decimal_to_float(column: pa.Array, t: pa.DataType) -> pa.Array:
    """The float nearest to each decimal, except where DuckDB takes another one."""
    digits, scale = column.type.precision, column.type.scale
    words = fixed_view(column.cast(pa.decimal128(digits, scale))).reshape(-1).view("<u8")
    low, high = words[0::2], words[1::2].view(np.int64)
    kind: type[Any] = np.float32 if t.bit_width == 32 else np.float64
    if scale == 0 and digits >= _HUGE_DIGITS:
        return _with_nulls_of(column, _huge_to_double(low, high).astype(kind), t)
    integers = low.view(np.int64)
    integer_max, power_max = _EXACT[t.bit_width]
    exact = (high == integers >> 63) & (integers >= -integer_max) & (integers <= integer_max)
    if scale > power_max:
        exact[:] = False
    floats = integers.astype(kind) / kind(10.0**scale)
    rest = np.flatnonzero(~exact)
    if rest.size:  # as text: exact one way, the nearest float the other way
        read = column.take(pa.array(rest)).cast(pa.string()).cast(t)
        floats[rest] = read.fill_null(0).to_numpy(zero_copy_only=False)
    return _with_nulls_of(column, floats, t)


def _huge_to_double(low: NDArray[np.uint64], high: NDArray[np.int64]) -> NDArray[np.float64]:
    """DuckDB's cast: each half is rounded by itself, small negative numbers apart."""
    small = -(~low).astype(np.float64) - 1.0
    return np.where(high == -1, small, low.astype(np.float64) + high.astype(np.float64) * 2.0**64)


def _moment(column: pa.Array, t: pa.DataType) -> pa.Array:
    """A date or timestamp in the unit of `t`, which is no coarser than its own."""
    if pa.types.is_timestamp(column.type):
        values, infinite = word_view(column, "<i8").astype(np.int64), _INFINITE
        factor = UNITS_PER_DAY[t.unit] // UNITS_PER_DAY[column.type.unit]
    else:
        days = column.cast(pa.date32())
        values, infinite = word_view(days, "<i4").astype(np.int64), _INFINITE_DAY
        factor = UNITS_PER_DAY[t.unit]
    largest = (_INFINITE - 1) // factor
    fits = (values >= -largest) & (values <= largest)
    out = np.where(fits, values, 0) * factor
    for sign in (1, -1):
        ends = values == sign * infinite
        out[ends], fits[ends] = sign * _INFINITE, True
    valid = validity(column)
    return pa.array(out, mask=~fits if valid is None else ~(fits & valid)).view(t)


def _with_nulls_of(column: pa.Array, values: NDArray[np.floating[Any]], t: pa.DataType) -> pa.Array:
    valid = validity(column)
    return pa.array(values, t, mask=None if valid is None else ~valid)
