"""How the memory of one query on one processor is shared out, in a cluster.

    limit ─┬─ what an instance needs, as in `dovetail_proto.memory`; the two batches per input
           │  are the window of its link
           ├─ per split hosted here: a batch that is read; and what is decoded before its turn,
           │  if several workers share the process
           ├─ if there are other processors: one being routed, and per peer a window of what is on
           │  its way; two batches that wait for credit, two that are held back
           └─ state                 all the rest

All but state is the query's own, from its start to its end. Memory for state is common to the
queries of a processor (`dovetail_processor.memory_pool`); each has a minimum of it. The manager
refuses a query for which a processor has less left than `smallest_limit`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Required, TypedDict, Unpack

from dovetail_proto.cores import usable_cores
from dovetail_proto.errors import MemoryLimitError
from dovetail_proto.memory import BATCH_BYTES_STEPS, Shares, divided, state_needed
from dovetail_proto.query import QueryPlan

WINDOW_BATCHES = 2
"""One is joined while the next is on its way."""

SPLIT_BATCHES = 2
"""One read, one routed."""

WAITING_BATCHES = 2
"""Of all splits of a query: wait for credit before a stream has to wait."""

HELD_BATCHES = 2
"""Of all splits of a query: held back for groups that are on their way. More is held back where
memory for state is free."""

QUEUE_PARTS = (8, 4, 2, 1)
"""Of what is left a newcomer's queues are made for an eighth, or the next that is enough: dozens of
small queries fit beside a large one."""

WORKER_BYTES_MIN = 64 << 20
"""A thread that has less spends its time on small batches: by default there are fewer threads."""

STEP_BYTES = 64 << 10
"""To this the smallest limit is found."""


@dataclass(frozen=True, slots=True)
class ClusterShares:
    """The bounds of one query on one processor, in bytes."""

    shares: Shares  # `shares.limit` is what they were made of
    window: int  # credit of one link
    minimum: int  # of state: what it always has

    @property
    def fixed(self) -> int:
        """Everything but state."""
        return self.shares.queues


class Asks(TypedDict, total=False):
    """What the shares of a query on a processor go by; see `cluster_shares`."""

    inputs: Required[int]
    partitions: Required[int]
    hosted: Required[int]
    peers: Required[int]
    row_bytes: int
    ahead_bytes: int


def cluster_shares(
    limit_bytes: int,
    *,
    inputs: int,
    partitions: int,
    hosted: int,
    peers: int,
    row_bytes: int = 0,
    ahead_bytes: int = 0,
) -> ClusterShares:
    """Share out a limit; MemoryLimitError if it is too small. `row_bytes`: see `memory.divided`.

    `ahead_bytes` are of what files decode before its turn. They are a small part of the limit, and
    state has less by them: they do not make it too small.
    """
    if not _fits(limit_bytes, inputs, partitions, hosted, peers):
        smallest = smallest_limit(inputs=inputs, partitions=partitions, hosted=hosted, peers=peers)
        raise MemoryLimitError(
            f"memory of {limit_bytes:,} bytes is too small for {partitions} partitions of {inputs} "
            f"inputs with {hosted} splits that feed {peers} processors",
            remedy=f"give at least {smallest:,} bytes ({-(-smallest // 10**6)}MB), or use fewer "
            "partitions or processors",
            smallest_bytes=smallest,
        )
    ahead = ahead_bytes if hosted else 0
    batch = _batch_bytes(limit_bytes, inputs, partitions, peers)
    found = _split(divided(limit_bytes, inputs, 0, batch), hosted, peers, ahead)
    minimum = min(found.state, state_needed(inputs, partitions))
    wide = _split(divided(limit_bytes, inputs, row_bytes, batch), hosted, peers, ahead)
    if wide.state >= max(minimum, found.state // 2):  # else large batches would cost state too much
        found = wide
    return ClusterShares(found, WINDOW_BATCHES * found.batch, minimum)


def threads_by_default(memory_bytes: int, processes: int = 1) -> int:
    """One per core that each of so many processes has to itself, fewer if memory is small."""
    return max(1, min(usable_cores() // processes, memory_bytes // WORKER_BYTES_MIN))


def check_workers(memory_bytes: int, workers: int, plan: QueryPlan) -> None:
    """MemoryLimitError if so many workers of a process cannot share so much memory for a query."""
    needed = _needed_by_workers(workers, plan)
    if workers > 1 and needed > memory_bytes:
        most = workers_that_fit(memory_bytes, workers, plan)
        fewer = f", or {most} thread{'s' * (most > 1)}" if most else ""
        raise MemoryLimitError(
            f"memory of {memory_bytes:,} bytes is too small for {workers} threads with "
            f"{plan.partitions} partitions of {len(plan.inputs)} inputs",
            remedy=f"give at least {needed:,} bytes{fewer}",
            smallest_bytes=needed,
        )
    if workers == 1:
        cluster_shares(memory_bytes, **worker_asks(plan, 1))


def workers_that_fit(memory_bytes: int, most: int, plan: QueryPlan) -> int:
    """How many workers, up to `most`, can share so much memory for a query; 0 if not even one."""
    fits = (n for n in range(most, 0, -1) if _needed_by_workers(n, plan) <= memory_bytes)
    return next(fits, 0)


def worker_asks(plan: QueryPlan, workers: int) -> dict[str, int]:
    """What the need of memory goes by, of the one of so many workers that hosts most splits."""
    home_of = plan.dealt(workers)
    splits = Counter(home_of[i.stream] for i in plan.inputs)
    return {
        "inputs": len(plan.inputs),
        "partitions": plan.partitions,
        "hosted": max(splits.values()),
        "peers": workers,
    }


def _needed_by_workers(count: int, plan: QueryPlan) -> int:
    return count * smallest_limit(**worker_asks(plan, count))


def newcomer_shares(room_bytes: int, *, alone: bool, **asks: Unpack[Asks]) -> ClusterShares:
    """What a query takes of the room that is left when it starts; MemoryLimitError if too little.

    The processor takes it, and the manager counts with it until the processor has said so.
    """
    for part in (1,) if alone else QUEUE_PARTS:
        limit_bytes = room_bytes // part
        sizes = asks["inputs"], asks["partitions"], asks["hosted"], asks["peers"]
        if part == 1 or _fits(limit_bytes, *sizes):
            break
    return cluster_shares(limit_bytes, **asks)


def smallest_limit(*, inputs: int, partitions: int, hosted: int, peers: int) -> int:
    """The least memory with which a query can start on a processor."""
    low, high = 0, 1
    while not _fits(high * STEP_BYTES, inputs, partitions, hosted, peers):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if _fits(middle * STEP_BYTES, inputs, partitions, hosted, peers):
            high = middle
        else:
            low = middle
    return high * STEP_BYTES


def _batch_bytes(limit_bytes: int, inputs: int, partitions: int, peers: int) -> int:
    """The most of a batch with which a processor could host all splits, or the least step.

    Wherever splits are, so that all who have the same limit count with the same batch.
    """
    for step in BATCH_BYTES_STEPS:
        if _fits(limit_bytes, inputs, partitions, inputs, peers, batch_bytes=step):
            return step
    return BATCH_BYTES_STEPS[-1]


def _fits(
    limit_bytes: int,
    inputs: int,
    partitions: int,
    hosted: int,
    peers: int,
    *,
    batch_bytes: int = BATCH_BYTES_STEPS[-1],
) -> bool:
    """Whether groups fit at their smallest, and splits leave a quarter of that to state."""
    alone = divided(limit_bytes, inputs, 0, batch_bytes)
    if alone.state < state_needed(inputs, partitions):
        return False
    return _split(alone, hosted, peers).state >= alone.state // 4


def _split(found: Shares, hosted: int, peers: int, ahead_bytes: int = 0) -> Shares:
    batches = hosted
    if hosted and peers > 1:
        batches = hosted * (SPLIT_BATCHES + WINDOW_BATCHES * (peers - 1))
        batches += WAITING_BATCHES + HELD_BATCHES
    return replace(found, state=found.state - batches * found.batch - ahead_bytes)
