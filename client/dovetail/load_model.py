"""A cluster of any size as arrays: how policies behave under load, without rows or processes.

Each group is a few numbers: bytes held, combinations produced, when it last grew, who owns it. An
interval lets every group grow by the workload's rate, lets full processors push, and then asks
the real policies, the real admission loop and the real choices of victims and groups to move.

Output follows the join: new tuples meet what their group holds in memory, so a group produces
`join_ratio × new bytes × held bytes / range`; state on disk produces nothing until the clean-up.
A processor that is full and may not push takes in only what still fits: back pressure.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dovetail_manager.adaptation.admission import Admission
from dovetail_manager.adaptation.initial import distribute
from dovetail_manager.adaptation.policies import policy
from dovetail_manager.adaptation.snapshot import (
    AdaptationSettings,
    MoveState,
    ProcessorLoad,
    PushState,
    Snapshot,
)
from dovetail_processor.adaptation.disk import bytes_to_push
from dovetail_processor.adaptation.victims import (
    GroupStats,
    IntArray,
    VictimOrder,
    choose_groups_to_move,
    choose_victims,
)
from dovetail_proto.errors import ConfigError
from dovetail_proto.ids import ProcessorId, QueryName

Floats = npt.NDArray[np.float64]

LIMIT_BYTES = 256_000_000
"""Memory of a processor in the model; everything else is relative to it."""

ALTERNATING_FACTOR = 10.0
"""S4 5.2: one half of the machines gets ten times the tuples of the other, then they swap."""

WORKLOADS = ("skewed", "alternating", "drifting", "bursty")


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """One run of the model."""

    processors: int = 1000
    groups: int = 500_000
    intervals: int = 40
    workload: str = "skewed"
    policy: str = "lazy-disk"
    state_ratio: float = 1.5  # all state at the end, relative to all memory
    seed: int = 1
    adaptation: AdaptationSettings = field(default_factory=AdaptationSettings)

    def check(self) -> None:
        """Raise ConfigError for what cannot be modelled."""
        policy(self.policy)
        if self.workload not in WORKLOADS:
            raise ConfigError(
                f"workload {self.workload!r} does not exist", remedy=f"use {', '.join(WORKLOADS)}"
            )
        if not 0 < self.processors <= self.groups:
            raise ConfigError(
                f"{self.groups} groups for {self.processors} processors",
                remedy="use at least one group per processor",
            )
        if self.intervals < 1 or not self.state_ratio > 0:
            raise ConfigError("intervals and the state ratio must be positive")


@dataclass(slots=True)
class Trace:
    """What a run looked like: lists have one entry per interval."""

    policy: str
    used_min: list[float] = field(default_factory=list)  # shares of the memory limit
    used_mean: list[float] = field(default_factory=list)
    used_max: list[float] = field(default_factory=list)
    used_spread: list[float] = field(default_factory=list)  # standard deviation
    moved_bytes: list[int] = field(default_factory=list)
    moves: list[int] = field(default_factory=list)
    pushed_bytes: list[int] = field(default_factory=list)
    forced_bytes: list[int] = field(default_factory=list)
    produced: list[float] = field(default_factory=list)
    held_up_bytes: list[int] = field(default_factory=list)  # not taken in: memory was full
    decision_cpu_s: list[float] = field(default_factory=list)  # policy, choices, new owners
    groups_moved: int = 0
    moved_again: int = 0  # groups that moved twice within the settling time: must be 0


class LoadModel:
    """The state of a cluster; `step` is one interval."""

    def __init__(self, settings: ModelSettings) -> None:
        settings.check()
        self.settings = settings
        self.rng = np.random.default_rng(settings.seed)
        self.names = [ProcessorId(f"p{i:05d}") for i in range(settings.processors)]
        self.index = {name: i for i, name in enumerate(self.names)}
        owners = distribute(settings.groups, self.names)
        self.owner = np.array([self.index[o] for o in owners], dtype=np.int64)
        self.home = self.owner.copy()  # the first owner: workloads are told by it
        groups = settings.groups
        self.held: IntArray = np.zeros(groups, dtype=np.int64)
        self.made: Floats = np.zeros(groups)  # P_o of the current generation
        self.last_insert_s: Floats = np.zeros(groups)
        self.on_disk: IntArray = np.zeros(groups, dtype=np.int64)
        self.moved_at = np.full(groups, -(10**9), dtype=np.int64)  # interval of its last move
        # S4 6.1: the groups of every third machine have a join ratio of 4, the others of 1.
        self.join_ratio = np.where(self.home % 3 == 0, 4.0, 1.0)
        self.weight = self._weights()
        self.admission = Admission(policy(settings.policy), settings.adaptation)
        self.total_bytes = settings.state_ratio * LIMIT_BYTES * settings.processors
        self.interval = 0
        self.trace = Trace(settings.policy)

    @property
    def now_s(self) -> float:
        """The model's clock."""
        return self.interval * self.settings.adaptation.move_interval_s

    def run(self) -> Trace:
        """All intervals."""
        for _ in range(self.settings.intervals):
            self.step()
        return self.trace

    def step(self) -> None:
        """Grow, push where memory is full, then one adaptation round."""
        self.interval += 1
        produced = self._grow()
        started = time.thread_time()
        moves, moved, forced = self._adapt(produced)
        self.trace.decision_cpu_s.append(time.thread_time() - started)
        self.trace.moves.append(moves)
        self.trace.moved_bytes.append(moved)
        self.trace.forced_bytes.append(forced)
        used = self._used() / LIMIT_BYTES
        self.trace.used_min.append(float(used.min()))
        self.trace.used_mean.append(float(used.mean()))
        self.trace.used_max.append(float(used.max()))
        self.trace.used_spread.append(float(used.std()))

    # Load ----------------------------------------------------------------------------------------

    def _weights(self) -> Floats:
        """How large the groups are relative to each other, apart from what changes in time."""
        groups = self.settings.groups
        if self.settings.workload == "skewed":
            # A heavy tail within machines and a slope across them: the first get most.
            slope = np.linspace(2.0, 0.2, self.settings.processors)[self.home]
            return slope * self.rng.pareto(2.5, groups) + 0.1 * slope
        return self.rng.uniform(0.5, 1.5, groups)

    def _activity(self) -> Floats:
        """The workload's factor per group in this interval."""
        s = self.settings
        if s.workload == "alternating":
            # As in S4 5.2: the first phase is half as long as the following ones.
            phase = (self.interval + 5) // 10
            favoured = (self.home < s.processors // 2) == (phase % 2 == 0)
            return np.where(favoured, ALTERNATING_FACTOR, 1.0)
        if s.workload == "drifting":
            # A warm front of a fifth of the machines wanders once over all of them.
            centre = self.interval / s.intervals * s.processors
            distance = np.abs(self.home - centre)
            distance = np.minimum(distance, s.processors - distance)
            return np.where(distance < s.processors / 10, 8.0, 1.0)
        if s.workload == "bursty":
            bursting = self.rng.random(s.processors) < 0.02
            return np.where(bursting[self.home], 30.0, 1.0)
        return np.ones(s.groups)

    def _grow(self) -> IntArray:
        """One interval of input; the combinations produced, per processor."""
        s = self.settings
        share = self.weight * self._activity()
        grown = share / share.sum() * (self.total_bytes / s.intervals)
        grown *= self.rng.uniform(0.8, 1.2, s.groups)
        # In four parts, as full processors push many times within an interval.
        produced = np.zeros(s.processors)
        pushed = held_up = 0
        for _ in range(4):
            wanted = (grown / 4).astype(np.int64)
            part = self._taken_in(wanted)
            held_up += int(wanted.sum() - part.sum())
            made = self.join_ratio * part * (self.held + part / 2) / LIMIT_BYTES
            self.held += part
            self.made += made
            self.last_insert_s[part > 0] = self.now_s
            produced += np.bincount(self.owner, made, minlength=s.processors)
            pushed += self._push_where_full()
        self.trace.pushed_bytes.append(pushed)
        self.trace.held_up_bytes.append(held_up)
        self.trace.produced.append(float(produced.sum()))
        return produced.astype(np.int64)

    def _taken_in(self, part: IntArray) -> IntArray:
        """What fits: a processor without room takes the same share of all its input."""
        wanted = np.bincount(self.owner, part, minlength=self.settings.processors)
        room = np.maximum(LIMIT_BYTES - self._used(), 0)
        fits = np.minimum(1.0, room / np.maximum(wanted, 1))
        taken: IntArray = (part * fits[self.owner]).astype(np.int64)
        return taken

    def _push_where_full(self) -> int:
        if not self.admission.policy.spills_locally:
            return 0
        adaptation = self.settings.adaptation
        used = self._used()
        pushed = 0
        full = np.flatnonzero(used > adaptation.spill_above_ratio * LIMIT_BYTES)
        if full.size == 0:
            return 0
        members = self._groups_by_owner()
        for processor in full.tolist():
            want = bytes_to_push(
                used_bytes=int(used[processor]),
                limit_bytes=LIMIT_BYTES,
                held_bytes=int(used[processor]),
                spill_above_ratio=adaptation.spill_above_ratio,
                push_fraction=adaptation.push_fraction,
                no_disk_adaptation=False,
                in_disk_adaptation=False,
            )
            pushed += self._push(members[processor], want)
        return pushed

    def _push(self, groups: IntArray, want_bytes: int) -> int:
        chosen = choose_victims(
            self._stats(groups),
            want_bytes,
            order=VictimOrder.LEAST_PRODUCTIVE,
            now_s=self.now_s,
            inactive_after_s=self.settings.adaptation.inactive_after_s,
            rng=self.rng,
        )
        victims = groups[chosen]
        size = int(self.held[victims].sum())
        self.on_disk[victims] += self.held[victims]
        self.held[victims] = 0
        self.made[victims] = 0
        return size

    # Adaptation ----------------------------------------------------------------------------------

    def _adapt(self, produced: IntArray) -> tuple[int, int, int]:
        """One round: (moves, moved bytes, bytes pushed by order)."""
        s = self.settings
        used = self._used()
        counts = np.bincount(self.owner, minlength=s.processors)
        loads = tuple(
            ProcessorLoad(
                name,
                LIMIT_BYTES,
                int(u),
                int(u),
                LIMIT_BYTES,
                int(n),
                float(made) / max(int(n), 1),
            )
            for name, u, n, made in zip(self.names, used, counts, produced, strict=True)
        )
        snapshot = Snapshot(QueryName("model"), self.now_s, loads, int(self.total_bytes))
        decisions = self.admission.decide(snapshot, busy=set())
        members = self._groups_by_owner() if decisions else []
        moves = moved = forced = 0
        for decision in decisions:
            if isinstance(decision, PushState):
                size = self._push(members[self.index[decision.processor]], decision.want_bytes)
                self.admission.pushed(decision.processor, size)
                forced += size
            else:
                moved += self._move(decision, members[self.index[decision.sender]])
                moves += 1
        return moves, moved, forced

    def _move(self, decision: MoveState, groups: IntArray) -> int:
        adaptation = self.settings.adaptation
        settled = self.moved_at[groups] <= self.interval - adaptation.settle_intervals
        chosen = choose_groups_to_move(
            self._stats(groups),
            decision.want_bytes,
            movable=settled,
            spilled=self.on_disk[groups] > 0,
            paper_restrictions=adaptation.paper_restrictions,
        )
        going = groups[chosen]
        since = self.interval - self.moved_at[going]
        self.trace.moved_again += int((since < adaptation.settle_intervals).sum())
        self.trace.groups_moved += len(going)
        self.owner[going] = self.index[decision.receiver]
        self.moved_at[going] = self.interval
        return int(self.held[going].sum())

    def _used(self) -> Floats:
        used = np.bincount(self.owner, self.held, minlength=self.settings.processors)
        return used.astype(np.float64)

    def _groups_by_owner(self) -> list[IntArray]:
        order = np.argsort(self.owner, kind="stable")
        bounds = np.searchsorted(self.owner[order], np.arange(1, self.settings.processors))
        return np.split(order, bounds)

    def _stats(self, groups: IntArray) -> GroupStats:
        produced = np.ceil(self.made[groups]).astype(np.int64)
        return GroupStats(self.held[groups], produced, self.last_insert_s[groups])
