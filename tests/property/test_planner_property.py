"""Generated queries of the supported family mean what DuckDB says they mean."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from dovetail_manager.planner import plan_query
from dovetail_proto.errors import InputError, QueryError
from dovetail_proto.query import QueryPlan, plan_from_json
from kit.plan_reference import bag, run_duckdb, run_plan, warm_duckdb

INTS = [0, 1, 2, 3, 100]
EDGE_INTS = [2**24, 2**24 + 1, 2**53, 2**53 + 1]  # where FLOAT and DOUBLE stop being exact
FLOATS = [0.0, -0.0, 1.0, 2.0, 1.5, 2.0**24, 2.0**53, float("nan"), float("inf")]
DAYS = [dt.date(2024, 1, 1), dt.date(2024, 1, 2), dt.date(1969, 12, 31)]
MOMENTS = [dt.datetime(2024, 1, 1), dt.datetime(2024, 1, 1, 12, 30), dt.datetime(2024, 1, 2)]

FAMILIES: dict[str, list[tuple[pa.DataType, list[Any]]]] = {
    "number": [
        (pa.int8(), INTS),
        (pa.int32(), [*INTS, 2**24, 2**24 + 1]),
        (pa.int64(), INTS + EDGE_INTS),
        (pa.uint64(), INTS + EDGE_INTS),
        (pa.float32(), FLOATS),
        (pa.float64(), FLOATS),
        (pa.decimal128(10, 2), [Decimal("0"), Decimal("1.00"), Decimal("1.50"), Decimal("2")]),
        (pa.bool_(), [True, False]),
    ],
    "text": [
        (pa.string(), ["", "a", "A", "b", "é", "ab"]),
        (pa.large_string(), ["", "a", "A", "b", "é", "ab"]),
    ],
    "binary": [(pa.binary(), [b"", b"a", b"\x00", b"\xff"]), (pa.binary(1), [b"a", b"\x00"])],
    "moment": [
        (pa.date32(), DAYS),
        (pa.timestamp("s"), MOMENTS),
        (pa.timestamp("us"), MOMENTS),
    ],
}
KEY_NAMES = ["k", "Sym", "part two"]


@st.composite
def tables(draw: st.DrawFn) -> dict[str, pa.Table]:
    """Two or three streams with keys k, Sym, "part two" of related types, and payload."""
    names = draw(st.sampled_from([["a_1", "b"], ["a_1", "b", "c-c"]]))
    families = [draw(st.sampled_from(sorted(FAMILIES))) for _ in KEY_NAMES]
    same = draw(st.booleans())
    chosen = [draw(st.sampled_from(FAMILIES[f])) for f in families]
    pools = [draw(st.lists(st.sampled_from(v), min_size=1, max_size=3)) for _, v in chosen]
    streams = {}
    for name in names:
        rows = draw(st.integers(0, 8))
        columns: dict[str, pa.Array] = {}
        for key, family, shared, pool in zip(KEY_NAMES, families, chosen, pools, strict=True):
            t, few = shared[0], pool
            if not same:
                t, values = draw(st.sampled_from(FAMILIES[family]))
                few = draw(st.lists(st.sampled_from(values), min_size=1, max_size=3))
            drawn = draw(
                st.lists(st.sampled_from([*few, *few, None]), min_size=rows, max_size=rows)
            )
            columns[key] = pa.array(drawn, t)
        ints = st.lists(st.sampled_from([None, -1, 0, 1, 2, 7]), min_size=rows, max_size=rows)
        texts = st.lists(st.sampled_from([None, "x", "Xy", ""]), min_size=rows, max_size=rows)
        columns["v"] = pa.array(draw(ints), draw(st.sampled_from([pa.int16(), pa.int64()])))
        columns["W"] = pa.array(draw(ints), pa.float64())
        columns["s"] = pa.array(draw(texts), pa.string())
        columns["l"] = pa.array(
            [None if i % 3 else [i, None] for i in range(rows)], pa.list_(pa.int32())
        )
        streams[name] = pa.table(columns)
    return streams


@pytest.fixture(autouse=True, scope="module")
def _warm() -> Iterator[None]:
    with warm_duckdb():
        yield


def name_of(draw: st.DrawFn, column: str) -> str:
    """A column's name in some spelling."""
    if " " in column:
        return f'"{column}"'
    return draw(st.sampled_from([column, column.lower(), column.upper(), f'"{column}"']))


