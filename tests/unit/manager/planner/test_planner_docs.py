"""docs/sql.md is true: its examples are planned, and it lists the functions there are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from dovetail_manager.planner import plan_query
from dovetail_manager.planner.functions import ALLOWED
from dovetail_proto.errors import QueryError
from kit.plan_reference import warm_duckdb

PAGE = (Path(__file__).resolve().parents[4] / "docs" / "sql.md").read_text()
STREAMS = {
    "trades": pa.schema(
        [
            ("symbol", pa.string()),
            ("k", pa.int64()),
            ("price", pa.float64()),
            ("ts", pa.timestamp("us")),
            ("tags", pa.list_(pa.string())),
            ("place", pa.struct([("city", pa.string())])),
        ]
    ),
    "quotes": pa.schema(
        [
            ("symbol", pa.string()),
            ("k", pa.int64()),
            ("bid", pa.float64()),
            ("ts", pa.timestamp("us")),
        ]
    ),
    "reviews": pa.schema([("symbol", pa.string()), ("k", pa.int32()), ("stars", pa.int8())]),
}
REMEDIES = [  # what the page says to write instead
    "from_hex('ff')",
    "json_extract(t.symbol, '$.a')",
    "json_extract_string(t.symbol, '$.a')",
    "lower(t.symbol)",
    "regexp_matches(t.symbol, 'x', 'i')",
    "trim(t.symbol, 'x')",
    "substring(t.symbol, 1, 2)",
    "epoch(t.ts - q.ts)",
    "epoch(age(t.ts, q.ts))",
]


@pytest.fixture(autouse=True, scope="module")
def _warm() -> Iterator[None]:
    with warm_duckdb():
        yield


@pytest.mark.parametrize("sql", re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL))
def test_every_example_is_planned(sql: str) -> None:
    """As it stands on the page."""
    plan_query(sql, STREAMS, name="example", partitions=300)


@pytest.mark.parametrize("expression", REMEDIES)
def test_what_to_write_instead_is_planned(expression: str) -> None:
    """A remedy that is refused in turn would be none."""
    sql = f"SELECT {expression} AS r FROM trades t JOIN quotes q USING (symbol)"
    plan_query(sql, STREAMS, name="remedy", partitions=300)


def test_the_page_lists_every_function() -> None:
    """Neither more nor fewer than may be called; age() only with two arguments."""
    listed = re.search(r"<!-- functions -->(.*)<!-- /functions -->", PAGE, re.DOTALL)
    assert listed is not None
    assert set(re.findall(r"`(\w+)`", listed[1])) == ALLOWED | {"age"}


REFUSED = [
    "t.symbol ~* 'x'",
    "trim(both 'x' from t.symbol)",
    "substring(t.symbol from 1 for 2)",
    "x'ff'",
    "'a' 'b'",
    "getvariable('x')",
    "today()",
]


@pytest.mark.parametrize("expression", REFUSED)
def test_what_the_page_calls_refused_is_refused(expression: str) -> None:
    """The rest of the table is in test_planner_refusals.py."""
    sql = f"SELECT {expression} AS r FROM trades t JOIN quotes q USING (symbol)"
    with pytest.raises(QueryError):
        plan_query(sql, STREAMS, name="refused", partitions=300)
