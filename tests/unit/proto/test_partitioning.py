"""Keys: the same group in every process and at any time, and equal where SQL says equal."""

from __future__ import annotations

import decimal

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from dovetail_proto.errors import QueryError
from dovetail_proto.key_types import common_key_type
from dovetail_proto.partitioning import canonical_keys, partition_ids

VECTORS = [
    (pa.array([0, 1, -1, 2**63 - 1]), [
        0xE220A8397B1DCDAF,
        0x910A2DEC89025CC1,
        0xE4D971771B652C20,
        0x2A67D7552E039EA7,
    ]),
    (pa.array([0.0, -0.0, 1.5]), [
        0xE220A8397B1DCDAF,
        0xE220A8397B1DCDAF,
        0xD6DAB18E1392608A,
    ]),
    (pa.array(["", "a", "trades", "longer than eight bytes"]), [
        0x0000000000000000,
        0xFB761138E1E0A78C,
        0x5D9FC0D5DD57E1FE,
        0x6A15DCF9EE8169BF,
    ]),
]  # fmt: skip


@pytest.mark.parametrize(("column", "hashes"), VECTORS)
def test_hashes_never_change(column: pa.Array, hashes: list[int]) -> None:
    """Spilled state is found by these numbers: a change here orphans it."""
    got = canonical_keys([column], [column.type]).hashes
    assert [hex(h) for h in got.tolist()] == [hex(h) for h in hashes]


def test_a_group_is_a_contiguous_range_of_hashes() -> None:
    """The group of a hash is its high half, scaled."""
    hashes = np.sort(np.random.default_rng(1).integers(0, 2**64, 10_000, dtype=np.uint64))
    ids = partition_ids(hashes, 300)
    assert (np.diff(ids) >= 0).all()
    plain = [((int(h) >> 32) * 300) >> 32 for h in hashes]
    assert ids.tolist() == plain


def test_composite_keys_do_not_run_into_each_other() -> None:
    """('a', 'bc') and ('ab', 'c') are different keys, with different bytes."""
    keys = canonical_keys(
        [pa.array(["a", "ab", "a"]), pa.array(["bc", "c", "bc"])], [pa.string(), pa.string()]
    )
    assert keys.offsets is not None
    assert keys.data is not None
    spans = [keys.data[a:b].tobytes() for a, b in np.lib.stride_tricks.sliding_window_view(
        keys.offsets, 2)]  # fmt: skip
    assert spans[0] == spans[2] != spans[1]
    assert keys.hashes[0] == keys.hashes[2] != keys.hashes[1]


def test_a_null_in_any_part_makes_the_key_invalid() -> None:
    """Such rows never match; the others are not touched by it."""
    keys = canonical_keys(
        [pa.array([1, None, 3]), pa.array(["x", "y", None])], [pa.int64(), pa.string()]
    )
    assert keys.valid is not None
    assert keys.valid.tolist() == [True, False, False]


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (pa.array([1, 2, 3], pa.int8()), pa.array([2, 3, 300], pa.int64())),
        (pa.array([1, 2**63, 2**64 - 1], pa.uint64()), pa.array([1, -1, 5], pa.int64())),
        (pa.array([1, 2, 2**53 + 1]), pa.array([1.0, 2.5, float(2**53)])),
        (pa.array([1.5, 0.1], pa.float32()), pa.array([1.5, 0.1], pa.float64())),
        (
            pa.array([decimal.Decimal("1.50"), decimal.Decimal("2.25")]),
            pa.array([decimal.Decimal("1.5"), decimal.Decimal("2.2")]),
        ),
        (pa.array([1, 2]), pa.array([decimal.Decimal("1.00"), decimal.Decimal("2.01")])),
        (pa.array([0, 86400], pa.date32()), pa.array([0, 1], pa.timestamp("s"))),
        (pa.array([1, 1000], pa.timestamp("ms")), pa.array([1000, 7], pa.timestamp("us"))),
        (pa.array(["a", ""], pa.large_string()), pa.array(["a", "A"])),
        (pa.array([b"a", b""]), pa.array([b"a", b"b"], pa.binary(1))),
        (pa.array([True, False]), pa.array([1, 2])),
        (pa.array([float("nan"), 0.0]), pa.array([float("nan"), -0.0])),
    ],
)
def test_keys_of_two_types_are_equal_where_duckdb_says_so(left: pa.Array, right: pa.Array) -> None:
    """Widening, rounding and the odd floats follow DuckDB."""
    common = common_key_type([left.type, right.type])
    a, b = canonical_keys([left], [common]), canonical_keys([right], [common])
    ours = {
        (i, j)
        for i, x in enumerate(a.hashes.tolist())
        for j, y in enumerate(b.hashes.tolist())
        if x == y
    }
    session = duckdb.connect()
    session.register("l", pa.table({"i": range(len(left)), "k": left}))
    session.register("r", pa.table({"j": range(len(right)), "k": right}))
    theirs = set(session.sql("SELECT i, j FROM l JOIN r ON l.k = r.k").fetchall())
    assert ours == theirs


@pytest.mark.parametrize(
    "types",
    [
        [pa.string(), pa.int64()],
        [pa.string(), pa.binary()],
        [pa.timestamp("us"), pa.timestamp("us", "UTC")],
        [pa.date32(), pa.int32()],
        [pa.list_(pa.int32())],
    ],
)
def test_types_that_cannot_be_compared_are_refused(types: list[pa.DataType]) -> None:
    """With what to do about it."""
    with pytest.raises(QueryError, match="cast"):
        common_key_type(types)


@pytest.mark.parametrize(
    "columns",
    [
        [pa.array([5, 6, 7, 8, 9])],
        [pa.array(["", "b", "cc", "ddd", ""])],
        [pa.array([1, None, 3, 4, 5]), pa.array(["x", "y", None, "z", ""])],
    ],
    ids=["numbers", "text", "composite with nulls"],
)
@pytest.mark.parametrize("positions", [[], [0, 1, 2, 3, 4], [3, 4], [1], [0, 3]])
def test_keys_of_some_rows_are_those_of_a_batch_of_these_rows(
    columns: list[pa.Array], positions: list[int]
) -> None:
    """Hashes, nulls and the bytes of the keys, and nothing of the other rows."""
    types = [c.type for c in columns]
    at = np.array(positions, np.int64)
    taken = canonical_keys(columns, types).take(at)
    alone = canonical_keys([c.take(pa.array(at)) for c in columns], types)
    assert taken.hashes.tolist() == alone.hashes.tolist()
    everywhere = [True] * at.size
    for keys in (taken, alone):
        assert (keys.offsets is None) == (types == [pa.int64()])
    nulls = [everywhere if k.valid is None else k.valid.tolist() for k in (taken, alone)]
    assert nulls[0] == nulls[1]
    if taken.offsets is not None and alone.offsets is not None:
        assert taken.data is not None
        assert alone.data is not None
        assert taken.offsets.tolist() == alone.offsets.tolist()
        size = int(taken.offsets[-1])
        assert taken.data[:size].tobytes() == alone.data[:size].tobytes()
