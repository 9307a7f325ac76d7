"""How the queries of one processor share the memory that is left for state: by need.

    limit = what each query has for itself (`ClusterShares.fixed`) + the pool
    pool  = what query 1 holds or is sure of + what query 2 holds or is sure of + … + free

A query may take whatever is free, and is sure of its minimum. What it holds beyond that is lent:
when another is short, those whose policy uses the disk push. If none can, who came last gives way
and stops; so no query is ended because another one came. Nobody stops while memory is about to come
free by itself: a query is being closed, or holds rows back until a move ends.

The worker asks after every step, and steps one query at a time: all together never hold more than
the pool, but for a newcomer's minimum until others have pushed. Queues of a burst are kept in what
is free, too, at most in half of it; the one batch that every arc takes in cuts nobody's minimum.

Worked example: a pool of 100, minimum 5 each. q1 holds 60, q2 came and holds 10. q1 may hold 90,
q2 40. q1 grows to 88, then q2 is short at 12: under `disk` q1 may hold 88 − 12 and pushes; under
`none` q2 stops, for it came last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dovetail_processor.graph.arc import QueuePool
from dovetail_processor.process_memory import ProcessMemory
from dovetail_proto.assignment import QueryTask
from dovetail_proto.cluster_memory import ClusterShares, cluster_shares, newcomer_shares
from dovetail_proto.errors import MemoryLimitError
from dovetail_proto.ids import ProcessorId, QueryName
from dovetail_proto.messages import Stage

if TYPE_CHECKING:
    from dovetail_processor.query import Query

RECALL_SHARE = 8
"""A query that is short has others give up this part of the pool: less would come back for more
after a few batches, and a push takes 30 % of a state anyway."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What one query has of the pool, in bytes."""

    held: int  # state, groups that come: reserved or not installed yet, rows held back
    minimum: int  # it is sure of this much: groups that come, and enough to work beside them
    spills: bool  # its policy uses the disk
    short: bool = False  # it cannot go on, and has nothing to push
    frees: bool = False  # some of it comes free soon: it closes, or a move ends

    @property
    def sure(self) -> int:
        """What nobody else may take now."""
        return max(self.held, self.minimum)

    @property
    def lent(self) -> int:
        """What it can give back."""
        return max(0, self.held - self.minimum) if self.spills else 0


def beside_queues(pool_bytes: int, queued_bytes: int, claims: Sequence[Claim]) -> int:
    """The pool without what is queued; what queries are sure of and cannot give back stays in it.

    Every arc takes one batch in, whatever is free. If that cut a minimum, a query would be short
    for good: what is queued waits for its join, and the join for memory.
    """
    kept = sum(c.sure - c.lent for c in claims)
    return max(pool_bytes - queued_bytes, min(pool_bytes, kept))


def limits(pool_bytes: int, claims: Sequence[Claim]) -> list[int]:
    """How much state each may hold now; less than it holds: it has to push."""
    sure = sum(c.sure for c in claims)
    wanted = pool_bytes // RECALL_SHARE if any(c.short for c in claims) else 0
    out = []
    for c in claims:
        limit = pool_bytes - (sure - c.sure)
        if wanted and c.lent and not c.short:
            limit = max(c.minimum, min(limit, c.held - wanted))
        out.append(limit)
    return out


def gives_way(claims: Sequence[Claim]) -> int | None:
    """Who has to stop, in order of arrival: the last, if one is short and nothing comes free."""
    short = any(c.short for c in claims)
    return len(claims) - 1 if short and not any(c.lent or c.frees for c in claims) else None


def left_for_another(pool_bytes: int, claims: Sequence[Claim]) -> int:
    """What a further query can get: all but what the others cannot or need not give back."""
    return max(0, pool_bytes - sum(c.sure - c.lent for c in claims))


