"""What a plan holds: the key, the filters, the columns kept, and results as DuckDB types them."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from dovetail_manager.planner import explain, explain_dict, plan_query
from dovetail_manager.planner.functions import ALLOWED
from dovetail_proto.query import QueryPlan
from dovetail_proto.sql_session import open_session
from kit.plan_reference import bag, run_duckdb, run_plan, warm_duckdb

TABLES = {
    "trades": pa.table(
        {
            "Symbol": ["a", "b", "B", None, "a"],
            "k": pa.array([1, 2, 3, 4, 1], pa.int32()),
            "price": [1.5, 2.0, 3.0, 4.0, None],
            "place": pa.array([{"city": "X", "Geo": {"lat": i}} for i in range(5)]),
            "note": pa.array(["p", "q", "r", "s", "t"], pa.large_string()),
        }
    ),
    "quotes": pa.table(
        {"symbol": ["a", "b", "c", None], "k": ["1", "2", "3", "x"], "bid": [1.0, 2.0, 3.0, 4.0]}
    ),
    "reviews": pa.table(
        {"symbol": ["a", "B", "b", "a"], "k": [1, 2, 3, 1], "Stars": pa.array([5, 4, 3, 2])}
    ),
}


@pytest.fixture(autouse=True, scope="module")
def _warm() -> Iterator[None]:
    with warm_duckdb():
        yield


def planned(sql: str) -> QueryPlan:
    """The plan of `sql`, after its results were compared with DuckDB's."""
    schemas = {name: table.schema for name, table in TABLES.items()}
    plan = plan_query(sql, schemas, name="facts", partitions=300)
    results, expected = run_plan(plan, TABLES), run_duckdb(sql, TABLES)
    assert results.schema.names == expected.schema.names
    assert bag(results) == bag(expected)
    return plan


def keys(plan: QueryPlan) -> list[tuple[str, ...]]:
    """Part by part, the key columns of all inputs."""
    return list(zip(*(i.key for i in plan.inputs), strict=True))


@pytest.mark.parametrize(
    "tail",
    [
        "JOIN quotes q ON t.symbol = q.symbol JOIN reviews r ON q.symbol = r.symbol",
        "JOIN quotes q ON q.symbol = t.symbol JOIN reviews r ON t.symbol = r.symbol",
        "CROSS JOIN quotes q JOIN reviews r ON (r.symbol = q.symbol AND (r.symbol = t.symbol))",
        ", quotes q, reviews r WHERE t.symbol = r.symbol AND t.symbol = q.symbol",
        ", quotes q, reviews r WHERE t.symbol = r.symbol AND t.symbol = q.symbol AND 1 = 1",
        "JOIN quotes q USING (symbol) JOIN reviews r USING (SYMBOL)",
        ", quotes q JOIN reviews r USING (symbol) WHERE q.symbol == t.symbol",
        "JOIN quotes q ON true JOIN reviews r ON q.symbol = r.symbol WHERE t.symbol = q.symbol",
        "JOIN quotes q ON t.symbol = q.symbol AND q.symbol = t.symbol, reviews r "
        "WHERE r.symbol = t.symbol AND q.symbol = r.symbol",
        "JOIN reviews r ON r.symbol = t.symbol JOIN quotes q ON t.symbol = q.symbol",
    ],
)
def test_a_key_may_be_written_in_many_ways(tail: str) -> None:
    """ON in any order and transitive form, USING, commas with WHERE, CROSS JOIN."""
    plan = planned(f"SELECT t.k, q.bid, r.stars FROM trades t {tail}")
    assert {name.lower() for name in keys(plan)[0]} == {"symbol"}
    assert len(keys(plan)) == 1
    assert plan.residual_sql is None


def test_a_key_may_have_several_parts_and_expressions() -> None:
    """A part that is an expression is computed below the join; its source is not kept."""
    plan = planned(
        "SELECT t.price, q.bid FROM trades t JOIN quotes q "
        "ON lower(t.symbol) = q.symbol AND t.k = TRY_CAST(q.k AS INTEGER)"
    )
    assert keys(plan) == [("key_1", "symbol"), ("k", "key_2")]
    assert plan.key_types == (pa.string(), pa.int32())
    trades, quotes = plan.inputs
    assert [(c.name, c.sql) for c in trades.computed] == [("key_1", 'lower("Symbol")')]
    assert trades.kept.names == ["k", "price", "key_1"]
    assert [(c.name, c.sql) for c in quotes.computed] == [("key_2", 'TRY_CAST("k" AS INT)')]
    assert quotes.kept.names == ["symbol", "bid", "key_2"]


