"""Filters and computed columns on batches: DuckDB's values, the batch's own buffers otherwise."""

from __future__ import annotations

import datetime as dt
import gc
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dovetail_manager.planner import plan_query
from dovetail_processor.expressions import Evaluator, above_join, below_join
from dovetail_proto.errors import InputError
from dovetail_proto.sql_session import open_session, quote, reason
from kit.plan_reference import warm_duckdb

SCHEMA = pa.schema([("a", pa.int64()), ("s", pa.string()), ("x", pa.float64())])
BATCH = pa.record_batch(
    {"a": [1, 2, None, 4], "s": ["1", "b", "3", None], "x": [0.5, 1.5, 2.5, 3.5]}, schema=SCHEMA
)


@pytest.fixture(autouse=True, scope="module")
def _warm() -> Iterator[None]:
    with warm_duckdb():
        yield


def evaluator(
    filter_sql: str | None, *outputs: str | tuple[str, pa.DataType], schema: pa.Schema = SCHEMA
) -> Evaluator:
    """An evaluator whose outputs are names of columns, or (expression, type)."""
    made: list[tuple[pa.Field, str | None, str | None]] = []
    for i, output in enumerate(outputs):
        if isinstance(output, str):
            made.append((pa.field(output, schema.field(output).type), output, None))
        else:
            made.append((pa.field(f"c{i}", output[1]), None, output[0]))
    return Evaluator(schema, filter_sql, made, where="query 'q'")


def addresses(array: pa.Array) -> list[int]:
    """Where the buffers of an array are."""
    return [b.address for b in array.buffers() if b is not None]


def test_bare_columns_pass_without_a_copy() -> None:
    """Chosen, repeated, in another order, and without DuckDB."""
    made = Evaluator(SCHEMA, None, [(SCHEMA.field("x"), "x", None), (SCHEMA.field("a"), "a", None)])
    result = made.run(BATCH)
    assert result.schema.names == ["x", "a"]
    assert addresses(result.column("a")) == addresses(BATCH.column("a"))
    assert made._duck is None


def test_bare_columns_pass_without_a_copy_beside_computed_ones() -> None:
    """Also where a filter keeps every row."""
    for filter_sql in (None, '"x" > 0'):
        result = evaluator(filter_sql, "s", ('"a" + 1', pa.int64())).run(BATCH)
        assert addresses(result.column("s")) == addresses(BATCH.column("s"))
        assert result.column("c1").to_pylist() == [2, 3, None, 5]


def test_a_row_is_kept_where_the_filter_is_true() -> None:
    """Not where it is false or null; rows keep their order."""
    result = evaluator('"a" > 1', "s", ('"a" * 10', pa.int64()), "a").run(BATCH)
    assert result.to_pydict() == {"s": ["b", None], "c1": [20, 40], "a": [2, 4]}


def test_a_filter_may_stand_alone() -> None:
    """Over computed columns only, bare ones only, and keeping nothing."""
    assert evaluator('"x" > 3', ("1", pa.int32())).run(BATCH).to_pydict() == {"c0": [1]}
    assert evaluator('"x" > 3', "x").run(BATCH).to_pydict() == {"x": [3.5]}
    assert evaluator("FALSE", "x", ("2", pa.int32())).run(BATCH).num_rows == 0


def test_rows_keep_their_order_across_duckdbs_vectors() -> None:
    """A batch is many vectors of 2048 rows; results line up with bare columns row by row."""
    rows = 50_000
    values = np.random.default_rng(1).integers(0, 1000, rows)
    batch = pa.record_batch({"a": np.arange(rows), "v": values})
    made = evaluator('"v" % 3 = 1', "a", ('"a" * 2 + "v"', pa.int64()), "v", schema=batch.schema)
    result = made.run(batch)
    kept = np.flatnonzero(values % 3 == 1)
    assert result.column("a").to_numpy().tolist() == kept.tolist()
    assert result.column("c1").to_numpy().tolist() == (kept * 2 + values[kept]).tolist()


def test_one_evaluator_serves_many_batches() -> None:
    """Of any size, empty ones among them; each result is of its own batch."""
    made = evaluator('"a" >= 0', ('"a" + 1', pa.int64()), "a")
    for rows in (3, 0, 1, 5000, 2):
        batch = pa.record_batch(
            {"a": np.arange(rows), "s": [""] * rows, "x": np.zeros(rows)}, schema=SCHEMA
        )
        result = made.run(batch)
        assert result.column("a").to_pylist() == list(range(rows))
        assert result.column("c0").to_pylist() == list(range(1, rows + 1))