@st.composite
def queries(draw: st.DrawFn) -> tuple[str, dict[str, pa.Table]]:
    """A query and its streams."""
    streams = draw(tables())
    inputs = draw(st.lists(st.sampled_from(sorted(streams)), min_size=2, max_size=4))
    aliases = [f"t{i}" for i in range(len(inputs))]
    keys = KEY_NAMES[: draw(st.sampled_from([1, 1, 2, 3]))]
    using = draw(st.sampled_from([False, False, True]))

    def column(i: int, name: str) -> str:
        return f"{draw(st.sampled_from([aliases[i], aliases[i].upper()]))}.{name_of(draw, name)}"

    terms = ["{}", "{}", "({})", "CASE WHEN {1} > 0 THEN {0} END"]
    forms = {(i, key): draw(st.sampled_from(terms)) for i in range(len(inputs)) for key in keys}

    def term(i: int, key: str) -> str:
        return forms[i, key].format(column(i, key), column(i, "v"))

    conditions: list[tuple[int, str]] = []  # with the first input by which it may be written
    if not using:
        for key in keys:
            for right in range(1, len(inputs)):  # a random tree ties all inputs together
                left = draw(st.integers(0, right - 1))
                sides = [term(left, key), term(right, key)]
                if draw(st.booleans()):
                    sides.reverse()
                conditions.append(
                    (right, draw(st.sampled_from(["{} = {}", "({} = {})"])).format(*sides))
                )
    else:
        keys = keys[:1]
    for _ in range(draw(st.integers(0, 3))):
        conditions.append(draw(extra_conditions(column, len(inputs))))

    text = f"FROM {quoted(inputs[0])} {aliases[0]}"
    later: list[str] = []
    for i in range(1, len(inputs)):
        here = [c for at, c in conditions if at == i or (at == 0 and i == 1)]
        if using:
            text += f" JOIN {quoted(inputs[i])} {aliases[i]} USING ({name_of(draw, keys[0])})"
            later += here
            continue
        split = draw(st.integers(0, len(here)))
        style = draw(st.sampled_from(["JOIN", "INNER JOIN", "CROSS JOIN", ","]))
        if style.endswith("JOIN") and style != "CROSS JOIN" and split:
            text += f" {style} {quoted(inputs[i])} AS {aliases[i]} ON {' AND '.join(here[:split])}"
            later += here[split:]
        else:
            text += f"{'' if style == ',' else ' CROSS JOIN'}{',' if style == ',' else ''}"
            text += f" {quoted(inputs[i])} {aliases[i]}"
            later += here
    if later:
        text += f" WHERE {' AND '.join(draw(st.permutations(later)))}"
    return (
        f"SELECT {draw(select_lists(column, keys if using else [], len(inputs)))} {text}",
        streams,
    )


def quoted(name: str) -> str:
    """A stream's name in FROM."""
    return f'"{name}"' if "-" in name else name


def extra_conditions(column: Any, n: int) -> st.SearchStrategy[tuple[int, str]]:
    """A condition on one input, on two, or on none."""

    def over(i: int, j: int) -> st.SearchStrategy[tuple[int, str]]:
        v, w, s = column(i, "v"), column(i, "W"), column(i, "s")
        v2, w2, s2 = column(j, "v"), column(j, "W"), column(j, "s")
        at = max(i, j)
        return st.sampled_from(
            [
                (i, f"{v} > 0"),
                (i, f"({s} LIKE 'X%' OR {v} IS NULL)"),
                (i, f"NOT ({w} BETWEEN 0 AND 2)"),
                (i, f"coalesce({s}, 'none') <> ''"),
                (i, f"{v} IN (1, 2, NULL)"),
                (i, f"{v} = {w}"),
                (at, f"({v} <= {v2})"),
                (at, f"{w} = {v2}"),
                (at, f"({v} < 2 AND {w2} IS NOT NULL)"),
                (at, f"{s} IS NOT DISTINCT FROM {s2}"),
                (at, f"CASE WHEN {v} > {v2} THEN {s} ELSE {s2} END <> 'x'"),
                (0, "1 = 1"),
                (0, "(2 > 1 AND TRUE)"),
                (0, "1 = 2"),
            ]
        )

    return st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)).flatmap(lambda ij: over(*ij))


