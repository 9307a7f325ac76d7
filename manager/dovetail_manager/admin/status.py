"""The machine's state as people see it: from `Governor` to the plain types of the admin service."""

from __future__ import annotations

from dovetail_manager.adaptation import active_disk
from dovetail_manager.catalog import End, Instance, KeptLog, Spec, StreamRecord, totals
from dovetail_manager.cleanups import CleanupProgress, CleanupState
from dovetail_manager.governor import Governor
from dovetail_manager.membership import IN, Member, MemberState
from dovetail_proto import admin as a
from dovetail_proto.errors import Domain, Refusal, without_credentials
from dovetail_proto.ids import GroupId, ProcessorId, QueryName, StreamName
from dovetail_proto.messages import Stage, StreamLoad
from dovetail_proto.query import QueryPlan


def stream_status(governor: Governor, name: str) -> a.StreamStatus:
    """One stream; Refusal if there is none."""
    record = governor.catalog.stream(name)
    home = governor.steering.membership.members.get(record.home)
    load = _stream_load(governor, record)
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


def refuse_if_over(governor: Governor, plan: QueryPlan) -> None:
    """Refusal if a query would read a stream of which nothing more can come.

    A stream that has ended takes no rows, and queries are not given those of before. A file is read
    once, from the first query on; until then it does not matter that its stream has ended.
    """
    for name in {i.stream: None for i in plan.inputs}:
        record = governor.catalog.stream(name)
        load = _stream_load(governor, record)
        if load.ended and load.rows_left == 0 if record.path else record.ended:
            end = f"its file {record.path!r} has been read" if record.path else "it has ended"
            raise Refusal(
                Domain.STREAM,
                f"nothing more comes on stream {name!r}: {end}; query {plan.name!r} would find "
                "nothing",
                remedy="create another stream, submit the query on it, then "
                + ("it is read" if record.path else "send the rows"),
                reason="state",
            )


def query_status(governor: Governor, name: str) -> a.QueryStatus:
    """One query; Refusal if there is none."""
    spec = governor.catalog.spec(name)
    query = governor.steering.queries[spec.name]
    instances = governor.instances(spec.name)
    summed = totals(len(spec.plan.inputs), instances)
    inputs = zip(spec.plan.inputs, summed.rows_in, strict=True)
    return a.QueryStatus(
        name=spec.name,
        state=str(spec.end or spec.phase),
        phase=str(spec.phase),
        cause=without_credentials(query.cause or _waits_for(instances)),
        policy=spec.policy,
        sql=spec.plan.sql,
        schema=spec.plan.output_schema.serialize().to_pybytes(),
        partitions=spec.plan.partitions,
        map_version=query.coordinator.map.version,
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
                processor=i.processor,
                stage=_stage(governor, i),
                groups=i.load.groups,
                held_bytes=i.load.held_bytes,
                spilled_bytes=i.load.spilled_bytes,
                produced=i.load.produced,
                results=i.load.results,
                checksum=i.load.checksum,
                pushes=i.load.pushes,
                spilled_groups=i.load.spilled_groups,
                queued_bytes=i.load.queued_bytes,
                peak_state_bytes=i.load.peak_state_bytes,
            )
            for i in instances
        ),
        results_place=spec.results or "",
        counting=spec.counting,
        spill=without_credentials(spec.spill or ""),
        push_fraction=query.disk.push_fraction,
        spill_above_ratio=query.disk.spill_above_ratio,
        inactive_after_s=query.disk.inactive_after_s,
        productivity_half_life_s=query.disk.productivity_half_life_s,
        created_s=spec.created_s,
        ended_s=spec.ended_s if spec.end is not End.NOT_YET else 0.0,
        logs=_logs(governor, spec, instances),
        cleanup=() if spec.cleanup is None else (cleanup_status(governor, name),),
        warning=_warning(governor, spec),
    )


