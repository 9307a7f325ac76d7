"""One seed: a random cluster, random data, a random subset of faults, healing, and the verdict.

load with faults ──▶ healing (quiet network, a manager that leads) ──▶ all moves have ended
                                                                      results vs oracle
"""

from __future__ import annotations

import traceback
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from math import prod
from pathlib import Path

import pyarrow as pa

from dovetail_manager.adaptation.initial import distribute, place_splits
from dovetail_manager.adaptation.policies import POLICIES
from dovetail_manager.adaptation.snapshot import AdaptationSettings
from dovetail_manager.membership import IN, Member, MemberState
from dovetail_manager.moves.records import map_key
from dovetail_manager.moves.steps import MoveSettings
from dovetail_manager.planner import plan_query
from dovetail_manager.query import Query
from dovetail_manager.records import QueryRecord, StreamRecord
from dovetail_manager.state import ControllerSettings
from dovetail_proto.assignment import DiskSettings
from dovetail_proto.ids import ProcessorId, QueryName, StreamName
from dovetail_proto.partition_map import PartitionMap, map_from_json
from dovetail_proto.query import QueryPlan
from kit.sim_faults import LOAD_S, plan_faults
from kit.sim_join import Result, Tuple, oracle, owed
from kit.sim_manager import SimManager, SimStore
from kit.sim_processor import SimProcessor, split_name
from kit.sim_world import Faults, Violation, World, tell_story

HEAL_S_MAX = 200.0
"""Longer than any chain of resends and deadlines of a quiet network."""


@dataclass(slots=True)
class Verdict:
    """What a seed did."""

    seed: int
    failed: str  # why the query failed; empty if it did not
    moves: Counter[str]  # by outcome
    pushes: int
    events: int
    results: int
    kinds: frozenset[str] = field(default_factory=frozenset)


SCHEMA = pa.schema([("k", pa.int64())])


@cache
def planned(inputs: int, partitions: int) -> QueryPlan:
    """A join of the streams s0, s1, …; planning takes longer than many seeds."""
    joined = " ".join(f"JOIN s{i} ON s{i}.k = s0.k" for i in range(1, inputs))
    schemas = {f"s{i}": SCHEMA for i in range(inputs)}
    return plan_query(f"SELECT s0.k FROM s0 {joined}", schemas, name="q", partitions=partitions)


