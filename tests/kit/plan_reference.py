"""A plan run the plain way: filter, nested loops over equal keys, project. And DuckDB beside it."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from dovetail_processor.expressions import above_join, below_join
from dovetail_proto.query import QueryPlan
from dovetail_proto.sql_session import open_session

_REFERENCE = {"threads": "1", "python_enable_replacements": "false"}


@contextmanager
def warm_duckdb() -> Iterator[None]:
    """Keeps the instances of DuckDB alive between uses: opening one takes longer than a test."""
    with duckdb.connect(":memory:reference", config=_REFERENCE), open_session():
        yield


def run_plan(
    plan: QueryPlan, streams: Mapping[str, pa.Table], *, batch_rows: int = 1 << 20
) -> pa.Table:
    """The results of `plan`, with every batch at most `batch_rows` rows long."""
    sides = []
    for plan_input in plan.inputs:
        evaluator = below_join(plan_input)
        batches = streams[plan_input.stream].to_batches(max_chunksize=batch_rows)
        kept = pa.Table.from_batches([evaluator.run(b) for b in batches], plan_input.kept)
        sides.append(kept.combine_chunks())
    buckets = [
        _rows_by_key(table, plan_input.key, plan.key_types)
        for table, plan_input in zip(sides, plan.inputs, strict=True)
    ]
    combinations = [
        rows
        for key in buckets[0]
        if all(key in b for b in buckets)
        for rows in itertools.product(*(b[key] for b in buckets))
    ]
    columns = [
        sides[i].column(name).take(pa.array([rows[i] for rows in combinations], pa.int64()))
        for i, name in plan.joined_columns()
    ]
    joined = pa.Table.from_arrays(columns, schema=plan.joined_schema())
    evaluator = above_join(plan)
    results = [evaluator.run(b) for b in joined.to_batches(max_chunksize=batch_rows)]
    return pa.Table.from_batches(results, plan.output_schema)


def run_duckdb(sql: str, streams: Mapping[str, pa.Table]) -> pa.Table:
    """What DuckDB says, with its clock set to UTC as ours is."""
    with duckdb.connect(":memory:reference", config=_REFERENCE) as session:
        session.execute("SET TimeZone = 'UTC'")
        for name, table in streams.items():
            session.register(name, table)
        return session.sql(sql).to_arrow_table()


def bag(table: pa.Table) -> Counter[tuple[str, ...]]:
    """The rows of a table as a bag; −0.0 and 0.0 differ, all NaNs are one."""
    columns = [[_plain(v) for v in column.to_pylist()] for column in table.columns]
    return Counter(zip(*columns, strict=True))


def _plain(value: Any) -> str:
    if isinstance(value, Decimal):
        return f"{value.normalize():f}"
    return repr(value)


def _rows_by_key(
    table: pa.Table, key: Sequence[str], types: Sequence[pa.DataType]
) -> dict[tuple[Any, ...], list[int]]:
    parts = [
        [_compared_as(v, t) for v in table.column(name).to_pylist()]
        for name, t in zip(key, types, strict=True)
    ]
    rows: dict[tuple[Any, ...], list[int]] = {}
    for row, values in enumerate(zip(*parts, strict=True)):
        if None not in values:
            rows.setdefault(values, []).append(row)
    return rows


def _compared_as(value: Any, t: pa.DataType) -> Any:
    """A value such that two are equal in Python if they are equal as `t`."""
    if value is None:
        return None
    if pa.types.is_floating(t):
        number = float(np.float32(value)) if t.bit_width == 32 else float(value)
        return "NaN" if math.isnan(number) else number
    if pa.types.is_integer(t) or pa.types.is_decimal(t):
        return Decimal(value)
    if pa.types.is_timestamp(t):
        return pa.scalar(value).cast(t).value
    return value
