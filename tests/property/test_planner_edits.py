"""Queries with slips in them: refused, or still what DuckDB says they mean."""

from __future__ import annotations

import random
from collections.abc import Iterator

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dovetail_manager.planner import plan_query
from dovetail_proto.errors import InputError, QueryError
from kit.plan_reference import bag, run_duckdb, run_plan, warm_duckdb

SEEDS = [
    "SELECT x . k , y . v + 1 AS w FROM a_1 x JOIN b y ON x . k = y . k WHERE x . v > 0",
    "SELECT * FROM a_1 JOIN b USING ( k , s )",
    "SELECT a_1 . * , b . v AS bv FROM a_1 , b WHERE a_1 . k = b . k AND a_1 . v < b . v",
    "SELECT x . v , lower ( z . s ) AS r FROM a_1 x NATURAL JOIN b y JOIN a_1 z ON y . k = z . k",
    "SELECT CASE WHEN x . v IN ( 1 , 2 ) THEN y . s END AS c FROM b x JOIN b y ON x . k = y . k",
]
LIKELY = """
    x y z a_1 b k v s = <> < > + - * / // % AND OR NOT IS NULL ( ) , lower abs coalesce 1 2 'x' '1'
    IN LIKE || BETWEEN CASE WHEN THEN ELSE END :: BIGINT VARCHAR CAST AS ON USING JOIN CROSS NATURAL
    INNER EXCLUDE REPLACE . * "K" [ ] { } : TRUE FALSE ** ^ == DATE INTERVAL '1' DAY ~ & |
"""
UNLIKELY = """
    SELECT FROM WHERE LEFT ASOF LATERAL UNION DISTINCT GROUP BY ORDER LIMIT WITH WINDOW count ; ? $1
    #1 -> @ EXTRACT year VALUES UNNEST OVER PIVOT ! rowid current_date SEMI FULL RENAME now() -- /*
"""


@pytest.fixture(autouse=True, scope="module")
def _warm() -> Iterator[None]:
    with warm_duckdb():
        yield


def edited(sql: str, seed: int) -> str:
    """A query in which a few words were replaced, removed or put in."""
    rng = random.Random(seed)
    words = sql.split()
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(words))
        vocabulary = (LIKELY if rng.random() < 0.9 else UNLIKELY).split()
        new = [rng.choice(vocabulary) for _ in range(rng.choice([0, 1, 1, 1, 2]))]
        words[at : at + rng.choice([0, 0, 1, 1, 1, 2])] = new
        words = words or ["SELECT"]
    return " ".join(words)


@settings(
    max_examples=300,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(st.sampled_from(SEEDS), st.integers(0, 2**32 - 1))
def test_whatever_is_written_is_refused_or_means_what_duckdb_says(sql: str, seed: int) -> None:
    """No text is planned to another meaning, and none fails otherwise than by a QueryError."""
    sql = edited(sql, seed)
    streams = {
        "a_1": pa.table({"k": [1, 2, 2, None], "v": [1, 2, 3, 4], "s": ["a", "B", None, "1"]}),
        "b": pa.table({"K": [2, 1, 2, None], "v": [0, 2, 5, 4], "s": ["a", "B", None, "2"]}),
    }
    try:
        schemas = {name: table.schema for name, table in streams.items()}
        plan = plan_query(sql, schemas, name="edited", partitions=7)
    except QueryError:
        return
    try:
        results = run_plan(plan, streams)
    except InputError:
        with pytest.raises(duckdb.Error):
            run_duckdb(sql, streams)
        return
    expected = run_duckdb(sql, streams)
    assert results.schema.names == expected.schema.names
    assert bag(results) == bag(expected)