class Scenario:
    """Everything random about a run, and the bookkeeping that judges it."""

    def __init__(self, world: World) -> None:
        random = world.random
        self.world = world
        world.step_hook = self.step_hook
        self.query = QueryName("q")
        self.inputs = random.choice((2, 3, 3))
        self.partitions = random.randint(4, 10)
        names = [ProcessorId(f"p{i}") for i in range(random.randint(2, 4))]
        self.names = names
        self.policy = random.choice(
            ("lazy-disk", "lazy-disk", "active-disk", "distributed", "disk", "none")
        )
        self.spills = POLICIES[self.policy].spills_locally
        weights = [random.choice((1.0, 1.0, 4.0, 9.0)) for _ in names]
        owners = distribute(self.partitions, names, weights)
        self.map = PartitionMap.initial(self.query, owners)
        self.split_hosts = place_splits(
            self.query, [names[i % len(names)] for i in range(self.inputs)]
        )
        self.hosts = {s: p for p, splits in self.split_hosts.items() for s in splits}
        self.splits = tuple(split_name(self.query, i) for i in range(self.inputs))
        self.streams = {s: self._rows(i) for i, s in enumerate(self.splits)}
        total = sum(row[3] for rows in self.streams.values() for row in rows)
        self.limit_bytes = (
            max(50, int(total * random.uniform(0.2, 0.6))) if self.spills else total + 60
        )
        self.gap_s = random.choice((0.4, 0.9))
        self.settle_s = random.choice((0.0, 5.0))
        self.replays = random.random() < 0.5
        self.paper_restrictions = random.random() < 0.1
        self.settings = ControllerSettings(
            adaptation=AdaptationSettings(
                move_interval_s=random.choice((1.0, 3.0)), move_min_fraction=0.02
            ),
            moves=MoveSettings(
                resend_s=0.5,
                step_timeout_s=random.choice((1.5, 3.0)),
                chunk_bytes=random.choice((1, 8, 1000)),
                chunks_in_flight=random.choice((1, 2, 3)),
            ),
            dead_after_s=6.0,
        )
        self.expected_bytes = total if random.random() < 0.5 else None
        self.results: list[Result] = []
        self.counts: dict[int, dict[int, list[int]]] = {}  # key → generation → per input
        self.made: Counter[int] = Counter()  # key → combinations produced
        self.disk: list[tuple[int, int, dict[int, list[list[int]]]]] = []
        self.store = SimStore()
        self.processors: list[SimProcessor] = []
        self.managers: list[SimManager] = []
        self.crash_plan: tuple[str, str, int, bool] | None = None  # who, step, n-th, before?
        self._steps_seen: Counter[tuple[str, str]] = Counter()
        self._address = count(1)

    def _rows(self, index: int) -> list[Tuple]:
        random = self.world.random
        rows = random.randint(15, 45)
        return [(index, n, random.randint(0, 13), random.randint(1, 3)) for n in range(1, rows + 1)]

    # What nodes ask and tell ----------------------------------------------------------------------

    def manager_address(self) -> str:
        """Who leads, as service discovery knows it."""
        return self.managers[-1].address if self.managers else "nobody"

    def host_of(self, split: str) -> str:
        """Where a split runs."""
        return self.hosts[split_name(self.query, int(split[-1]))]

    def emitted(self, row: Tuple, generation: int, results: list[Result]) -> None:
        """A tuple was joined: produced + owed = total must hold for its key."""
        index, _, key, _ = row
        self.results += results
        self.made[key] += len(results)
        generations = self.counts.setdefault(key, {})
        generations.setdefault(generation, [0] * self.inputs)[index] += 1
        within = sum(prod(c) for c in generations.values())
        if within != self.made[key]:
            raise Violation(f"key {key}: produced {self.made[key]}, generations hold {within}")

    def written(self, parts: list[tuple[int, int, dict[int, list[list[int]]]]]) -> None:
        """A push is committed."""
        known = {(g, generation) for g, generation, _ in self.disk}
        for g, generation, _ in parts:
            if (g, generation) in known:
                raise Violation(f"group {g} generation {generation} is on disk twice")
        self.disk += parts

    def step_hook(self, node: SimProcessor, step: str, before: bool) -> None:
        """Crash a node before or after the n-th time that it takes a step, if so planned."""
        if before:
            self._steps_seen[node.address, step] += 1
        plan = self.crash_plan
        if plan and plan == (node.address, step, self._steps_seen[node.address, step], before):
            node.crash(f"{'before' if before else 'after'} {step}")

    # Cluster --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Write the query and its members to the store and start everyone."""
        query = QueryRecord(
            self.query,
            planned(self.inputs, self.partitions),
            self.policy,
            0.0,
            DiskSettings(self.spills),
            self.split_hosts,
            self.expected_bytes,
            spill="/spill",
        )
        for index, split in enumerate(self.splits):
            stream = StreamRecord(StreamName(f"s{index}"), SCHEMA, self.hosts[split], 0.0)
            self.store.entries[stream.key] = stream.to_json()
        self.store.entries[query.key] = query.to_json()
        self.store.entries[map_key(self.query)] = self.map.to_json()
        for name in self.names:
            member = Member(name, 1, self.limit_bytes, MemberState.ALIVE, 0.0)
            self.store.entries[member.key] = member.to_json()
        self.processors = [SimProcessor(self.world, self, name, 1) for name in self.names]
        self.start_manager()

    def start_manager(self) -> SimManager:
        """A new manager leads."""
        manager = SimManager(self.world, self.store, f"m{next(self._address)}", self.settings)
        self.managers.append(manager)
        return manager

    def ensure_manager(self) -> None:
        """Start a manager if none is running."""
        if self.managers[-1].crashed:
            self.start_manager()

    def stored_map(self) -> PartitionMap:
        """The map that a processor gets when it is given the query."""
        return map_from_json(self.store.entries[map_key(self.query)])

    def alive(self) -> list[SimProcessor]:
        """Processors that have not crashed or left."""
        return [p for p in self.processors if not p.crashed]


