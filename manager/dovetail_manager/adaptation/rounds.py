"""Rounds of adaptation, and what operators ask for in their place: move, pin, rebalance.

once per sample, per query ─▶ drain who leaves ─▶ repeat unanswered orders ─▶ ask the policy
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dovetail_manager import history, queries, streams
from dovetail_manager.adaptation import draining
from dovetail_manager.adaptation.active_disk import UNKNOWN
from dovetail_manager.adaptation.admission import Record
from dovetail_manager.adaptation.snapshot import MoveState, Nothing, PushState, Snapshot
from dovetail_manager.membership import MemberState
from dovetail_manager.moves.journal import carry_out
from dovetail_manager.moves.protocol import Move
from dovetail_manager.query import Query, put
from dovetail_manager.records import QueryRecord
from dovetail_manager.refusals import busy, wrong_state
from dovetail_manager.state import State
from dovetail_proto.assignment import Phase
from dovetail_proto.errors import Domain, Refusal
from dovetail_proto.ids import GroupId, ProcessorId, QueryName, StreamName
from dovetail_proto.messages import Pushed, PushPartitions

# Rounds -------------------------------------------------------------------------------------------


def adapt(state: State, query: Query) -> None:
    """One round of a query."""
    for processor, order in sorted(query.orders.items()):
        state.send(processor, order)
    if query.record.phase is not Phase.RUNNING or streams.in_transit(state, query.record):
        return
    members = state.membership.alive()
    loads = state.load.loads(query.name, members)
    for leaver in members:
        if leaver.state is MemberState.LEAVING and leaver.processor not in _busy(state):
            if push := draining.unload(query, leaver.processor, loads):
                query.admission.note(push, state.now_s)
                _begin(state, query, [push])
            else:
                begun = draining.drain(query, leaver.processor, loads, _busy(state), state.now_s)
                carry_out(state, query, begun)
    if silent := _silent(state, query):
        query.admission.wait(f"{silent} has not reported yet", state.now_s)
        return
    admitted = query.admission.decide(_snapshot(state, query), _busy(state))
    _begin(state, query, admitted)


def pushed(state: State, source: ProcessorId, m: Pushed) -> None:
    """A processor has carried out an order to push, or gives it up."""
    query = state.query(m.query)
    order = query.orders.get(source)
    if order is not None and (order.epoch, order.order) == (m.epoch, m.order):
        del query.orders[source]
        query.admission.pushed(source, m.size_bytes)
        forced_bytes = query.admission.forced_bytes
        put(state, query, replace(query.record, forced_bytes=forced_bytes))


def record_decisions(state: State) -> None:
    """Put decisions that are new into the histories, and tell people of them."""
    for query in state.queries.values():
        last = query.saved.number
        fresh = query.saved.unsaved(query.admission.history, state.now_s)
        if not fresh:
            continue
        state.effects.append(history.decisions_made(state.epoch, query.name, fresh))
        for record in fresh:
            decision = record.decision
            if record.number <= last:
                continue
            if not isinstance(decision, Nothing):
                if record.admitted:
                    shown = history.decision_status(record)
                    text = f"{shown.decision}: {shown.reason}"
                    state.log("adaptation-decided", query=query.name, text=text)
            elif decision.kind == UNKNOWN and not query.warned:
                query.warned = True
                state.log("query-warned", query=query.name, text=decision.reason)


def _begin(state: State, query: Query, admitted: Sequence[MoveState | PushState]) -> None:
    for decision in admitted:
        if isinstance(decision, MoveState):
            begun = query.coordinator.begin(
                decision.sender,
                decision.receiver,
                decision.want_bytes,
                exclude=query.pinned_at(decision.sender),
                reason=decision.reason,
                now_s=state.now_s,
            )
            carry_out(state, query, begun)
        else:
            state.orders_given += 1
            order = PushPartitions(query.name, state.epoch, state.orders_given, decision.want_bytes)
            query.orders[decision.processor] = order
            state.send(decision.processor, order)


def _snapshot(state: State, query: Query) -> Snapshot:
    expected = query.record.expected_bytes
    unknown: tuple[StreamName, ...] = ()
    if expected is None:
        rows, unknown = rows_left(state, query.record)
        expected = state.load.query_bytes(query.name, rows)
    return Snapshot(
        query=query.name,
        now_s=state.now_s,
        processors=state.load.loads(query.name, state.membership.alive()),
        query_bytes=expected,
        unknown=unknown,
    )


def rows_left(state: State, record: QueryRecord) -> tuple[int, tuple[StreamName, ...]]:
    """Rows that a query's inputs still bring, and the streams of which that is unknown."""
    loads = {s: state.load.stream(s, r.home) for s, r in state.inputs(record).items()}
    left = {s: load and load.rows_left for s, load in loads.items()}
    rows = sum((left[s] or 0) * len(record.inputs_from(s)) for s in left)
    return rows, tuple(s for s in left if left[s] is None)


