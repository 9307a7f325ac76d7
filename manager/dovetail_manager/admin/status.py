"""The machine's state as people see it: from `State` to the plain types of the admin service."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail_manager import queries
from dovetail_manager.adaptation import active_disk, rounds
from dovetail_manager.membership import IN, Member, MemberState
from dovetail_manager.query import Query
from dovetail_manager.records import CleanupState, End, KeptLog, QueryRecord
from dovetail_manager.refusals import unknown
from dovetail_manager.reports import Report, totals
from dovetail_manager.state import State
from dovetail_proto import admin as a
from dovetail_proto.errors import Domain, without_credentials
from dovetail_proto.ids import GroupId, ProcessorId, QueryName, StreamName
from dovetail_proto.messages import Stage, StreamLoad


def stream_status(state: State, name: str) -> a.StreamStatus:
    """One stream; Refusal if there is none."""
    record = state.stream(name)
    home = state.membership.members.get(record.home)
    load = state.load.stream(record.name, record.home) or StreamLoad(record.name, 0, False)
    return a.StreamStatus(
        name=record.name,
        schema=record.schema.serialize().to_pybytes(),
        rows=load.rows,
        ended=record.ended or load.ended,
        drained=load.ended,
        home=record.home,
        address=home.address if home is not None and home.state in IN else "",
        path=record.path or "",
        created_s=record.created_s,
    )


def query_status(state: State, name: str) -> a.QueryStatus:
    """One query; Refusal if there is none."""
    query = state.query(name)
    record = query.record
    reports = queries.reports(state, query)
    summed = totals(len(record.plan.inputs), reports)
    inputs = zip(record.plan.inputs, summed.rows_in, strict=True)
    return a.QueryStatus(
        name=record.name,
        state=record.state,
        phase=str(record.phase),
        cause=without_credentials(record.cause or _waits_for(reports)),
        policy=record.policy,
        sql=record.plan.sql,
        schema=record.plan.output_schema.serialize().to_pybytes(),
        partitions=record.plan.partitions,
        map_version=query.placement.map.version,
        held_bytes=summed.held_bytes,
        spilled_bytes=summed.spilled_bytes,
        produced=summed.produced,
        results=summed.results,
        checksum=summed.checksum,
        pushes=summed.pushes,
        spilled_groups=summed.spilled_groups,
        queued_bytes=summed.queued_bytes,
        inputs=tuple(a.InputStatus(i.alias, i.stream, rows) for i, rows in inputs),
        instances=tuple(
            a.InstanceStatus(
                processor=r.processor,
                stage=_stage(state, r),
                groups=r.load.groups,
                held_bytes=r.load.held_bytes,
                spilled_bytes=r.load.spilled_bytes,
                produced=r.load.produced,
                results=r.load.results,
                checksum=r.load.checksum,
                pushes=r.load.pushes,
                spilled_groups=r.load.spilled_groups,
                queued_bytes=r.load.queued_bytes,
                peak_state_bytes=r.load.peak_state_bytes,
            )
            for r in reports
        ),
        results_place=record.results or "",
        counting=record.counting,
        spill=without_credentials(record.spill or ""),
        push_fraction=record.disk.push_fraction,
        spill_above_ratio=record.disk.spill_above_ratio,
        inactive_after_s=record.disk.inactive_after_s,
        productivity_half_life_s=record.disk.productivity_half_life_s,
        created_s=record.created_s,
        ended_s=record.ended_s if record.end is not End.NOT_YET else 0.0,
        logs=_logs(state, query, reports),
        cleanup=() if record.cleanup is None else (cleanup_status(state, name),),
        warning=_warning(state, record),
        keep_results_s=record.keep_results_s,
        keep_results_bytes=record.keep_results_bytes,
    )


def cleanup_status(state: State, name: str) -> a.CleanupStatus:
    """The latest clean-up of a query; Refusal if there was none."""
    query = state.query(name)
    record = query.record.cleanup
    if record is None:
        raise unknown(Domain.QUERY, f"query {name!r} was never cleaned up", "start a clean-up")
    done = record.state is CleanupState.DONE
    at = query.cleanup_progress
    return a.CleanupStatus(
        query=query.name,
        state=str(record.state),
        master=record.master,
        output="" if record.output == "none" else without_credentials(record.output),
        stage=at.stage if query.record.cleaning else "",
        bins_done=record.bins if done else at.bins_done,
        bins=record.bins if done else at.bins,
        combinations=record.owed if done else at.combinations,
        owed=record.owed if done else at.owed,
        results=record.results,
        checksum=record.checksum,
        code=record.code,
        cause=without_credentials(record.cause),
        remedy=without_credentials(record.remedy),
        started_s=record.started_s,
        ended_s=record.ended_s,
    )


def _stage(state: State, report: Report) -> str:
    """What a processor reported last of a query, unless it does not run it any more."""
    member = state.membership.members.get(report.processor)
    if report.load.stage is not Stage.RUNNING:
        return str(report.load.stage)
    if member is None or member.incarnation != report.incarnation:
        return "gone"
    return str(report.load.stage if member.state in IN else member.state)


def _waits_for(reports: Sequence[Report]) -> str:
    """Why a query that goes on stands still somewhere; empty if it does not."""
    waiting = [r for r in reports if r.load.stage is Stage.RUNNING and r.load.cause]
    return "; ".join(f"processor {r.processor} waits: {r.load.cause}" for r in waiting)


def _warning(state: State, record: QueryRecord) -> str:
    """What active-disk would have to know of a query that goes on, and does not."""
    estimated = record.expected_bytes is None
    if record.end or record.policy != active_disk.POLICY.name or not estimated:
        return ""
    _, unknown = rounds.rows_left(state, record)
    return active_disk.untold(unknown) if unknown else ""


def _logs(state: State, query: Query, reports: Sequence[Report]) -> tuple[a.LogStatus, ...]:
    """Where the results of a query can be read, if in logs."""
    record = query.record
    if not record.has_logs:
        return ()
    members = state.membership.members
    addresses = {p: m.address for p, m in members.items() if m.state in IN}
    # Results in the logs that processors write; one that had groups may not have reported yet, or
    # may have died before it did, and the query with it.
    writers = {p for p, m in members.items() if p in addresses or m.state is MemberState.DEAD}
    closed = record.end is End.CLOSED
    found = {p: 0 for p in writers if query.placement.was_at(p) and not closed}
    for r in filter(record.writes, reports):
        found[r.processor] = found.get(r.processor, 0) + r.load.results
    logs = [(k.name, k.keeper, _rows(record, k, reports)) for k in record.kept]
    # Who died without a result would have failed the query otherwise: nothing is there to be read.
    logs += [
        (record.log_of(p), p, results)
        for p, results in found.items()
        if p in addresses or results or record.end is End.FAILED
    ]
    # Before it is closed, results may be in memory, and be lost with it.
    return tuple(
        a.LogStatus(
            name, p, addresses.get(p, ""), record.run, rows if closed else 0, record.trims_logs
        )
        for name, p, rows in logs
    )


def _rows(record: QueryRecord, log: KeptLog, reports: Sequence[Report]) -> int:
    """Results in a log whose writer has left: of its incarnations since the log before."""
    before = [k.incarnation for k in record.kept if k.writer == log.writer]
    since = max((n for n in before if n < log.incarnation), default=-1)
    return sum(
        r.load.results
        for r in reports
        if r.processor == log.writer and since < r.incarnation <= log.incarnation
    )


def processor_status(state: State, name: str) -> a.ProcessorStatus:
    """One processor that is or was a member, or its first worker; Refusal if there was none."""
    members = state.membership.workers_of(ProcessorId(name))
    if not members:
        raise unknown(Domain.MEMBER, f"processor {name!r} is unknown")
    return _member_status(state, members[0])


def cluster_status(state: State, name: str, started_s: float) -> a.ClusterStatus:
    """The manager and everyone who is known to have joined, by name."""
    members = state.membership.members
    return a.ClusterStatus(
        name=name,
        epoch=state.epoch,
        version=state.settings.version,
        started_s=started_s,
        processors=tuple(_member_status(state, members[p]) for p in sorted(members)),
    )


def partitions(state: State, name: str) -> a.Partitions:
    """Who owns which group of a query."""
    query = state.query(name)
    current = query.placement.map
    return a.Partitions(
        current.version,
        tuple(
            a.PartitionStatus(
                g, current.owner(GroupId(g)), int(current.since[g]), g in query.record.pinned
            )
            for g in range(current.partitions)
        ),
    )


def names(state: State) -> tuple[list[StreamName], list[QueryName]]:
    """All streams and all queries, by name."""
    return sorted(state.declared()), sorted(state.queries)


def _member_status(state: State, member: Member) -> a.ProcessorStatus:
    load = state.load
    beat = load.beats.get(member.processor)
    if beat is not None and beat.incarnation != member.incarnation:
        beat = None
    here = member.state in IN
    return a.ProcessorStatus(
        name=member.processor,
        state=str(member.state),
        cause=member.cause,
        address=member.address,
        incarnation=member.incarnation,
        memory_limit_bytes=member.memory_limit_bytes,
        used_bytes=beat.used_bytes if beat and here else 0,
        held_bytes=sum(x.held_bytes for x in beat.loads) if beat and here else 0,
        queued_bytes=sum(x.queued_bytes for x in beat.loads) if beat and here else 0,
        groups=sum(x.groups for x in beat.loads) if beat and here else 0,
        rate=load.rate(member) if here else 0.0,
        rss_bytes=beat.rss_bytes if beat and here else 0,
        peak_rss_bytes=beat.peak_rss_bytes if beat else 0,
        cpu_share=beat.cpu_share if beat and here else 0.0,
        heard_s=member.heard_s,
    )
