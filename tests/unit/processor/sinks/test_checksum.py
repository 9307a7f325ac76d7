"""The order-free checksum beside a plain reference, and what it must and must not depend on."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dovetail_processor.sinks import checksum
from kit.arrow_samples import ROWS, odd_samples, plain_samples

WORD = 2**64
SEED = 0x9E3779B97F4A7C15


def fold(acc: int, word: int) -> int:
    """A value of up to eight bytes."""
    m = ((acc ^ word) * 0xD6E8FEB86659FD93) % WORD
    return m ^ (m >> 32)


def fold_null(acc: int) -> int:
    """A null."""
    m = ((acc + 0x8EBC6AF09C88C6E3) * 0xA0761D6478BD642F) % WORD
    return m ^ (m >> 32)


def folded(words: list[int], length: int) -> int:
    """A longer value, as a word."""
    acc = length * 0xE7037ED1A0B428DB % WORD
    for word in words:
        acc = fold(acc, word)
    return acc


def word_of(value: Any) -> int:
    """A value as the word that is folded in. Floats are doubles here."""
    if isinstance(value, bool | int):
        return int(value) % WORD
    if isinstance(value, float):
        return int.from_bytes(struct.pack("<d", math.nan if math.isnan(value) else value), "little")
    if isinstance(value, str):
        return word_of(value.encode())
    if isinstance(value, bytes):
        parts = [value[i : i + 8] for i in range(0, len(value), 8)]
        return folded([int.from_bytes(p, "little") for p in parts], len(value))
    if isinstance(value, dict):
        return accumulated(value.values())
    return folded([accumulated([v]) for v in value], len(value))


def accumulated(values: Any) -> int:
    """Values folded one after the other."""
    acc = SEED
    for value in values:
        acc = fold_null(acc) if value is None else fold(acc, word_of(value))
    return acc


def finished(h: int) -> int:
    """The last mixing."""
    h = ((h ^ (h >> 33)) * 0xFF51AFD7ED558CCD) % WORD
    h = ((h ^ (h >> 33)) * 0xC4CEB9FE1A85EC53) % WORD
    return h ^ (h >> 33)


def reference(rows: list[list[Any]]) -> int:
    """Three lines: fold the values of a row, mix, add up."""
    return sum(finished(accumulated(row)) for row in rows) % WORD


def batch(*columns: pa.Array) -> pa.RecordBatch:
    """A batch of these columns."""
    return pa.record_batch(list(columns), names=[f"c{i}" for i in range(len(columns))])


def sample_batch() -> pa.RecordBatch:
    """A column of every type."""
    return batch(*plain_samples().values())


EASY = [
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    "bool", "double", "string", "large_string", "binary", "large_binary", "null",
    "fixed_size_binary[3]", "list<item: int32>", "large_list<item: int64>",
    "fixed_size_list<item: int16>[2]", "list<item: list<item: string>>",
    "struct<a: int8, b: list<item: string>>", "list<item: struct<a: int8>>",
]  # fmt: skip


@pytest.mark.parametrize("name", EASY)
def test_kernels_agree_with_the_reference(name: str) -> None:
    """For every type whose values Python shows as they are."""
    column = plain_samples()[name]
    assert checksum(batch(column)) == reference([[v] for v in column.to_pylist()])


def test_a_map_is_a_list_of_pairs() -> None:
    """Key first."""
    column = plain_samples()["map<string, int32>"]
    rows = [
        [None if entries is None else [{"key": k, "value": v} for k, v in entries]]
        for entries in column.to_pylist()
    ]
    assert checksum(batch(column)) == reference(rows)


def test_several_columns_agree_with_the_reference() -> None:
    """All of the simple types in one row, by seeded random nulls."""
    seed = 7
    rng = np.random.default_rng(seed)
    rows = 1000
    columns = [
        pa.array(rng.integers(-(2**63), 2**63, rows), mask=rng.random(rows) < 0.2),
        pa.array(rng.standard_normal(rows), mask=rng.random(rows) < 0.2),
        pa.array([None if x < 0.2 else "x" * int(40 * x) for x in rng.random(rows)]),
    ]
    found = checksum(batch(*columns))
    assert found == reference(
        [list(r) for r in zip(*(c.to_pylist() for c in columns), strict=True)]
    )


def test_fixed_values_never_change() -> None:
    """A checksum that was printed once must be found again by every later version."""
    assert checksum(batch(pa.array([1, 2, 3]))) == 0xCF4637C91411AF3D
    assert (
        checksum(batch(pa.array(["a", None]), pa.array([0.5, float("nan")]))) == 0x6C5E1DC100011008
    )
    assert checksum(sample_batch().slice(0, 0)) == 0


def test_order_of_rows_does_not_matter_and_parts_add_up() -> None:
    """So that sinks beside each other need not agree on anything."""
    whole = sample_batch()
    parts = [whole.slice(i, 1) for i in (3, 0, 5, 1, 4, 2)]
    assert sum(map(checksum, parts)) % WORD == checksum(whole)


@pytest.mark.parametrize("name", plain_samples())
def test_offsets_and_slices_do_not_matter(name: str) -> None:
    """A slice hashes as a copy of it does."""
    column = plain_samples()[name]
    for offset in range(ROWS):
        for length in range(ROWS - offset + 1):
            piece = column.slice(offset, length)
            copy = column.take(pa.array(range(offset, offset + length), pa.int64()))
            assert checksum(batch(piece)) == checksum(batch(copy)), (offset, length)


@pytest.mark.parametrize("name", odd_samples())
def test_layouts_of_the_same_values_hash_alike(name: str) -> None:
    """Dictionaries, views, runs and extensions hash as the plain columns they stand for."""
    odd, plain = odd_samples()[name]
    for offset in range(ROWS):
        assert checksum(batch(odd.slice(offset, 2))) == checksum(batch(plain.slice(offset, 2)))


def test_integers_of_any_width_hash_alike() -> None:
    """Equal values, equal hashes."""
    values = [0, 1, 100, None]
    types = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint32(), pa.uint64()]
    assert len({checksum(batch(pa.array(values, t))) for t in types}) == 1
    negative = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
    assert len({checksum(batch(pa.array([-1, -100], t))) for t in negative}) == 1


def test_what_lies_under_a_null_does_not_matter() -> None:
    """Two arrays with different garbage under the same nulls."""
    mask = np.array([False, True, False])
    one = pa.array(np.array([1, 2, 3]), mask=mask)
    two = pa.array(np.array([1, 99, 3]), mask=mask)
    assert one.buffers()[1].to_pybytes() != two.buffers()[1].to_pybytes()
    assert checksum(batch(one)) == checksum(batch(two))
    nulls = pa.array(mask)
    lists = [
        pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), pa.array(v), mask=nulls)
        for v in ([1, 2, 3], [1, 99, 3])
    ]
    assert checksum(batch(lists[0])) == checksum(batch(lists[1]))
    structs = [pa.StructArray.from_arrays([a], ["f"], mask=nulls) for a in (one, two)]
    assert checksum(batch(structs[0])) == checksum(batch(structs[1]))


def test_all_nans_are_one_and_zeros_differ_by_sign() -> None:
    """In every width of floating point."""
    for dtype, bits, quiet, loud in (
        ("f2", "u2", 0x7E00, 0xFE01),
        ("f4", "u4", 0x7FC00000, 0xFF800001),
        ("f8", "u8", 0x7FF8000000000000, 0xFFF0000000000001),
    ):
        nans = [pa.array(np.array([b], bits).view(dtype)) for b in (quiet, loud)]
        assert checksum(batch(nans[0])) == checksum(batch(nans[1]))
        infinite = pa.array(np.array([np.inf], dtype))
        assert checksum(batch(infinite)) != checksum(batch(nans[0]))
        zeros = [pa.array(np.array([z], dtype)) for z in (0.0, -0.0)]
        assert checksum(batch(zeros[0])) != checksum(batch(zeros[1]))


DIFFERENT: list[tuple[pa.RecordBatch, pa.RecordBatch]] = [
    (batch(pa.array([1]), pa.array([2])), batch(pa.array([2]), pa.array([1]))),
    (batch(pa.array([1, 2]), pa.array([3, 4])), batch(pa.array([1, 2]), pa.array([4, 3]))),
    (batch(pa.array([0])), batch(pa.array([None], pa.int64()))),
    (batch(pa.array([1])), batch(pa.array([1, 1]))),
    (batch(pa.array([""])), batch(pa.array([None], pa.string()))),
    (batch(pa.array(["a", "bc"])), batch(pa.array(["ab", "c"]))),
    (batch(pa.array(["ab"]), pa.array(["c"])), batch(pa.array(["a"]), pa.array(["bc"]))),
    (batch(pa.array(["a\0"])), batch(pa.array(["a"]))),
    (batch(pa.array([[1], [2, 3]])), batch(pa.array([[1, 2], [3]]))),
    (batch(pa.array([[]], pa.list_(pa.int8()))), batch(pa.array([None], pa.list_(pa.int8())))),
    (batch(pa.array([[None]], pa.list_(pa.int8()))), batch(pa.array([[]], pa.list_(pa.int8())))),
    (batch(pa.array([{"a": 1, "b": 2}])), batch(pa.array([{"a": 2, "b": 1}]))),
    (batch(pa.array([True, True])), batch(pa.array([True, False]))),
]


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_different_bags_of_rows_hash_differently(
    one: pa.RecordBatch, other: pa.RecordBatch
) -> None:
    """Column order, nulls, repeats and borders between values all count."""
    assert checksum(one) != checksum(other)


def test_names_of_columns_do_not_matter() -> None:
    """Only their order does."""
    column = pa.array([1, 2])
    assert checksum(pa.record_batch([column], ["a"])) == checksum(pa.record_batch([column], ["b"]))


def test_unions_are_refused() -> None:
    """They cannot be results."""
    union = pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])])
    with pytest.raises(TypeError, match="union"):
        checksum(batch(union))


def test_a_misaligned_buffer_is_hashed_as_well() -> None:
    """Buffers of foreign origin may lie at any address."""
    raw = pa.py_buffer(b"\0" + np.arange(4, dtype="i8").tobytes())
    column = pa.Array.from_buffers(pa.int64(), 4, [None, raw.slice(1)])
    assert checksum(batch(column)) == checksum(batch(pa.array([0, 1, 2, 3])))
