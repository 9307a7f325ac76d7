"""What is not supported is refused at planning, with its place and what to write instead."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pyarrow as pa
import pytest

from dovetail_manager.planner import plan_query
from dovetail_manager.planner.dialect import NESTING_MAX, SQL_CHARS_MAX, SQL_TOKENS_MAX
from dovetail_proto.errors import ConfigError, QueryError
from dovetail_proto.query import INPUTS_MAX
from kit.plan_reference import warm_duckdb

STREAMS = {
    "trades": pa.schema(
        [
            ("symbol", pa.string()),
            ("k", pa.int64()),
            ("price", pa.float64()),
            ("ts", pa.timestamp("us")),
            ("tags", pa.list_(pa.string())),
            ("st", pa.struct([("city", pa.string())])),
            ("wide", pa.decimal256(50, 2)),
        ]
    ),
    "quotes": pa.schema(
        [
            ("symbol", pa.string()),
            ("k", pa.int64()),
            ("bid", pa.float64()),
            ("ts", pa.timestamp("us", "UTC")),
            ("tags", pa.list_(pa.string())),
        ]
    ),
    "reviews": pa.schema(
        [("symbol", pa.int64()), ("k", pa.int64()), ("stars", pa.int8()), ("f", pa.float32())]
    ),
}
JOIN = "FROM trades t JOIN quotes q ON t.k = q.k"


@pytest.fixture(autouse=True, scope="module")
def _warm() -> Iterator[None]:
    with warm_duckdb():
        yield


def refusal(sql: str, streams: dict[str, pa.Schema] | None = None) -> QueryError:
    """The error that planning `sql` ends with."""
    with pytest.raises(QueryError) as caught:
        plan_query(sql, STREAMS if streams is None else streams, name="prices", partitions=300)
    return caught.value


def select(what: str) -> str:
    """A query with `what` as its one result column, which starts at column 8."""
    return f"SELECT {what} AS r {JOIN}"


def where(condition: str) -> str:
    """A query with a condition, which starts at line 2, column 7."""
    return f"SELECT t.k {JOIN}\nWHERE {condition}"


def after(clause: str) -> str:
    """A query with a clause at its end, on line 2."""
    return f"SELECT t.k {JOIN}\n{clause}"


def from_(tables: str) -> str:
    """A query over `tables`, which start at column 17."""
    return f"SELECT t.k FROM {tables}"


SYNTAX = [
    ("", 0, 0, "there is no SQL; write SELECT"),
    (" -- nothing\n", 0, 0, "there is no SQL"),
    ("SELECT t.k FROM trades t JOIN quotes q ON t.k = ", 1, 47, "near '=': something is missing"),
    ("SELECT t.k FROM (trades t", 1, 25, "does not parse near 't': Expecting )"),
    ("SELECT 'abc", 1, 12, "a quote or a comment is not closed"),
    ("SELECT 1 /* abc", 1, 16, "a quote or a comment is not closed"),
    ("SELECT 'a\0'", 1, 10, "character '\\x00' is not text"),
    ("SELECT '\ud800'", 1, 9, "character '\\ud800' is not text"),
    ("INSERT INTO trades VALUES (1)", 1, 1, "not a SELECT"),
    ("DROP TABLE trades", 1, 1, "not a SELECT"),
    ("COPY trades TO 'x'", 1, 1, "not a SELECT"),
    ("SELECT 1; SELECT 2", 1, 18, "several statements; run one query at a time"),
    ("SELECT 1", 1, 8, "no FROM clause"),
    (from_("trades t"), 1, 17, "only one stream is read"),
    (from_("trades t JOIN quotes q"), 1, 38, 'syntax error at or near "q"'),
    (where("t.k = q.k = 1"), 0, 0, "Chained comparisons are not supported"),
]

CLAUSES = [
    (after("LIMIT 5"), 2, 1, "LIMIT is not supported; a join is computed in full"),
    (after("OFFSET 5"), 2, 1, "OFFSET is not supported"),
    (after("ORDER BY t.k"), 2, 1, "ORDER BY is not supported; results come as they are found"),
    (after("GROUP BY t.k"), 2, 1, "GROUP BY is not supported; join first"),
    (after("GROUP BY ALL"), 2, 1, "GROUP BY is not supported"),
    (after("HAVING t.k > 1"), 2, 1, "HAVING is not supported; filter single rows with WHERE"),
    (after("QUALIFY t.k > 1"), 2, 1, "QUALIFY is not supported"),
    (after("WINDOW 1 MINUTE"), 2, 1, "WINDOW is not supported; leave it out"),
    (after("WINDOW w AS (ORDER BY t.k)"), 2, 1, "WINDOW is not supported"),
    (after("USING SAMPLE 10"), 2, 7, "SAMPLE is not supported"),
    (after("FOR UPDATE"), 2, 1, "FOR UPDATE is not supported"),
    (after("UNION SELECT 1"), 2, 1, "UNION is not supported; run one query per SELECT"),
    (after("EXCEPT SELECT 1"), 2, 1, "EXCEPT is not supported"),
    (after("INTERSECT SELECT 1"), 2, 1, "INTERSECT is not supported"),
    (f"SELECT DISTINCT t.k {JOIN}", 1, 8, "DISTINCT is not supported"),
    (f"WITH x AS (SELECT 1) SELECT t.k {JOIN}", 1, 1, "WITH is not supported"),
    (f"SELECT t.k INTO x {JOIN}", 1, 12, "INTO is not supported"),
]

JOINS = [
    (
        from_("trades t LEFT JOIN quotes q ON t.k = q.k"),
        1,
        36,
        "JOIN gives those alone, which is another answer",
    ),
    (from_("trades t RIGHT OUTER JOIN quotes q ON true"), 1, 43, "RIGHT OUTER JOIN is not"),
    (from_("trades t FULL JOIN quotes q USING (k)"), 1, 36, "FULL JOIN is not supported"),
    (from_("trades t SEMI JOIN quotes q USING (k)"), 1, 36, "SEMI JOIN is not supported"),
    (from_("trades t ANTI JOIN quotes q USING (k)"), 1, 36, "ANTI JOIN is not supported"),
    (from_("trades t ASOF JOIN quotes q USING (k, ts)"), 1, 36, "ASOF JOIN is not supported"),
    (from_("trades t POSITIONAL JOIN quotes q"), 1, 42, "POSITIONAL JOIN is not supported"),
    (from_("trades t, LATERAL (SELECT 1) x"), 1, 43, "LATERAL (SELECT 1) AS x is not a stream"),
    (from_("(SELECT * FROM trades) t JOIN quotes q USING (k)"), 1, 25, "a subquery in FROM"),
    (from_("trades t, (VALUES (1)) v"), 1, 36, "a subquery in FROM is not supported"),
    (from_("trades t JOIN unnest([1]) x ON true"), 1, 39, "UNNEST([1]) AS x is not a stream"),
    (from_("read_csv('x.csv') t, quotes q"), 1, 17, "table function read_csv('x.csv') is not"),
    (from_("'x.parquet' t, quotes q"), 1, 17, "no stream 'x.parquet'; there are: quotes, reviews"),
    (from_("trades t JOIN (quotes q JOIN reviews r USING (k)) USING (k)"), 1, 32, "in brackets"),
    ("FROM trades t JOIN quotes q USING (k)", 1, 6, "a join within a join is not supported; start"),
    (from_("main.trades t JOIN quotes q USING (k)"), 1, 17, "main.trades AS t has a schema"),
    (from_("trades t(a, b) JOIN quotes q ON t.a = q.k"), 1, 24, "column names in a table's alias"),
    (from_("trades t TABLESAMPLE 10% JOIN quotes q USING (k)"), 1, 17, "SAMPLE of a stream"),
    (
        from_("trades JOIN trades ON true"),
        1,
        29,
        "named 'trades'; give this one an alias: trades AS",
    ),
]

KEYS = [
    (from_("trades t, quotes q"), 1, 27, "no equality joins q to t: every row would meet"),
    (from_("trades t CROSS JOIN quotes q WHERE t.k > 1"), 1, 37, "no equality joins q to t"),
    (from_("trades t JOIN quotes q ON t.k = q.k, reviews r"), 1, 54, "no equality joins r to t"),
    (from_("trades t JOIN quotes q ON t.k > q.k"), 1, 31, "such as q.column = t.column"),
    (from_("trades t JOIN quotes q ON t.k = q.k OR t.k = 1"), 1, 31, "no equality joins q to t"),
    (from_("trades t JOIN quotes q ON true"), 1, 31, "no equality joins q to t"),
    (from_("trades t JOIN quotes q ON t.k = 1 AND q.k = 1"), 1, 31, "no equality joins q to t"),
    (
        from_("trades t JOIN quotes q ON t.symbol = q.symbol JOIN reviews r ON q.k = r.k"),
        *(1, 81, "joined on different keys: t.symbol = q.symbol, q.k = r.k; use one key for all"),
    ),
    (
        from_("trades t\nJOIN reviews r USING (symbol)"),
        *(2, 23, "column 'symbol' is text in trades but int64 in reviews; cast one side in the"),
    ),
    (
        from_("trades t JOIN reviews r ON t.symbol = r.symbol"),
        *(1, 44, "column 'symbol' is text in trades but int64 in reviews; cast one side in the"),
    ),
    (
        from_("trades t JOIN reviews r ON lower(t.symbol) = r.stars"),
        *(1, 44, "lower(t.symbol) is text but r.stars is int8; cast one side"),
    ),
    (
        from_("trades t JOIN quotes q ON t.k = q.k AND t.symbol = q.bid"),
        *(1, 57, "t.symbol is text but q.bid is float64; cast one side"),
    ),
    (
        from_("trades t JOIN quotes q ON t.ts = q.ts"),
        *(1, 43, "column 'ts' is timestamp[us] in trades but timestamp[us, tz=UTC] in quotes"),
    ),
    (
        from_("trades t JOIN quotes q ON t.tags = q.tags"),
        *(1, 43, "t.tags is list<item: string>, which cannot be a join key; join on integers"),
    ),
    (
        from_("trades t JOIN quotes q ON t.symbol::UUID = q.symbol::UUID"),
        *(1, 43, "CAST(t.symbol AS UUID) is text, which cannot be a join key"),
    ),
    (
        from_("trades t JOIN reviews r ON t.k = r.f JOIN quotes q ON r.f = q.bid"),
        *(1, 44, "t.k is int64 but r.f is float32, and another input widens the key"),
    ),
]

NAMES = [
    (
        from_("trdaes t JOIN quotes q USING (k)"),
        1,
        17,
        "no stream 'trdaes'; there are: quotes, rev",
    ),
    (from_("trdaes t JOIN quotes q USING (k)"), 1, 17, "did you mean 'trades'?"),
    (from_("nothing t JOIN quotes q USING (k)"), 1, 17, "declare it with --input name=path"),
    (select("t.prcie"), 1, 8, "t has no column 'prcie'; it has: symbol, k, price"),
    (select("t.prcie"), 1, 8, "did you mean 'price'?"),
    (
        select("prcie"),
        1,
        8,
        "no column 'prcie'; there are: bid, k, price, st, symbol, tags, ts, wide",
    ),
    (select("zzz"), 1, 8, "name one of them"),
    (select("x.k"), 1, 8, "no input 'x' here; there are: t, q"),
    (select("trades.k"), 1, 8, "no input 'trades' here; there are: t, q; use its alias"),
    (select("k"), 1, 8, "column 'k' is ambiguous; write t.k or q.k"),
    (select("t"), 1, 8, "t is an input, not a column; write t.* or name a column"),
    (select("t.st.town"), 1, 8, "st has no field 'town': it has the fields city"),
    (select("t.k.x"), 1, 8, "k has no field 'x': it is int64, not a struct"),
    (select("rowid"), 1, 8, "no column 'rowid'"),
    (f"SELECT t.price AS p, p + 1 AS r {JOIN}", 1, 22, "'p' is the name of a result column"),
    (f"SELECT t.k AS kk {JOIN}\nWHERE kk > 1", 2, 7, "write its expression again"),
    (from_("trades t JOIN quotes q USING (price)"), 1, 47, "q has no such column; it has: symbol"),
    (from_("trades t JOIN quotes q USING (bid)"), 1, 47, "the inputs before it has no such column"),
    (
        from_("trades t JOIN quotes q ON t.k = q.k JOIN reviews r USING (k)"),
        *(1, 75, "USING (k): t.k and q.k could be meant; write ON t.k = r.k"),
    ),
    (
        from_("trades t JOIN quotes q ON t.k = r.k JOIN reviews r ON r.k = t.k"),
        *(1, 49, "no input 'r' here; there are: t, q; r is joined further right"),
    ),
]

RESULTS = [
    (f"SELECT t.k, q.k {JOIN}", 1, 13, "two result columns are named 'k'; write q.k AS q_k"),
    (f"SELECT t.k, q.k AS K {JOIN}", 1, 13, "two result columns are named 'K'; write q.k AS q_k"),
    (f"SELECT * {JOIN}", 0, 0, "named 'symbol'; join with USING, exclude it from *, or list it"),
    (f"SELECT t.k + 1, t.k + 1 {JOIN}", 1, 17, "write t.k + 1 AS t_k_1_2"),
    (f"SELECT * EXCLUDE (nope) {JOIN}", 1, 19, "EXCLUDE: there is no column nope; there are"),
    (f"SELECT * EXCLUDE (t.zz) {JOIN}", 1, 19, "t has no column 'zz'"),
    (f"SELECT * REPLACE (1 AS k) {JOIN}", 1, 19, "REPLACE needs one column 'k' in"),
    (f"SELECT * RENAME (price AS p) {JOIN}", 1, 8, "* RENAME is not supported"),
    (f"SELECT * LIKE 'k%' {JOIN}", 1, 8, "* stands where a value is needed"),
    (f"SELECT x.* {JOIN}", 1, 8, "no input 'x'; there are: t, q"),
    (f"SELECT t.st.* {JOIN}", 1, 13, "* stands where a value is needed"),
    ("SELECT * EXCLUDE (t.k) FROM trades t JOIN quotes q USING (k)", 1, 19, "write EXCLUDE (k)"),
    (f"SELECT q.* EXCLUDE (symbol, k, bid, ts, tags) {JOIN}", 1, 8, "stands for no column"),
    (select("t.ts - t.ts"), 1, 8, "is of type INTERVAL, which results cannot hold; cast it"),
    (select("[t.ts - t.ts]"), 1, 9, "is of type INTERVAL[], which results cannot hold"),
    (select("CAST(t.k AS BIT)"), 1, 13, "is of type BIT"),
    (select("t.symbol::ENUM('a')"), 1, 8, "is of type ENUM('a')"),
    (
        select("t.wide + 1"),
        1,
        8,
        "column 'wide' is decimal256(50, 2), which expressions cannot read",
    ),
]

EXPRESSIONS = [
    (select("count(*)"), 1, 8, "function count() is an aggregate; join first"),
    (select("sum(t.price)"), 1, 8, "function sum() is an aggregate"),
    (where("max(t.k) > 1"), 2, 7, "function max() is an aggregate"),
    (select("list(t.k)"), 1, 8, "function list() is an aggregate"),
    (select("row_number() OVER ()"), 1, 8, "window functions are not supported"),
    (select("sum(t.k) OVER (ORDER BY t.k)"), 1, 8, "window functions are not supported"),
    (select("random()"), 1, 8, "function random() is not the same at each call"),
    (select("uuid()"), 1, 8, "function uuid() is not the same at each call"),
    (select("nextval('s')"), 1, 8, "function nextval() is not the same at each call"),
    (
        select("now()"),
        1,
        8,
        "function now() depends on when it is called; select a timestamp column",
    ),
    (select("current_date"), 1, 8, "current_date depends on when it is read"),
    (select("CURRENT_TIMESTAMP"), 1, 8, "CURRENT_TIMESTAMP depends on when it is read"),
    (select("age(t.ts)"), 1, 8, "age() of one value depends on today; write age(later, earlier)"),
    (select("current_setting('threads')"), 1, 8, "depends on where it is called"),
    (select("getenv('HOME')"), 1, 8, "there is no function getenv()"),
    (select("read_text('/etc/passwd')"), 1, 8, "function read_text() makes rows"),
    (select("json_serialize_sql('x')"), 1, 8, "not among those a query may call; docs/sql.md"),
    (select("lowre(t.symbol)"), 1, 8, "no function lowre(); did you mean 'lower'?"),
    (select("lower(t.symbol, 2)"), 1, 8, "No function matches the given name and argument types"),
    (select("lower(*)"), 1, 8, "lower(*) needs a value"),
    (select("unnest(t.tags)"), 1, 8, "unnest() makes several rows of one"),
    (select("t.k + t.symbol"), 1, 12, "No function matches the given name and argument types '+("),
    (select("(SELECT 1)"), 1, 16, "a subquery in an expression is not supported"),
    (where("EXISTS (SELECT 1)"), 2, 22, "a subquery in an expression is not supported"),
    (where("t.k IN (SELECT 1)"), 2, 7, "a subquery in an expression is not supported"),
    (where("t.k = ANY (SELECT 1)"), 2, 25, "ANY and ALL are not supported"),
    (where("t.k = ANY([1])"), 2, 13, "ANY and ALL are not supported"),
    (where("(t.k, t.symbol) = (q.k, q.symbol)"), 2, 8, "a row of several values is not supported"),
    (where("t.k = ?"), 2, 13, "parameters are not supported; write the value"),
    (where("t.k = $1"), 2, 13, "parameters are not supported"),
    (select("#1"), 1, 8, "columns by number are not supported"),
    (select("t.symbol.lower()"), 1, 8, "calls a function with a dot; write function(value)"),
    (select("list_transform(t.tags, lambda x: x)"), 1, 38, "lambda functions are not supported"),
    (select("[x for x in t.tags]"), 1, 9, "list comprehensions are not supported"),
    (select("COLUMNS('k')"), 1, 8, "COLUMNS() is not supported"),
    (select("t.symbol->'a'"), 1, 8, "the operator -> is not supported; write json_extract("),
    (select("t.symbol->>'a'"), 1, 8, "the operator ->> is not supported"),
    (select("repeat('x', 10001)"), 1, 8, "repeat() needs a plain number up to 10000 as its second"),
    (select("lpad(t.symbol, t.k, '0')"), 1, 8, "lpad() needs a plain number up to 10000"),
    (select("repeat(repeat('x', 9), 9)"), 1, 15, "repeat() stands within repeat()"),
    (select("printf('%99999d', t.k)"), 1, 15, "a width of more than 10000 is not possible"),
    (select("printf('%*d', 9, t.k)"), 1, 15, "a width that is computed is not possible"),
    (select("format('{:>{}}', t.k, t.k)"), 1, 15, "a width that is computed is not possible"),
    (select("format(t.symbol, 1)"), 1, 8, "format() needs a text as its first argument"),
    (select("[t.k]::BIGINT[1025]"), 1, 22, "arrays of more than 1024 values are not supported"),
    (select("t.tags::STRUCT(a INTEGER[99])[99]"), 1, 23, "arrays of more than 1024 values"),
    (select("t.symbol COLLATE nocase"), 1, 8, "COLLATE is not supported"),
    (select("E'a'"), 1, 8, "E'…' is not supported"),
    (select("$$a$$"), 1, 8, "$$…$$ is not supported"),
    (select("TRY_CAST(t.symbol AS INTEGER FORMAT 'x')"), 1, 17, "FORMAT is not supported in"),
    (where("CAST('x' AS INTEGER) = 1"), 2, 12, "fails: Could not convert string 'x' to INT32"),
]


@pytest.mark.parametrize(
    ("sql", "line", "column", "message"),
    [*SYNTAX, *CLAUSES, *JOINS, *KEYS, *NAMES, *RESULTS, *EXPRESSIONS],
)
def test_a_refusal_names_the_query_the_place_and_the_remedy(
    sql: str, line: int, column: int, message: str
) -> None:
    """Every refusal says what is wrong, where, and what to write instead."""
    error = refusal(sql)
    place = f"line {line}, column {column}: " if line else ""
    assert str(error).startswith(f"{place}query 'prices': ")
    assert message in str(error)
    assert (error.details["line"], error.details["column"]) == (line, column)


DEEP = 10_000


@pytest.mark.parametrize(
    "expression",
    [
        "(" * DEEP + "t.k" + ")" * DEEP,
        "(" * DEEP,
        "abs(" * DEEP + "t.k" + ")" * DEEP,
        "[" * DEEP + "1" + "]" * DEEP,
        "CASE WHEN true THEN " * 5_000 + "1" + " END" * 5_000,
        "(SELECT " * DEEP + "1" + ")" * DEEP,
        "NOT " * DEEP + "true",
        "- " * DEEP + "t.k",
        "1 + " * DEEP + "t.k",
        "t.k" + "::INTEGER" * DEEP,
    ],
    ids=lambda e: e[:12],
)
def test_nesting_without_end_is_refused_quickly(expression: str) -> None:
    """Ten thousand brackets, or operators, end in a QueryError and not in a stack overflow."""
    started = time.process_time()
    error = refusal(select(expression))
    assert re.search("nested more than 24 deep|too many operators in a row", str(error))
    assert time.process_time() - started < 10


def test_brackets_as_deep_as_the_bound_are_planned() -> None:
    """The bound leaves the parser enough of Python's stack, even below pytest's."""
    nested = "abs(" * NESTING_MAX + "t.k" + ")" * NESTING_MAX
    plan_query(select(nested), STREAMS, name="prices", partitions=300)
    assert "nested more than" in str(refusal(select(f"({nested})")))


def test_a_query_has_a_bounded_size() -> None:
    """Text, words and inputs are counted before they are read."""
    assert "characters, at most" in str(refusal(select(f"'{'x' * SQL_CHARS_MAX}'")))
    assert "words and signs, at most" in str(refusal(select("1," * (SQL_TOKENS_MAX // 2) + "1")))
    many = " ".join(f"JOIN quotes q{i} USING (k)" for i in range(INPUTS_MAX))
    assert f"{INPUTS_MAX + 1} inputs are joined, at most {INPUTS_MAX} are possible" in str(
        refusal(f"SELECT t.k FROM trades t {many}")
    )


def test_columns_that_differ_in_case_only_are_refused() -> None:
    """SQL could not tell them apart."""
    twins = pa.schema([("k", pa.int64()), ("K", pa.int64())])
    error = refusal("SELECT t.k FROM trades t JOIN twins USING (k)", {**STREAMS, "twins": twins})
    assert "stream 'twins' has two columns 'k' and 'K', which SQL cannot tell apart" in str(error)


def test_a_column_with_a_name_of_the_spill_store_is_refused_if_kept() -> None:
    """The spill store writes columns of its own beside those of an input."""
    schema = pa.schema([("k", pa.int64()), ("__group", pa.int32())])
    streams = {"a": schema, "b": schema}
    error = refusal("SELECT a.__group FROM a JOIN b USING (k)", streams)
    assert "column '__group' of a has a reserved name; rename it in the stream" in str(error)
    plan_query("SELECT a.k FROM a JOIN b USING (k)", streams, name="prices", partitions=300)


@pytest.mark.parametrize(("name", "partitions"), [("No", 300), ("", 300), ("q", 0), ("q", 1 << 21)])
def test_a_bad_name_or_partition_count_is_a_config_error(name: str, partitions: int) -> None:
    """They are settings, not SQL."""
    with pytest.raises(ConfigError):
        plan_query(select("t.k"), STREAMS, name=name, partitions=partitions)