def test_a_computed_key_takes_a_name_that_no_column_has() -> None:
    """Columns of the stream keep their names."""
    table = pa.table({"KEY_1": [1, 2], "k": [2, 3]})
    sql = "SELECT a.key_1, b.k FROM a JOIN b ON a.k + 1 = b.key_1 + 1"
    plan = plan_query(sql, {"a": table.schema, "b": table.schema}, name="q", partitions=1)
    assert keys(plan) == [("key_1_", "key_1_")]
    streams = {"a": table, "b": table}
    assert bag(run_plan(plan, streams)) == bag(run_duckdb(sql, streams))


def test_a_natural_join_uses_every_shared_column() -> None:
    """As in DuckDB; shared columns are merged in *."""
    plan = planned("SELECT * FROM reviews NATURAL JOIN trades t")
    assert keys(plan) == [("symbol", "Symbol"), ("k", "k")]
    assert [c.name for c in plan.outputs] == ["symbol", "k", "Stars", "price", "place", "note"]


def test_self_joins_need_aliases_only() -> None:
    """One stream may be several inputs, each with its own filter and columns."""
    plan = planned(
        "SELECT x.price, y.note FROM trades x, trades AS y WHERE x.k = y.k AND x.price > 1"
    )
    assert [(i.alias, i.stream) for i in plan.inputs] == [("x", "trades"), ("y", "trades")]
    assert [i.filter_sql for i in plan.inputs] == ['"price" > 1', None]
    assert [i.kept.names for i in plan.inputs] == [["k", "price"], ["k", "note"]]


def test_conditions_go_below_the_join_or_after_it() -> None:
    """What reads one input filters it; the rest is evaluated on combinations."""
    plan = planned(
        "SELECT t.k FROM trades t JOIN reviews r ON t.symbol = r.symbol AND r.stars > 1 "
        "WHERE t.price IS NOT NULL AND (t.price < r.stars AND t.k <> r.k) AND (t.k = 1 OR r.k = 2)"
    )
    trades, reviews = plan.inputs
    assert trades.filter_sql == 'NOT "price" IS NULL'
    assert reviews.filter_sql == '"Stars" > 1'
    assert plan.residual_sql == (
        '("0.price" < "1.Stars") AND ("0.k" <> "1.k") AND ("0.k" = 1 OR "1.k" = 2)'
    )
    assert plan.residual_columns == ((0, "k"), (0, "price"), (1, "Stars"), (1, "k"))


def test_an_equality_that_does_not_reach_all_inputs_is_a_condition() -> None:
    """Only a class with a term of every input can be part of the key."""
    plan = planned(
        "SELECT t.k FROM trades t JOIN reviews r ON t.symbol = r.symbol AND t.k = r.k "
        "JOIN quotes q ON q.symbol = t.symbol"
    )
    assert len(plan.key_types) == 1
    assert plan.residual_sql == '"0.k" = "1.k"'


def test_equal_columns_of_one_input_may_link_the_others() -> None:
    """a.x = b.x and a.y = c.y are one key if a.x = a.y."""
    streams = {n: pa.table({"x": [1, 2, 3], "y": [1, 3, 3]}) for n in "abc"}
    sql = "SELECT a.x, b.y, c.x AS z FROM a, b, c WHERE a.x = b.x AND a.y = c.y AND a.x = a.y"
    schemas = {n: t.schema for n, t in streams.items()}
    plan = plan_query(sql, schemas, name="q", partitions=1)
    assert keys(plan) == [("x", "x", "y")]
    assert plan.inputs[0].filter_sql == '"x" = "y"'
    assert plan.residual_sql == '"0.y" = "2.y"'
    assert bag(run_plan(plan, streams)) == bag(run_duckdb(sql, streams))