def test_a_slice_of_a_batch_is_read_from_its_offset() -> None:
    """Offsets travel with the columns into DuckDB."""
    result = evaluator('"s" IS NOT NULL', ('upper("s")', pa.string()), "a").run(BATCH.slice(1, 2))
    assert result.to_pydict() == {"c0": ["B", "3"], "a": [2, None]}


def test_expressions_see_only_rows_that_pass_the_filter() -> None:
    """Text that is not a number does no harm where it is filtered out."""
    result = evaluator("\"s\" <> 'b'", ('CAST("s" AS INTEGER)', pa.int32())).run(BATCH)
    assert result.column("c0").to_pylist() == [1, 3]


@pytest.mark.parametrize(
    ("filter_sql", "expression", "message"),
    [
        (
            None,
            'CAST("s" AS INTEGER)',
            "column 'c1' = CAST(\"s\" AS INTEGER) failed: Could not conv",
        ),
        (None, '"a" + 9223372036854775807', "failed: Overflow in addition of INT64"),
        ('CAST("s" AS INTEGER) > 0', "1", 'filter CAST("s" AS INTEGER) > 0 failed: Could not conv'),
        ("\"s\" = '3'", 'CAST("x" * 1e30 AS INTEGER)', "column 'c1' = CAST(\"x\" * 1e30"),
    ],
)
def test_a_failing_value_is_an_error_that_names_the_expression(
    filter_sql: str | None, expression: str, message: str
) -> None:
    """With what failed, and what to do; the evaluator can go on with the next batch."""
    made = evaluator(filter_sql, ('"a"', pa.int64()), (expression, pa.int32()))
    with pytest.raises(InputError) as caught:
        made.run(BATCH)
    assert str(caught.value).startswith("query 'q', ")
    assert message in str(caught.value)
    assert caught.value.remedy == "filter such rows out with WHERE, or use TRY_CAST or TRY(…)"
    assert made.run(BATCH.slice(0, 0)).num_rows == 0


def test_a_value_that_its_type_cannot_hold_is_an_error() -> None:
    """A HUGEINT may have 39 digits, Arrow's decimal has 38."""
    made = evaluator(None, ("170141183460469231731687303715884105727::HUGEINT", pa.decimal128(38)))
    with pytest.raises(InputError, match="gave a value that decimal128"):
        made.run(BATCH)


PAYLOAD: dict[str, tuple[pa.DataType, Sequence[Any]]] = {
    "null": (pa.null(), [None] * 3),
    "bool": (pa.bool_(), [True, None, False]),
    "uint64": (pa.uint64(), [2**64 - 1, None, 0]),
    "half": (pa.float16(), [np.float16(1.5), None, np.float16(2)]),
    "large_string": (pa.large_string(), ["a", None, "b"]),
    "string_view": (pa.string_view(), ["a", None, "b"]),
    "large_binary": (pa.large_binary(), [b"a", None, b""]),
    "fixed_binary": (pa.binary(2), [b"ab", None, b"cd"]),
    "date64": (pa.date64(), [dt.date(2024, 1, 1), None, dt.date(1960, 1, 1)]),
    "time32": (pa.time32("s"), [dt.time(1), None, dt.time(2)]),
    "time64": (pa.time64("us"), [dt.time(1), None, dt.time(2)]),
    "timestamp_ms": (pa.timestamp("ms"), [dt.datetime(2024, 1, 1), None, dt.datetime(1960, 1, 1)]),
    "zoned": (pa.timestamp("us", "Europe/Berlin"), [0, None, 1]),
    "duration": (pa.duration("s"), [dt.timedelta(1), None, dt.timedelta(0)]),
    "decimal256": (pa.decimal256(60, 3), [Decimal("1.5"), None, Decimal("2")]),
    "list": (pa.list_(pa.int32()), [[1, None], None, []]),
    "large_list": (pa.large_list(pa.string()), [["a"], None, []]),
    "fixed_list": (pa.list_(pa.int8(), 2), [[1, 2], None, [3, 4]]),
    "struct": (pa.struct([("f", pa.large_string())]), [{"f": "a"}, None, {"f": None}]),
    "map": (pa.map_(pa.string(), pa.int64()), [[("a", 1)], None, []]),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), ["a", None, "b"]),
}


