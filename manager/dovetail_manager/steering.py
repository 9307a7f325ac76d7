"""The manager without I/O: members, loads, policies and moves behind one `handle`.

    messages ─▶ membership · load · coordinator ─▶ Send, Write
    time     ─▶ deaths · adaptation round · resends ─▶ Send, Write
    store    ─▶ `confirmed` ─▶ whatever waited for that write

Whatever must survive is written before anyone is told; `resume` rebuilds the machine from what
the store holds. A processor's death fails the queries that it owns groups of or hosts splits of.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dovetail_manager.adaptation.admission import Admission
from dovetail_manager.adaptation.initial import distribute, place_splits
from dovetail_manager.adaptation.policies import policy
from dovetail_manager.adaptation.snapshot import (
    AdaptationSettings,
    MoveState,
    PushState,
    Snapshot,
)
from dovetail_manager.load import LoadTracker
from dovetail_manager.membership import IN, Member, Membership, MemberState
from dovetail_manager.moves.coordinator import Coordinator
from dovetail_manager.moves.journal import Journal, Write, map_key, move_from_json
from dovetail_manager.moves.protocol import Instruction, Move, MoveEnded, Persist, Send, StepDown
from dovetail_manager.moves.steps import MoveSettings
from dovetail_manager.queries import Query, member_from_json, member_to_json, query_from_json
from dovetail_proto.errors import Domain, Refusal
from dovetail_proto.ids import Epoch, GroupId, ProcessorId, QueryName
from dovetail_proto.messages import (
    ControlMessage,
    Heard,
    Heartbeat,
    Join,
    Leave,
    MoveReply,
    Pushed,
    PushPartitions,
    QueryStopped,
    StopQuery,
)
from dovetail_proto.partition_map import PartitionMap, map_from_json

Output = Send | Write | StepDown | MoveEnded


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


class Steering:
    """The manager of one epoch."""

    def __init__(self, epoch: Epoch, revision: int, settings: SteeringSettings) -> None:
        self.epoch = epoch
        self.settings = settings
        self.membership = Membership(settings.version, settings.dead_after_s)
        self.load = LoadTracker()
        self.journal = Journal(epoch, revision)
        self.queries: dict[QueryName, Query] = {}
        self.orders_given = 0  # forced pushes of this epoch; numbers the next one
        self.sample_s = float("-inf")  # when the load was last looked at
        self.unwritten: Counter[ProcessorId] = Counter()  # changes of a member not yet durable

    @classmethod
    def resume(
        cls,
        epoch: Epoch,
        revision: int,
        entries: Mapping[str, str],
        settings: SteeringSettings,
        now_s: float,
    ) -> tuple[Steering, list[Output]]:
        """The manager of `epoch`, from what its predecessors wrote; and what it does first."""
        self = cls(epoch, revision, settings)
        members = [member_from_json(t) for k, t in entries.items() if k.startswith("member/")]
        self.membership.restore(members, now_s)
        moves = [move_from_json(t) for k, t in entries.items() if k.startswith("move/")]
        out: list[Instruction] = []
        for key, text in entries.items():
            if key.startswith("query/"):
                raw = query_from_json(text)
                known = map_from_json(entries[map_key(raw.name)])
                query = self._add(raw, known)
                out += self._take_up(query, [m for m in moves if m.query == raw.name], now_s)
        return self, self._outputs(out, now_s)

    def submit(
        self,
        name: QueryName,
        *,
        partitions: int,
        inputs: int,
        policy_name: str,
        weights: Sequence[float] | None = None,
        expected_bytes: int | None = None,
        now_s: float,
    ) -> list[Output]:
        """Distribute a query over the members and write it down; Refusal if the name is taken."""
        if name in self.queries:
            raise Refusal(Domain.QUERY, f"query {name!r} exists already", remedy="use another name")
        processors = [m.processor for m in self.membership.alive() if m.state is MemberState.ALIVE]
        hosts = place_splits(name, inputs, processors)
        known = PartitionMap.initial(name, distribute(partitions, processors, weights))
        raw = Query(name, policy_name, hosts, expected_bytes)
        query = self._add(raw, known)
        puts = {map_key(name): known.to_json(), query.key: query.to_json()}
        return self._outputs([Persist(("submitted", name), puts)], now_s)

    def move(
        self, name: QueryName, groups: Sequence[GroupId], to: ProcessorId, *, now_s: float
    ) -> list[Output]:
        """An operator's move of one processor's groups; Refusal if it cannot be or not now."""
        query = self._query(name)
        if query.cause:
            raise Refusal(Domain.QUERY, f"query {name!r} has failed: {query.cause}")
        member = self.membership.members.get(to)
        if member is None or member.state is not MemberState.ALIVE:
            state = "unknown" if member is None else member.state
            raise Refusal(Domain.MEMBER, f"processor {to!r} is {state}: it can take no groups")
        owners = {query.coordinator.map_tail.owner(g) for g in groups}
        if len(owners) != 1:
            raise Refusal(
                Domain.GROUP,
                f"groups {', '.join(map(str, groups)) or '(none)'} have {len(owners)} owners",
                remedy="name groups of one processor",
            )
        if busy := self._busy() & {*owners, to}:
            raise Refusal(Domain.BUSY, f"processor {min(busy)!r} is in another adaptation")
        begun = query.coordinator.begin(
            min(owners), to, 0, groups=groups, reason="an operator asked for it", now_s=now_s
        )
        return self._outputs(begun, now_s)

    def set_policy(self, name: QueryName, policy_name: str, *, now_s: float) -> list[Output]:
        """Adapt by another policy from the next round on; ConfigError if there is no such."""
        query = self._query(name)
        query.admission.policy = policy(policy_name)
        query.policy_name = policy_name
        return self._outputs([Persist(("policy",), {query.key: query.to_json()})], now_s)

    def handle(self, source: ProcessorId, m: ControlMessage, now_s: float) -> list[Output]:
        """Take a message from a processor; Refusal, with nothing changed, if it is out of order."""
        out: list[Instruction] = []
        if isinstance(m, Join | Heartbeat | Leave) and m.processor != source:
            raise Refusal(Domain.MEMBER, f"{source!r} speaks for {m.processor!r}")
        match m:
            case Join():
                out = self._joined(m, now_s)
            case Heartbeat():
                out = self._heartbeat(m, now_s)
            case Leave():
                for query in self.queries.values():
                    if m.processor in query.coordinator.split_hosts and not query.cause:
                        raise Refusal(
                            Domain.MEMBER,
                            f"processor {m.processor!r} hosts a split of query {query.name!r}",
                            remedy="close the query first",
                        )
                for member in self.membership.leave(m, now_s):
                    out.append(self._write_member("member", member))
            case Pushed():
                query = self._query(m.query)
                order = query.orders.get(source)
                if order is not None and (order.epoch, order.order) == (m.epoch, m.order):
                    del query.orders[source]
                    query.admission.pushed(source, m.size_bytes)
                    out.append(Persist(("forced",), {query.key: query.to_json()}))
            case QueryStopped():
                self._query(m.query).stopping.discard(source)
            case _ if isinstance(m, MoveReply):
                out = self._query(m.ref.query).coordinator.handle(source, m, now_s)
            case _:
                raise Refusal(Domain.MESSAGE, f"{type(m).__name__} is for processors")
        return self._outputs(out, now_s)

    def confirmed(self, revision: int, now_s: float) -> list[Output]:
        """The store has written `revision`."""
        entry, writes = self.journal.confirmed(revision)
        out: list[Output] = [*writes]
        if entry is None:
            return out
        what, *rest = entry.tag
        if what in ("member", "joined", "died"):
            self.unwritten[ProcessorId(rest[0])] -= 1
            out += self._outputs(self._welcome(ProcessorId(rest[0])), now_s)
            for name in rest[1:]:
                query = self.queries[QueryName(name)]
                query.stopping = {m.processor for m in self.membership.alive()}
                out += self._outputs(self._stop_messages(query), now_s)
        elif what in ("planned", "chosen", "commit", "ended", "abandoned"):
            for query in self.queries.values():
                if any(key == map_key(query.name) for key in entry.puts) or query.owns(rest[0]):
                    done = query.coordinator.persisted(entry.tag, now_s)
                    out += self._outputs(done, now_s)
        return out

    def store_failed(self) -> list[Output]:
        """A write was not answered or answered with an error: try again, it is idempotent."""
        return [*self.journal.unanswered()]

    def tick(self, now_s: float) -> list[Output]:
        """Let time pass: deaths, resends, and once per sample an adaptation round."""
        out: list[Instruction] = []
        for member in self.membership.tick(now_s):
            out += self._died(member, now_s)
        for query in self.queries.values():
            out += query.coordinator.tick(now_s)
        if now_s >= self.sample_s + self.settings.sample_s:
            self.sample_s = now_s
            for query in self.queries.values():
                out += self._stop_messages(query) if query.cause else self._adapt(query, now_s)
            out += self._let_go()
        return self._outputs(out, now_s)

    def next_tick_s(self) -> float:
        """When `tick` will have something to do."""
        times = [q.coordinator.next_tick_s() for q in self.queries.values()]
        sample_s = self.sample_s + self.settings.sample_s
        return min([sample_s, self.membership.next_tick_s(), *times])

    def check(self) -> None:
        """Assert every invariant of the parts."""
        for query in self.queries.values():
            query.coordinator.check()
            assert not (query.cause and query.coordinator.moves), "a failed query moves"

    # Members --------------------------------------------------------------------------------------

    def _joined(self, m: Join, now_s: float) -> list[Instruction]:
        out: list[Instruction] = []
        for member in self.membership.join(m, now_s):
            if member.state is MemberState.DEAD:
                out += self._died(member, now_s)
            else:
                out.append(self._write_member("joined", member))
                for query in self.queries.values():
                    query.coordinator.regain(member.processor)
        return out or self._welcome(m.processor)

    def _heartbeat(self, m: Heartbeat, now_s: float) -> list[Instruction]:
        """Answer a heartbeat: whether a member may go on is said only when it is written down.

        A manager that was replaced without knowing it could otherwise send members away.
        """
        if self.unwritten[m.processor]:
            return []
        try:
            self.membership.heartbeat(m, now_s)
        except Refusal:
            return [Send(m.processor, Heard(self.epoch, m.processor, m.incarnation, False))]
        self.load.heartbeat(m, now_s)
        return self._welcome(m.processor)

    def _welcome(self, processor: ProcessorId) -> list[Instruction]:
        member = self.membership.members[processor]
        if member.state not in IN or self.unwritten[processor]:
            return []
        return [Send(processor, Heard(self.epoch, processor, member.incarnation, True))]

    def _write_member(self, what: str, member: Member) -> Persist:
        self.unwritten[member.processor] += 1
        return Persist((what, member.processor), _member_puts(member))

    def _died(self, member: Member, now_s: float) -> list[Instruction]:
        """Fail the queries that lost state with it, and write both down in one transaction."""
        puts = _member_puts(member)
        out: list[Instruction] = []
        failed: list[Query] = []
        for query in self.queries.values():
            if query.cause:
                query.stopping.discard(member.processor)
            elif query.depends_on(member.processor):
                query.cause = f"processor {member.processor} died: {member.cause}"
                query.orders.clear()
                puts[query.key] = query.to_json()
                failed.append(query)
                out += query.coordinator.abandon(query.cause, now_s)
            else:
                query.orders.pop(member.processor, None)
                query.admission.pushed(member.processor, 0)
                out += query.coordinator.lose(member.processor, now_s)
        self.unwritten[member.processor] += 1
        return [Persist(("died", member.processor, *(q.name for q in failed)), puts), *out]

    def _let_go(self) -> list[Instruction]:
        out: list[Instruction] = []
        for member in self.membership.alive():
            needed = any(
                not q.cause
                and (q.depends_on(member.processor) or member.processor in q.coordinator.busy())
                for q in self.queries.values()
            )
            if member.state is MemberState.LEAVING and not needed:
                for gone in self.membership.drained(member.processor):
                    out.append(self._write_member("member", gone))
        return out

    # Queries --------------------------------------------------------------------------------------

    def _add(self, query: Query, known: PartitionMap) -> Query:
        settings = self.settings
        query.coordinator = Coordinator(
            query.name, self.epoch, known, query.split_hosts, settings.moves
        )
        query.admission = Admission(policy(query.policy_name), settings.adaptation)
        query.admission.forced_bytes = query.forced_bytes
        self.queries[query.name] = query
        return query

    def _query(self, name: QueryName) -> Query:
        if name not in self.queries:
            raise Refusal(Domain.QUERY, f"query {name!r} is unknown")
        return self.queries[name]

    def _take_up(self, query: Query, moves: list[Move], now_s: float) -> list[Instruction]:
        if query.cause:
            query.stopping = {m.processor for m in self.membership.alive()}
            return self._stop_messages(query)
        gone = [m.processor for m in self.membership.members.values() if m.state not in IN]
        query.coordinator.lost.update(gone)
        return query.coordinator.take_up([m for m in moves if m.outcome is None], now_s)

    def _stop_messages(self, query: Query) -> list[Instruction]:
        query.stopping &= {m.processor for m in self.membership.alive()}  # others may be gone
        stop = StopQuery(query.name, self.epoch, query.cause)
        return [Send(p, stop) for p in sorted(query.stopping)]

    def _adapt(self, query: Query, now_s: float) -> list[Instruction]:
        """One round: drain who leaves, repeat unanswered orders, then what the policy admits."""
        members = self.membership.alive()
        loads = self.load.loads(query.name, members)
        out: list[Instruction] = [Send(p, order) for p, order in sorted(query.orders.items())]
        for leaver in members:
            if leaver.state is MemberState.LEAVING:
                out += query.drain(leaver.processor, loads, self._busy(), now_s)
        if len(loads) < len(members):
            silent = {m.processor for m in members} - {p.processor for p in loads}
            query.admission.wait(f"{min(silent)} has not reported yet", now_s)
            return out
        snapshot = Snapshot(
            query=query.name,
            now_s=now_s,
            processors=loads,
            query_bytes=self.load.query_bytes(query.name, query.expected_bytes, 0),
        )
        for decision in query.admission.decide(snapshot, self._busy()):
            if isinstance(decision, MoveState):
                out += query.coordinator.begin(
                    decision.sender,
                    decision.receiver,
                    decision.want_bytes,
                    reason=decision.reason,
                    now_s=now_s,
                )
            else:
                out.append(self._order(query, decision))
        return out

    def _order(self, query: Query, decision: PushState) -> Send:
        self.orders_given += 1
        order = PushPartitions(query.name, self.epoch, self.orders_given, decision.want_bytes)
        query.orders[decision.processor] = order
        return Send(decision.processor, order)

    def _busy(self) -> set[ProcessorId]:
        return {p for q in self.queries.values() for p in (*q.coordinator.busy(), *q.orders)}

    def _outputs(self, instructions: Sequence[Instruction], now_s: float) -> list[Output]:
        out: list[Output] = []
        for instruction in instructions:
            if isinstance(instruction, Persist):
                out += self.journal.append(instruction)
                continue
            if isinstance(instruction, MoveEnded):
                self.queries[instruction.move.query].ended(instruction.move)
            out.append(instruction)
        return out


def _member_puts(member: Member) -> dict[str, str | None]:
    return {f"member/{member.processor}": member_to_json(member)}
