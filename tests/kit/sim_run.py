"""One seed: a random cluster, random rows, a random subset of faults, healing, and the verdict.

load with faults ──▶ healing (quiet network, a manager leads) ──▶ all rows sent, all queries closed
                                                                  run + clean-up vs DuckDB
"""

from __future__ import annotations

import shutil
import tempfile
import traceback
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random
from unittest.mock import patch

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail_processor.query import Query
from dovetail_processor.worker import Worker
from dovetail_proto import spill_format
from dovetail_proto.assignment import DiskSettings
from dovetail_proto.cluster_memory import cluster_shares, smallest_limit
from dovetail_proto.ids import StreamName, process_of
from dovetail_proto.messages import Pushed, Stage
from dovetail_proto.query import QueryPlan
from kit.sim_disk import SimDisk, SimSink
from kit.sim_faults import LOAD_S, plan_faults
from kit.sim_feeds import SimFeed
from kit.sim_judge import judge
from kit.sim_manager import ManagerSettings, SimManager
from kit.sim_operator import Operator
from kit.sim_processor import SimProcessor
from kit.sim_queries import QUERIES, STREAMS, planned, rows
from kit.sim_scenes import ORDINARY, Scene
from kit.sim_store import SimStore
from kit.sim_world import Faults, Violation, World, tell_story

HEAL_S_MAX = 200.0
"""Longer than any chain of resends and deadlines of a quiet network."""

IN_MEMORY = Path("/dev/shm")


@dataclass(slots=True)
class Submission:
    """A query of the scenario, and what is to be known to judge it."""

    name: str
    sql: str
    plan: QueryPlan
    policies: list[str]  # that it has had; the last one is asked for
    at_s: float
    spill: str
    disk: DiskSettings
    expected_bytes: int | None
    weights: list[float] | None
    run: str = ""  # once it is durable
    listening_s: float = float("inf")  # when every processor knew of it
    closing_s: float = float("inf")  # when it was asked to close
    end: tuple[str, str] = ("", "")
    given_up: str = ""  # why it was never submitted


@dataclass(slots=True)
class Verdict:
    """What a seed did."""

    seed: int
    ends: Counter[str]  # of its queries
    moves: Counter[str]  # by outcome
    pushes: int
    forced: int
    owed: int
    events: int
    results: int
    kinds: frozenset[str] = field(default_factory=frozenset)


