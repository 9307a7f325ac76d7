"""The manager's process and its store, simulated: the machine in it is the real one.

This is the one place of the kit that knows the machine; all others use the verbs of `SimManager`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dovetail_manager import members, queries, streams
from dovetail_manager.adaptation import rounds
from dovetail_manager.adaptation.snapshot import AdaptationSettings, PushState
from dovetail_manager.controller import Controller
from dovetail_manager.effects import AppendHistory, Effect, LogEvent, Send, StepDown
from dovetail_manager.journal import Write
from dovetail_manager.membership import MemberState
from dovetail_manager.moves.steps import MoveSettings
from dovetail_manager.records import End, QueryRecord
from dovetail_manager.state import ControllerSettings, State
from dovetail_proto.assignment import DiskSettings, Phase
from dovetail_proto.errors import Refusal
from dovetail_proto.ids import Epoch, GroupId, ProcessorId, QueryName, StreamName
from dovetail_proto.messages import Join
from dovetail_proto.partition_map import map_from_json
from dovetail_proto.query import QueryPlan
from dovetail_proto.wire import control
from kit.sim_queries import SCHEMA
from kit.sim_world import Violation, World, name_of

STORE_DELAY_S = 0.01
STORE_TIMEOUT_S = 0.5


@dataclass(frozen=True, slots=True)
class ManagerSettings:
    """What a seed chooses of the manager's settings."""

    move_interval_s: float
    step_timeout_s: float
    chunk_bytes: int
    chunks_in_flight: int
    settle_intervals: int
    paper_restrictions: bool
    force_above_ratio: float
    dead_after_s: float = 6.0

    def made(self) -> ControllerSettings:
        """As the machine takes them."""
        return ControllerSettings(
            version="1",
            adaptation=AdaptationSettings(
                move_interval_s=self.move_interval_s,
                move_min_fraction=0.02,
                settle_intervals=self.settle_intervals,
                paper_restrictions=self.paper_restrictions,
                force_above_rate_ratio=1.2,
                force_above_ratio=self.force_above_ratio,
            ),
            moves=MoveSettings(
                resend_s=0.5,
                step_timeout_s=self.step_timeout_s,
                chunk_bytes=self.chunk_bytes,
                chunks_in_flight=self.chunks_in_flight,
            ),
            dead_after_s=self.dead_after_s,
        )


class SimStore:
    """A linearizable store: an epoch, a revision and entries; it never fails itself."""

    def __init__(self) -> None:
        self.epoch = 0
        self.revision = 0
        self.entries: dict[str, str] = {}
        self.closing_s: dict[str, float] = {}  # when it was written down that a query closes
        self.failed: set[str] = set()  # queries

    def acquire(self) -> tuple[Epoch, int, dict[str, str]]:
        """Let a new manager lead."""
        self.epoch += 1
        return Epoch(self.epoch), self.revision, dict(self.entries)

    def write(self, w: Write, now_s: float) -> str:
        """`ok`, `fenced` or `stale`; the same write twice is done once."""
        if w.epoch != self.epoch:
            return "fenced"
        if w.revision == self.revision:
            return "ok"
        if w.revision != self.revision + 1:
            return "stale"
        self._check_maps(w)
        for key, value in w.puts.items():
            if value is None:
                self.entries.pop(key, None)
            else:
                self.entries[key] = value
                self._note(key, value, now_s)
        self.revision = w.revision
        return "ok"

    def _note(self, key: str, value: str, now_s: float) -> None:
        kind, _, name = key.partition("/")
        if kind == "query":
            record = json.loads(value)
            if record["phase"] == Phase.CLOSING:
                self.closing_s.setdefault(name, now_s)
            if record["end"] == End.FAILED:
                self.failed.add(name)

    def _check_maps(self, w: Write) -> None:
        """One owner per group and version: a map follows its predecessor by a version.

        Or it is of the same version, and has forgotten a processor that owns nothing.
        """
        for key, value in w.puts.items():
            if key.startswith("map/") and key in self.entries and value is not None:
                old, new = map_from_json(self.entries[key]), map_from_json(value)
                owners = [[m.processors[o] for o in m.owners] for m in (old, new)]
                same = new.version == old.version and owners[0] == owners[1]
                if new.version != old.version + 1 and not same:
                    raise Violation(f"map version {new.version} follows {old.version}")


