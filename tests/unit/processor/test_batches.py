"""Rows on their way: their sequences, their keys, and parts of a batch that keep nothing else."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa

from dovetail_processor.batches import keyed, stamped
from dovetail_proto.partitioning import canonical_keys, partition_ids
from kit.spills import make_plan

NUMBERS = make_plan([pa.schema([("k", pa.int64()), ("v", pa.string())])] * 2)
TEXTS = make_plan([pa.schema([("k", pa.string()), ("v", pa.int64())])] * 2)


def batch(keys: list[int | None]) -> pa.RecordBatch:
    """Each value is its row's place."""
    values = [str(n) for n in range(len(keys))]
    return pa.record_batch({"k": pa.array(keys, pa.int64()), "v": pa.array(values)})


def test_rows_without_gaps_are_numbered_from_the_first() -> None:
    """And nothing is stored for it."""
    rows = stamped(batch([7, 8, 9]), 100)
    assert rows.offsets is None
    assert (rows.lowest, rows.highest) == (100, 102)
    assert rows.sequences().tolist() == [100, 101, 102]
    assert rows.size_bytes == rows.rows.nbytes


def test_rows_keep_their_sequences_through_a_filter() -> None:
    """And through a second one; four bytes a row count for it."""
    rows = stamped(batch([1, 2, 3, 4, 5]), 10)
    some = np.array([1, 2, 4], np.int32)
    once = rows.evaluated(rows.rows.take(pa.array(some)), some)
    assert once.sequences().tolist() == [11, 12, 14]
    assert (once.lowest, once.highest) == (11, 14)
    assert once.size_bytes == once.rows.nbytes + 3 * 4
    twice = once.evaluated(once.rows.slice(2), np.array([2], np.int32))
    assert twice.sequences().tolist() == [14]
    assert (twice.lowest, twice.highest) == (14, 14)
    other_columns = once.evaluated(once.rows.select(["v"]), None)
    assert other_columns.sequences().tolist() == [11, 12, 14]


def test_rows_with_a_null_in_the_key_are_left_out_and_the_others_keep_their_sequences() -> None:
    """They join with nothing."""
    made = keyed(NUMBERS, 0, stamped(batch([5, None, 6, None]), 3))
    assert made.rows["k"].to_pylist() == [5, 6]
    assert made.rows["v"].to_pylist() == ["0", "2"]
    assert made.stamped.sequences().tolist() == [3, 5]
    assert made.keys.valid is None
    hashes = canonical_keys([pa.array([5, 6])], NUMBERS.key_types).hashes
    assert made.keys.hashes.tolist() == hashes.tolist()
    assert made.groups.tolist() == partition_ids(hashes, NUMBERS.partitions).tolist()


def test_a_part_of_a_batch_is_that_of_its_rows_alone() -> None:
    """Columns, sequences, hashes and groups; a part of a part as well."""
    whole = keyed(NUMBERS, 0, stamped(batch(list(range(20))), 50))
    part = whole.take(np.array([3, 4, 9, 15])).take(np.array([1, 3]))
    assert part.rows["k"].to_pylist() == [4, 15]
    assert part.stamped.sequences().tolist() == [54, 65]
    alone = keyed(NUMBERS, 0, stamped(part.rows, 0))
    assert part.keys.hashes.tolist() == alone.keys.hashes.tolist()
    assert part.groups.tolist() == alone.groups.tolist()
    assert part.size_bytes == part.rows.nbytes + 2 * 4


def test_a_part_keeps_nothing_of_the_rest_in_memory() -> None:
    """A row that is held back for a move does not hold its batch."""
    part = keyed(NUMBERS, 0, stamped(batch(list(range(5_000))), 0)).take(np.array([77]))
    assert part.rows.get_total_buffer_size() < 200
    assert part.groups.base is None
    assert part.keys.hashes.base is None


def test_the_bytes_of_text_keys_travel_with_their_rows() -> None:
    """The join compares them where hashes are equal."""
    texts = ["", "a", "ab", "ü" * 100, "z"]
    rows = pa.record_batch({"k": pa.array(texts), "v": pa.array(range(5), pa.int64())})
    part = keyed(TEXTS, 1, stamped(rows, 0)).take(np.array([0, 2, 3]))
    assert part.keys.offsets is not None
    assert part.keys.data is not None
    starts = part.keys.offsets.tolist()
    found = [part.keys.data[a:b].tobytes() for a, b in pairwise(starts)]
    alone = canonical_keys([pa.array(["", "ab", "ü" * 100])], TEXTS.key_types)
    assert alone.offsets is not None
    assert alone.data is not None
    at = alone.offsets.tolist()
    assert found == [alone.data[a:b].tobytes() for a, b in pairwise(at)]
    assert part.keys.hashes.tolist() == alone.hashes.tolist()