class Scenario:
    """Everything random about a run, and the bookkeeping that judges it."""

    def __init__(self, world: World, folder: Path, scene: Scene) -> None:
        random = world.random
        self.world, self.scene = world, scene
        world.step_hook = self.step_hook
        self.disk = SimDisk(world, folder)
        self.names = [f"p{i}" for i in range(random.choice(scene.processors))]
        if world.seed % 4 == 3:
            self.names[:2] = ["p0.0", "p0.1"]  # the workers of one process
        self.queries = [self._query(n) for n in range(random.choice(scene.queries))]
        self.memory = self._memory()
        for query in self.queries:
            amounts = {"unknown": None, "full": self._about_full(query), "much": 4 << 20}
            query.expected_bytes = amounts[random.choice(scene.expected)]
        self.settings = ManagerSettings(
            move_interval_s=random.choice((1.0, 3.0)),
            step_timeout_s=random.choice(scene.step_timeouts_s),
            chunk_bytes=random.choice(scene.chunk_bytes),
            chunks_in_flight=random.choice((1, 2, 3)),
            settle_intervals=random.choice((0, 2)),
            paper_restrictions=random.random() < 0.1,
            force_above_ratio=random.choice(scene.force_above),
            move_min_fraction=scene.move_min_fraction,
        )
        self.repeats = random.choice((0.0, 0.0, 0.1))
        """How often a source does not get its last answers, and sends again."""
        self.replays = random.choice((0.0, 0.0, 0.2))
        """How often a split gets again what it has taken."""
        self.short_streams: list[str] = []
        """Streams of few rows, that are ended while others go on."""
        self.store = SimStore()
        self.processors: list[SimProcessor] = []  # every process that was ever started
        self.managers: list[SimManager] = []
        self.feeds: list[SimFeed] = []
        self.sinks: dict[str, list[SimSink]] = {}  # by run
        self.taken: dict[tuple[str, str], list[pa.RecordBatch]] = {}  # by run and stream
        self._taken_once: set[tuple[str, str, int]] = set()  # run, stream, first row's number
        self._orders: dict[tuple[str, int, int], int] = {}  # bytes by run, epoch and order
        self._marks: dict[str, NDArray[np.int64]] = {}
        self.crash_plan: tuple[str, str, int, bool] | None = None  # who, step, n-th, before?
        self._steps_seen: Counter[tuple[str, str]] = Counter()
        self._managers = count(1)
        self._incarnations = count(1)
        self._starts: Counter[str] = Counter()

    def _query(self, n: int) -> Submission:
        random, scene = self.world.random, self.scene
        number, name = random.choice(scene.sql), f"q{n}"
        plan = planned(number, name, random.choice((4, 8, 12)))
        policy = random.choice(scene.policies)
        weights = [random.choice((1.0, 1.0, 4.0)) for _ in self.names]
        return Submission(
            name,
            QUERIES[number],
            plan,
            [policy],
            0.5 if n == 0 else random.uniform(0.5, 4.0),
            f"{self.disk.root}/spill-{name}",
            DiskSettings(
                allowed=True,
                victims=random.choice(("least-productive", "random", "least-recent")),
                push_fraction=random.choice((0.3, 0.6)),
                spill_above_ratio=random.choice(scene.spill_above),
                inactive_after_s=random.choice((2.0, 60.0)),
                productivity_half_life_s=random.choice((0.0, 0.0, 2.0)),
            ),
            None,
            weights if random.random() < 0.5 else None,
        )

    def _memory(self) -> dict[str, int]:
        """Unequal limits, all of them small."""
        random = self.world.random
        least = sum(
            smallest_limit(
                inputs=len(q.plan.inputs),
                partitions=q.plan.partitions,
                hosted=len(q.plan.inputs),
                peers=len(self.names) + 1,
            )
            for q in self.queries
        )
        unequal = random.random() < 0.5
        more = lambda: random.choice((1.0, 1.0, 1.3, 2.0)) if unequal else 1.0  # noqa: E731
        return {name: int(least * more()) for name in [*self.names, f"p{len(self.names)}"]}

    def _about_full(self, query: Submission) -> int:
        """A little more state than all processors have room for below θ_m."""
        room = sum(
            cluster_shares(
                self.memory[name] // len(self.queries),
                inputs=len(query.plan.inputs),
                partitions=query.plan.partitions,
                hosted=1,
                peers=len(self.names),
            ).shares.state
            for name in self.names
        )
        return int(query.disk.spill_above_ratio * room) + self.world.random.randrange(200_000)

    # What nodes ask and tell ----------------------------------------------------------------------

    def manager_address(self) -> str:
        """Who leads, as service discovery knows it."""
        return self.managers[-1].address if self.managers else "nobody"

    def home_address(self, stream: StreamName) -> str | None:
        """Where a stream is, as the manager tells."""
        manager = self.managers[-1]
        if manager.crashed or manager.paused_until_s > self.world.now_s:
            return None
        home = manager.home_of(stream)
        found = [p.address for p in self.alive() if p.id == home]
        return found[-1] if found else None

    def next_incarnation(self) -> int:
        """Greater than all before."""
        return next(self._incarnations)

    def sink_opened(self, run: str, sink: SimSink) -> None:
        """A process writes results."""
        self.sinks.setdefault(run, []).append(sink)

    def accepted(self, stream: str, batch: pa.RecordBatch, runs: list[str]) -> None:
        """A stream has taken a batch in, for these queries; again only if they have failed."""
        for run in set(runs):
            once = (run, stream, batch.column("n")[0].as_py())
            failed = run.rpartition("-")[0] in self.store.failed
            if once in self._taken_once and not failed:
                self.blame(f"{run} takes the batch from row {once[2]} of {stream} twice")
            self._taken_once.add(once)
            self.taken.setdefault((run, stream), []).append(batch)

    def forced(self, run: str, message: Pushed) -> None:
        """An ordered push was done; once for each order."""
        order = (run, int(message.epoch), message.order)
        if self._orders.setdefault(order, message.size_bytes) != message.size_bytes:
            self.blame(f"order {message.order} is done again: {message.size_bytes} bytes")

    def forced_bytes(self, run: str = "") -> int:
        """Pushed by order, of a run or of all."""
        return sum(size for (of, _, _), size in self._orders.items() if run in ("", of))

    def blame(self, what: str) -> None:
        """A violation, found in the middle of the product's work: raised when that is over."""
        self.world.blamed = self.world.blamed or what

    def check_live(self, worker: Worker, query: Query) -> None:
        """A group takes rows in at most one place."""
        for p in self.alive():
            other = p.worker.queries.get(query.task.name)
            if p.worker is worker or other is None or other.task.run != query.task.run:
                continue
            both = query.join.live & other.join.live
            if both.any() and other.stage is Stage.RUNNING:
                group = int(np.flatnonzero(both)[0])
                raise Violation(f"group {group} is live at {worker.here} and {p.address}")

    def check_marks(self, query: Query) -> None:
        """What a group has taken it has taken, wherever it goes; unless its query has failed."""
        if query.task.name in self.store.failed:
            return
        marks = query.state.marks
        seen = self._marks.setdefault(query.task.run, np.full_like(marks, -1))
        back = (marks < seen) & query.join.live
        if back.any():
            i, group = (int(x[0]) for x in np.nonzero(back))
            raise Violation(
                f"{query.here}: the mark of group {group}, input {i}, fell from "
                f"{seen[i, group]} to {marks[i, group]}"
            )
        np.maximum(seen, np.where(query.join.live, marks, -1), out=seen)

    def step_hook(self, node: SimProcessor, step: str, before: bool) -> None:
        """Crash a node before or after the n-th time that it takes a step, if so planned."""
        if before:
            self._steps_seen[node.id, step] += 1
        plan = self.crash_plan
        if plan and plan == (node.id, step, self._steps_seen[node.id, step], before):
            node.crash(f"{'before' if before else 'after'} {step}")

    # Cluster --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start everyone."""
        random, scene = self.world.random, self.scene
        self.start_manager()
        for name in self.names:
            self.world.at(random.random() * 0.3, None, self.start_processor, name)
        self.operator = Operator(self.world, self)
        width = random.choice(scene.widths)
        keys, hot = random.choice((25, 60)), random.choice(scene.hot)
        gap_s = random.choice((0.05, 0.1))
        ends = Random(f"ends {self.world.seed}")  # of its own: other seeds go as without it
        self.short_streams = ends.sample(STREAMS, ends.choice(scene.short_streams))
        for stream in STREAMS:
            first = 0
            short = stream in self.short_streams
            for n in range(random.choice((1, 2))):
                count_of = random.randint(10, 40) if short else random.randint(*scene.rows)
                table = rows(random, count_of, first, keys=keys, width=width, hot=hot)
                first += table.num_rows
                feed = SimFeed(
                    self.world,
                    self,
                    f"{stream}-feed{n}",
                    stream,
                    table,
                    batch_rows=random.choice((1, 2, 3)),
                    gap_s=gap_s,
                    ahead=random.choice((1, 3)),
                    starts_s=random.uniform(0.3, 3.0),
                )
                self.feeds.append(feed)

    def start_processor(self, name: str) -> SimProcessor:
        """Start a process of a processor."""
        self._starts[name] += 1
        memory = self.memory.get(name, self.memory[self.names[0]])
        made = SimProcessor(self.world, self, name, self._starts[name], memory)
        self.processors.append(made)
        self.world.tell(made.address, "starts")
        return made

    def start_manager(self) -> None:
        """Have a new manager lead."""
        address = f"m{next(self._managers)}"
        manager = SimManager(self.world, self.store, address, self.settings)
        manager.forced_bytes = self.forced_bytes
        self.managers.append(manager)

    def ensure_manager(self) -> None:
        """Start a manager if none is running."""
        if self.managers[-1].crashed:
            self.start_manager()

    def neighbours(self, of: SimProcessor) -> list[SimProcessor]:
        """The other workers of its process that have not ended."""
        mine = process_of(of.id)
        return [p for p in self.alive() if p is not of and process_of(p.id) == mine]

    def alive(self) -> list[SimProcessor]:
        """Processes that have not crashed or left."""
        return [p for p in self.processors if not p.crashed]

    # The end --------------------------------------------------------------------------------------

    def heal(self) -> None:
        """From now on nothing goes wrong."""
        world = self.world
        world.tell("kit", "HEALS")
        world.faults = Faults()
        self.repeats = 0.0
        self.crash_plan = None
        for processor in self.processors:
            processor.paused_until_s = min(processor.paused_until_s, world.now_s)
        for manager in self.managers:
            manager.paused_until_s = min(manager.paused_until_s, world.now_s)
            manager.crash_at_write = None
        self.ensure_manager()
        world.at(5.0, None, self.ensure_manager)
        if all(p.ends or p.worker.leaving for p in self.alive()):
            self.start_processor("p9")

    @property
    def at_rest(self) -> bool:
        """Whether all queries have ended everywhere, and all that was sent is answered."""
        manager = self.managers[-1]
        return (
            not manager.crashed
            and manager.at_rest
            and all(q.end[0] or q.given_up for q in self.queries)
            and all(feed.done for feed in self.feeds)
            and not any(p.worker.queries for p in self.alive())
        )

    def unrest(self) -> str:
        """What it is that goes on."""
        manager = self.managers[-1]
        return (
            f"manager crashed {manager.crashed}, at rest {manager.at_rest}, "
            f"queries {[(q.name, q.end, q.given_up, q.closing_s) for q in self.queries]}, "
            f"feeds {[f.address for f in self.feeds if not f.done]}, members {manager.members()}, "
            f"running {[(p.address, [*p.worker.queries]) for p in self.alive()]}"
        )