@st.composite
def select_lists(draw: st.DrawFn, column: Any, merged: list[str], n: int) -> str:
    """Result columns with names of their own."""
    items: list[str] = []
    if draw(st.integers(0, 3)) == 0:
        i = draw(st.integers(0, n - 1))
        exclude = draw(st.sampled_from(["", " EXCLUDE (W, l)", f" REPLACE (t{i}.v * 2 AS v)"]))
        items.append(f"t{i}.*{exclude}")
    if merged and not items and draw(st.booleans()):
        items.append(f'"{merged[0]}"')
    for number in range(draw(st.integers(0 if items else 1, 5))):
        i, j = draw(st.integers(0, n - 1)), draw(st.integers(0, n - 1))
        key = column(i, draw(st.sampled_from(KEY_NAMES)))
        v, w, s = column(i, "v"), column(i, "W"), column(i, "s")
        v2, w2, s2 = column(j, "v"), column(j, "W"), column(j, "s")
        expression = draw(
            st.sampled_from(
                [
                    *(key, f"({key})", v, w, s, column(i, "l")),
                    *(f"{v} + {v2}", f"{v} / {v2}", f"{v} // 2", f"-{w} * {w2}", f"{v} % 3"),
                    *(f"upper({s}) || {s2}", f"coalesce({s}, {s2}, '-')", f"length({s})"),
                    *(
                        f"CAST({v} AS VARCHAR)",
                        f"{w}::DECIMAL(10, 2)",
                        f"{v} > {v2}",
                        "1",
                        "'it''s'",
                    ),
                    *(
                        f"CASE {v} WHEN 1 THEN {w} ELSE 0 END",
                        f"[{v}, {v2}]",
                        f"{{'a': {v}, 'b': {s2}}}",
                    ),
                    *(f"{s} IS NULL AND NOT {v} = 1", f"{column(i, 'l')}[1]", f"{v} ** 2", "NULL"),
                    *(f"DATE '2024-01-31' + {v}::INTEGER", f"TRY_CAST({s} AS INTEGER)"),
                ]
            )
        )
        items.append(f"{expression} AS r{number}")
    return ", ".join(items)


def planned(sql: str, streams: dict[str, pa.Table]) -> QueryPlan:
    """The plan of a generated query."""
    schemas = {name: table.schema for name, table in streams.items()}
    return plan_query(sql, schemas, name="generated", partitions=7)


@settings(
    max_examples=120,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(queries(), st.sampled_from([1, 3, 1 << 20]))
def test_a_planned_query_gives_duckdbs_bag_of_results(
    case: tuple[str, dict[str, pa.Table]], batch_rows: int
) -> None:
    """Names, types and rows of a plan, run the plain way, are those of DuckDB on the same SQL."""
    sql, streams = case
    try:
        expected = run_duckdb(sql, streams)
    except (duckdb.OutOfRangeException, duckdb.ConversionException):
        reject()
    try:
        plan = planned(sql, streams)
    except QueryError as e:
        if "another input widens the key" in str(e):
            reject()
        pytest.fail(f"{sql}: {e}")
    assert plan_from_json(plan.to_json()) == plan
    assert plan.output_schema.names == expected.schema.names
    for output, t in zip(plan.outputs, expected.schema.types, strict=True):
        if output.source is None:
            assert output.type == t, (sql, output)
        else:
            i, name = output.source
            assert output.type == streams[plan.inputs[i].stream].schema.field(name).type
    try:
        results = run_plan(plan, streams, batch_rows=batch_rows)
    except InputError as e:  # DuckDB may have found no row to fail on
        pytest.fail(f"{sql}: {e}")
    assert bag(results) == bag(expected), sql


@settings(max_examples=30, deadline=None, derandomize=True, database=None)
@given(queries())
def test_a_plan_keeps_only_what_it_needs(case: tuple[str, dict[str, pa.Table]]) -> None:
    """State holds the key, what results are made from, and nothing else."""
    sql, streams = case
    try:
        plan = planned(sql, streams)
    except QueryError:
        reject()
    for i, plan_input in enumerate(plan.inputs):
        used = {name for j, name in plan.joined_columns() if j == i}
        assert set(plan_input.kept.names) == used | set(plan_input.key)
        assert len(plan_input.key) == len(plan.key_types)
