"""How the memory of one query on one processor is shared out, in a cluster.

    limit ─┬─ what an instance needs, as in `dovetail_processor.memory`; the two batches per input
           │  are the window of its link
           ├─ per split hosted here: a batch being read, one being routed, a backlog of two that
           │  waits for credit or is held back, and per peer a window of what is on its way
           └─ state                 all the rest

Queries of one processor share its limit equally; the shares change as queries come and go.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dovetail_processor.memory import Shares, shares
from dovetail_proto.errors import MemoryLimitError

WINDOW_BATCHES = 2
"""One is joined while the next is on its way."""

SPLIT_BATCHES = 4
"""One read, one routed, two of backlog."""


@dataclass(frozen=True, slots=True)
class ClusterShares:
    """The bounds of one query on one processor, in bytes."""

    shares: Shares
    window: int  # credit of one link
    slab: int  # the most that state can ever get: if this query is alone


def cluster_shares(
    limit_bytes: int, *, queries: int, inputs: int, partitions: int, hosted: int, peers: int
) -> ClusterShares:
    """Share out a processor's limit among `queries`; MemoryLimitError if it is too small."""
    alone = _one(limit_bytes, inputs, partitions, hosted, peers)
    mine = _one(limit_bytes // queries, inputs, partitions, hosted, peers)
    return ClusterShares(mine, WINDOW_BATCHES * mine.batch, alone.state)


def _one(limit_bytes: int, inputs: int, partitions: int, hosted: int, peers: int) -> Shares:
    found = shares(limit_bytes, inputs=inputs, partitions=partitions)
    per_split = SPLIT_BATCHES + WINDOW_BATCHES * max(0, peers - 1)
    extra = hosted * per_split * found.batch
    state = found.state - extra
    if state < found.state // 4:
        raise MemoryLimitError(
            f"memory of {limit_bytes:,} bytes per query is too small for {hosted} splits that feed "
            f"{peers} processors",
            remedy="give more memory, run fewer queries, or use fewer processors",
        )
    return replace(found, state=state)
