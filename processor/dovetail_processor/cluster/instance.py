"""One query's join on one processor: queues in, join, results out, groups in and out.

    link ─▶ queue ┐
    link ─▶ queue ├─▶ join ─▶ evaluate ─▶ deliver ─▶ sink          (one step at a time, `step`)
    link ─▶ queue ┘     │
                        └─▶ pusher ─▶ spill store
    groups that arrive are installed, groups that left are dropped: between batches only, in
    steps as short as the join's, so that messages do not wait for them

Invariant: a group takes rows only while it is live here; a row for any other group is a defect
and fails the query.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from dovetail_processor.adaptation.recent_output import RecentOutput
from dovetail_processor.adaptation.victims import GroupStats, VictimOrder, choose_groups_to_move
from dovetail_processor.cluster.input_queue import InputQueue, Marker
from dovetail_processor.cluster.splits import groups_of
from dovetail_processor.cluster.transit import Arrived, Counters, counters, install
from dovetail_processor.engine import chunk_rows
from dovetail_processor.expressions import above_join
from dovetail_processor.graph.arc import Arc
from dovetail_processor.graph.node import Node
from dovetail_processor.join.state import Detached, JoinState
from dovetail_processor.operators.deliver import Deliver
from dovetail_processor.operators.evaluate import Evaluate
from dovetail_processor.operators.join import Join
from dovetail_processor.sinks import BackgroundSink, Sink, SinkTotals
from dovetail_processor.spill.pusher import Pusher
from dovetail_processor.spill.relief import DiskRelief, NoRelief
from dovetail_proto.assignment import DiskSettings
from dovetail_proto.cluster_memory import ClusterShares
from dovetail_proto.errors import DovetailError
from dovetail_proto.ids import GroupId, ProcessorId
from dovetail_proto.messages import Groups
from dovetail_proto.query import QueryPlan
from dovetail_proto.spill_format import RunRecord, SpillStore

_OVER = object()


class Instance:
    """See the module. Without a `store` nothing is ever pushed, and no group that was may come."""

    def __init__(
        self,
        plan: QueryPlan,
        live: NDArray[np.int64],
        sink: Sink,
        store: SpillStore | None,
        *,
        bounds: ClusterShares,
        slab_bytes: int,  # the most that state can ever get: if this query is alone
        disk: DiskSettings,
        clock: Callable[[], float],
        moving: Callable[[], bool],  # nodiskAdaptation: a move involves this processor
        wake: Callable[[], None],  # the sink has room again, or a push has ended
    ) -> None:
        self.plan = plan
        self._clock = clock
        self._moving = moving
        self.state = JoinState(plan, slab_bytes, chunk_rows=chunk_rows(plan, bounds.shares.output))
        self.output = RecentOutput(
            self.state.produced, self.state.generation, disk.productivity_half_life_s
        )
        self.live = np.zeros(plan.partitions, np.bool_)
        self.live[live] = True
        self.queues = [InputQueue(bounds.window) for _ in plan.inputs]
        self.sink = BackgroundSink(sink, bounds.shares.output, wake)
        joined, results = Arc(bounds.shares.output), Arc(bounds.shares.output)
        self._arcs = [joined, results]
        # Whatever the policy is: it may change, and groups may come that were pushed elsewhere.
        self.pusher = Pusher(self.state, store, bounds.shares.spill, wake) if store else None
        self._short = False  # of memory; if a push is under way, its end makes room
        self.short: int | None = None  # bytes free when it began to wait for other queries' memory
        self._relief: NoRelief | DiskRelief = NoRelief(bounds.shares)
        self.set_shares(bounds, disk)
        self._join = Join(
            self.state,
            self.queues,
            joined,
            self,
            piece_bytes=bounds.shares.output,
            clock=clock,
            owns=self._check_live,
        )
        self._deliver = Deliver(results, self.sink, waits=False)
        above = Evaluate(above_join(plan), joined, results)
        self._nodes: list[Node] = [self._deliver, above, self._join]
        self._arrivals: dict[tuple[str, int], Arrived] = {}  # received and not installed yet
        self._chores: deque[Iterator[None]] = deque()  # in order, between batches
        self._in_chore = False  # the first of them has begun
        self.received_s = np.full(plan.partitions, -np.inf)  # when a group came from elsewhere
        self._moved_in = 0  # combinations that groups brought with them, less what others took
        self.peak_state_bytes = 0

    def set_shares(self, bounds: ClusterShares, disk: DiskSettings) -> None:
        """Use so much memory beside the state, and the disk like this, from now on."""
        self.bounds = bounds
        if not disk.allowed or self.pusher is None:
            self._relief = NoRelief(bounds.shares)
            return
        self._relief = DiskRelief(
            self.state,
            self.pusher,
            bounds.shares,
            spill_above_ratio=disk.spill_above_ratio,
            push_fraction=disk.push_fraction,
            victims=VictimOrder(disk.victims),
            inactive_after_s=disk.inactive_after_s,
            output=self.output,
            clock=self._clock,
            seed=0,
            moving=self._moving,
        )

    # The graph ------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether `step` would get on."""
        ready = any(n.ready for n in self._nodes[:2])
        return ready or (not self._waits and (self._may_do_chores or self._join.ready))

    @property
    def _waits(self) -> bool:
        """Whether nothing can go into the state before a push has ended, here or elsewhere."""
        pushing = self._short and self.pushing and self.pusher and not self.pusher.done
        return bool(pushing) or self.short is not None

    def step(self) -> None:
        """One piece of work, nearest to the results first."""
        for node in self._nodes[:2]:
            if node.ready:
                node.step()
                return
        if self._waits:
            return
        self._short = False
        self.collect_pushed()
        if self._may_do_chores:
            self._in_chore = True
            if next(self._chores[0], _OVER) is _OVER:
                self._chores.popleft()
                self._in_chore = False
        elif self._join.ready:
            self._join.step()
        self.peak_state_bytes = max(self.peak_state_bytes, self.state.held_bytes)

    @property
    def _may_do_chores(self) -> bool:
        # Results that are not emitted yet are read from the state: what they are made of stays.
        return bool(self._chores) and (self._join.idle or self._in_chore)

    def overtake(self, index: int, groups: Sequence[GroupId]) -> None:
        """Let the marker that came last on a link pass, behind the queued rows of its groups."""
        moving = np.zeros(self.plan.partitions, np.bool_)
        moving[list(groups)] = True
        self.queues[index].overtake(lambda rows: moving[groups_of(self.plan, index, rows)[0]])

    def markers(self) -> list[Marker]:
        """Markers that everything before is joined for; and room for what was joined.

        Not before groups that have arrived are installed: a marker may send them on.
        """
        if not self.settled or self._chores:
            return []
        found = []
        for queue in self.queues:
            queue.finished()
            while (marker := queue.marker()) is not None:
                found.append(marker)
        return found

    @property
    def settled(self) -> bool:
        """Whether all that was taken from the queues is joined and with the sink."""
        return self.state.idle and self._join.idle and not any(len(a) for a in self._arcs)

    def before_batch(self) -> None:
        """See Relief."""
        self.output.look(self._clock())
        self._relief.before_batch()

    def now(self) -> None:
        """See Relief: the join waits, for a push or for other queries' memory; the worker never."""
        if self.pushing:  # its end makes room, also if the policy has changed since it began
            self._short = True
        elif not self.spills or self.state.limit_bytes < self.bounds.minimum:
            self.short = self.state.limit_bytes - self.state.held_bytes
        else:
            self._relief.now()
            self._short = True

    @property
    def spills(self) -> bool:
        """Whether its state may go to disk."""
        return isinstance(self._relief, DiskRelief)

    def _check_live(self, touched: NDArray[np.int64]) -> None:
        if not self.live[touched].all():
            group = int(touched[~self.live[touched]][0])
            raise AssertionError(f"a row of group {group} came here, where it is not live")

    # Groups on their way --------------------------------------------------------------------------

    def stats(self) -> GroupStats:
        """P_s, P_o and T_u of the live groups; others hold nothing."""
        held = np.where(self.live & ~self.state.locked, self.state.group_bytes(), 0)
        return GroupStats(held, self.output.counted(self._clock()), self.state.last_insert_s)

    def choose(
        self,
        want_bytes: int,
        excluded: Sequence[GroupId],
        settle_s: float,
        paper_restrictions: bool,
    ) -> Groups:
        """Groups worth `want_bytes` to move, not those that came less than `settle_s` ago."""
        movable = self.received_s <= self._clock() - settle_s
        movable[list(excluded)] = False
        ids = choose_groups_to_move(
            self.stats(),
            want_bytes,
            movable=movable,
            spilled=self.state.generation > 0,
            paper_restrictions=paper_restrictions,
        )
        return tuple(GroupId(int(g)) for g in ids)

    def sizes(self, groups: Sequence[GroupId]) -> list[int]:
        """P_s of the given groups."""
        viewed = self.state.view(np.array(groups, np.int64))
        sizes: list[int] = self.state.bytes_of(viewed).tolist()
        return sizes

    def leave(self, groups: Sequence[GroupId]) -> tuple[Detached, Counters, int]:
        """Take no rows for these groups and do not push them; to be read: rows, counters, bytes."""
        ids = np.array(groups, np.int64)
        self.live[ids] = False
        self.state.locked[ids] = True
        viewed = self.state.view(ids)
        held = int(self.state.bytes_of(viewed).sum())
        return viewed, counters(self.state, ids, self.output, self._clock()), held

    def stay(self, groups: Sequence[GroupId]) -> None:
        """They are live here (again)."""
        ids = np.array(groups, np.int64)
        self.live[ids] = True
        self.state.locked[ids] = False

    def drop(self, groups: Sequence[GroupId]) -> None:
        """They live elsewhere: free them, between batches."""
        ids = np.array(groups, np.int64)
        self.live[ids] = False

        def free() -> Iterator[None]:
            taken = self.state.produced[ids].sum() + self.state.produced_before[ids].sum()
            self._moved_in -= int(taken)
            self.state.drop(ids)
            yield

        self._chores.append(free())

    def arrive(self, move: str, chunk: int, arrived: Arrived) -> None:
        """Keep groups that were sent here: they go in between batches, and stay inert."""
        self._arrivals[move, chunk] = arrived
        self._chores.append(self._install(move, chunk))

    def activate(self, groups: Sequence[GroupId]) -> None:
        """Arrived groups are live from now on; they are in the state before the next batch."""
        ids = np.array(groups, np.int64)
        self.live[ids] = True
        self.received_s[ids] = self._clock()
        self._chores.append(self._unlock(ids))

    def refuse(self, move: str, chunk: int, groups: Sequence[GroupId]) -> None:
        """The move was rolled back: forget what arrived."""
        if self._arrivals.pop((move, chunk), None) is None:
            self.drop(groups)

    def _install(self, move: str, chunk: int) -> Iterator[None]:
        arrived = self._arrivals.pop((move, chunk), None)
        if arrived is not None:
            yield from install(self.state, arrived, self.now, self._clock())
            known = arrived.counters
            self.output.arrived(np.array(known.groups, np.int64), known.recent, self._clock())
            self._moved_in += sum(known.produced) + sum(known.produced_before)

    def _unlock(self, ids: NDArray[np.int64]) -> Iterator[None]:
        self.state.locked[ids] = False
        yield

    # Totals and the end ---------------------------------------------------------------------------

    @property
    def arrived_bytes(self) -> int:
        """Groups that were sent here and are not in the state yet."""
        return sum(a.held_bytes for a in self._arrivals.values())

    @property
    def queued_bytes(self) -> int:
        """On its way into or out of the join."""
        return sum(q.held_bytes for q in self.queues) + sum(a.held_bytes for a in self._arcs)

    @property
    def produced(self) -> int:
        """Combinations made here, whoever owns their groups now."""
        made = self.state.produced.sum() + self.state.produced_before.sum()
        return int(made) - self._moved_in

    @property
    def results(self) -> int:
        """Rows handed to the sink."""
        return self._deliver.rows

    @property
    def pushing(self) -> bool:
        """Whether a push is under way (indiskAdaptation)."""
        return self.pusher is not None and self.pusher.busy

    def collect_pushed(self) -> None:
        """Free what a push has written meanwhile; raises what it failed with."""
        if self.pusher is not None:
            self.pusher.collect_finished()

    def push(self, want_bytes: int) -> int | None:
        """Begin to push so much on the manager's order; the bytes it takes from memory.

        0: nothing can be pushed. None: not now, in the middle of a batch or beside another push.
        """
        if not isinstance(self._relief, DiskRelief):
            return 0
        return self._relief.push(want_bytes) if self._join.idle and not self.pushing else None

    @property
    def pushes(self) -> int:
        """Pushes committed."""
        return self.pusher.pushes if self.pusher is not None else 0

    @property
    def exhausted(self) -> bool:
        """Whether all input has come and is joined."""
        return all(q.exhausted for q in self.queues) and self.settled and not self._chores

    @property
    def empty(self) -> bool:
        """Whether nothing is under way, whatever may come."""
        return self.settled and not self._chores and not self.queued_bytes

    def close(
        self,
        rows_in: Sequence[int],
        output: str | None,
        here: ProcessorId,
        processors: Sequence[ProcessorId],
    ) -> SinkTotals:
        """Push the rest of what has generations on disk, close the sink and the store.

        The store says which `processors` have stores of the same run, and what was pushed, by
        anybody, of the groups that are at home here: so a clean-up knows whether it has it all.
        Takes as long as the disk does: called in a thread of its own, once `exhausted`.
        """
        if self.pusher is not None:
            self.pusher.push_rest()
        totals = self.sink.close()
        if self.pusher is not None:
            lifetime = self.state.produced + self.state.produced_before
            groups = np.flatnonzero(lifetime).tolist()
            owned = np.flatnonzero(self.live).tolist()
            self.pusher.close_run(
                RunRecord(
                    rows_in=tuple(rows_in),
                    results_run=totals.rows,
                    checksum=totals.checksum,
                    produced={g: int(lifetime[g]) for g in groups},
                    output=output,
                    processor=here,
                    processors=tuple(sorted({here, *processors})),
                    owned={g: int(self.state.generation[g]) for g in owned},
                )
            )
        return totals

    def stop(self) -> None:
        """Drop everything but the results."""
        if self.pusher is not None:
            self.pusher.stop()
        try:
            self.sink.close()  # what was found so far is right, and stays
        except DovetailError:
            self.sink.abort()
