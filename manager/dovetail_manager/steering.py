"""The manager without I/O: members, loads, policies and moves behind one `handle`.

    messages ─▶ membership · load · coordinator ─▶ Send, Write
    time     ─▶ deaths · adaptation round · resends ─▶ Send, Write
    store    ─▶ `confirmed` ─▶ whatever waited for that write

Whatever must survive is written before anyone is told; `resume` rebuilds the machine from what
the store holds. A processor's death fails the queries that it owns groups of, hosts splits of, or
has found results of that may not be in files yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from dovetail_manager.membership import IN, Member, MemberState
from dovetail_manager.moves.journal import map_key, move_from_json
from dovetail_manager.moves.protocol import Instruction, Persist, Send
from dovetail_manager.queries import Query, member_from_json, member_to_json, query_from_json
from dovetail_manager.query_steering import Output, Puts, QuerySteering, SteeringSettings
from dovetail_proto.errors import Domain, Refusal
from dovetail_proto.ids import Epoch, ProcessorId, QueryName
from dovetail_proto.messages import (
    ControlMessage,
    Heard,
    Heartbeat,
    Join,
    Leave,
    MoveReply,
    Pushed,
    QueryStopped,
    Stage,
)
from dovetail_proto.partition_map import map_from_json

__all__ = ["Output", "Steering", "SteeringSettings"]


class Steering(QuerySteering):
    """The manager of one epoch."""

    beside: Callable[[Member], Puts] = staticmethod(lambda member: {})
    """What else is written in the transaction in which a member leaves or dies."""

    free: Callable[[Member], bool] = staticmethod(lambda member: True)
    """Whether a member that leaves, and that no query needs, may be let go."""

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
                out = self._leave(m, now_s)
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
            for query in self.queries.values():
                if map_key(query.name) in entry.puts:
                    query.coordinator.released()
            out += self._outputs(self._welcome(ProcessorId(rest[0])), now_s)
            for name in rest[1:]:
                out += self._outputs(self._tell_failure(QueryName(name)), now_s)
        elif what == "failed":
            out += self._outputs(self._tell_failure(QueryName(rest[0])), now_s)
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
                if query.cause:
                    out += self._stop_messages(query)
                elif not query.closed:
                    out += self._adapt(query, now_s)
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
                joined = self._write_member("joined", member)
                out.append(replace(joined, puts={**joined.puts, **self._forget()}))
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
        # A query that was dropped may be reported for a moment longer.
        known = tuple(x for x in m.loads if x.query in self.queries)
        self.load.heartbeat(replace(m, loads=known), now_s)
        return self._welcome(m.processor)

    def _welcome(self, processor: ProcessorId) -> list[Instruction]:
        member = self.membership.members[processor]
        if member.state not in IN or self.unwritten[processor]:
            return []
        return [Send(processor, Heard(self.epoch, processor, member.incarnation, True))]

    def _write_member(self, what: str, member: Member) -> Persist:
        self.unwritten[member.processor] += 1
        puts: Puts = {}
        if member.state not in IN:
            puts = {**self.beside(member), **self._release(member)}
        return Persist((what, member.processor), {**_member_puts(member), **puts})

    def _forget(self) -> Puts:
        """Whoever joins may take the place of one that is long gone and of no account any more."""
        forgotten = self.membership.forget(self._of_account)
        for processor in forgotten:
            del self.unwritten[processor]
        return {f"member/{processor}": None for processor in forgotten}

    def _of_account(self, processor: ProcessorId) -> bool:
        return bool(self.unwritten[processor]) or any(
            q.was_at(processor) or q.depends_on(processor) or processor in q.coordinator.busy()
            for q in self.queries.values()
        )

    def _release(self, member: Member) -> Puts:
        """A member has left: whatever it does when it is back, it brings nothing from before."""
        running = [q for q in self.queries.values() if not q.over]
        return {k: t for q in running for k, t in q.coordinator.release(member.processor).items()}

    def _died(self, member: Member, now_s: float) -> list[Instruction]:
        """Fail the queries that lost state with it, and write both down in one transaction."""
        puts = _member_puts(member)
        out: list[Instruction] = []
        failed: list[Query] = []
        for query in self.queries.values():
            if query.over:
                query.stopping.discard(member.processor)
            elif query.depends_on(member.processor) or self._unwritten_at(query, member):
                cause = f"processor {member.processor} died: {member.cause}"
                out += self._fail(query, cause, now_s)
                puts[query.key] = query.to_json()
                failed.append(query)
            else:
                query.void_order(member.processor)
                out += query.coordinator.lose(member.processor, now_s)
                puts |= query.coordinator.release(member.processor)
        puts |= self.beside(member)
        self.unwritten[member.processor] += 1
        return [Persist(("died", member.processor, *(q.name for q in failed)), puts), *out]

    def _unwritten_at(self, query: Query, member: Member) -> bool:
        """Whether results may be lost with a member whose groups have all moved away.

        What it found before is in files when it says so, and in its memory until then.
        """
        told = self.load.report(query.name, member)
        return query.was_at(member.processor) and (told is None or told.stage is not Stage.CLOSED)

    def _let_go(self) -> list[Instruction]:
        out: list[Instruction] = []
        for member in self.membership.alive():
            if member.state is MemberState.LEAVING and self._may_go(member):
                for query in self.queries.values():
                    query.void_order(member.processor)
                for gone in self.membership.drained(member.processor):
                    out.append(self._write_member("member", gone))
        return out

    def _may_go(self, member: Member) -> bool:
        return not self._needed(member) and self.free(member)

    def _needed(self, member: Member) -> bool:
        """Whether a query still has something there, or has not said how it ended there."""
        return any(
            q.depends_on(member.processor)
            or member.processor in q.coordinator.busy()
            or (
                (told := self.load.report(q.name, member)) is not None
                and told.stage is Stage.RUNNING
            )
            for q in self.queries.values()
            if not q.over
        )

    def _leave(self, m: Leave, now_s: float) -> list[Instruction]:
        for query in self.queries.values() if not m.ends else ():
            if query.over:
                continue
            if self.membership.staying() == [m.processor]:
                raise Refusal(
                    Domain.MEMBER,
                    f"processor {m.processor!r} runs query {query.name!r}, and nobody else is "
                    "there to go on with it",
                    remedy="start another processor, or close the query first",
                    reason="state",
                )
            if pinned := query.pinned_at(m.processor):
                raise Refusal(
                    Domain.MEMBER,
                    f"group {pinned[0]} of query {query.name!r} is pinned to {m.processor!r}",
                    remedy="unpin it first",
                    reason="state",
                )
        return [self._write_member("member", x) for x in self.membership.leave(m, now_s)]


def _member_puts(member: Member) -> dict[str, str | None]:
    return {f"member/{member.processor}": member_to_json(member)}