def run_seed(seed: int) -> Verdict:
    """Run one seed to its verdict; Violation (with the story) if anything is not as it must be."""
    world = World(seed)
    scenario = Scenario(world)
    scenario.start()
    kinds = plan_faults(scenario)
    world.tell("kit", f"seed {seed}: {scenario.policy}, faults: {', '.join(sorted(kinds)) or '-'}")
    try:
        world.run(LOAD_S)
        _heal(scenario)
        ended = world.run(LOAD_S + HEAL_S_MAX, lambda: _at_rest(scenario))
        if not ended:
            raise Violation(f"not at rest {HEAL_S_MAX} s after healing: {_unrest(scenario)}")
        return _judge(scenario, kinds)
    except Exception as e:
        place = traceback.extract_tb(e.__traceback__)[-1]
        at = f"{Path(place.filename).name}:{place.lineno}: {place.line}"
        what = f"seed {seed}: {type(e).__name__}: {e} ({at})"
        raise Violation(f"{tell_story(world)}\n{what}") from e


def _heal(scenario: Scenario) -> None:
    world = scenario.world
    world.tell("kit", "HEALS")
    world.faults = Faults()
    scenario.crash_plan = None
    for processor in scenario.processors:
        processor.paused_until_s = min(processor.paused_until_s, world.now_s)
    for manager in scenario.managers:
        manager.paused_until_s = min(manager.paused_until_s, world.now_s)
        manager.crash_at_write = None
    scenario.ensure_manager()
    world.at(5.0, None, scenario.ensure_manager)


def _query(scenario: Scenario) -> Query:
    return scenario.managers[-1].controller.state.query(scenario.query)


def _at_rest(scenario: Scenario) -> bool:
    manager = scenario.managers[-1]
    if manager.crashed or manager.controller.state.journal.queue:
        return False
    query = _query(scenario)
    if query.record.cause:
        return not query.stopping and all(p.stopped or not p.groups for p in scenario.alive())
    members = manager.controller.state.membership.members.values()
    thought_alive = {(m.processor, m.incarnation) for m in members if m.state in IN}
    if any(p.crashed and (p.id, p.incarnation) in thought_alive for p in scenario.processors):
        return False  # a death that the manager has yet to notice
    return not query.coordinator.moves and all(p.idle() for p in scenario.alive())


def _unrest(scenario: Scenario) -> str:
    query = _query(scenario)
    return (
        f"manager crashed: {scenario.managers[-1].crashed}, cause {query.record.cause!r}, "
        f"stopping {query.stopping}, moves {query.coordinator.moves}, "
        f"idle {[(p.address, p.idle(), p.stopped) for p in scenario.alive()]}"
    )


def _judge(scenario: Scenario, kinds: set[str]) -> Verdict:
    query = _query(scenario)
    produced = Counter(scenario.results)
    rows = [row for stream in scenario.streams.values() for row in stream]
    truth = oracle(rows, scenario.inputs)
    if extra := produced - truth:
        raise Violation(f"results that the oracle does not have: {dict(extra)}")
    if not query.record.cause:
        in_memory = [
            (g, group.generation, group.rows)
            for p in scenario.alive()
            for g, group in p.groups.items()
        ]
        _check_owners(scenario)
        late = owed([*scenario.disk, *in_memory])
        if missing := truth - produced - late:
            raise Violation(f"{missing.total()} results are missing: {dict(missing)}")
        if doubled := (produced + late) - truth:
            raise Violation(f"results twice: {dict(doubled)}")
    else:
        dead = [
            p for p in scenario.processors if f"processor {p.address} died" in query.record.cause
        ]
        if not dead:
            raise Violation(f"the query failed for no death: {query.record.cause}")
        deadly = {"processor crash", "processor crash at step", "processor pause", "cut", "loss"}
        if not kinds & {*deadly, "slow", "late crash"}:
            raise Violation(f"the query failed without a fault: {query.record.cause}")
    outcomes: Counter[str] = Counter()
    for line in scenario.world.story:
        if isinstance(line[2], str) and " ended: " in line[2]:
            outcomes[line[2].split(" ended: ")[1].split(" ")[0].rstrip(":")] += 1
    return Verdict(
        scenario.world.seed,
        query.record.cause,
        outcomes,
        len(scenario.disk),
        scenario.world.events,
        len(scenario.results),
        frozenset(kinds),
    )


def _check_owners(scenario: Scenario) -> None:
    known = _query(scenario).placement.map
    for p in scenario.alive():
        if p.joined and not p.stopped:
            expected = {int(g) for g in known.groups_of(p.id)}
            if p.live != expected:
                raise Violation(f"{p.address} has {p.live}, the map gives it {expected}")
    if any(p.held for p in scenario.alive()):
        raise Violation("tuples are held back at rest")