@pytest.mark.parametrize("never", ["1 = 2", "NULL", "false", "'a' = 'b'", "0"])
def test_a_condition_that_never_holds_keeps_no_row(never: str) -> None:
    """Nothing is held in state for a join that has no results."""
    plan = planned(f"SELECT t.k FROM trades t JOIN reviews r USING (symbol) WHERE {never}")
    assert [i.filter_sql for i in plan.inputs] == ["FALSE", "FALSE"]


@pytest.mark.parametrize("always", ["1 = 1", "true AND 2 > 1", "'t'", "5"])
def test_a_condition_that_always_holds_costs_nothing(always: str) -> None:
    """It is decided at planning."""
    plan = planned(f"SELECT t.k FROM trades t JOIN reviews r USING (symbol) WHERE {always}")
    assert [i.filter_sql for i in plan.inputs] == [None, None]
    assert plan.residual_sql is None


def test_names_are_found_in_any_case_and_keep_the_streams_case() -> None:
    """As in DuckDB."""
    plan = planned('SELECT T.SYMBOL, stars, "PRICE" FROM Trades t JOIN REVIEWS R USING (Symbol)')
    assert [c.name for c in plan.outputs] == ["Symbol", "Stars", "price"]
    assert [c.source for c in plan.outputs] == [(0, "Symbol"), (1, "Stars"), (0, "price")]


def test_a_using_column_is_merged_into_the_leftmost() -> None:
    """Its type and values are the first input's; the others are there under their own names."""
    plan = planned(
        "SELECT k, a.k AS ak, b.k AS bk, c.k AS ck "
        "FROM trades a JOIN reviews b USING (k) JOIN trades c USING (k)"
    )
    assert [c.source for c in plan.outputs] == [(0, "k"), (0, "k"), (1, "k"), (2, "k")]
    assert [c.type for c in plan.outputs] == [pa.int32(), pa.int32(), pa.int64(), pa.int32()]


@pytest.mark.parametrize(
    ("items", "names"),
    [
        ("*", "Symbol k price place note Stars"),
        ("t.*", "Symbol k price place note"),
        ("* EXCLUDE (place, note)", "Symbol k price Stars"),
        ("* EXCLUDE (t.place, symbol)", "k price note Stars"),
        ("* REPLACE (price * 2 AS price)", "Symbol k price place note Stars"),
        ("r.* EXCLUDE k, t.note AS r", "symbol Stars r"),
        ("* EXCLUDE (symbol) REPLACE (t.k + r.k AS K)", "K price place note Stars"),
    ],
)
def test_stars_stand_for_the_columns_duckdb_puts_there(items: str, names: str) -> None:
    """With merged columns once, and EXCLUDE and REPLACE."""
    plan = planned(f"SELECT {items} FROM trades t JOIN reviews r USING (symbol, k)")
    assert [c.name for c in plan.outputs] == names.split()


def test_bare_columns_keep_their_arrow_type_and_expressions_get_duckdbs() -> None:
    """large_string passes as it is; computed, it is what DuckDB makes of it."""
    plan = planned(
        "SELECT t.note, (t.note) AS n, upper(t.note) AS u, t.k / 2 AS half, t.k // 2 AS whole, "
        "[t.k] AS l, 1.5 AS d, t.price::DECIMAL(9, 1) AS p, NULL AS nothing, t.place.geo.LAT, "
        "printf('5 * %05d', t.k) || lpad(t.symbol, 3, '-') AS text, [1]::INTEGER[1] AS fixed, "
        "INTERVAL '1.5 days' + DATE '2024-01-01' AS day, CAST(9 AS HUGEINT) AS h "
        "FROM trades t JOIN reviews r USING (symbol)"
    )
    types = dict(zip(plan.output_schema.names, plan.output_schema.types, strict=True))
    assert types == {
        "note": pa.large_string(),
        "n": pa.large_string(),
        "u": pa.string(),
        "half": pa.float64(),
        "whole": pa.int32(),
        "l": pa.list_(pa.field("l", pa.int32())),
        "d": pa.decimal128(2, 1),
        "p": pa.decimal128(9, 1),
        "nothing": pa.null(),
        "LAT": pa.int64(),
        "text": pa.string(),
        "fixed": pa.list_(pa.field("", pa.int32()), 1),
        "day": pa.timestamp("us"),
        "h": pa.decimal128(38, 0),
    }


