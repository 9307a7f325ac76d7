"""The life of a query, from its submission until it is dropped.

    RUNNING ⇄ PAUSED ─▶ CLOSING ── every member says closed, no move is open ─▶ closed
       └────────┴──────────┴── a member says failed, or dies with part of it ─▶ failed

Both ends are written down with what the processors reported; the query then leaves the assignment,
and its record stays until it is dropped. Every verb checks first: Refusal or ConfigError, with
nothing changed, if it cannot be.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dovetail_manager import streams
from dovetail_manager.adaptation.initial import distribute, place_splits
from dovetail_manager.adaptation.policies import policy
from dovetail_manager.assignments import check_size
from dovetail_manager.history import emptied
from dovetail_manager.journal import Entry
from dovetail_manager.membership import Member
from dovetail_manager.moves.journal import carry_out
from dovetail_manager.moves.records import map_key, move_key
from dovetail_manager.query import CleanupProgress, Query, QueryWritten, put
from dovetail_manager.records import CleanupRecord, End, QueryRecord
from dovetail_manager.refusals import busy, exists, wrong_state
from dovetail_manager.removals import remember
from dovetail_manager.reports import Report
from dovetail_manager.state import State
from dovetail_proto.assignment import Phase
from dovetail_proto.cluster_memory import newcomer_shares, smallest_limit
from dovetail_proto.errors import ConfigError, Domain, MemoryLimitError
from dovetail_proto.ids import QueryName
from dovetail_proto.messages import Stage
from dovetail_proto.partition_map import PartitionMap

PHASE_EVENTS = {
    Phase.RUNNING: "query-resumed",
    Phase.PAUSED: "query-paused",
    Phase.CLOSING: "query-closing",
}


@dataclass(frozen=True, slots=True)
class QueryDropped(Entry):
    """A query is forgotten."""

    name: QueryName

    def durable(self, state: State) -> None:
        """Its histories go too."""
        state.log("query-dropped", query=self.name)
        state.effects += emptied(self.name)


# What operators ask for ---------------------------------------------------------------------------


def submit(state: State, record: QueryRecord, weights: Sequence[float] | None = None) -> None:
    """Start a planned query on all members; its splits are where its streams are at home."""
    if record.name in state.queries:
        raise exists(
            Domain.QUERY,
            f"query {record.name!r} exists already",
            "use another name, or drop it when it is closed or failed",
        )
    _refuse_without_place(record)
    staying = state.membership.staying()
    for stream in state.inputs(record).values():
        streams.refuse_over(state, stream, record.name)
        streams.refuse_moving(state, stream)
        if stream.home not in staying:
            raise wrong_state(
                Domain.STREAM,
                f"stream {stream.name!r} is at home on {stream.home!r}, which is not alive",
                "start a processor",
            )
    check_size(state, len(record.plan.to_json()), staying)
    homes = [state.stream(i.stream).home for i in record.plan.inputs]
    record = replace(record, split_hosts=place_splits(record.name, homes))
    _check_memory(state, record)
    limits = [state.membership.members[p].memory_limit_bytes for p in staying]
    dealt = distribute(record.plan.partitions, staying, limits if weights is None else weights)
    first = PartitionMap.initial(record.name, dealt)
    query = state.add_query(record, first)
    puts = {map_key(record.name): first.to_json(), record.key: record.to_json()}
    state.write(QueryWritten(puts, query, record, "query-submitted"))


def set_phase(state: State, name: QueryName, phase: Phase, why: str = "") -> None:
    """Pause, resume or close a query, and tell why; no writes if it is in that phase."""
    query = state.query(name)
    record = query.record
    if record.phase is phase and record.end is not End.FAILED:
        return
    if record.end or record.phase is Phase.CLOSING:
        raise wrong_state(Domain.QUERY, f"query {name!r} is {record.state}")
    if phase is Phase.PAUSED:
        streams.refuse_in_transit(state, record)
    put(state, query, replace(record, phase=phase), PHASE_EVENTS[phase], why)


def set_policy(state: State, name: QueryName, policy_name: str) -> None:
    """Adapt by another policy from now on; whether processors push by themselves follows."""
    query = going_on(state, name)
    chosen = policy(policy_name)
    changed = replace(query.record, policy=chosen.name)
    _refuse_without_place(changed)
    query.admission.policy = chosen
    put(state, query, changed)


def start_cleanup(state: State, name: QueryName, cleanup: CleanupRecord) -> None:
    """Record that what a closed query owes is being produced, or that nothing is owed."""
    query = state.query(name)
    record = query.record
    if record.end is not End.CLOSED:
        how = f"has failed: {record.cause}" if record.cause else f"is {record.phase}"
        raise wrong_state(
            Domain.QUERY,
            f"query {name!r} {how}; what it owes is not known",
            "submit it again" if record.cause else "close it first",
        )
    if record.discarded:
        raise wrong_state(
            Domain.QUERY, f"query {name!r} is being dropped with its state on disk", "drop it"
        )
    if record.cleaning:
        raise wrong_state(
            Domain.QUERY,
            f"query {name!r} is being cleaned up already",
            "wait for that, or cancel it first: what it finished is kept",
        )
    query.cleanup_progress = CleanupProgress()
    put(state, query, replace(record, cleanup=cleanup), "cleanup-started", cleanup.master)


def end_cleanup(state: State, name: QueryName, started_s: float, change: Mapping[str, Any]) -> None:
    """A clean-up, told from others by its start, is over; no writes if it is not known."""
    query = state.queries.get(name)
    cleanup = query.record.cleanup if query is not None else None
    if query is None or cleanup is None or cleanup.started_s != started_s:
        return
    ended = replace(cleanup, **change, ended_s=state.now_s)
    put(state, query, replace(query.record, cleanup=ended), "cleanup-ended", ended.outcome)


def discard(state: State, name: QueryName) -> None:
    """Have everyone remove what a query that has ended wrote; then it can only be dropped."""
    query = _droppable(state, name)
    if not query.record.discarded:
        put(state, query, replace(query.record, discarded=True))


def drop(state: State, name: QueryName) -> None:
    """Forget a query that has ended; Refusal of domain `busy` while somebody still has it."""
    query = _droppable(state, name)
    del state.queries[name]
    state.load.forget(name)
    keys = (query.record.key, map_key(name), *map(move_key, query.ended_moves))
    state.write(QueryDropped({**dict.fromkeys(keys), **remember(state, query.record)}, name))


def going_on(state: State, name: QueryName) -> Query:
    """A query that has not ended; Refusal otherwise."""
    query = state.query(name)
    record = query.record
    if record.end:
        why = f": {record.cause}" if record.cause else ""
        raise wrong_state(Domain.QUERY, f"query {name!r} is {record.end}{why}")
    return query


def _droppable(state: State, name: QueryName) -> Query:
    query = state.query(name)
    record = query.record
    if not record.end:
        raise wrong_state(Domain.QUERY, f"query {name!r} is {record.phase}", "close it first")
    if record.cleaning:
        raise wrong_state(
            Domain.QUERY, f"query {name!r} is being cleaned up", "wait for that, or cancel it first"
        )
    durable = query.durable
    finished = durable and durable.finished and durable.discarded == record.discarded
    version = query.unassigned_version or state.assignments.first
    if not finished or state.assignments.unaware(state, version):
        raise busy(f"query {name!r} has ended but a processor has not let go of it yet")
    return query


# How it ends --------------------------------------------------------------------------------------


def reports(state: State, query: Query) -> tuple[Report, ...]:
    """What was last reported of a query: by members, by those who left, at its end."""
    if query.record.finished:
        return query.record.reports
    return query.record.with_reports(_heard(state, query)).reports


def ended(state: State, query: Query, end: End, cause: str = "") -> QueryRecord:
    """The record with its end, and with what everyone reported so far."""
    reported = query.record.with_reports(_heard(state, query))
    return replace(reported, end=end, cause=cause, ended_s=state.now_s)


def fail(state: State, query: Query, cause: str) -> None:
    """The query cannot go on: end it everywhere, when that is written down."""
    put(state, query, ended(state, query, End.FAILED, cause))
    abandon(state, query)


def abandon(state: State, query: Query) -> None:
    """End the moves and orders of a query that fails."""
    query.orders.clear()
    carry_out(state, query, query.coordinator.abandon(query.record.cause, state.now_s))


def end_due(state: State) -> None:
    """End the queries that are closed everywhere now, or that everyone has dropped."""
    for query in state.queries.values():
        record = query.record
        if record.phase is Phase.CLOSING and not record.end and _closed_everywhere(state, query):
            query.orders.clear()
            put(state, query, ended(state, query, End.CLOSED), "query-closed")
        elif query.failure_is_durable and not record.stopped and not query.stopping:
            last = record.with_reports(_heard(state, query))
            put(state, query, replace(last, stopped=True))


def _closed_everywhere(state: State, query: Query) -> bool:
    durable = query.durable
    if durable is None or durable.phase is not Phase.CLOSING or query.coordinator.moves:
        return False
    heard = [state.load.report(query.name, m) for m in state.membership.alive()]
    return bool(heard) and all(h is not None and h.stage is Stage.CLOSED for h in heard)


def _heard(state: State, query: Query) -> list[Report]:
    heard = [(m, state.load.report(query.name, m)) for m in state.membership.alive()]
    return [Report(m.processor, m.incarnation, load) for m, load in heard if load is not None]


# Whether it fits ----------------------------------------------------------------------------------


def _check_memory(state: State, record: QueryRecord) -> None:
    """Refusal if a processor has said that it has too little memory left for the query."""
    members = state.membership.alive()
    for m in members:
        beat = state.load.beats.get(m.processor)
        if beat is None or beat.incarnation != m.incarnation or beat.room_bytes is None:
            continue  # it has not said so yet, and will not start what does not fit
        unreported = [
            q.record
            for q in state.queries.values()
            if not q.record.end and state.load.report(q.name, m) is None
        ]
        room = beat.room_bytes
        alone = not any(load.stage is Stage.RUNNING for load in beat.loads)
        for other in unreported:
            with contextlib.suppress(MemoryLimitError):  # it will not start there
                taken = newcomer_shares(
                    room,
                    alone=alone,
                    row_bytes=other.plan.row_bytes,
                    **_asks(other, m, members),
                )
                room, alone = room - taken.fixed - taken.minimum, False
        needed = smallest_limit(**_asks(record, m, members))
        if needed > room:
            raise wrong_state(
                Domain.MEMORY,
                f"query {record.name!r} needs at least {needed:,} bytes of memory on processor "
                f"{m.processor!r} for {record.plan.partitions} partitions of "
                f"{len(record.plan.inputs)} inputs, and {max(0, room):,} of its "
                f"{m.memory_limit_bytes:,} are left beside other queries",
                "use fewer partitions, close another query, or give processors more memory",
            )


def _asks(record: QueryRecord, on: Member, members: Sequence[Member]) -> dict[str, int]:
    """What a query's need of memory on a processor goes by."""
    return {
        "inputs": len(record.plan.inputs),
        "partitions": record.plan.partitions,
        "hosted": len(record.split_hosts.get(on.processor, ())),
        "peers": len(members),
    }


def _refuse_without_place(record: QueryRecord) -> None:
    """ConfigError if state may go to disk and no clean-up would find it there."""
    if policy(record.policy).spills_locally and record.spill is None:
        raise ConfigError(
            f"query {record.name!r}: policy {record.policy!r} puts state on disk, and neither the "
            "query nor the manager names a place for it",
            remedy="submit it with a spill folder or URI that all processors reach, start the "
            "manager with the setting `spill`, or use policy none or distributed",
        )
