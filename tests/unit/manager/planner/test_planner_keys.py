"""Equalities of mixed types: the key compares in one type, results are still DuckDB's."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from dovetail_manager.planner import plan_query
from dovetail_proto.errors import QueryError
from dovetail_proto.query import QueryPlan
from kit.plan_reference import bag, run_duckdb, run_plan, warm_duckdb

EXACT_FLOAT = 2**24  # FLOAT holds every integer up to here, DOUBLE up to 2**53
EXACT_DOUBLE = 2**53


@pytest.fixture(autouse=True, scope="module")
def _warm() -> Iterator[None]:
    with warm_duckdb():
        yield


def joined(sql: str, **columns: pa.Array) -> QueryPlan:
    """The plan of `sql` over streams of one column k, its results compared with DuckDB's."""
    streams = {name: pa.table({"k": column}) for name, column in columns.items()}
    plan = plan_query(sql, {n: t.schema for n, t in streams.items()}, name="q", partitions=1)
    assert bag(run_plan(plan, streams)) == bag(run_duckdb(sql, streams))
    return plan


ABC = "SELECT a.k, b.k AS bk, c.k AS ck FROM a, b, c WHERE "
INTS = pa.array([EXACT_DOUBLE, EXACT_DOUBLE + 1, 1, None], pa.int64())
DOUBLES = pa.array([float(EXACT_DOUBLE), 1.0, float("nan"), None], pa.float64())


def test_an_exact_equality_stays_exact_when_a_third_input_widens_the_key() -> None:
    """2**53 and 2**53 + 1 are one DOUBLE, but a.k = b.k was asked of integers."""
    plan = joined(ABC + "a.k = b.k AND b.k = c.k", a=INTS, b=INTS, c=DOUBLES)
    assert plan.key_types == (pa.float64(),)
    assert plan.residual_sql == '"0.k" = "1.k"'
    assert plan.inputs[0].kept.names == ["k"]


def test_no_condition_stays_where_the_key_compares_as_exactly() -> None:
    """Narrow integers fit into DOUBLE, so the class says the same as the pair."""
    small = pa.array([1, 2, None], pa.int32())
    plan = joined(ABC + "a.k = b.k AND b.k = c.k", a=small, b=small, c=DOUBLES)
    assert plan.residual_sql is None
    wide = pa.array([1, 2, EXACT_DOUBLE + 1], pa.uint64())
    plan = joined(ABC + "a.k = b.k AND b.k = c.k", a=small, b=INTS, c=wide)
    assert plan.residual_sql is None


def test_a_coarser_pair_than_the_key_is_refused() -> None:
    """2**24 + 1 equals 2**24 as FLOAT but not as DOUBLE: no key would find such a pair."""
    floats = pa.array([float(EXACT_FLOAT)], pa.float32())
    with pytest.raises(QueryError, match="another input widens the key"):
        joined(
            ABC + "a.k = b.k AND b.k = c.k",
            a=pa.array([EXACT_FLOAT + 1], pa.int64()),
            b=floats,
            c=pa.array([float(EXACT_FLOAT)], pa.float64()),
        )
    plan = joined(  # the same pair alone is compared as FLOAT, and found
        "SELECT a.k FROM a, b WHERE a.k = b.k", a=pa.array([EXACT_FLOAT + 1], pa.int64()), b=floats
    )
    assert plan.key_types == (pa.float32(),)


def test_such_a_pair_is_a_condition_where_others_make_the_key() -> None:
    """The edges that may build the class are enough to tie all inputs together."""
    ints = pa.array([EXACT_FLOAT, EXACT_FLOAT + 1, 1], pa.int64())
    floats = pa.array([float(EXACT_FLOAT), 1.0], pa.float32())
    doubles = pa.array([float(EXACT_FLOAT), float(EXACT_FLOAT + 1), 1.0], pa.float64())
    plan = joined(ABC + "a.k = b.k AND b.k = c.k AND a.k = c.k", a=ints, b=floats, c=doubles)
    assert plan.residual_sql == '"0.k" = "1.k"'


KEY_VALUES: dict[pa.DataType, list[Any]] = {
    pa.bool_(): [True, False, None],
    pa.int8(): [0, 1, -1, None],
    pa.uint8(): [0, 1, 255],
    pa.int32(): [0, 1, 255, EXACT_FLOAT + 1],
    pa.int64(): [0, 1, EXACT_FLOAT + 1, EXACT_DOUBLE, EXACT_DOUBLE + 1],
    pa.uint64(): [0, 1, EXACT_DOUBLE + 1, 2**64 - 1],
    pa.float32(): [0.0, 1.0, float(EXACT_FLOAT), 0.1, float("nan")],
    pa.float64(): [-0.0, 1.0, float(EXACT_FLOAT + 1), 0.1, float("nan"), float(EXACT_DOUBLE)],
    pa.decimal128(5, 2): [Decimal("0.10"), Decimal("1.00"), Decimal("255.00")],
    pa.decimal128(30, 10): [Decimal("0.1"), Decimal("1"), Decimal(EXACT_DOUBLE + 1)],
}


@pytest.mark.parametrize(
    "pair", list(itertools.combinations_with_replacement(KEY_VALUES, 2)), ids=str
)
def test_numbers_of_any_two_types_join_as_duckdb_compares_them(
    pair: tuple[pa.DataType, pa.DataType],
) -> None:
    """Booleans, integers, floats and decimals."""
    left, right = (pa.array(KEY_VALUES[t], t) for t in pair)
    joined("SELECT a.k, b.k AS bk FROM a JOIN b ON a.k = b.k", a=left, b=right)


def test_keys_of_three_number_types_join_as_duckdb_compares_them() -> None:
    """Every triple is planned exactly, or refused because no one key would be exact."""
    refused = 0
    for types in itertools.product(
        [pa.int64(), pa.float32(), pa.float64(), pa.decimal128(30, 10)], repeat=3
    ):
        a, b, c = (pa.array(KEY_VALUES[t], t) for t in types)
        try:
            joined(ABC + "a.k = b.k AND b.k = c.k", a=a, b=b, c=c)
        except QueryError as e:
            refused += 1
            assert "another input widens the key" in str(e)  # noqa: PT017 - one of two outcomes
    assert 0 < refused < 30