def test_fields_of_structs_are_read_with_dots_and_brackets() -> None:
    """With and without the table's name, in any case."""
    plan = planned(
        "SELECT t.place.city AS a, place.CITY AS b, place['city'] AS c, (t.place).geo.lat AS d, "
        "t.place.geo.lat AS e FROM trades t JOIN reviews r USING (symbol) WHERE place.city = 'X'"
    )
    assert plan.inputs[0].filter_sql == "\"place\"['city'] = 'X'"
    assert plan.outputs[4].sql == "\"0.place\"['Geo']['lat']"


def test_a_query_without_columns_still_counts_its_rows() -> None:
    """A combination of no columns would have no length, so the key is read."""
    plan = planned("SELECT 1 AS one FROM trades t JOIN reviews r USING (symbol)")
    assert plan.joined_columns() == ((0, "Symbol"),)


def test_types_that_duckdb_lacks_pass_as_they_are() -> None:
    """They may be selected, and be the key, but not be computed with."""
    wide = pa.array([1, None, 3], pa.decimal256(50, 2))
    half = pa.array([1.5, None, 2.5], pa.float32()).cast(pa.float16())
    table = pa.table({"k": [1, 2, 3], "wide": wide, "half": half})
    sql = "SELECT a.wide, b.half FROM a JOIN b ON a.wide = b.wide WHERE a.k > 0"
    plan = plan_query(sql, {"a": table.schema, "b": table.schema}, name="q", partitions=1)
    assert plan.output_schema.types == [pa.decimal256(50, 2), pa.float16()]
    assert run_plan(plan, {"a": table, "b": table}).num_rows == 2


def test_sixty_four_inputs_are_planned() -> None:
    """The most there may be."""
    schema = pa.schema([("k", pa.int64()), ("v", pa.string())])
    joins = " ".join(f"JOIN s t{i} ON t{i - 1}.k = t{i}.k" for i in range(1, 64))
    plan = plan_query(f"SELECT t63.v FROM s t0 {joins}", {"s": schema}, name="q", partitions=1)
    assert len(plan.inputs) == 64
    assert keys(plan) == [("k",) * 64]


def test_explain_shows_streams_filters_key_columns_groups_and_bytes() -> None:
    """In the order in which rows go through the plan."""
    plan = planned(
        "SELECT t.symbol, t.price - r.stars AS over FROM trades t JOIN reviews r "
        "ON lower(t.symbol) = r.symbol WHERE t.price > 1 AND t.price < r.stars"
    )
    assert explain(plan) == (
        "query facts: 2 inputs, 300 partition groups\n"
        "  input trades as t: about 57 bytes a row in state\n"
        '    filter  "price" > 1\n'
        '    compute key_1 = lower("Symbol")\n'
        "    keep    Symbol text, price float64, key_1 text (3 not needed)\n"
        "  input reviews as r: about 33 bytes a row in state\n"
        "    keep    symbol text, Stars int64 (1 not needed)\n"
        "  key t.key_1 = r.symbol compared as text\n"
        "  condition on combinations t.price < r.Stars\n"
        "  results\n"
        "    Symbol text = t.Symbol\n"
        "    over float64 = t.price - r.Stars"
    )
    facts = explain_dict(plan)
    assert facts["partition_groups"] == 300
    assert facts["key"] == [{"columns": ["t.key_1", "r.symbol"], "type": "text"}]
    assert facts["inputs"][1]["bytes_per_row"] == 33


def test_every_allowed_function_is_scalar_and_always_the_same() -> None:
    """DuckDB's catalog agrees, but for operators of its parser and macros made of scalars."""
    rows = open_session().execute(
        "SELECT lower(function_name), function_type, stability FROM duckdb_functions() "
        "WHERE function_type <> 'table'"
    )
    kinds: dict[str, set[tuple[str, str | None]]] = {}
    for name, kind, stability in rows.fetchall():
        kinds.setdefault(name, set()).add((kind, stability))
    operators = {"coalesce", "ifnull", "try"}
    odd = {
        name: kinds.get(name)
        for name in ALLOWED - operators
        if not kinds.get(name, set()) <= {("scalar", "CONSISTENT"), ("macro", None)}
        or name not in kinds
    }
    assert odd == {}
