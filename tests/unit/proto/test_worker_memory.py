"""How many workers of one process can share its memory: as many as start their query with it."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dovetail_manager.planner import plan_query
from dovetail_processor.process_memory import ProcessMemory
from dovetail_proto.cluster_memory import (
    check_workers,
    cluster_shares,
    smallest_limit,
    worker_asks,
    workers_that_fit,
)
from dovetail_proto.errors import MemoryLimitError
from dovetail_proto.memory import BATCH_BYTES_MAX
from dovetail_proto.query import QueryPlan

SCHEMA = pa.schema([("k", pa.int64())])
MB, GB = 1 << 20, 1 << 30


def plan_of(*streams: str) -> QueryPlan:
    """These streams joined on their key, in this order; one may come twice."""
    first, *others = (f"{stream} AS i{n}" for n, stream in enumerate(streams))
    joins = (f"JOIN {other} ON i0.k = i{n}.k" for n, other in enumerate(others, 1))
    sql = f"SELECT i0.k FROM {first} {' '.join(joins)}"
    return plan_query(sql, dict.fromkeys(streams, SCHEMA), name="q", partitions=300)


def fits_at_2_mb(limit: int, inputs: int, hosted: int, peers: int) -> bool:
    """Whether a limit is enough for 300 groups with batches of 2 MB at most, by plain sums."""
    batch = min(max(limit // (32 * inputs), 16 << 10), 2 * MB)
    output = min(max(limit // 64, 32 << 10), 4 * MB)
    readers = min(limit // 6, inputs * 5 * MB)
    alone = limit - readers - (2 * inputs + 2) * batch - 5 * output
    batches = hosted if peers == 1 or not hosted else hosted * 2 * peers + 4
    return alone >= 2 * 300 * (inputs + 1) * 1024 and alone - batches * batch >= alone // 4


@pytest.mark.parametrize("memory_gb", [1, 2, 4, 8, 16, 64])
@pytest.mark.parametrize("threads", [1, 2, 4, 8, 10, 16, 32, 64])
@pytest.mark.parametrize(("inputs", "hosted"), [(2, 0), (2, 1), (2, 2), (3, 1), (3, 3), (5, 2)])
def test_batches_are_smaller_before_memory_is_too_small(
    threads: int, memory_gb: int, inputs: int, hosted: int
) -> None:
    """Whatever is enough with batches of 2 MB is enough, also beside what is read ahead."""
    memory = ProcessMemory(memory_gb * GB, threads)
    on = {"inputs": inputs, "partitions": 300, "hosted": hosted, "peers": threads}
    fits = fits_at_2_mb(memory.part_bytes, inputs, hosted, threads)
    assert (smallest_limit(**on) <= memory.part_bytes) == fits
    if not fits:
        with pytest.raises(MemoryLimitError):
            cluster_shares(memory.part_bytes, **on)
        return
    bounds = cluster_shares(memory.part_bytes, **on, ahead_bytes=memory.ahead_bytes)
    assert bounds.fixed + bounds.shares.state == memory.part_bytes
    assert bounds.shares.state >= max(bounds.minimum, memory.part_bytes // 8)
    everywhere = cluster_shares(memory.part_bytes, **on | {"hosted": 0})
    assert bounds.shares.batch == everywhere.shares.batch, "a window is as large at both ends"


@pytest.mark.parametrize(
    ("threads", "memory_gb"), [(10, 2), (10, 4), (16, 4), (16, 8), (32, 8), (32, 16)]
)
def test_sizes_that_large_batches_would_not_fit_in(threads: int, memory_gb: int) -> None:
    """Both of two inputs, or each by itself where that is all that is left."""
    part_bytes = memory_gb * GB // threads
    hosted = 2 if fits_at_2_mb(part_bytes, 2, 2, threads) else 1
    bounds = cluster_shares(part_bytes, inputs=2, partitions=300, hosted=hosted, peers=threads)
    assert 2 * MB <= bounds.shares.batch <= 4 * MB


def test_few_workers_with_much_memory_have_large_batches() -> None:
    """Smaller ones are for those that would not fit."""
    for threads in (1, 2, 4):
        bounds = cluster_shares(GB, inputs=2, partitions=300, hosted=2, peers=threads)
        assert bounds.shares.batch == BATCH_BYTES_MAX


def test_what_is_read_ahead_is_taken_from_state_where_files_are_read() -> None:
    """And only where several workers read them."""
    on = {"inputs": 2, "partitions": 300, "peers": 2}
    assert ProcessMemory(2 * GB, 1).ahead_bytes == 0
    ahead_bytes = ProcessMemory(2 * GB, 2).ahead_bytes
    assert ahead_bytes == GB // 64
    for hosted, taken in ((0, 0), (1, ahead_bytes)):
        plain = cluster_shares(GB, **on, hosted=hosted)
        ahead = cluster_shares(GB, **on, hosted=hosted, ahead_bytes=ahead_bytes)
        assert plain.shares.state - ahead.shares.state == taken


@pytest.mark.parametrize(
    ("streams", "hosted"),
    [
        ("ab", {1: 2, 2: 1, 10: 1}),
        ("aa", {1: 2, 2: 2, 10: 2}),
        ("abab", {1: 4, 2: 2, 3: 2}),
        ("abcc", {2: 3, 3: 2, 4: 2}),
        ("aabc", {2: 3, 3: 2}),
    ],
)
def test_the_splits_of_a_stream_are_at_one_worker(streams: str, hosted: dict[int, int]) -> None:
    """So a worker may host more of them than its equal part."""
    asks = {workers: worker_asks(plan_of(*streams), workers)["hosted"] for workers in hosted}
    assert asks == hosted


@pytest.mark.parametrize("streams", ["ab", "aa", "aabc"])
def test_as_many_workers_fit_as_are_not_refused(streams: str) -> None:
    """What the error says is enough is, and a byte less is not."""
    plan = plan_of(*streams)
    for memory_bytes in (16 * MB, 256 * MB, GB, 4 * GB):
        most = workers_that_fit(memory_bytes, 24, plan)
        check_workers(memory_bytes, most, plan)
        cluster_shares(memory_bytes // most, **worker_asks(plan, most))
        if most < 24:
            with pytest.raises(MemoryLimitError, match=f"or {most} thread") as refused:
                check_workers(memory_bytes, 24, plan)
            needed = refused.value.details["smallest_bytes"]
            check_workers(needed, 24, plan)
            with pytest.raises(MemoryLimitError):
                check_workers(needed - 1, 24, plan)