def cleanup_status(governor: Governor, name: str) -> a.CleanupStatus:
    """The latest clean-up of a query; Refusal if there was none."""
    spec = governor.catalog.spec(name)
    record = spec.cleanup
    if record is None:
        raise Refusal(
            Domain.QUERY,
            f"query {name!r} was never cleaned up",
            remedy="start a clean-up",
            reason="unknown",
        )
    done = record.state is CleanupState.DONE
    at = governor.cleanup_progress.get(spec.name, CleanupProgress())
    return a.CleanupStatus(
        query=spec.name,
        state=str(record.state),
        master=record.master,
        output="" if record.output == "none" else without_credentials(record.output),
        stage=at.stage if spec.cleaning else "",
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


def _stage(governor: Governor, instance: Instance) -> str:
    """What an instance reported last, unless its processor does not run it any more."""
    member = governor.steering.membership.members.get(instance.processor)
    if instance.load.stage is not Stage.RUNNING:
        return str(instance.load.stage)
    if member is None or member.incarnation != instance.incarnation:
        return "gone"
    return str(instance.load.stage if member.state in IN else member.state)


def _waits_for(instances: tuple[Instance, ...]) -> str:
    """Why a query that goes on stands still somewhere; empty if it does not."""
    waiting = [i for i in instances if i.load.stage is Stage.RUNNING and i.load.cause]
    return "; ".join(f"processor {i.processor} waits: {i.load.cause}" for i in waiting)


def _warning(governor: Governor, spec: Spec) -> str:
    """What active-disk would have to know of a query that goes on, and does not."""
    told = governor.steering.queries[spec.name].expected_bytes is not None
    if spec.end or spec.policy != active_disk.POLICY.name or told:
        return ""
    _, unknown = governor.steering.rows_left(spec.name)
    return active_disk.untold(unknown) if unknown else ""


def _logs(
    governor: Governor, spec: Spec, instances: tuple[Instance, ...]
) -> tuple[a.LogStatus, ...]:
    """Where the results of a query can be read, if in logs."""
    if not spec.has_logs:
        return ()
    members = governor.steering.membership.members
    addresses = {p: m.address for p, m in members.items() if m.state in IN}
    query = governor.steering.queries[spec.name]
    # Results in the logs that processors write; one that had groups may not have reported yet, or
    # may have died before it did, and the query with it.
    writers = {p for p, m in members.items() if p in addresses or m.state is MemberState.DEAD}
    found = {p: 0 for p in writers if query.was_at(p) and spec.end is not End.CLOSED}
    for i in filter(spec.writes, instances):
        found[i.processor] = found.get(i.processor, 0) + i.load.results
    logs = [(k.name, k.keeper, _rows(spec, k, instances)) for k in spec.kept]
    # Who died without a result would have failed the query otherwise: nothing is there to be read.
    logs += [
        (spec.log_of(p), p, results)
        for p, results in found.items()
        if p in addresses or results or spec.end is End.FAILED
    ]
    closed = spec.end is End.CLOSED  # before, results may be in memory, and be lost with it
    return tuple(
        a.LogStatus(name, p, addresses.get(p, ""), spec.run, rows if closed else 0)
        for name, p, rows in logs
    )


def _rows(spec: Spec, log: KeptLog, instances: tuple[Instance, ...]) -> int:
    """Results in a log whose writer has left: of its incarnations since the log before."""
    before = [k.incarnation for k in spec.kept if k.writer == log.writer]
    since = max((n for n in before if n < log.incarnation), default=-1)
    return sum(
        i.load.results
        for i in instances
        if i.processor == log.writer and since < i.incarnation <= log.incarnation
    )


def processor_status(governor: Governor, name: str) -> a.ProcessorStatus:
    """One processor that is or was a member; Refusal if there was none."""
    member = governor.steering.membership.members.get(ProcessorId(name))
    if member is None:
        raise Refusal(Domain.MEMBER, f"processor {name!r} is unknown", reason="unknown")
    return _member_status(governor, member)


def cluster_status(governor: Governor, name: str, started_s: float) -> a.ClusterStatus:
    """The manager and everyone who is known to have joined, by name."""
    members = governor.steering.membership.members
    return a.ClusterStatus(
        name=name,
        epoch=governor.steering.epoch,
        version=governor.steering.settings.version,
        started_s=started_s,
        processors=tuple(_member_status(governor, members[p]) for p in sorted(members)),
    )


def partitions(governor: Governor, name: str) -> a.Partitions:
    """Who owns which group of a query."""
    spec = governor.catalog.spec(name)
    query = governor.steering.queries[spec.name]
    known = query.coordinator.map
    return a.Partitions(
        known.version,
        tuple(
            a.PartitionStatus(g, known.owner(GroupId(g)), int(known.since[g]), g in query.pinned)
            for g in range(known.partitions)
        ),
    )


def names(governor: Governor) -> tuple[list[StreamName], list[QueryName]]:
    """All streams and all queries, by name."""
    streams = [s.name for _, s in sorted(governor.catalog.streams.wanted.items())]
    return streams, [q.name for _, q in sorted(governor.catalog.specs.wanted.items())]


def _member_status(governor: Governor, member: Member) -> a.ProcessorStatus:
    load = governor.steering.load
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


def _stream_load(governor: Governor, record: StreamRecord) -> StreamLoad:
    beat = governor.steering.load.beats.get(record.home)
    for load in beat.streams if beat else ():
        if load.stream == record.name:
            return load
    return StreamLoad(record.name, 0, False)
