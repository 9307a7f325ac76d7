"""Rows of every kind become batches of the declared schema that are small enough to send."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from dovetail.rows import CUT_BYTES, CUT_ROWS, batches_of
from dovetail_proto.errors import InputError

SCHEMA = pa.schema([("k", pa.int64()), ("t", pa.string())])


def sent(data: object, schema: pa.Schema = SCHEMA) -> list[pa.RecordBatch]:
    """What goes out."""
    return list(batches_of(data, schema, "s"))


def test_batches_are_cut_by_rows_and_bytes() -> None:
    """All rows, in order."""
    many = pa.table({"k": np.arange(200_000)})
    cut = sent(many, many.schema)
    assert [b.num_rows for b in cut] == [CUT_ROWS] * 3 + [200_000 - 3 * CUT_ROWS]
    wide = pa.table({"k": np.arange(50), "t": ["x" * 300_000] * 50})
    parts = sent(wide)
    assert all(b.nbytes <= CUT_BYTES for b in parts)
    assert pa.Table.from_batches(parts).equals(wide)


def test_nothing_is_sent_of_nothing() -> None:
    """An empty table has no batches."""
    assert sent(SCHEMA.empty_table()) == []


@pytest.mark.parametrize(
    "kind",
    [pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string()), pa.null()],
    ids=str,
)
def test_encodings_are_undone(kind: pa.DataType) -> None:
    """The values stay."""
    values = [None, None] if pa.types.is_null(kind) else ["a", None]
    text = pa.array(values, pa.string()).cast(kind) if values[0] else pa.nulls(2)
    (batch,) = sent(pa.table({"k": [1, 2], "t": text}))
    assert batch.schema == SCHEMA
    assert batch.column(1).to_pylist() == values


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (pa.table({"k": [1.5], "t": ["a"]}), r"\(k double, t string\), not \(k int64, t string\)"),
        (pa.table({"k": pa.array([1], pa.int32()), "t": ["a"]}), "k int32"),
        (pa.table({"k": [1]}), "without t"),
        (pa.table({"k": [1], "t": ["a"], "u": [1]}), "with u"),
        (pa.table({"k": [1], "T": ["a"]}), "without t and with T"),
        (pa.table([[1], [1], ["a"]], ["k", "k", "t"]), "twice"),
        ({"k": [1], "t": ["a"]}, "cannot come as dict"),
    ],
)
def test_other_columns_are_refused_by_name(data: object, text: str) -> None:
    """Nothing is converted that changes a value's kind."""
    with pytest.raises(InputError, match=text):
        sent(data)


def test_nulls_are_refused_where_none_are_declared() -> None:
    """Before anything is sent."""
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False)])
    with pytest.raises(InputError, match="'k' has nulls"):
        sent(pa.table({"k": [1, None]}), schema)


def test_pandas_frames_take_the_declared_types() -> None:
    """Integers with gaps are floats there."""
    pandas = pytest.importorskip("pandas")
    (batch,) = sent(pandas.DataFrame({"t": ["a", None], "k": [1.0, float("nan")]}))
    assert batch.to_pylist() == [{"k": 1, "t": "a"}, {"k": None, "t": None}]
    with pytest.raises(InputError, match="does not fit"):
        sent(pandas.DataFrame({"t": ["a"], "k": ["b"]}))
