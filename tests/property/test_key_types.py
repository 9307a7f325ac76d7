"""Keys of any two types that may be joined match exactly where DuckDB says that they are equal.

Every pair of types is joined over values at which casts go wrong: the ends of each type, neighbours
of 2**24, 2**53 and 2**63, tenths and hundredths, halves between two floats, subnormal and infinite
numbers, the ends of each unit of time. Each side also gets what DuckDB makes of the other side's
values, so that there is something to match.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import pairwise
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from dovetail_proto.errors import QueryError
from dovetail_proto.key_types import common_key_type
from dovetail_proto.partitioning import canonical_keys

SEED = 20_261
EDGES = [
    (1 << e) + d for e in (7, 8, 15, 16, 24, 31, 32, 53, 62, 63, 64, 126) for d in range(-2, 4)
]
TENTHS = [n / 10 for n in range(40)] + [n / 100 for n in range(0, 300, 7)]
FLOATS = [
    *(0.0, -0.0, math.nan, math.inf, -math.inf, 5e-324, 2.2250738585072014e-308, 1e-45, 1e308),
    *(3.4028234663852886e38, 1e22, 1e23, 1e38, 9.999999999999999e37, 2.0**64, 2.0**63, -(2.0**63)),
    *(sign * x for x in (*TENTHS, *map(float, EDGES)) for sign in (1, -1)),
]
TEXTS = ["", "a", "A", "a ", "é", "e\u0301", "1", "1.0", "true", "2020-01-01", "\0", "a\0"]


def integers(t: pa.DataType) -> pa.Array:
    """The ends of the type, and what lies beside powers of two."""
    bits, signed = t.bit_width, pa.types.is_signed_integer(t)
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    some = {0, 1, 3, 10, 100, low, low + 1, high - 1, high, *EDGES, *(-e for e in EDGES)}
    return pa.array(sorted(x for x in some if low <= x <= high), t)


def decimals(t: pa.DataType) -> pa.Array:
    """Tenths, values beside powers of two, halves between two floats, and any others."""
    rng = random.Random(SEED)
    largest, one = 10**t.precision - 1, 10 ** max(t.scale, 0)
    some = {0, 1, largest, largest - 1, largest // 3, *EDGES, *(e * one for e in EDGES)}
    some |= {n * one // k for n in range(0, 300, 7) for k in (1, 10, 100) if one % k == 0}
    some |= {rng.randrange(10 ** rng.randrange(1, t.precision + 1)) for _ in range(60)}
    for _ in range(40):
        bits = rng.choice((24, 53))
        half = (rng.randrange(1 << (bits - 1), 1 << bits) * 2 + 1) << rng.randrange(60)
        some |= {half + rng.choice((-1, 0, 1)), half * one + rng.choice((-1, 0, 1))}
    with localcontext(prec=99):
        kept = [x for x in sorted({*some, *(-x for x in some)}) if abs(x) <= largest]
        return pa.array([Decimal(x).scaleb(-t.scale) for x in kept], t)


def moments(t: pa.DataType) -> pa.Array:
    """Both sides of the epoch, of a day and of a unit; the last that finer units hold; infinity."""
    if pa.types.is_date(t):
        days = [0, 1, -1, 19_000, 106_751, 106_752, -106_752, 2_932_896, 106_751_991]
        if pa.types.is_date64(t):
            return pa.array([d * 86_400_000 for d in days], pa.int64()).cast(t)
        return pa.array([*days, 2**31 - 1, 1 - 2**31], pa.int32()).cast(t)
    second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[t.unit]
    some = {0, 1, 999, 1000, 1001, 10**6, 10**9, second, 1_700_000_000 * second, 2**62, 2**63 - 1}
    some |= {86_400 * second * d for d in (1, 19_000, 106_751, 106_752)}
    some |= {(2**63 - 1) // 10**p + d for p in (3, 6, 9) for d in (0, 1)}
    kept = sorted(x for x in {*some, *(-x for x in some)} if abs(x) < 2**63)
    return pa.array(kept, pa.int64()).view(t)


def floats(t: pa.DataType) -> pa.Array:
    """See FLOATS."""
    with np.errstate(over="ignore"):
        return pa.array(np.array(FLOATS, f"f{t.bit_width // 8}"), t)


COLUMNS: list[pa.Array] = [
    *(integers(getattr(pa, f"{u}int{b}")()) for b in (8, 16, 32, 64) for u in ("", "u")),
    pa.array([True, False]),
    floats(pa.float32()),
    floats(pa.float64()),
    *(
        decimals(pa.decimal128(p, s))
        for p, s in [
            *((3, 1), (4, 4), (5, 2), (9, 4), (9, 9), (10, 2), (18, 0), (18, 3), (18, 18), (19, 0)),
            *((19, 2), (20, 1), (25, 24), (30, 10), (38, 0), (38, 2), (38, 22), (38, 37), (38, 38)),
        ]
    ),
    decimals(pa.decimal32(5, 2)),
    decimals(pa.decimal64(15, 3)),
    moments(pa.date32()),
    moments(pa.date64()),
    *(
        moments(pa.timestamp(u, z))
        for u in ("s", "ms", "us", "ns")
        for z in (None, "UTC", "Asia/Kolkata")
    ),
    *(pa.array(TEXTS, t) for t in (pa.string(), pa.large_string(), pa.string_view())),
    *(pa.array([s.encode() for s in TEXTS], t) for t in (pa.binary(), pa.large_binary())),
    pa.array([b"abcd", b"a\0\0\0", b"1.00"], pa.binary(4)),
]
UNKNOWN_TO_DUCKDB: list[pa.Array] = [
    pa.array(np.array([0.0, -0.0, 1.0, 0.1, 0.5, 65504.0, 255.0], np.float16)),
    *(decimals(t) for t in (pa.decimal256(20, 2), pa.decimal256(50, 4), pa.decimal128(5, -2))),
]


@pytest.fixture(scope="module")
def duck() -> Iterator[duckdb.DuckDBPyConnection]:
    """The oracle, its clock set to UTC as ours is."""
    with duckdb.connect(config={"threads": "1"}) as session:
        session.execute("SET TimeZone = 'UTC'")
        yield session


@pytest.mark.parametrize("left", COLUMNS, ids=lambda c: str(c.type))
def test_keys_of_two_types_match_where_duckdb_says_equal(
    left: pa.Array, duck: duckdb.DuckDBPyConnection
) -> None:
    """Row for row; what DuckDB cannot cast to the common type matches nothing."""
    accepted = 0
    for right in COLUMNS[COLUMNS_AT[id(left)] :]:
        try:
            common = common_key_type([left.type, right.type])
        except QueryError as e:
            assert "cast" in str(e)  # noqa: PT017 - one of two outcomes
            continue
        accepted += 1
        said = f"{left.type} = {right.type}"
        if pa.types.is_temporal(left.type):
            assert pairs(left, right, common) == equal_moments(left, right), said
            a, b = castable_moments(left), castable_moments(right)
        else:
            a, b = with_casts(duck, left, right), with_casts(duck, right, left)
        assert pairs(a, b, common) == theirs(duck, a, b), said
    assert accepted


COLUMNS_AT = {id(c): i for i, c in enumerate(COLUMNS)}


@pytest.mark.parametrize("left", UNKNOWN_TO_DUCKDB, ids=lambda c: str(c.type))
def test_types_that_duckdb_lacks_match_equal_numbers_or_are_refused(left: pa.Array) -> None:
    """Between exact types nothing is rounded; decimals that no float stands for are refused."""
    numbers = [c for c in COLUMNS if is_number(c.type)] + UNKNOWN_TO_DUCKDB
    for right in numbers:
        rounded = pa.types.is_floating(left.type) != pa.types.is_floating(right.type)
        if rounded and pa.types.is_decimal(left.type):
            with pytest.raises(QueryError, match="cannot be compared"):
                common_key_type([left.type, right.type])
        elif not rounded:
            try:
                common = common_key_type([left.type, right.type])
            except QueryError as e:
                assert "it would take 8" in str(e)  # noqa: PT017 - more than 76 digits
                continue
            assert pairs(left, right, common) == equal_numbers(left, right), str(right.type)


def test_a_sum_of_duckdb_is_compared_with_doubles_as_duckdb_does(
    duck: duckdb.DuckDBPyConnection,
) -> None:
    """A HUGEINT comes as a decimal of 38 digits without a scale, and is rounded in its own way."""
    huge = decimals(pa.decimal128(38, 0))
    duck.register("h", pa.table({"k": huge}))
    doubles = duck.sql("SELECT CAST(k AS HUGEINT)::DOUBLE AS d FROM h").to_arrow_table()["d"]
    found = pairs(huge, doubles.combine_chunks(), pa.float64())
    assert {(i, i) for i in range(len(huge))} <= found


def with_casts(session: duckdb.DuckDBPyConnection, own: pa.Array, other: pa.Array) -> pa.Array:
    """`own` and what DuckDB makes of `other` in its type."""
    if own.type == other.type or not is_number(own.type):
        return own
    session.register("own", pa.table({"k": own}))
    session.register("other", pa.table({"k": other}))
    [[kind]] = session.sql("SELECT typeof(k) FROM own LIMIT 1").fetchall()
    made = session.sql(f"SELECT DISTINCT TRY_CAST(k AS {kind}) AS k FROM other").to_arrow_table()
    try:
        cast = made["k"].combine_chunks().cast(own.type)
    except pa.ArrowInvalid:  # beyond the own type's range: nothing to match
        return own
    return pa.concat_arrays([own, cast])


def theirs(
    session: duckdb.DuckDBPyConnection, left: pa.Array, right: pa.Array
) -> set[tuple[int, int]]:
    """What DuckDB joins; rows that it has no cast for are left out."""
    session.register("l", pa.table({"i": range(len(left)), "k": left}))
    session.register("r", pa.table({"i": range(len(right)), "k": right}))
    try:
        return set(session.sql("SELECT l.i, r.i FROM l JOIN r ON l.k = r.k").fetchall())
    except duckdb.ConversionException:
        scale = max(c.type.scale for c in (left, right) if pa.types.is_decimal(c.type))
        castable = f"WHERE TRY_CAST(k AS DECIMAL(38, {scale})) IS NOT NULL"
        return set(
            session.sql(
                f"WITH a AS MATERIALIZED (FROM l {castable}), b AS MATERIALIZED (FROM r {castable})"
                "SELECT a.i, b.i FROM a JOIN b ON a.k = b.k"
            ).fetchall()
        )


def pairs(left: pa.Array, right: pa.Array, common: pa.DataType) -> set[tuple[int, int]]:
    """The row numbers whose canonical keys are equal."""
    return equal(keys(left, common), keys(right, common))


def keys(column: pa.Array, common: pa.DataType) -> list[Any]:
    """The canonical key of each row; one that equals nothing where there is none."""
    made = canonical_keys([column], [common])
    rows: list[Any] = made.hashes.tolist()
    if made.offsets is not None and made.data is not None:
        ends = made.offsets.tolist()
        rows = [made.data[a:b].tobytes() for a, b in pairwise(ends)]
    if made.valid is None:
        return rows
    return [key if valid else object() for key, valid in zip(rows, made.valid, strict=True)]


def equal_numbers(left: pa.Array, right: pa.Array) -> set[tuple[int, int]]:
    """Rows with the same number, counted exactly."""
    return equal([exact(v) for v in left.to_pylist()], [exact(v) for v in right.to_pylist()])


def castable_moments(column: pa.Array) -> pa.Array:
    """Those that every unit holds; one that a cast of DuckDB cannot hold ends its session.

    It reads infinite moments only where they have no zone.
    """
    infinite = not pa.types.is_timestamp(column.type) or column.type.tz is None
    kept = [
        i
        for i, v in enumerate(nanoseconds(column))
        if abs(v) < 2**63 or (infinite and math.isinf(v))
    ]
    return column.take(pa.array(kept))


def equal_moments(left: pa.Array, right: pa.Array) -> set[tuple[int, int]]:
    """Rows with the same moment, counted exactly."""
    return equal(nanoseconds(left), nanoseconds(right))


def equal(left: list[Any], right: list[Any]) -> set[tuple[int, int]]:
    """The places of equal values."""
    found: dict[Any, list[int]] = {}
    for j, value in enumerate(right):
        found.setdefault(value, []).append(j)
    return {(i, j) for i, value in enumerate(left) for j in found.get(value, ())}


def nanoseconds(column: pa.Array) -> list[int | float]:
    """Since the epoch, without a bound; DuckDB's infinite moments as infinity."""
    if pa.types.is_date(column.type):
        unit, infinite = 86_400 * 10**9, 2**31 - 1
        values = column.cast(pa.date32()).cast(pa.int32()).to_pylist()
    else:
        unit, infinite = (
            {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}[column.type.unit],
            2**63 - 1,
        )
        values = column.view(pa.int64()).to_pylist()
    return [math.copysign(math.inf, v) if abs(v) == infinite else v * unit for v in values]


def exact(value: Any) -> Any:
    """A number without rounding; NaN and the infinities as text."""
    number = value if isinstance(value, bool | int | Decimal) else float(value)
    return Fraction(number) if math.isfinite(number) else str(number)


def is_number(t: pa.DataType) -> bool:
    """Whether values of `t` are numbers."""
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean)
    return any(kind(t) for kind in kinds)
