"""Random joins on small data, and the plainest join there is to compare with."""

from __future__ import annotations

import datetime
import decimal
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from dovetail_processor.batches import keyed, stamped
from dovetail_processor.join.state import JoinState
from dovetail_proto.query import InputPlan, OutputColumn, QueryPlan

Row = tuple[object, ...]

KEY_KINDS: dict[str, list[pa.DataType]] = {
    "int": [pa.int64()],
    "small int": [pa.int16()],
    "float": [pa.float64()],
    "text": [pa.string()],
    "composite": [pa.int32(), pa.string()],
    "decimal": [pa.decimal128(12, 2)],
}

PAYLOADS: list[pa.DataType] = [
    pa.int64(), pa.float64(), pa.int32(), pa.int8(), pa.bool_(), pa.string(), pa.large_string(),
    pa.binary(), pa.binary(5), pa.date32(), pa.timestamp("us", "UTC"), pa.decimal128(20, 3),
    pa.decimal256(50, 2), pa.null(), pa.list_(pa.int32()),
    pa.struct([("x", pa.int64()), ("y", pa.string())]), pa.map_(pa.string(), pa.int32()),
]  # fmt: skip


def values(rng: np.random.Generator, t: pa.DataType, rows: int, nulls: bool = True) -> pa.Array:
    """Random values of any type, some null."""
    drawn = [None if nulls and rng.random() < 0.15 else _value(rng, t) for _ in range(rows)]
    return pa.array(drawn, t)


def _value(rng: np.random.Generator, t: pa.DataType) -> object:
    number = int(rng.integers(-100, 100))
    if pa.types.is_null(t):
        return None
    if pa.types.is_boolean(t):
        return number > 0
    if pa.types.is_integer(t):
        return number
    if pa.types.is_floating(t):
        return [number / 4, 0.0, -0.0, math.nan, math.inf][int(rng.integers(0, 5))]
    if pa.types.is_fixed_size_binary(t):
        return rng.bytes(t.byte_width)
    if pa.types.is_string(t) or pa.types.is_large_string(t):
        return "ü" * int(rng.integers(0, 4)) + "x" * int(rng.choice([0, 3, 50, 1500]))
    if pa.types.is_binary(t):
        return rng.bytes(int(rng.choice([0, 1, 4, 300])))
    if pa.types.is_date32(t):
        return datetime.date(2020, 1, 1) + datetime.timedelta(days=number)
    if pa.types.is_timestamp(t):
        start = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
        return start + datetime.timedelta(seconds=number)
    if pa.types.is_decimal(t):
        return decimal.Decimal(number).scaleb(-t.scale)
    if pa.types.is_list(t):
        return [int(x) for x in rng.integers(0, 9, int(rng.integers(0, 4)))]
    if pa.types.is_struct(t):
        return {"x": number, "y": None if number % 3 == 0 else "y" * (number % 5)}
    assert pa.types.is_map(t)
    return [("k" * k, k) for k in range(int(rng.integers(0, 3)))]


def keys(rng: np.random.Generator, kind: str, rows: int, distinct: int) -> list[pa.Array]:
    """Random keys of few distinct values, skewed, some with a null part."""
    drawn = (distinct * rng.random(rows) ** 2).astype(int)
    missing = rng.random(rows) < 0.05
    parts = []
    for t in KEY_KINDS[kind]:
        parts.append(
            pa.array(
                [None if m else _key(t, int(k)) for k, m in zip(drawn, missing, strict=True)], t
            )
        )
    return parts


def _key(t: pa.DataType, k: int) -> object:
    if pa.types.is_floating(t):
        return [0.0, -0.0, math.nan][k] if k < 3 else k / 8
    if pa.types.is_string(t):
        return "" if k == 0 else f"key-{k}" * (1 + 400 * (k % 7 == 0))
    if pa.types.is_decimal(t):
        return decimal.Decimal(k).scaleb(-t.scale)
    return k - 2


def plan_of(schemas: Sequence[pa.Schema], key_kind: str, partitions: int) -> QueryPlan:
    """Join all inputs on columns k0, k1, … and select everything."""
    names = tuple(f"k{p}" for p in range(len(KEY_KINDS[key_kind])))
    inputs = tuple(
        InputPlan(f"s{i}", f"s{i}", schema, None, (), schema, names)
        for i, schema in enumerate(schemas)
    )
    outputs = tuple(
        OutputColumn(f"s{i}_{f.name}", f.type, (i, f.name), None)
        for i, schema in enumerate(schemas)
        for f in schema
    )
    return QueryPlan(
        name="case",
        sql="",
        inputs=inputs,
        key_types=tuple(KEY_KINDS[key_kind]),
        partitions=partitions,
        residual_sql=None,
        residual_columns=(),
        outputs=outputs,
        output_columns=(),
    )


def begin(state: JoinState, i: int, batch: pa.RecordBatch, now_s: float = 0.0) -> None:
    """Have a state begin rows that come behind all that it has taken, if any has a key."""
    rows = keyed(state.plan, i, stamped(batch, int(state.marks[i].max()) + 1))
    if rows.rows.num_rows:
        state.begin(i, rows, now_s)


def frozen(value: object) -> object:
    """A value that can be counted: lists and dicts as tuples, NaN equal to itself."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else (value, math.copysign(1, value))
    if isinstance(value, list):
        return tuple(frozen(v) for v in value)
    if isinstance(value, dict):
        return tuple((k, frozen(v)) for k, v in value.items())
    return frozen_tuple(value) if isinstance(value, tuple) else value


def frozen_tuple(values_: Iterable[object]) -> tuple[object, ...]:
    """`frozen` on each."""
    return tuple(frozen(v) for v in values_)


def rows_of(batch: pa.RecordBatch | pa.Table) -> list[Row]:
    """A batch as rows that can be counted."""
    columns = [c.to_pylist() for c in batch.columns]
    return [frozen_tuple(r) for r in zip(*columns, strict=True)]


def plain_key(row: Row, parts: int) -> object:
    """The key of a row as the join compares it: −0.0 is 0.0; None if any part is null."""
    key = []
    for v in row[:parts]:
        if v is None:
            return None
        key.append(v[0] if isinstance(v, tuple) else v)
    return tuple(key)


def plain_join(inputs: Sequence[Sequence[Row]], parts: int) -> Counter[Row]:
    """Every combination of rows with equal keys, the plainest way; the key leads each row."""
    tables: list[dict[object, list[Row]]] = []
    for rows in inputs:
        table: dict[object, list[Row]] = {}
        for row in rows:
            key = plain_key(row, parts)
            if key is not None:
                table.setdefault(key, []).append(row)
        tables.append(table)
    found: Counter[Row] = Counter()
    for key in tables[0]:
        for combination in itertools.product(*(t.get(key, []) for t in tables)):
            found[tuple(itertools.chain(*combination))] += 1
    return found