def used_up(memory_bytes: int, claims: Sequence[Claim]) -> MemoryLimitError:
    """Why the last one stops, and what helps: the disk only if its policy does not use it yet."""
    *others, mine = claims
    remedies = ["raise --memory"]
    if not mine.spills:
        remedies.append("let state go to disk with --policy disk")
    if not others:
        return MemoryLimitError(
            f"the join's state has reached {mine.held:,} bytes, all that a memory limit of "
            f"{memory_bytes:,} bytes leaves for it",
            remedy=" or ".join(remedies),
        )
    return MemoryLimitError(
        f"memory of {memory_bytes:,} bytes is used up: the join's state holds "
        f"{mine.held:,} bytes, and that of {len(others)} queries that were there before "
        f"{sum(c.held for c in others):,}",
        remedy=f"{', '.join(remedies)}, or submit it again when they are closed",
    )


QUEUES_SHARE = 8
"""A burst may queue in an eighth of the memory at most: more would have state pushed for it."""


class MemoryPool:
    """The memory of one worker, and the queries that share it, in order of arrival."""

    def __init__(
        self,
        here: ProcessorId,
        memory: ProcessMemory,
        queries: Mapping[QueryName, Query],
        queues: QueuePool,
    ) -> None:
        self._here = here
        self._memory = memory
        self.memory_bytes = memory.part_bytes
        self._all = queries
        self._queues = queues
        self._shared: object = None  # what was shared last, among whom

    @property
    def _running(self) -> list[Query]:
        return [q for q in self._all.values() if q.stage is Stage.RUNNING]

    def _pool_of(self, running: Sequence[Query]) -> int:
        return self.memory_bytes - sum(q.bounds.fixed for q in running)

    @property
    def room_bytes(self) -> int:
        """What a further query can get, queues and state together."""
        running = self._running
        free = self._pool_of(running) - self._queues.used_bytes
        return left_for_another(free, [q.claim for q in running])

    def bounds(
        self, task: QueryTask, here: ProcessorId, peers: int, query: Query | None
    ) -> ClusterShares:
        """What a query has for itself; MemoryLimitError if it is new and does not fit.

        One that runs keeps what it is made of; what comes on top must not fail what runs.
        """
        asks = {
            "inputs": len(task.plan.inputs),
            "partitions": task.plan.partitions,
            "hosted": len(task.split_hosts.get(here, ())),
            "peers": peers,
            "row_bytes": task.plan.row_bytes,
            "ahead_bytes": self._memory.ahead_bytes,
        }
        if query is None:
            return newcomer_shares(self.room_bytes, alone=not self._running, **asks)
        try:
            found = cluster_shares(query.bounds.shares.limit, **asks)
        except MemoryLimitError:
            return query.bounds
        if found.shares.batch != query.bounds.shares.batch:
            return query.bounds
        return found if self._bears(found.fixed - query.bounds.fixed) else query.bounds

    def _bears(self, more_bytes: int) -> bool:
        """Whether the minimums of all are still there if queues take so much more."""
        running = self._running
        left = self._pool_of(running) - self._queues.used_bytes - more_bytes
        return left >= sum(q.claim.minimum for q in running)

    def share(self, *, anew: bool = False) -> None:
        """Tell every query how much state it may hold; have the last one stop if it must.

        If nothing has changed since, only if it is wanted `anew`.
        """
        running = self._running
        claims = [q.claim for q in running]
        fixed, held = sum(q.bounds.fixed for q in running), sum(c.held for c in claims)
        held += self._queues.used_bytes
        minimum = sum(c.minimum for c in claims)
        self.memory_bytes = self._memory.grant(self._here, fixed, held, minimum)
        whole_bytes, queued_bytes = self._pool_of(running), self._queues.used_bytes
        pool_bytes = beside_queues(whole_bytes, queued_bytes, claims)
        may_grow = self._memory.may_grow(self._here)
        shared = ([q.task.run for q in running], claims, whole_bytes, queued_bytes, may_grow)
        if not anew and self._shared == shared:
            return
        self._shared = shared
        free = whole_bytes - sum(c.sure for c in claims)
        self._queues.limit_bytes = max(0, min(free // 2, self.memory_bytes // QUEUES_SHARE))
        for query, limit in zip(running, limits(pool_bytes, claims), strict=True):
            query.set_room(limit, pool_bytes // len(running))
        if any(c.short for c in claims):
            claims = [q.claim for q in running]  # with the room that they have been given
            if (last := gives_way(claims)) is not None and not may_grow:
                running[last].fail(used_up(self._memory.limit_bytes, claims))
