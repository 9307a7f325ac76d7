"""The disk's half of a simulated processor: pushes, by itself or by order; real victim choice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dovetail_processor.adaptation.disk import bytes_to_push
from dovetail_processor.adaptation.victims import GroupStats, VictimOrder, choose_victims
from dovetail_processor.moves.participant import Participant
from dovetail_proto.ids import Epoch
from dovetail_proto.messages import Pushed, PushPartitions
from kit.sim_join import SimGroup
from kit.sim_world import World

FILE_SHARE = 3
"""Files of pushed groups are about this much smaller than the memory that the groups held."""

if TYPE_CHECKING:
    from kit.sim_run import Scenario


class SimDisk:
    """What a processor does to keep its memory below its limit."""

    world: World
    scenario: Scenario
    participant: Participant
    address: str
    crashed: bool
    paused_until_s: float
    stopped: str
    epoch: Epoch
    limit: int
    groups: dict[int, SimGroup]
    state_bytes: int

    def start_disk(self) -> None:
        """Begin with nothing pushed."""
        self.pushing: list[tuple[int, SimGroup]] = []  # being written; empty outside a push
        self.push_order: PushPartitions | None = None  # an order that waits or is under way
        self.order_begun = False  # whose push is under way; False: its own, or none
        self.order_done: Pushed | None = None  # the last answer to an order, to repeat it
        self.spilled_bytes = 0  # of files
        self.pushed_bytes = 0  # of memory

    def act(self, out: list[Any], reply_to: str) -> None:
        """The processor's instructions."""

    def used_bytes(self) -> int:
        """The processor's use of its limit."""
        raise NotImplementedError

    def check(self) -> None:
        """The processor's invariants."""

    def receive(self, source: str, message: Any) -> None:
        """The processor's messages."""

    def _push_if_full(self) -> None:
        if not self.scenario.spills or self.stopped:
            return
        want = bytes_to_push(
            used_bytes=self.used_bytes(),
            limit_bytes=self.limit,
            held_bytes=sum(g.size for g in self.groups.values()),
            spill_above_ratio=0.8,
            push_fraction=0.3,
            no_disk_adaptation=not self.participant.may_push(),
            in_disk_adaptation=bool(self.pushing),
        )
        if want:
            self._push(want)

    def _push(self, want: int) -> None:
        victims = choose_victims(
            self._stats(),
            want,
            order=VictimOrder.LEAST_PRODUCTIVE,
            now_s=self.world.now_s,
            inactive_after_s=5.0,
            rng=np.random.default_rng(0),
        )
        for g in victims.tolist():
            group = self.groups[g]
            self.pushing.append((g, group))
            self.groups[g] = group.next_generation()
        duration_s = self.world.faults.disk_s * (0.5 + self.world.random.random())
        self.world.tell(self.address, f"pushes {victims.tolist()} for {duration_s:.2f} s")
        self.world.at(duration_s, self, self._pushed)

    def _pushed(self) -> None:
        self.world.step_hook(self, "push", True)
        if self.crashed or self.stopped:
            return
        size = sum(group.size for _, group in self.pushing)
        self.scenario.written([(g, group.generation, group.rows) for g, group in self.pushing])
        self.state_bytes -= size
        self.spilled_bytes += size // FILE_SHARE
        self.pushed_bytes += size
        self.pushing = []
        self.world.step_hook(self, "push", False)
        if self.crashed:
            return
        manager = self.scenario.manager_address()
        if self.order_begun:
            self._answer_order(size)
        self.act(self.participant.push_finished(), manager)
        self._push_if_full()

    def _ordered(self, source: str, m: PushPartitions) -> None:
        if self.stopped or m.epoch < self.epoch or self.push_order == m:
            return
        done = self.order_done
        if done is not None and (done.epoch, done.order) >= (m.epoch, m.order):
            if done.order == m.order:
                self.world.send(self.address, source, done)
            return
        self.epoch = m.epoch
        if self.push_order is None:
            self.push_order = m
            self._push_if_ordered()

    def _push_if_ordered(self) -> None:
        """Begin an ordered push as soon as neither another push nor a move is under way."""
        if self.push_order is None or self.stopped or self.pushing:
            return
        if self.participant.may_push():
            self.order_begun = True
            if any(g.size for g in self.groups.values()):
                self._push(self.push_order.size_bytes)
            else:
                self._answer_order(0)

    def _answer_order(self, size: int) -> None:
        assert self.push_order is not None
        order, self.push_order, self.order_begun = self.push_order, None, False
        self.order_done = Pushed(order.query, order.epoch, order.order, size)
        self.world.send(self.address, self.scenario.manager_address(), self.order_done)

    def _stats(self) -> GroupStats:
        size = np.zeros(self.scenario.partitions, dtype=np.int64)
        produced, last = size.copy(), size.astype(np.float64)
        for g, group in self.groups.items():
            size[g], produced[g], last[g] = group.size, group.produced, group.last_insert_s
        return GroupStats(size, produced, last)