def run_seed(seed: int, scene: Scene = ORDINARY) -> Verdict:
    """Run one seed to its verdict; Violation (with the story) if anything is not as it must be."""
    world = World(seed)
    place = IN_MEMORY if IN_MEMORY.is_dir() else None
    folder = Path(tempfile.mkdtemp(prefix=f"sim-{seed}-", dir=place))
    scenario = Scenario(world, folder, scene)
    try:
        with (
            patch.object(spill_format.store, "open_storage", scenario.disk.storage),
            patch.multiple(spill_format.merging, MERGED_MAX=2, MERGED_AT=4, LEFT_AT_CLOSE=1),
        ):
            scenario.start()
            kinds = plan_faults(scenario)
            world.tell("kit", f"seed {seed}, faults: {', '.join(sorted(kinds)) or '-'}")
            for q in scenario.queries:
                world.tell("kit", f"{q.name}, {q.policies[0]}, {q.plan.partitions}: {q.sql}")
            world.run(LOAD_S)
            scenario.heal()
            if not world.run(LOAD_S + HEAL_S_MAX, lambda: scenario.at_rest):
                raise Violation(f"not at rest {HEAL_S_MAX} s after healing: {scenario.unrest()}")
        return judge(scenario, kinds)
    except Exception as e:
        place_of = traceback.extract_tb(e.__traceback__)[-1]
        at = f"{Path(place_of.filename).name}:{place_of.lineno}: {place_of.line}"
        what = f"seed {seed}: {type(e).__name__}: {e} ({at})"
        raise Violation(f"{tell_story(world)}\n{what}") from e
    finally:
        shutil.rmtree(folder, ignore_errors=True)
