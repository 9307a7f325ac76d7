"""What happens to a query: submitted, moved, pinned, adapted round by round, failed, closed.

The half of the manager's machine that looks at queries; `steering` has the other half, which looks
at members, messages and time. Everything here returns messages and writes, and does nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import count

from dovetail_manager.adaptation.admission import Admission, Record
from dovetail_manager.adaptation.initial import distribute
from dovetail_manager.adaptation.policies import policy
from dovetail_manager.adaptation.snapshot import (
    AdaptationSettings,
    MoveState,
    PushState,
    Snapshot,
)
from dovetail_manager.load import LoadTracker
from dovetail_manager.membership import IN, Membership, MemberState
from dovetail_manager.moves.coordinator import Coordinator
from dovetail_manager.moves.journal import Journal, Write, map_key
from dovetail_manager.moves.protocol import Instruction, Move, MoveEnded, Persist, Send, StepDown
from dovetail_manager.moves.steps import MoveSettings
from dovetail_manager.queries import Query
from dovetail_proto.assignment import DiskSettings
from dovetail_proto.errors import Domain, Refusal
from dovetail_proto.ids import Epoch, GroupId, ProcessorId, QueryName, SplitId, StreamName
from dovetail_proto.messages import PushPartitions, StopQuery
from dovetail_proto.partition_map import PartitionMap

Output = Send | Write | StepDown | MoveEnded
Puts = Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class SteeringSettings:
    """Everything that steers the manager."""

    version: str = "0"
    adaptation: AdaptationSettings = field(default_factory=AdaptationSettings)
    moves: MoveSettings = field(default_factory=MoveSettings)
    sample_s: float = 1.0
    """Between two looks at the load; processors report as often."""

    dead_after_s: float = 10.0
    """A silent processor is declared dead: ten missed heartbeats."""


class QuerySteering:
    """The queries of one manager. In every verb, `also` is written in the same transaction."""

    rows_left: Callable[[QueryName], tuple[int, tuple[StreamName, ...]]] = staticmethod(
        lambda name: (0, ())
    )
    """Rows that a query's inputs still bring, and the streams of which that is unknown."""

    def __init__(self, epoch: Epoch, revision: int, settings: SteeringSettings) -> None:
        self.epoch = epoch
        self.settings = settings
        self.membership = Membership(settings.version, settings.dead_after_s)
        self.load = LoadTracker()
        self.journal = Journal(epoch, revision)
        self.queries: dict[QueryName, Query] = {}
        self.move_numbers = count(1)  # of this epoch's moves, whichever query's
        self.orders_given = 0  # forced pushes of this epoch; numbers the next one
        self.sample_s = float("-inf")  # when the load was last looked at
        self.unwritten: Counter[ProcessorId] = Counter()  # changes of a member not yet durable

    # What operators ask for -----------------------------------------------------------------------

    def submit(
        self,
        name: QueryName,
        *,
        partitions: int,
        split_hosts: Mapping[ProcessorId, tuple[SplitId, ...]],
        policy_name: str,
        disk: DiskSettings,
        weights: Sequence[float] | None = None,
        expected_bytes: int | None = None,
        also: Puts | None = None,
        now_s: float,
    ) -> list[Output]:
        """Distribute a query over the members and write it down; Refusal if the name is taken."""
        if name in self.queries:
            raise Refusal(
                Domain.QUERY,
                f"query {name!r} exists already",
                remedy="use another name",
                reason="exists",
            )
        staying = self.membership.staying()
        limits = [self.membership.members[p].memory_limit_bytes for p in staying]
        dealt = distribute(partitions, staying, limits if weights is None else weights)
        known = PartitionMap.initial(name, dealt)
        raw = Query(name, policy(policy_name).name, split_hosts, disk, expected_bytes)
        query = self._add(raw, known)
        puts = {map_key(name): known.to_json(), query.key: query.to_json(), **(also or {})}
        return self._outputs([Persist(("submitted", name), puts)], now_s)

    def move(
        self, name: QueryName, groups: Sequence[GroupId], to: ProcessorId, *, now_s: float
    ) -> list[Output]:
        """An operator's move of one processor's groups; Refusal if it cannot be or not now."""
        query = self._running(name)
        member = self.membership.members.get(to)
        if member is None or member.state is not MemberState.ALIVE:
            state = "unknown" if member is None else member.state
            raise Refusal(
                Domain.MEMBER,
                f"processor {to!r} is {state}: it can take no groups",
                reason="unknown" if member is None else "state",
            )
        owners = {query.coordinator.map_tail.owner(g) for g in groups}
        if len(owners) != 1:
            raise Refusal(
                Domain.GROUP,
                f"groups {', '.join(map(str, groups)) or '(none)'} have {len(owners)} owners",
                remedy="name groups of one processor",
            )
        if pinned := query.pinned & set(groups):
            raise Refusal(
                Domain.GROUP,
                f"group {min(pinned)} of query {name!r} is pinned",
                remedy="unpin it first",
                reason="state",
            )
        if busy := self._busy() & {*owners, to}:
            raise Refusal(
                Domain.BUSY,
                f"processor {min(busy)!r} is in another adaptation",
                remedy="try again when it has ended",
                reason="busy",
            )
        begun = query.coordinator.begin(
            min(owners), to, 0, groups=groups, reason="an operator asked for it", now_s=now_s
        )
        return self._outputs(begun, now_s)

    def pin(
        self, name: QueryName, groups: Sequence[GroupId], pinned: bool, *, now_s: float
    ) -> list[Output]:
        """Keep groups where they are, or let them go; a move that is under way is not stopped."""
        query = self._running(name)
        for group in groups:
            owner = self.membership.members.get(query.coordinator.map_tail.owner(group))
            if pinned and owner is not None and owner.state is MemberState.LEAVING:
                raise Refusal(
                    Domain.GROUP,
                    f"group {group} of query {name!r} is on {owner.processor!r}, which leaves",
                    remedy="pin it when it has moved",
                    reason="state",
                )
        query.pinned = query.pinned | set(groups) if pinned else query.pinned - set(groups)
        return self._outputs([Persist(("pinned",), {query.key: query.to_json()})], now_s)

    def set_policy(
        self, name: QueryName, policy_name: str, *, also: Puts | None = None, now_s: float
    ) -> list[Output]:
        """Adapt by another policy from the next round on; ConfigError if there is no such."""
        query = self._query(name)
        query.admission.policy = policy(policy_name)
        query.policy_name = policy_name
        puts = {query.key: query.to_json(), **(also or {})}
        return self._outputs([Persist(("policy",), puts)], now_s)

    def rebalance(
        self, name: QueryName, *, dry_run: bool, now_s: float
    ) -> tuple[list[Record], list[Output]]:
        """Decide now, whatever the interval: what was decided, and what it leads to."""
        query = self._running(name)
        if query.resting:
            raise Refusal(
                Domain.QUERY,
                f"query {name!r} is paused or closing: nothing adapts",
                reason="state",
            )
        members = self.membership.alive()
        loads = self.load.loads(name, members)
        if len(loads) < len(members):
            silent = {m.processor for m in members} - {p.processor for p in loads}
            raise Refusal(
                Domain.BUSY,
                f"{min(silent)} has not reported query {name!r} yet",
                remedy="try again in a second",
                reason="busy",
            )
        snapshot = self._snapshot(query, now_s)
        if dry_run:
            return query.admission.preview(snapshot, self._busy()), []
        out = self._carry_out(
            query, query.admission.decide(snapshot, self._busy(), now=True), now_s
        )
        decided = [r for r in query.admission.history if r.at_s == snapshot.now_s]
        return decided, self._outputs(out, now_s)

    def fail(self, name: QueryName, cause: str, *, also: Puts, now_s: float) -> list[Output]:
        """The query cannot go on: end it everywhere, when that is written down."""
        query = self._query(name)
        abandoned = self._fail(query, cause, now_s)
        puts = {query.key: query.to_json(), **also}
        return self._outputs([Persist(("failed", name), puts), *abandoned], now_s)

    def close(self, name: QueryName, *, also: Puts, now_s: float) -> list[Output]:
        """Everyone has closed the query: it has ended well."""
        query = self._query(name)
        assert not query.cause, "a failed query is closed"
        assert not query.coordinator.moves, "a query is closed while groups move"
        query.closed = True
        puts = {query.key: query.to_json(), **also}
        return self._outputs([Persist(("closed", name), puts)], now_s)

    def drop(self, name: QueryName, *, also: Puts, now_s: float) -> list[Output]:
        """Forget a query that has ended and that nobody runs any more."""
        query = self.queries.pop(name)
        assert query.over, "a running query is dropped"
        self.load.forget(name)
        puts = {query.key: None, map_key(name): None, **also}
        return self._outputs([Persist(("dropped", name), puts)], now_s)

    def write(self, tag: tuple[str, ...], puts: Puts, *, now_s: float) -> list[Output]:
        """Write what only the caller understands, in order with everything else."""
        return self._outputs([Persist(tag, puts)], now_s)

    # Rounds ---------------------------------------------------------------------------------------

    def _adapt(self, query: Query, now_s: float) -> list[Instruction]:
        """One round: drain who leaves, repeat unanswered orders, then what the policy admits."""
        members = self.membership.alive()
        loads = self.load.loads(query.name, members)
        out: list[Instruction] = [Send(p, order) for p, order in sorted(query.orders.items())]
        if query.resting:
            return out
        for leaver in members:
            if leaver.state is MemberState.LEAVING and leaver.processor not in self._busy():
                if push := query.unload(leaver.processor, loads):
                    query.admission.note(push, now_s)
                    out += self._carry_out(query, [push], now_s)
                else:
                    out += query.drain(leaver.processor, loads, self._busy(), now_s)
        if len(loads) < len(members):
            silent = {m.processor for m in members} - {p.processor for p in loads}
            query.admission.wait(f"{min(silent)} has not reported yet", now_s)
            return out
        admitted = query.admission.decide(self._snapshot(query, now_s), self._busy())
        return [*out, *self._carry_out(query, admitted, now_s)]

    def _snapshot(self, query: Query, now_s: float) -> Snapshot:
        told = query.expected_bytes
        rows_left, unknown = self.rows_left(query.name) if told is None else (0, ())
        return Snapshot(
            query=query.name,
            now_s=now_s,
            processors=self.load.loads(query.name, self.membership.alive()),
            query_bytes=self.load.query_bytes(query.name, rows_left) if told is None else told,
            unknown=unknown,
        )

    def _carry_out(
        self, query: Query, admitted: Sequence[MoveState | PushState], now_s: float
    ) -> list[Instruction]:
        out: list[Instruction] = []
        for decision in admitted:
            if isinstance(decision, MoveState):
                out += query.coordinator.begin(
                    decision.sender,
                    decision.receiver,
                    decision.want_bytes,
                    exclude=query.pinned_at(decision.sender),
                    reason=decision.reason,
                    now_s=now_s,
                )
            else:
                self.orders_given += 1
                order = PushPartitions(
                    query.name, self.epoch, self.orders_given, decision.want_bytes
                )
                query.orders[decision.processor] = order
                out.append(Send(decision.processor, order))
        return out

    def _busy(self) -> set[ProcessorId]:
        return {p for q in self.queries.values() for p in (*q.coordinator.busy(), *q.orders)}

    # Parts ----------------------------------------------------------------------------------------

    def _add(self, query: Query, known: PartitionMap) -> Query:
        settings = self.settings
        query.coordinator = Coordinator(
            query.name,
            self.epoch,
            known,
            query.split_hosts,
            settings.moves,
            numbers=self.move_numbers,
        )
        own = {n: v for n, v in asdict(query.disk).items() if hasattr(settings.adaptation, n)}
        query.admission = Admission(policy(query.policy_name), replace(settings.adaptation, **own))
        query.admission.forced_bytes = query.forced_bytes
        self.queries[query.name] = query
        return query

    def _query(self, name: QueryName) -> Query:
        if name not in self.queries:
            raise Refusal(Domain.QUERY, f"query {name!r} is unknown", reason="unknown")
        return self.queries[name]

    def _running(self, name: QueryName) -> Query:
        query = self._query(name)
        if query.over:
            how = f"has failed: {query.cause}" if query.cause else "is closed"
            raise Refusal(Domain.QUERY, f"query {name!r} {how}", reason="state")
        return query

    def _take_up(self, query: Query, moves: list[Move], now_s: float) -> list[Instruction]:
        if query.cause:
            query.told = True
            query.stopping = {m.processor for m in self.membership.alive()}
            return self._stop_messages(query)
        gone = [m.processor for m in self.membership.members.values() if m.state not in IN]
        query.coordinator.lost.update(gone)
        return query.coordinator.take_up([m for m in moves if m.outcome is None], now_s)

    def _fail(self, query: Query, cause: str, now_s: float) -> list[Instruction]:
        query.cause = cause
        query.orders.clear()
        return query.coordinator.abandon(cause, now_s)

    def _tell_failure(self, name: QueryName) -> list[Instruction]:
        """It is written down: whoever is in has to drop the query."""
        query = self.queries[name]
        query.told = True
        query.stopping = {m.processor for m in self.membership.alive()}
        return self._stop_messages(query)

    def _stop_messages(self, query: Query) -> list[Instruction]:
        query.stopping &= {m.processor for m in self.membership.alive()}  # others may be gone
        stop = StopQuery(query.name, self.epoch, query.cause)
        return [Send(p, stop) for p in sorted(query.stopping)]

    def _outputs(self, instructions: Sequence[Instruction], now_s: float) -> list[Output]:
        out: list[Output] = []
        for instruction in instructions:
            if isinstance(instruction, Persist):
                out += self.journal.append(instruction)
                continue
            if isinstance(instruction, MoveEnded):
                move = instruction.move
                if self.membership.members[move.sender].state is MemberState.LEAVING:
                    self.queries[move.query].drained(move)
            out.append(instruction)
        return out