def _silent(state: State, query: Query) -> ProcessorId | None:
    """A member that has not reported the query yet; None if everyone has."""
    members = state.membership.alive()
    silent = [m.processor for m in members if state.load.report(query.name, m) is None]
    return min(silent, default=None)


def _busy(state: State) -> set[ProcessorId]:
    """Who takes part in an adaptation of any query."""
    return {p for q in state.queries.values() for p in (*q.coordinator.busy(), *q.orders)}


# What operators ask for ---------------------------------------------------------------------------


def move(state: State, name: QueryName, groups: Sequence[GroupId], to: ProcessorId) -> Move:
    """Begin to move one processor's groups; Refusal if it cannot be or not now."""
    query = _adapting(state, name)
    member = state.membership.members.get(to)
    if member is None or member.state is not MemberState.ALIVE:
        raise Refusal(
            Domain.MEMBER,
            f"processor {to!r} is {'unknown' if member is None else member.state}: it can take "
            "no groups",
            reason="unknown" if member is None else "state",
        )
    owners = {query.placement.next_map.owner(g) for g in groups}
    if len(owners) != 1:
        raise Refusal(
            Domain.GROUP,
            f"groups {', '.join(map(str, groups)) or '(none)'} have {len(owners)} owners",
            remedy="name groups of one processor",
        )
    if pinned := query.record.pinned & set(groups):
        raise wrong_state(
            Domain.GROUP, f"group {min(pinned)} of query {name!r} is pinned", "unpin it first"
        )
    if taken := _busy(state) & {*owners, to}:
        raise busy(
            f"processor {min(taken)!r} is in another adaptation", "try again when it has ended"
        )
    reason = "an operator asked for it"
    begun = query.coordinator.begin(
        min(owners), to, 0, groups=groups, reason=reason, now_s=state.now_s
    )
    carry_out(state, query, begun)
    return query.coordinator.moves[max(query.coordinator.moves)]


def pin(state: State, name: QueryName, groups: Sequence[GroupId], pinned: bool) -> None:
    """Keep groups where they are, or let them go; a move that is under way is not stopped."""
    query = queries.going_on(state, name)
    for group in groups:
        owner = state.membership.members.get(query.placement.next_map.owner(group))
        if pinned and owner is not None and owner.state is MemberState.LEAVING:
            raise wrong_state(
                Domain.GROUP,
                f"group {group} of query {name!r} is on {owner.processor!r}, which leaves",
                "pin it when it has moved",
            )
    before = query.record.pinned
    after = before | set(groups) if pinned else before - set(groups)
    put(state, query, replace(query.record, pinned=after))


def rebalance(state: State, name: QueryName, *, dry_run: bool) -> list[Record]:
    """Decide now, whatever the interval; with `dry_run` only tell what would be decided."""
    query = _adapting(state, name)
    if silent := _silent(state, query):
        raise busy(f"{silent} has not reported query {name!r} yet")
    snapshot = _snapshot(state, query)
    if dry_run:
        return query.admission.preview(snapshot, _busy(state))
    _begin(state, query, query.admission.decide(snapshot, _busy(state), now=True))
    return [r for r in query.admission.history if r.at_s == state.now_s]


def _adapting(state: State, name: QueryName) -> Query:
    query = queries.going_on(state, name)
    if query.record.phase is not Phase.RUNNING:
        raise wrong_state(
            Domain.QUERY,
            f"query {name!r} is {query.record.phase}: none of its groups move",
            "resume it first" if query.record.phase is Phase.PAUSED else "",
        )
    streams.refuse_in_transit(state, query.record)
    return query
