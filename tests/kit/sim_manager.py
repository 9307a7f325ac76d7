"""The manager's process, simulated: the machine in it is the real one.

With `sim_store` this is the one place of the kit that knows the machine; all others use the verbs
of `SimManager`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dovetail_manager import members, queries, streams
from dovetail_manager.adaptation import rounds
from dovetail_manager.adaptation.snapshot import AdaptationSettings, PushState
from dovetail_manager.admin.status import query_status
from dovetail_manager.controller import Controller
from dovetail_manager.effects import AppendHistory, Effect, LogEvent, Send, StepDown
from dovetail_manager.journal import Write
from dovetail_manager.membership import MemberState
from dovetail_manager.moves.records import map_key
from dovetail_manager.moves.steps import MoveSettings
from dovetail_manager.records import QueryRecord
from dovetail_manager.state import ControllerSettings, State
from dovetail_proto.admin import QueryStatus
from dovetail_proto.assignment import DiskSettings, Phase
from dovetail_proto.errors import Refusal
from dovetail_proto.ids import GroupId, ProcessorId, QueryName, StreamName
from dovetail_proto.messages import Join, PushPartitions
from dovetail_proto.query import QueryPlan
from dovetail_proto.wire import control
from kit.sim_queries import SCHEMA
from kit.sim_store import SimStore
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
    move_min_fraction: float
    dead_after_s: float = 6.0

    def made(self) -> ControllerSettings:
        """As the machine takes them."""
        return ControllerSettings(
            version="1",
            adaptation=AdaptationSettings(
                move_interval_s=self.move_interval_s,
                move_min_fraction=self.move_min_fraction,
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
        self._orders: set[int] = set()  # forced pushes that were looked at
        self.forced_bytes: Callable[[str], int] = lambda run: 0  # pushed by order, by run
        self._listening: dict[QueryName, int] = {}  # the assignment that tells of a query
        world.nodes[address] = self
        world.tell(address, f"leads from epoch {store.epoch + 1} on")
        self._machine, effects = Controller.resume(*store.acquire(), settings.made(), world.now_s)
        self._act(effects)

    # Verbs: each raises DovetailError if it cannot be done now ------------------------------------

    def create_stream(self, name: str) -> None:
        """Declare a stream."""
        self._do(lambda state: streams.create(state, StreamName(name), SCHEMA, None))

    def end_stream(self, name: str) -> None:
        """Have a stream take nothing more."""
        self._do(lambda state: streams.end(state, StreamName(name)))

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
        self._do(lambda state: queries.submit(state, record, weights))

    def set_phase(self, name: str, phase: Phase) -> None:
        """Pause, resume or close a query."""
        self._do(lambda state: queries.set_phase(state, QueryName(name), phase))

    def set_policy(self, name: str, policy: str) -> None:
        """Adapt by another policy."""
        self._do(lambda state: queries.set_policy(state, QueryName(name), policy))

    def move(self, name: str, groups: Sequence[int], to: str) -> None:
        """An operator's move."""
        ids = [GroupId(g) for g in groups]
        self._do(lambda state: rounds.move(state, QueryName(name), ids, ProcessorId(to)))

    def pin(self, name: str, groups: Sequence[int], pinned: bool) -> None:
        """Keep groups where they are, or let them go."""
        ids = [GroupId(g) for g in groups]
        self._do(lambda state: rounds.pin(state, QueryName(name), ids, pinned))

    def leave(self, processor: str) -> None:
        """Have a processor leave."""
        self._do(lambda state: members.ask_to_leave(state, ProcessorId(processor)))

    def drop(self, name: str) -> None:
        """Forget a query that has ended."""
        self._do(lambda state: queries.drop(state, QueryName(name)))

    def _do(self, verb: Callable[[State], Any]) -> None:
        self._act(self._machine.do(verb, self.world.now_s)[1])

    # What can be seen -----------------------------------------------------------------------------

    @property
    def at_rest(self) -> bool:
        """Whether everything that was decided is durable, and no group is on its way."""
        return not self._state.journal.queue and not self.moving

    @property
    def moving(self) -> bool:
        """Whether groups are on their way, or about to be."""
        return any(q.coordinator.moves for q in self._state.queries.values() if not q.record.end)

    def run_of(self, name: str) -> str | None:
        """The run of a query that is durable; None if there is none."""
        record = self._durable(name)
        return None if record is None else record.run

    def end_of(self, name: str) -> tuple[str, str]:
        """How a query ended, durably, and why: `closed`, `failed` or not yet."""
        record = self._durable(name)
        return ("", "") if record is None else (str(record.end), record.cause)

    def phase_of(self, name: str) -> Phase | None:
        """What is wanted of a query, durably."""
        record = self._durable(name)
        return None if record is None else record.phase

    def listening(self, name: str) -> bool:
        """Whether every processor knows of a query."""
        assignments = self._state.assignments
        if self._durable(name) is None:
            return False
        version = self._listening.setdefault(QueryName(name), assignments.version)
        return not assignments.unaware(self._state, version)

    def home_of(self, stream: str) -> ProcessorId | None:
        """Where a stream is at home, durably."""
        known = self._state.streams.get(StreamName(stream))
        return None if known is None or known.durable is None else known.durable.home

    def has_ended(self, stream: str) -> bool:
        """Whether a stream takes nothing more, durably."""
        known = self._state.streams.get(StreamName(stream))
        return known is not None and known.durable is not None and known.durable.ended

    def owners(self, name: str) -> Mapping[int, str]:
        """Who owns each group."""
        known = self._state.queries[QueryName(name)].placement.map
        return {g: known.processors[o] for g, o in enumerate(known.owners.tolist())}

    def status(self, name: str) -> QueryStatus:
        """What a client is told of a query."""
        return query_status(self._state, name)

    def members(self) -> dict[str, str]:
        """Who is in, and how."""
        return {m.processor: str(m.state) for m in self._state.membership.alive()}

    @property
    def _state(self) -> State:
        return self._machine.state

    def _durable(self, name: str) -> QueryRecord | None:
        query = self._state.queries.get(QueryName(name))
        return None if query is None else query.durable

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

    def check_store(self) -> None:
        """A manager that started now would know what this one does: nobody else has written."""
        state, entries = self._state, self.store.entries
        known = {q.record.key: q.durable and q.durable.to_json() for q in state.queries.values()}
        known |= {map_key(n): q.placement.map.to_json() for n, q in state.queries.items()}
        for name, stream in state.streams.items():
            known[f"stream/{name}"] = stream.durable and stream.durable.to_json()
        for key, value in known.items():
            if entries.get(key) != value:
                raise Violation(f"the store has {entries.get(key)}, and {self.address} {value}")
        for member in state.membership.members.values():
            there = json.loads(entries[member.key])
            if (there["incarnation"], there["state"]) != (member.incarnation, member.state):
                raise Violation(f"the store has {there}, and {self.address} {member}")

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
                    if isinstance(message, PushPartitions):
                        self._check_bound(to, message)
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

    def _check_bound(self, to: ProcessorId, m: PushPartitions) -> None:
        """A policy forces at most M_query − M_cluster, all orders together.

        Each may take a group more than it says. What a former manager ordered may be unknown to
        this one, and what a leaver pushes since nobody has room is not a policy's.
        """
        query = self._state.queries[m.query]
        staying = self._state.membership.members[to].state is MemberState.ALIVE
        decided = [r.decision for r in query.admission.history]
        numbers = next((d.numbers for d in reversed(decided) if isinstance(d, PushState)), None)
        if (m.order in self._orders) or not (staying and numbers) or self.store.epoch > 1:
            return
        self._orders.add(m.order)
        bound = int(numbers["m_query_bytes"] - numbers["m_cluster_bytes"])
        others = sum(o.size_bytes for p, o in query.orders.items() if p != to)
        forced = self.forced_bytes(query.record.run)
        if forced + others + m.size_bytes > bound:
            raise Violation(
                f"{m.query}: a push of {m.size_bytes} bytes is forced after {forced}, and {others} "
                f"under way; {bound} are the most"
            )

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
        commits = {key.partition("/")[0] for key in w.puts} >= {"map", "move"}
        if commits:
            self._cut_off()
        random, loss = self.world.random, self.world.faults.store_loss
        lost = random.random() < loss if loss else False
        now_s = self.world.now_s
        lost |= any(a <= now_s < b for a, b in self.world.faults.store_outages)
        applied = not lost or random.random() < 0.5
        delay_s = STORE_DELAY_S * (0.5 + random.random())
        if applied:
            # The request may reach the store even when its sender is gone by then.
            crash_after = at_write == self.writes_begun or (
                commits and self.world.faults.crash_at_commit
            )
            self.world.at(delay_s, None, self._reach_store, w, lost, crash_after)
        self.world.at(STORE_TIMEOUT_S, self, self._timed_out, w.revision)

    def _cut_off(self) -> None:
        """Neither the store nor a processor hears it for a while, if so planned."""
        faults, now_s = self.world.faults, self.world.now_s
        if faults.cut_at_commit_s and not any(a <= now_s < b for a, b in faults.store_outages):
            until_s = now_s + faults.cut_at_commit_s
            faults.store_outages.append((now_s, until_s))
            faults.cuts += [(now_s, until_s, self.address, to) for to in self._lines]

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
