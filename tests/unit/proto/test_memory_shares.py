"""How a memory limit is shared out: never more than it, and the smallest one is told."""

from __future__ import annotations

import pytest

from dovetail_proto.cluster_memory import cluster_shares, smallest_limit
from dovetail_proto.errors import MemoryLimitError
from dovetail_proto.memory import BATCH_BYTES_MAX, BATCH_BYTES_WIDE_MAX, BATCH_ROWS_MIN

ALONE = {"hosted": 0, "peers": 1}


@pytest.mark.parametrize("inputs", [2, 3, 10])
@pytest.mark.parametrize("limit_mb", [8, 64, 1024])
def test_the_shares_of_a_limit_never_exceed_it(inputs: int, limit_mb: int) -> None:
    """State and all bounded buffers together are the limit, and state has most of it."""
    found = cluster_shares(limit_mb << 20, inputs=inputs, partitions=100, **ALONE).shares
    buffers = 2 * inputs * found.batch + 4 * found.output + found.spill
    assert buffers + found.state <= limit_mb << 20
    assert found.state > (limit_mb << 20) // 2


@pytest.mark.parametrize(("peers", "partitions"), [(1, 100), (2, 300), (2, 60_000), (64, 300)])
@pytest.mark.parametrize("row_bytes", [24, 1_000, 10_000, 1_000_000])
@pytest.mark.parametrize("limit_mb", [16, 64, 500, 1024, 65_536])
def test_batches_of_wide_rows_are_larger_and_never_take_most_of_the_limit(
    limit_mb: int, row_bytes: int, peers: int, partitions: int
) -> None:
    """As many rows as make a column's own cost small, as far as the limit and a message allow."""
    on = {"inputs": 2, "partitions": partitions, "hosted": 2, "peers": peers}
    try:
        narrow = cluster_shares(limit_mb << 20, **on)
    except MemoryLimitError:
        with pytest.raises(MemoryLimitError):
            cluster_shares(limit_mb << 20, **on, row_bytes=row_bytes)
        return
    wide = cluster_shares(limit_mb << 20, **on, row_bytes=row_bytes)
    assert wide.fixed + wide.shares.state == limit_mb << 20
    assert wide.minimum == narrow.minimum
    assert wide.shares.state >= max(wide.minimum, narrow.shares.state // 2)
    assert narrow.shares.batch <= wide.shares.batch <= BATCH_BYTES_WIDE_MAX
    if row_bytes * BATCH_ROWS_MIN <= BATCH_BYTES_MAX:
        assert wide == narrow
    elif limit_mb >= 65_536 and peers == 1:
        assert wide.shares.batch == min(row_bytes * BATCH_ROWS_MIN, BATCH_BYTES_WIDE_MAX)


def test_the_smallest_workable_limit_is_a_few_megabytes_and_the_error_states_it() -> None:
    """What the error says is enough works, and a little less does not."""
    with pytest.raises(MemoryLimitError, match="give at least") as refused:
        cluster_shares(1 << 20, inputs=3, partitions=300, **ALONE)
    smallest = refused.value.details["smallest_bytes"]
    assert 2 << 20 < smallest < 8 << 20
    cluster_shares(smallest, inputs=3, partitions=300, **ALONE)
    with pytest.raises(MemoryLimitError):
        cluster_shares(smallest - (256 << 10), inputs=3, partitions=300, **ALONE)


@pytest.mark.parametrize(("hosted", "peers"), [(0, 1), (1, 2), (2, 1), (3, 8)])
def test_the_smallest_limit_is_the_smallest(hosted: int, peers: int) -> None:
    """It is enough, 64 KiB less is not, and the error names it."""
    on = {"inputs": 3, "partitions": 300, "hosted": hosted, "peers": peers}
    smallest = smallest_limit(**on)
    bounds = cluster_shares(smallest, **on)
    assert bounds.fixed + bounds.shares.state == smallest
    assert bounds.shares.state >= bounds.minimum
    with pytest.raises(MemoryLimitError, match=f"give at least {smallest:,} bytes"):
        cluster_shares(smallest - (64 << 10), **on)
