"""What members do and what becomes of them: joining, heartbeats, leaving, death.

`membership` has the states; here is what they mean for streams and queries. A processor's death
fails the queries that it owns groups of, hosts splits of, or has found results of that may not be
in files yet. One that leaves is let go when others have all that was at it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dovetail_manager import queries, streams
from dovetail_manager.adaptation import draining, rounds
from dovetail_manager.journal import Entry, Puts
from dovetail_manager.membership import IN, Member, MemberState
from dovetail_manager.moves.journal import carry_out
from dovetail_manager.moves.records import map_key
from dovetail_manager.query import Query, recorded
from dovetail_manager.records import End, QueryRecord
from dovetail_manager.refusals import unknown, wrong_state
from dovetail_manager.reports import Report
from dovetail_manager.state import State
from dovetail_proto.assignment import Phase
from dovetail_proto.errors import Domain, Refusal
from dovetail_proto.ids import ProcessorId, QueryName, process_of
from dovetail_proto.messages import Heard, Heartbeat, Join, Leave, Stage
from dovetail_proto.partition_map import PartitionMap

EVENTS = {
    MemberState.ALIVE: "processor-joined",
    MemberState.LEAVING: "processor-leaving",
    MemberState.LEFT: "processor-left",
    MemberState.DEAD: "processor-died",
}


@dataclass(frozen=True, slots=True)
class MemberWritten(Entry):
    """A member has joined, leaves, has left or died; with what that means for queries."""

    member: Member  # as it was then
    queries: tuple[tuple[Query, QueryRecord], ...]  # those whose records change with it
    maps: tuple[tuple[Query, PartitionMap], ...]  # that forget it

    def durable(self, state: State) -> None:
        """Answer the member, tell processors and people."""
        member = self.member
        state.membership.unwritten[member.processor] -= 1
        state.log(EVENTS[member.state], processor=member.processor, text=member.cause)
        for query, without in self.maps:
            query.placement.map = without
        state.assignments.changed()
        for query, record in self.queries:
            recorded(state, query, record)
        _welcome(state, member.processor)


# What members say ---------------------------------------------------------------------------------


def joined(state: State, m: Join) -> None:
    """A processor joins, or joins again because it does not know whether it was heard."""
    _check_workers(state, m.processor)
    changed = state.membership.join(m, state.now_s)
    for member in changed:
        if member.state is MemberState.DEAD:
            died(state, member)
        else:
            forgotten = state.membership.forget(lambda p: _of_account(state, p))
            _write(state, member, also={f"member/{p}": None for p in forgotten})
            for query in state.queries.values():
                query.placement.regain(member.processor)
    if not changed:
        _welcome(state, m.processor)
    state.assignments.joined(m.processor)


def heartbeat(state: State, m: Heartbeat) -> None:
    """Take a report in and answer it; queries that cannot go on there fail.

    Whether a member may go on is said only when it is written down: a manager that was replaced
    without knowing it could otherwise send members away.
    """
    member = state.membership.members.get(m.processor)
    if not state.membership.unwritten[m.processor]:
        try:
            state.membership.heartbeat(m, state.now_s)
        except Refusal:
            state.send(m.processor, Heard(state.epoch, m.processor, m.incarnation, False))
            return
        # A query that was dropped may be reported for a moment longer.
        loads = tuple(x for x in m.loads if x.query in state.queries)
        state.load.heartbeat(replace(m, loads=loads), state.now_s)
        _welcome(state, m.processor)
    elif member is not None and member.incarnation == m.incarnation:
        member.heard_s = state.now_s  # that it lives is known, however long the store is away
    if member is None or member.state not in IN or member.incarnation != m.incarnation:
        return
    state.assignments.heard(m.processor, m.assigned)
    for load in m.loads:
        query = state.queries.get(load.query)
        if load.stage is Stage.FAILED and query is not None and not query.record.end:
            queries.fail(state, query, f"processor {m.processor}: {load.cause}")


def leave(state: State, m: Leave) -> None:
    """A worker wants to leave; Refusal if it cannot be spared, unless it ends in any case."""
    if not m.ends:
        _check_spared(state, [m.processor])
    for member in state.membership.leave(m, state.now_s):
        _write(state, member)
    if m.ends:
        _give_way(state, m.processor)


def ask_to_leave(state: State, processor: ProcessorId) -> None:
    """An operator wants a processor's groups and streams moved away, and it let go.

    All of its workers leave, or none.
    """
    members = state.membership.workers_of(processor)
    if not members:
        raise unknown(Domain.MEMBER, f"processor {processor!r} is unknown")
    for member in members:
        if member.state is MemberState.ALIVE:
            streams.check_leave(state, member.processor)
    _check_spared(state, [m.processor for m in members])
    for member in members:
        leave(state, Leave(member.processor, member.incarnation))


def _check_spared(state: State, leavers: Sequence[ProcessorId]) -> None:
    """Refusal if a query would have nobody, or a group is pinned to one of them."""
    named = ", ".join(map(repr, leavers))
    for query in state.queries.values():
        if query.record.end:
            continue
        if not set(state.membership.staying()) - set(leavers):
            raise wrong_state(
                Domain.MEMBER,
                f"processor {named} runs query {query.name!r}, and nobody else is there to go on "
                "with it",
                "start another processor, or close the query first",
            )
        for leaver in leavers:
            if pinned := query.pinned_at(leaver):
                raise wrong_state(
                    Domain.MEMBER,
                    f"group {pinned[0]} of query {query.name!r} is pinned to {leaver!r}",
                    "unpin it first",
                )


# What becomes of them -----------------------------------------------------------------------------


def died(state: State, member: Member) -> None:
    """Fail the queries that lost state with it, and write both down in one transaction."""
    gone = member.processor
    failed: list[Query] = []
    maps: list[tuple[Query, PartitionMap]] = []
    before = {query.name: query.record for query in state.queries.values()}
    for query in state.queries.values():
        _keep_report(state, query, member)
        if query.record.end:
            query.stopping.discard(gone)
        elif query.depends_on(gone) or _unwritten_at(state, query, member):
            cause = f"processor {gone} died: {member.cause}"
            query.record = queries.ended(state, query, End.FAILED, cause)
            failed.append(query)
        else:
            query.void_order(gone)
            if without := query.placement.forget(gone):
                maps.append((query, without))
    _write(state, member, before, maps)
    for query in state.queries.values():
        if query in failed:
            queries.abandon(state, query)
        elif not query.record.end:
            carry_out(state, query, query.coordinator.lose(gone, state.now_s))


def let_go(state: State) -> None:
    """Let leavers go that nothing and nobody needs any more."""
    for member in state.membership.alive():
        if member.state is not MemberState.LEAVING or not _may_go(state, member):
            continue
        gone = member.processor
        state.membership.drained(gone)
        before = {query.name: query.record for query in state.queries.values()}
        maps: list[tuple[Query, PartitionMap]] = []
        successor = state.membership.successor_of(gone)
        for query in state.queries.values():
            query.void_order(gone)
            _keep_report(state, query, member)
            if successor is not None and query.record.has_logs:
                query.record = query.record.kept_by(successor, gone, member.incarnation)
            if not query.record.end and (without := query.placement.forget(gone)):
                maps.append((query, without))
        _write(state, member, before, maps)


def _keep_report(state: State, query: Query, member: Member) -> None:
    """Whoever is gone reports nothing more: what it reported last is written down with it."""
    load = state.load.report(query.name, member)
    if load is not None and not query.record.finished:
        last = Report(member.processor, member.incarnation, load)
        query.record = query.record.with_reports([last])


def _give_way(state: State, leaver: ProcessorId) -> None:
    """A processor ends: what would keep it is unpinned, or closed while its state is there.

    Said again with every heartbeat of the leaver, so that whatever comes up later is seen too.
    """
    for query in state.queries.values():
        if query.record.end or query.record.phase is Phase.CLOSING:
            continue
        if kept := _kept_at(state, query, leaver):
            why = f"processor {leaver!r} ends, and {kept}"
            queries.set_phase(state, query.name, Phase.CLOSING, why)
        elif pinned := query.pinned_at(leaver):
            rounds.pin(state, query.name, pinned, False)


def _kept_at(state: State, query: Query, leaver: ProcessorId) -> str:
    """Why a query cannot go on without a processor that ends; empty if it can."""
    if not state.membership.staying():
        return "nobody is left to go on with the query"
    if stream := streams.read_from_file(state, query.record, leaver):
        return f"the query reads stream {stream!r} from a file there"
    if query.record.phase is Phase.PAUSED and query.depends_on(leaver):
        return "nothing of a paused query can move"
    if draining.finds_no_room(query, leaver):
        return "nobody has room for what the query holds there"
    return ""


def _may_go(state: State, member: Member) -> bool:
    """Whether others have what was at a leaver: groups, results, streams, result logs."""
    successor = state.membership.successor_of(member.processor)
    at_home = any(s.home == member.processor for s in state.declared().values())
    handed_over = successor is None or (member.successor == successor and not at_home)
    return handed_over and not any(
        _needs(state, q, member) for q in state.queries.values() if not q.record.end
    )


def _needs(state: State, query: Query, member: Member) -> bool:
    """Whether a query still has something at a member, or has not said how it ended there."""
    load = state.load.report(query.name, member)
    return (
        query.depends_on(member.processor)
        or member.processor in query.coordinator.busy()
        or (load is None and query.placement.was_at(member.processor))  # a new manager asks first
        or (load is not None and load.stage is Stage.RUNNING)
    )


def _unwritten_at(state: State, query: Query, member: Member) -> bool:
    """Whether results may be lost with a member whose groups have all moved away.

    What it found before is in files when it says so, and in its memory until then.
    """
    load = state.load.report(query.name, member)
    closed = load is not None and load.stage is Stage.CLOSED
    return query.placement.was_at(member.processor) and not closed


def _check_workers(state: State, worker: ProcessorId) -> None:
    """Refusal if what is here under its processor's former workers would be away for good.

    One that had several threads has `p1.0`, `p1.1` and so on, one that had one has `p1`.
    """
    former = [
        p
        for p in sorted(state.membership.members)
        if process_of(p) == process_of(worker) and ("." in p) != ("." in worker)
    ]
    held = next((f"{what} at worker {p!r}" for p in former if (what := _held_at(state, p))), "")
    if held:
        threads = len(former) if "." in former[0] else 1
        raise wrong_state(
            Domain.MEMBER,
            f"processor {process_of(worker)!r} had --threads {threads} when it was here before, "
            f"and now it has {1 if '.' not in worker else 'several'}: {held} would be away",
            f"start it with --threads {threads}, or drop these first, or give it another name",
        )


def _held_at(state: State, processor: ProcessorId) -> str:
    """What would be away without a processor: results of a query, or a stream's home."""
    for query in state.queries.values():
        record = query.record
        found = any(
            r.processor == processor and r.load.results and record.writes(r) for r in record.reports
        )
        kept = any(log.keeper == processor for log in record.kept)
        runs = not record.end and query.placement.was_at(processor)
        if record.has_logs and (found or kept or runs):
            return f"results of query {query.name!r}"
    for stream in state.declared().values():
        if stream.home == processor:
            return f"the home of stream {stream.name!r}"
    return ""