@pytest.mark.parametrize("name", PAYLOAD)
def test_any_column_passes_a_filter_unchanged(name: str) -> None:
    """DuckDB lacks or changes many types; it never sees a bare column."""
    t, values = PAYLOAD[name]
    payload = pa.array(values, t)
    batch = pa.record_batch({"k": pa.array([1, 2, 3]), "p": payload})
    made = evaluator('"k" <> 2', "p", ('"k"', pa.int64()), schema=batch.schema)
    result = made.run(batch)
    assert result.column("p").type == t
    assert result.column("p").equals(pa.array([values[0], values[2]], t))
    result.validate(full=True)


def test_a_result_is_cast_to_its_planned_type() -> None:
    """Where DuckDB's Arrow type differs in a detail from the planned one."""
    made = evaluator(None, ('"s"', pa.large_string()), ('"a"', pa.int32()))
    result = made.run(BATCH)
    assert result.schema.types == [pa.large_string(), pa.int32()]


def test_names_may_hold_anything() -> None:
    """Quotes, dots, capitals, the view's own name, and text that looks like a name."""
    names = ['say "hi"', "0.k", "__batch", "__row", "Ünï", "it's"]
    batch = pa.record_batch({n: pa.array([i, i + 1]) for i, n in enumerate(names)})
    sql = " + ".join(quote(n) for n in names) + " + length('\"0.k\" it''s')"
    made = evaluator(f"{quote('__row')} > 3", (sql, pa.int64()), "it's", schema=batch.schema)
    assert made.run(batch).to_pydict() == {"c0": [21 + 10], "it's": [6]}


def test_plans_run_below_and_above_the_join() -> None:
    """From a stream's batch to kept columns, from combinations to results."""
    streams = {"t": SCHEMA, "u": pa.schema([("k", pa.string()), ("y", pa.float64())])}
    plan = plan_query(
        "SELECT t.x * u.y AS xy, t.a FROM t JOIN u ON upper(t.s) = u.k WHERE a > 0 AND x < y",
        streams,
        name="both",
        partitions=1,
    )
    kept = below_join(plan.inputs[0]).run(BATCH)
    assert kept.schema == plan.inputs[0].kept
    assert kept.to_pydict() == {
        "a": [1, 2, 4],
        "x": [0.5, 1.5, 3.5],
        "key_1": ["1", "B", None],
    }
    combinations = pa.record_batch(
        {"0.a": [1, 2, 4], "0.x": [0.5, 1.5, 3.5], "1.y": [2.0, 1.0, 4.0]},
        schema=plan.joined_schema(),
    )
    results = above_join(plan).run(combinations)
    assert results.schema == plan.output_schema
    assert results.to_pydict() == {"xy": [1.0, 14.0], "a": [1, 4]}


def test_errors_of_plans_name_the_place_in_the_query() -> None:
    """The input and stream below the join, the result column and the query's names above it."""
    streams = {"t": SCHEMA, "u": SCHEMA}
    plan = plan_query(
        "SELECT CAST(u.s AS INTEGER) AS n FROM t JOIN u ON t.a = CAST(u.s AS BIGINT)",
        streams,
        name="both",
        partitions=1,
    )
    with pytest.raises(InputError, match=r"input 'u' \(stream 'u'\), column 'key_1' = CAST"):
        below_join(plan.inputs[1]).run(BATCH)
    combinations = pa.record_batch({"1.s": ["7", "x"]}, schema=plan.joined_schema())
    with pytest.raises(InputError, match=r"query 'both', column 'n' = CAST\(u\.s AS INT\) failed"):
        above_join(plan).run(combinations)


