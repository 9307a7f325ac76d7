"""What an evaluator takes at once: small batches that wait, in order, never over a gap."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from dovetail_processor.batches import Stamped, stamped
from dovetail_processor.graph.arc import Arc
from dovetail_processor.operators.evaluate import MERGED_BYTES, take_merged


def rows(first: int, count: int) -> Stamped:
    """Rows whose value is their sequence."""
    return stamped(pa.record_batch({"n": np.arange(first, first + count)}), first)


def taken(source: Arc[Stamped]) -> list[list[int]]:
    """Everything, as it is taken; each row has the sequence that it was given."""
    found = []
    while len(source):
        batch = take_merged(source)
        values = batch.rows["n"].to_pylist()
        assert batch.sequences().tolist() == values
        found.append(values)
    return found


def test_small_batches_that_wait_are_taken_as_one() -> None:
    """One alone is taken as it is; the arc has nothing left, and knows it."""
    source: Arc[Stamped] = Arc(1)
    alone = rows(0, 3)
    source.offer(alone, 0.0)
    assert take_merged(source) is alone
    for first in (3, 5, 7):
        source.offer(rows(first, 2), 0.0)
    assert taken(source) == [[3, 4, 5, 6, 7, 8]]
    assert source.held_bytes == 0


def test_rows_are_not_merged_over_a_gap_or_where_some_are_left_out() -> None:
    """Sequences that follow each other need no list: merged ones must not need it either."""
    source: Arc[Stamped] = Arc(1)
    sparse = stamped(pa.record_batch({"n": [10, 12]}), 10, np.array([0, 2], np.uint32))
    for batch in (rows(0, 2), rows(2, 1), rows(5, 2), rows(7, 3), sparse, rows(13, 2)):
        source.offer(batch, 0.0)
    assert taken(source) == [[0, 1, 2], [5, 6, 7, 8, 9], [10, 12], [13, 14]]


def test_what_is_large_is_taken_alone() -> None:
    """And no batch grows beyond the bound by merging, whatever comes in which order."""
    for seed in range(50):
        random = np.random.default_rng(seed)
        source: Arc[Stamped] = Arc(1)
        first, most = 0, 0
        for _ in range(40):
            count = int(random.integers(1, MERGED_BYTES // 8 if random.random() < 0.3 else 500))
            source.offer(rows(first, count), 0.0)
            first, most = first + count, max(most, count)
        found = taken(source)
        assert [n for part in found for n in part] == list(range(first)), f"seed {seed}"
        assert max(map(len, found)) <= max(most, MERGED_BYTES // 8), f"seed {seed}"
        assert len(found) < 40, f"seed {seed}"