class SimManager:
    """One manager process, from its start to its crash or step-down."""

    def __init__(
        self, world: World, store: SimStore, address: str, settings: ManagerSettings
    ) -> None:
        self.world = world
        self.store = store
        self.address = address
        self.crashed = False
        self.paused_until_s = 0.0
        self.writes_begun = 0
        self.crash_at_write: tuple[int, bool] | None = None  # the n-th; after it, or before
        self.moves: dict[str, str] = {}  # how those ended that did
        self._lines: dict[ProcessorId, str] = {}  # where members are
        self._awaited = -1  # revision of the write under way
        self._tick_s = float("inf")
        self._listening: dict[QueryName, int] = {}  # the assignment that tells of a query
        world.nodes[address] = self
        world.tell(address, f"leads from epoch {store.epoch + 1} on")
        self._machine, effects = Controller.resume(*store.acquire(), settings.made(), world.now_s)
        self._act(effects)

    # Verbs: each raises DovetailError if it cannot be done now ------------------------------------

    def create_stream(self, name: str) -> None:
        """Declare a stream."""
        self._do(lambda s: streams.create(s, StreamName(name), SCHEMA, None))

    def submit(
        self,
        plan: QueryPlan,
        policy: str,
        *,
        spill: str | None,
        disk: DiskSettings,
        weights: Sequence[float] | None,
        expected_bytes: int | None,
    ) -> None:
        """Start a query."""
        record = QueryRecord(
            QueryName(plan.name),
            plan,
            policy,
            self.world.now_s,
            disk,
            expected_bytes=expected_bytes,
            spill=spill,
        )
        self._do(lambda s: queries.submit(s, record, weights))

    def set_phase(self, name: str, phase: Phase) -> None:
        """Pause, resume or close a query."""
        self._do(lambda s: queries.set_phase(s, QueryName(name), phase))

    def set_policy(self, name: str, policy: str) -> None:
        """Adapt by another policy."""
        self._do(lambda s: queries.set_policy(s, QueryName(name), policy))

    def move(self, name: str, groups: Sequence[int], to: str) -> None:
        """An operator's move."""
        ids = [GroupId(g) for g in groups]
        self._do(lambda s: rounds.move(s, QueryName(name), ids, ProcessorId(to)))

    def pin(self, name: str, groups: Sequence[int], pinned: bool) -> None:
        """Keep groups where they are, or let them go."""
        ids = [GroupId(g) for g in groups]
        self._do(lambda s: rounds.pin(s, QueryName(name), ids, pinned))

    def leave(self, processor: str) -> None:
        """Have a processor leave."""
        self._do(lambda s: members.ask_to_leave(s, ProcessorId(processor)))

    def drop(self, name: str) -> None:
        """Forget a query that has ended."""
        self._do(lambda s: queries.drop(s, QueryName(name)))

    def _do(self, verb: Callable[[State], Any]) -> None:
        self._act(self._machine.do(verb, self.world.now_s)[1])

    # What can be seen -----------------------------------------------------------------------------

    @property
    def at_rest(self) -> bool:
        """Whether everything that was decided is durable, and no group is on its way."""
        state = self._machine.state
        moves = any(q.coordinator.moves for q in state.queries.values())
        return not state.journal.queue and not moves

    def _durable(self, name: str) -> QueryRecord | None:
        query = self._machine.state.queries.get(QueryName(name))
        return None if query is None else query.durable

    def run_of(self, name: str) -> str | None:
        """The run of a query that is durable; None if there is none."""
        record = self._durable(name)
        return None if record is None else record.run

    def end_of(self, name: str) -> tuple[str, str]:
        """How a query ended, durably, and why: `closed`, `failed` or not yet."""
        record = self._durable(name)
        if record is None or record.end is End.NOT_YET:
            return "", ""
        return str(record.end), record.cause

    def phase_of(self, name: str) -> Phase | None:
        """What is wanted of a query, durably."""
        record = self._durable(name)
        return None if record is None else record.phase

    def listening(self, name: str) -> bool:
        """Whether every processor knows of a query."""
        state = self._machine.state
        if self.run_of(name) is None:
            return False
        version = self._listening.setdefault(QueryName(name), state.assignments.version)
        return not state.assignments.unaware(state, version)

    def home_of(self, stream: str) -> ProcessorId | None:
        """Where a stream is at home, durably."""
        found = self._machine.state.streams.get(StreamName(stream))
        return None if found is None or found.durable is None else found.durable.home

    def owners(self, name: str) -> Mapping[int, str]:
        """Who owns each group."""
        known = self._machine.state.query(name).placement.map
        return {g: known.processors[o] for g, o in enumerate(known.owners.tolist())}

    def members(self) -> dict[str, str]:
        """Who is in, and how."""
        return {m.processor: str(m.state) for m in self._machine.state.membership.alive()}

    def is_staying(self, processor: str) -> bool:
        """Whether a processor is in and does not leave."""
        members = self._machine.state.membership.members
        known = members.get(ProcessorId(processor))
        return known is not None and known.state is MemberState.ALIVE

    def push_bound(self, name: str) -> int | None:
        """M_query − M_cluster when a push was last forced by a policy; None if none was."""
        for record in reversed(self._machine.state.query(name).admission.history):
            if isinstance(record.decision, PushState) and record.decision.numbers:
                numbers = record.decision.numbers
                return int(numbers["m_query_bytes"] - numbers["m_cluster_bytes"])
        return None

    # Events ---------------------------------------------------------------------------------------

    def receive(self, source: str, data: bytes) -> None:
        """A message from a processor; one that may not join is told so."""
        _, message = control.decode(data)
        name = ProcessorId(name_of(source))
        try:
            effects = self._machine.handle(name, message, self.world.now_s)
        except Refusal as e:
            self.world.tell(self.address, f"to {source}: {e}")
            if isinstance(message, Join):
                self.world.send(self.address, source, e)
            return
        if isinstance(message, Join):
            self._lines[name] = source
        self._act(effects)

    def check(self) -> None:
        """The machine's own invariants."""
        self._machine.check()

    def crash(self, why: str) -> None:
        """Lose everything but the store."""
        self.crashed = True
        self.world.tell(self.address, f"CRASHES {why}")

    def _act(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if self.crashed:
                return
            match effect:
                case Send(to, message):
                    if (line := self._lines.get(to)) is not None:
                        self.world.send(self.address, line, control.encode(None, message))
                case Write():
                    self._write(effect)
                case AppendHistory(move=move) if move is not None:
                    self.world.at(STORE_DELAY_S, self, self._recorded, move)
                case StepDown(cause):
                    self.crash(f"as it steps down: {cause}")
                case LogEvent():
                    self._tell(effect)
        self._schedule()

    def _tell(self, h: LogEvent) -> None:
        about = " ".join(x for x in (h.query, h.stream, h.processor, h.move, h.text) if x)
        self.world.tell(self.address, f"{h.kind} {about}")
        if h.kind == "move-ended":
            self.moves[h.move] = h.text.partition(":")[0]

    def _recorded(self, move: Any) -> None:
        self._act(self._machine.recorded(move, self.world.now_s))

    def _schedule(self) -> None:
        due_s = self._machine.next_tick_s()
        if due_s < self._tick_s:
            self._tick_s = due_s
            self.world.at(max(0.0, due_s - self.world.now_s), self, self._tick, due_s)

    def _tick(self, due_s: float) -> None:
        if due_s == self._tick_s:
            self._tick_s = float("inf")
        self._act(self._machine.tick(self.world.now_s))

    def _write(self, w: Write) -> None:
        self.writes_begun += 1
        at_write, after = self.crash_at_write or (0, False)
        if at_write == self.writes_begun and not after:
            self.crash(f"before writing {', '.join(w.puts)}")
            return
        self._awaited = w.revision
        random, loss = self.world.random, self.world.faults.store_loss
        lost = random.random() < loss if loss else False
        now_s = self.world.now_s
        lost |= any(a <= now_s < b for a, b in self.world.faults.store_outages)
        applied = not lost or random.random() < 0.5
        delay_s = STORE_DELAY_S * (0.5 + random.random())
        if applied:
            # The request may reach the store even when its sender is gone by then.
            crash_after = at_write == self.writes_begun
            self.world.at(delay_s, None, self._reach_store, w, lost, crash_after)
        self.world.at(STORE_TIMEOUT_S, self, self._timed_out, w.revision)

    def _reach_store(self, w: Write, answer_lost: bool, crash_after: bool) -> None:
        verdict = self.store.write(w, self.world.now_s)
        self.world.tell(self.address, f"store says {verdict} to {w.revision}: {_brief(w)}")
        if crash_after and not self.crashed:
            self.crash("after writing")
        if not answer_lost:
            delay_s = STORE_DELAY_S
            if self.world.faults.store_loss and self.world.random.random() < 0.2:
                delay_s += self.world.random.random() * 3 * STORE_TIMEOUT_S
            self.world.at(delay_s, self, self._answered, w.revision, verdict)

    def _answered(self, revision: int, verdict: str) -> None:
        if verdict == "fenced":
            self.crash("as it was fenced")
        elif verdict == "ok":
            if self._awaited == revision:
                self._awaited = -1
            self._act(self._machine.confirmed(revision, self.world.now_s))

    def _timed_out(self, revision: int) -> None:
        if self._awaited == revision:
            self._awaited = -1
            self._act(self._machine.store_failed())


def _brief(w: Write) -> str:
    told = []
    for key, value in w.puts.items():
        raw = json.loads(value or "{}")
        fields = ("version", "committed", "outcome", "state", "cause", "home", "phase", "end")
        told.append(f"{key} { ({k: raw[k] for k in fields if raw.get(k)}) }")
    return "; ".join(told)