def test_evaluators_of_several_threads_do_not_disturb_each_other() -> None:
    """They share DuckDB's instance, each with its own session and view."""
    wrong: list[int] = []

    def work(number: int) -> None:
        made = evaluator(f'"a" >= {number}', (f'"a" + {number}', pa.int64()))
        for _ in range(20):
            batch = pa.record_batch(
                {"a": np.arange(3000) + number, "s": [""] * 3000, "x": np.zeros(3000)}
            )
            result = made.run(batch).column(0)
            if not result.equals(pc.add(batch.column("a"), number)):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_an_error_inside_duckdb_fails_the_expression_that_met_it_only() -> None:
    """It is named. Others go on, in this thread and in others, and so does it with other rows."""
    sound, broken = (
        pa.record_batch({"t": pa.array([0, 1, last]).cast(pa.timestamp("us"))})
        for last in (2, -(2**63))
    )
    done = threading.Event()
    wrong: list[object] = []

    def made(sql: str, t: pa.DataType) -> Evaluator:
        outputs = [(pa.field("n", pa.int64()), None, "7"), (pa.field("c", t), None, sql)]
        return Evaluator(sound.schema, None, outputs)

    def check(innocent: Evaluator) -> None:
        if (found := innocent.run(sound).column(1).to_pylist()) != [0, 1, 2]:
            wrong.append(found)

    def beside() -> None:
        innocent = made('epoch_us("t")', pa.int64())
        while not done.is_set():
            try:
                check(innocent)
            except InputError as e:
                wrong.append(e)

    thread = threading.Thread(target=beside)
    thread.start()
    innocent = made('epoch_us("t")', pa.int64())
    guilty = made('CAST("t" AS VARCHAR)', pa.string())
    try:
        for _ in range(5):
            with pytest.raises(InputError) as caught:
                guilty.run(broken)
            assert "column 'c' = CAST(\"t\" AS VARCHAR) failed: " in str(caught.value)
            assert "stack_trace" not in str(caught.value)
            check(innocent)
            check(made('epoch_us("t")', pa.int64()))
            assert guilty.run(sound).num_rows == 3
    finally:
        done.set()
        thread.join()
    assert wrong == []


def test_an_evaluator_holds_no_batch_between_runs() -> None:
    """What it was given can be freed at once."""
    made = evaluator('"a" > 0', ('"a"', pa.int64()))
    gc.collect()
    before = pa.total_allocated_bytes()
    rows = 1 << 16
    made.run(
        pa.record_batch(
            {
                "a": pa.array(range(rows)),
                "s": pa.nulls(rows, pa.string()),
                "x": pa.nulls(rows, pa.float64()),
            }
        )
    )
    gc.collect()
    assert pa.total_allocated_bytes() - before < 1 << 16


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM '/etc/passwd'",
        "COPY (SELECT 1) TO '/tmp/leak.csv'",
        "ATTACH '/tmp/leak.db'",
        "INSTALL httpfs",
        "SET threads = 4",
        "SET enable_external_access = true",
        "RESET lock_configuration",
        "SELECT * FROM BATCH",
    ],
)
def test_a_session_reaches_nothing_outside(sql: str) -> None:
    """No file, no extension, no setting, no Python variable."""
    with open_session() as session, pytest.raises(Exception, match=r"Error") as caught:
        session.execute(sql).fetchall()
    assert type(caught.value).__module__ == "_duckdb"


def test_sessions_agree_on_the_time_zone() -> None:
    """Whatever the machine's is."""
    sql = "SELECT CAST(TIMESTAMPTZ '2024-01-01 00:00:00+02' AS VARCHAR)"
    with open_session() as session:
        assert session.execute(sql).fetchall() == [("2023-12-31 22:00:00+00",)]


def test_duckdbs_complaints_are_told_in_one_line() -> None:
    """With the place that it points at."""
    with open_session() as session:
        for sql, expected in (
            ("SELECT CAST('x' AS INTEGER)", ("Could not convert string 'x' to INT32", 7)),
            ("SELECT 1 FROM", ('syntax error at or near "FROM"', 9)),
        ):
            with pytest.raises(Exception, match="Error") as caught:
                session.execute(sql)
            assert reason(caught.value) == expected
    assert reason(ValueError("plain: text\nsecond line")) == ("plain: text", None)


def test_a_process_with_evaluators_ends_silently() -> None:
    """DuckDB's bindings report what was not released when the interpreter ends."""
    program = (
        "import pyarrow as pa\n"
        "from dovetail_processor.expressions import Evaluator\n"
        "schema = pa.schema([('a', pa.int64())])\n"
        "made = Evaluator(schema, '\"a\" > 1', [(schema.field('a'), 'a', None)])\n"
        "print(made.run(pa.record_batch({'a': [1, 2]}, schema=schema)).num_rows)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert (done.stdout, done.stderr) == ("1\n", "")
