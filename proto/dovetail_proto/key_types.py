"""The types that keys are compared in: DuckDB's widening, without a look at a value.

Apart from `partitioning`, so that planning needs no kernels: SQL that is refused is refused at
once.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from dovetail_proto.errors import QueryError

_DECIMAL128_DIGITS = 38
_DECIMAL256_DIGITS = 76
_CAST = "cast one side in the query"
_INT_DIGITS = {8: 3, 16: 5, 32: 10, 64: 20}  # decimal digits that hold any integer of that width


def is_bijective(key_types: Sequence[pa.DataType]) -> bool:
    """Whether equal hashes of such keys mean equal keys."""
    return len(key_types) == 1 and fits_word(key_types[0])


def common_key_type(types: Sequence[pa.DataType]) -> pa.DataType:
    """The type that key columns of `types` are compared in, by DuckDB's widening.

    Raises QueryError if they cannot be compared without a cast in the query.
    """
    common = _plain(types[0])
    for other in types[1:]:
        common = _widen(common, _plain(other))
    return common


def _plain(t: pa.DataType) -> pa.DataType:
    """`t` without the differences that do not matter for comparing."""
    if pa.types.is_dictionary(t):
        t = t.value_type
    if pa.types.is_string(t) or pa.types.is_large_string(t) or pa.types.is_string_view(t):
        return pa.string()
    if (
        pa.types.is_binary(t)
        or pa.types.is_large_binary(t)
        or pa.types.is_binary_view(t)
        or pa.types.is_fixed_size_binary(t)
    ):
        return pa.binary()
    if pa.types.is_float16(t):
        return pa.float32()
    if pa.types.is_date64(t):
        return pa.date32()
    if pa.types.is_timestamp(t):
        return pa.timestamp(t.unit, "UTC") if t.tz else pa.timestamp(t.unit)
    if pa.types.is_decimal(t) and t.bit_width < 128:
        return pa.decimal128(t.precision, t.scale)
    if (
        pa.types.is_integer(t)
        or pa.types.is_floating(t)
        or pa.types.is_boolean(t)
        or pa.types.is_date32(t)
        or pa.types.is_decimal(t)
    ):
        return t
    raise QueryError(
        f"a column of type {t} cannot be a join key",
        remedy="join on integer, floating-point, text, binary, boolean, date, timestamp "
        "or decimal columns, or cast it in the query",
    )


def _widen(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    if a == b:
        return a
    if _is_number(a) and _is_number(b):
        return _widen_numbers(a, b)
    if _is_moment(a) and _is_moment(b):
        zoned = {bool(t.tz) for t in (a, b) if pa.types.is_timestamp(t)}
        if len(zoned) == 1 and (not zoned.pop() or not {a, b} & {pa.date32()}):
            units = [t.unit for t in (a, b) if pa.types.is_timestamp(t)]
            unit = max(units, key=["s", "ms", "us", "ns"].index)
            return pa.timestamp(unit, next(t.tz for t in (a, b) if pa.types.is_timestamp(t)))
    raise QueryError(f"keys of types {a} and {b} cannot be compared", remedy=_CAST)


def _widen_numbers(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    if undefined := _undefined(a, b):
        raise QueryError(f"keys of types {a} and {b} cannot be compared: {undefined}", remedy=_CAST)
    if pa.types.is_floating(a) or pa.types.is_floating(b):
        return pa.float64() if pa.float64() in (a, b) else pa.float32()
    if pa.types.is_decimal(a) or pa.types.is_decimal(b):
        scale = max(_scale_of(a), _scale_of(b))
        digits = max(_integer_digits(a), _integer_digits(b)) + scale
        if digits <= _DECIMAL128_DIGITS:
            return pa.decimal128(digits, scale)
        if digits > _DECIMAL256_DIGITS:
            raise QueryError(
                f"keys of types {a} and {b} cannot be compared: it would take {digits} digits",
                remedy=_CAST,
            )
        return pa.decimal256(digits, scale)
    a, b = (pa.int8() if pa.types.is_boolean(t) else t for t in (a, b))
    if pa.types.is_signed_integer(a) == pa.types.is_signed_integer(b):
        return a if a.bit_width >= b.bit_width else b
    signed, unsigned = (a, b) if pa.types.is_signed_integer(a) else (b, a)
    bits = max(signed.bit_width, 2 * unsigned.bit_width)
    if bits > 64:
        return pa.decimal128(_DECIMAL128_DIGITS, 0)
    return {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[bits]


def _undefined(a: pa.DataType, b: pa.DataType) -> str:
    """Why SQL does not say how the two compare; empty if it does."""
    for t, other in ((a, b), (b, a)):
        if not pa.types.is_decimal(t):
            continue
        if pa.types.is_floating(other) and (t.bit_width > 128 or t.scale < 0):
            return f"to which float a {t} is rounded is not defined"
        if pa.types.is_boolean(other) and t.scale == _DECIMAL128_DIGITS:
            return "true is no value of the decimal"
    return ""


def _is_number(t: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(t)
        or pa.types.is_floating(t)
        or pa.types.is_decimal(t)
        or pa.types.is_boolean(t)
    )


def _is_moment(t: pa.DataType) -> bool:
    return bool(pa.types.is_date32(t) or pa.types.is_timestamp(t))


def _scale_of(t: pa.DataType) -> int:
    return int(t.scale) if pa.types.is_decimal(t) else 0


def _integer_digits(t: pa.DataType) -> int:
    if pa.types.is_decimal(t):
        return int(t.precision - t.scale)
    return _INT_DIGITS[8 if pa.types.is_boolean(t) else t.bit_width]


def fits_word(t: pa.DataType) -> bool:
    """Whether a key part of type `t` is at most eight bytes."""
    return not (pa.types.is_decimal(t) or pa.types.is_string(t) or pa.types.is_binary(t))
