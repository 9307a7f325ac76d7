"""What the simulated clusters compute: streams, rows, a few queries, and DuckDB's answers to them.

Rows are wide and few, so that a state of some hundred kilobytes fills up in a few hundred of them.
Every row has a number that no other row of its stream has: a result that is lost, doubled or wrong
is seen as such.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from random import Random

import duckdb
import pyarrow as pa

from dovetail_manager.planner import plan_query
from dovetail_proto.query import QueryPlan

SCHEMA = pa.schema(
    [
        ("k", pa.int64()),
        ("t", pa.string()),
        ("n", pa.int64()),
        ("w", pa.int64()),
        ("pad", pa.string()),
    ]
)
STREAMS = ("s0", "s1", "s2")

_NUMBER = "FROM s0 x JOIN s1 y ON x.k = y.k"
_TEXT = "FROM s0 x JOIN s1 y ON x.t = y.t"

QUERIES = (
    f"SELECT x.k AS k, x.n AS a, y.n AS b, x.w + y.w AS c {_NUMBER} WHERE x.pad <> y.t",
    f"SELECT x.n AS a, y.n AS b, z.n AS c {_NUMBER} JOIN s2 z ON x.k = z.k "
    "WHERE x.w < 7 AND x.w + y.w <> z.w AND y.t <> z.pad",
    f"SELECT x.t AS t, y.t AS u, x.n AS a, y.n AS b {_TEXT} WHERE y.w > 1",
    f"SELECT z.t AS t, x.n AS a, y.n AS b, z.n AS c {_TEXT} JOIN s2 z ON x.t = z.t",
    f"SELECT x.n AS a, y.n AS b, z.n AS c {_TEXT} JOIN s2 z ON x.t = z.t WHERE x.w + y.w <> z.w",
    f"SELECT x.t AS t, x.n AS a, y.n AS b {_TEXT} AND x.k = y.k",
    "SELECT x.n AS a, y.n AS b, z.n AS c FROM s0 x JOIN s0 y ON x.t = y.t JOIN s1 z ON x.t = z.t "
    "WHERE x.w <= y.w",
)
"""By number and by text; over two and three inputs, the same stream twice; with filters below the
join and conditions above it."""


@cache
def planned(number: int, name: str, partitions: int) -> QueryPlan:
    """A query's plan; planning takes longer than a run."""
    return plan_query(
        QUERIES[number], dict.fromkeys(STREAMS, SCHEMA), name=name, partitions=partitions
    )


def rows(random: Random, count: int, first: int, *, keys: int, width: int, hot: float) -> pa.Table:
    """Rows numbered from `first` on, with `keys` keys of each kind, some of them null.

    A part of them, `hot`, has one and the same key.
    """
    picked = [1 if random.random() < hot else random.randrange(keys) for _ in range(count)]
    return pa.table(
        [
            [None if random.random() < 0.05 else k for k in picked],
            [None if random.random() < 0.05 else _text(k, width) for k in picked],
            range(first, first + count),
            [random.randrange(10) for _ in range(count)],
            ["x" * random.randrange(width // 4) for _ in range(count)],
        ],
        schema=SCHEMA,
    )


def _text(key: int, width: int) -> str:
    """Keys that differ at the start or at the end only, one of them empty."""
    if key % 2:
        return f"{'é' * (key % 3)}{key}" + "-" * (width * 3 // 4)
    return "-" * (width // 2 + 7 * key % (width // 2)) + str(key) if key else ""


class Oracle:
    """DuckDB; one for all runs of a process."""

    def __init__(self) -> None:
        self._duckdb = duckdb.connect(config={"threads": 1})

    def answer(self, sql: str, tables: Mapping[str, pa.Table]) -> pa.Table:
        """What a query is over these rows."""
        for name in STREAMS:
            self._duckdb.register(name, tables.get(name, SCHEMA.empty_table()))
        return self._duckdb.sql(sql).to_arrow_table()


def bag(table: pa.Table) -> Counter[tuple[object, ...]]:
    """The rows and how often each is there."""
    columns = [c.to_pylist() for c in table.columns]
    return Counter(zip(*columns, strict=True))


def together(parts: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """Batches as one table."""
    return pa.Table.from_batches(parts, schema=schema)