def _of_account(state: State, processor: ProcessorId) -> bool:
    """Whether somebody may still ask about a member that is gone."""
    return bool(state.membership.unwritten[processor]) or any(
        q.placement.was_at(processor)
        or q.depends_on(processor)
        or processor in q.coordinator.busy()
        for q in state.queries.values()
    )


def _welcome(state: State, processor: ProcessorId) -> None:
    """Tell a member that it is one, if that is durable."""
    member = state.membership.members[processor]
    if member.state in IN and not state.membership.unwritten[processor]:
        state.send(processor, Heard(state.epoch, processor, member.incarnation, True))


def _write(
    state: State,
    member: Member,
    before: dict[QueryName, QueryRecord] | None = None,
    maps: Sequence[tuple[Query, PartitionMap]] = (),
    also: Puts | None = None,
) -> None:
    """Write a member down, with the queries whose records are not those of `before`."""
    state.membership.unwritten[member.processor] += 1
    changed = tuple(
        (q, q.record)
        for q in state.queries.values()
        if before is not None and q.record != before[q.name]
    )
    puts = {
        member.key: member.to_json(),
        **{record.key: record.to_json() for _, record in changed},
        **{map_key(query.name): without.to_json() for query, without in maps},
        **(also or {}),
    }
    state.write(MemberWritten(puts, replace(member), changed, tuple(maps)))
