"""What operators ask of the cluster, as changes of the catalog and of the machine that steers.

Every verb checks, changes what is wanted, and returns messages and writes; Refusal or ConfigError,
with nothing changed, if it cannot be. Processors hear of a change when it is durable. `governor`
has the events.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from dovetail_manager.adaptation.admission import Record
from dovetail_manager.adaptation.initial import next_home, place_splits
from dovetail_manager.adaptation.policies import policy
from dovetail_manager.assignments import Assignments
from dovetail_manager.catalog import Catalog, End, Instance, Spec, StreamRecord
from dovetail_manager.chronicle import Decisions
from dovetail_manager.cleanups import CleanupProgress, CleanupRecord
from dovetail_manager.membership import Member, MemberState
from dovetail_manager.moves.journal import move_key
from dovetail_manager.moves.protocol import Move
from dovetail_manager.rehoming import Rehoming
from dovetail_manager.steering import Output, Steering
from dovetail_proto.assignment import DiskSettings, Phase
from dovetail_proto.cluster_memory import smallest_limit
from dovetail_proto.errors import ConfigError, Domain, Refusal
from dovetail_proto.ids import GroupId, MoveId, ProcessorId, QueryName, SplitId, StreamName
from dovetail_proto.messages import Leave

SplitHosts = Mapping[ProcessorId, tuple[SplitId, ...]]


class Verbs:
    """The state of the manager, and the verbs that change it."""

    def __init__(self, steering: Steering, catalog: Catalog) -> None:
        self.steering = steering
        self.catalog = catalog
        self.assignments = Assignments(steering, catalog)
        self.rehoming = Rehoming(steering, catalog, self.assignments)
        self.decisions = Decisions(steering.epoch)
        self.ended_moves: dict[MoveId, Move] = {}  # ended, not yet in the history
        self.cleanup_progress: dict[QueryName, CleanupProgress] = {}  # of those under way
        self.left: dict[QueryName, int] = {}  # the first assignment without a query that ended

    # Streams --------------------------------------------------------------------------------------

    def create_stream(
        self, name: StreamName, schema: pa.Schema, path: str | None, *, now_s: float
    ) -> list[Output]:
        """Declare a stream and give it a home."""
        if name in self.catalog.streams.wanted:
            raise Refusal(
                Domain.STREAM,
                f"stream {name!r} exists already",
                remedy="use another name",
                reason="exists",
            )
        homes = [s.home for s in self.catalog.streams.wanted.values()]
        home = next_home(homes, self.steering.membership.staying())
        record = StreamRecord(name, schema, home, now_s, path=path)
        self.assignments.check_size(len(record.to_json()), [home])
        return self._put_stream("stream-created", record, now_s)

    def end_stream(self, name: StreamName, *, now_s: float) -> list[Output]:
        """Nothing more may be sent; no writes if that is so already."""
        record = self.catalog.stream(name)
        if record.ended:
            return []
        return self._put_stream("stream-ended", replace(record, ended=True), now_s)

    def drop_stream(self, name: StreamName, *, now_s: float) -> list[Output]:
        """Forget a stream; Refusal if a query reads it."""
        record = self.catalog.stream(name)
        for spec in self.catalog.specs.wanted.values():
            if not spec.end and name in {i.stream for i in spec.plan.inputs}:
                raise Refusal(
                    Domain.STREAM,
                    f"query {spec.name!r} reads stream {name!r}",
                    remedy="close the query first",
                    reason="state",
                )
        del self.catalog.streams.wanted[name]
        return self.steering.write(("stream-dropped", name), {record.key: None}, now_s=now_s)

    # Queries --------------------------------------------------------------------------------------

    def submit(
        self,
        spec: Spec,
        *,
        disk: DiskSettings,
        weights: Sequence[float] | None,
        expected_bytes: int | None,
        now_s: float,
    ) -> list[Output]:
        """Start a planned query on all members; its splits are where its streams are at home."""
        if spec.name in self.catalog.specs.wanted:
            raise Refusal(
                Domain.QUERY,
                f"query {spec.name!r} exists already",
                remedy="use another name, or drop it when it is closed or failed",
                reason="exists",
            )
        _refuse_without_place(spec)
        streams = [self.catalog.stream(i.stream) for i in spec.plan.inputs]
        if leaving := [s for s in streams if self.rehoming.moves(s)]:
            raise Refusal(
                Domain.BUSY,
                f"stream {leaving[0].name!r} gets another home: {leaving[0].home!r} leaves",
                remedy="try again in a second",
                reason="busy",
            )
        if away := [s for s in streams if s.home not in self.steering.membership.staying()]:
            raise Refusal(
                Domain.STREAM,
                f"stream {away[0].name!r} is at home on {away[0].home!r}, which is not alive",
                remedy="start a processor",
                reason="state",
            )
        staying = self.steering.membership.staying()
        self.assignments.check_size(len(spec.plan.to_json()), staying)
        split_hosts = place_splits(spec.name, [s.home for s in streams])
        self._check_memory(spec, split_hosts)
        out = self.steering.submit(
            spec.name,
            partitions=spec.plan.partitions,
            split_hosts=split_hosts,
            policy_name=spec.policy,
            disk=disk,
            weights=weights,
            expected_bytes=expected_bytes,
            also={spec.key: spec.to_json()},
            now_s=now_s,
        )
        self.catalog.specs.wanted[spec.name] = spec
        return out

    def set_phase(
        self, name: QueryName, phase: Phase, *, why: str = "", now_s: float
    ) -> list[Output]:
        """Pause, resume or close a query, and tell why; no writes if it is in that phase."""
        spec = self.catalog.spec(name)
        if spec.phase is phase and spec.end is not End.FAILED:
            return []
        if spec.end or spec.phase is Phase.CLOSING:
            state = spec.end or spec.phase
            raise Refusal(Domain.QUERY, f"query {name!r} is {state}", reason="state")
        if phase is Phase.PAUSED and (stream := self.rehoming.in_transit(spec)):
            raise _in_transit(stream, name)
        what = {
            Phase.RUNNING: "query-resumed",
            Phase.PAUSED: "query-paused",
            Phase.CLOSING: "query-closing",
        }[phase]
        return self._put_spec(what, replace(spec, phase=phase), now_s, why)

    def set_policy(self, name: QueryName, policy_name: str, *, now_s: float) -> list[Output]:
        """Adapt by another policy from now on; whether processors push by themselves follows."""
        spec = self._going_on(name)
        changed = replace(spec, policy=policy(policy_name).name)
        _refuse_without_place(changed)
        out = self.steering.set_policy(
            name, policy_name, also={changed.key: changed.to_json()}, now_s=now_s
        )
        self.catalog.specs.wanted[name] = changed
        return out

    def start_cleanup(
        self, name: QueryName, record: CleanupRecord, *, now_s: float
    ) -> list[Output]:
        """Record that what a closed query owes is being produced, or that nothing is owed."""
        spec = self.catalog.spec(name)
        if spec.end is not End.CLOSED:
            cause = self.steering.queries[name].cause
            state = f"has failed: {cause}" if cause else f"is {spec.phase}"
            raise Refusal(
                Domain.QUERY,
                f"query {name!r} {state}; what it owes is not known",
                remedy="submit it again" if cause else "close it first",
                reason="state",
            )
        if spec.discarded:
            raise Refusal(
                Domain.QUERY,
                f"query {name!r} is being dropped with its state on disk",
                remedy="drop it",
                reason="state",
            )
        if spec.cleaning:
            raise Refusal(
                Domain.QUERY,
                f"query {name!r} is being cleaned up already",
                remedy="wait for that, or cancel it first: what it finished is kept",
                reason="state",
            )
        self.cleanup_progress.pop(name, None)
        return self._put_spec("cleanup-started", replace(spec, cleanup=record), now_s)

    def end_cleanup(
        self, name: QueryName, started_s: float, change: Mapping[str, Any], *, now_s: float
    ) -> list[Output]:
        """A clean-up, told from others by its start, is over; no writes if it is not known."""
        spec = self.catalog.specs.wanted.get(name)
        if spec is None or spec.cleanup is None or spec.cleanup.started_s != started_s:
            return []
        self.cleanup_progress.pop(name, None)
        ended = replace(spec.cleanup, **change, ended_s=now_s)
        return self._put_spec("cleanup-ended", replace(spec, cleanup=ended), now_s)

    def discard(self, name: QueryName, *, now_s: float) -> list[Output]:
        """Have everyone remove what a query that has ended wrote; then it can only be dropped."""
        spec = self._droppable(name)
        if spec.discarded:
            return []
        return self._put_spec("discarded", replace(spec, discarded=True), now_s)

    def drop(self, name: QueryName, *, now_s: float) -> list[Output]:
        """Forget a query that has ended; Refusal of domain `busy` while somebody still has it."""
        spec = self._droppable(name)
        moves = [m for m in self.ended_moves.values() if m.query == name]
        for move in moves:
            del self.ended_moves[move.id]
        del self.catalog.specs.wanted[name]
        self.left.pop(name, None)
        self.decisions.forget(name)
        also = {spec.key: None, **{move_key(m.id): None for m in moves}}
        return self.steering.drop(name, also=also, now_s=now_s)

    def _droppable(self, name: QueryName) -> Spec:
        spec = self.catalog.spec(name)
        if not spec.end:
            raise Refusal(
                Domain.QUERY,
                f"query {name!r} is {spec.phase}",
                remedy="close it first",
                reason="state",
            )
        if spec.cleaning:
            raise Refusal(
                Domain.QUERY,
                f"query {name!r} is being cleaned up",
                remedy="wait for that, or cancel it first",
                reason="state",
            )
        known = self.catalog.specs.durable.get(name)
        gone = known is not None and (known.end is End.CLOSED or known.settled)
        gone = gone and known is not None and known.discarded == spec.discarded
        if not gone or not self.assignments.known_everywhere(
            self.left.get(name, self.assignments.first)
        ):
            raise Refusal(
                Domain.BUSY,
                f"query {name!r} has ended but a processor has not let go of it yet",
                remedy="try again in a second",
                reason="busy",
            )
        return spec

    # Groups ---------------------------------------------------------------------------------------

    def move(
        self, name: QueryName, groups: Sequence[GroupId], to: ProcessorId, *, now_s: float
    ) -> tuple[Move, list[Output]]:
        """An operator's move, and what it leads to."""
        self._adapting(name)
        coordinator = self.steering.queries[name].coordinator
        out = self.steering.move(name, groups, to, now_s=now_s)
        return coordinator.moves[max(coordinator.moves)], out

    def pin(
        self, name: QueryName, groups: Sequence[GroupId], pinned: bool, *, now_s: float
    ) -> list[Output]:
        """Keep groups where they are, or let them go."""
        self._going_on(name)
        return self.steering.pin(name, groups, pinned, now_s=now_s)

    def rebalance(
        self, name: QueryName, *, dry_run: bool, now_s: float
    ) -> tuple[list[Record], list[Output]]:
        """Decide now."""
        self._adapting(name)
        return self.steering.rebalance(name, dry_run=dry_run, now_s=now_s)

    def leave(self, processor: ProcessorId, *, now_s: float) -> list[Output]:
        """Move a processor's groups and streams away, then let it go."""
        member = self.steering.membership.members.get(processor)
        if member is None:
            raise Refusal(Domain.MEMBER, f"processor {processor!r} is unknown", reason="unknown")
        if member.state is MemberState.ALIVE:
            self.rehoming.check_leave(processor)
        return self.steering.handle(processor, Leave(processor, member.incarnation), now_s)

    # Parts ----------------------------------------------------------------------------------------

    def instances(self, name: QueryName) -> tuple[Instance, ...]:
        """What was last reported of a query: by members, by those who left, at its end."""
        spec = self.catalog.spec(name)
        if spec.end is End.CLOSED or spec.settled:
            return spec.instances
        return spec.with_instances(self._reports(name)).instances

    def _reports(self, name: QueryName) -> tuple[Instance, ...]:
        members = self.steering.membership.alive()
        heard = [(m, self.steering.load.report(name, m)) for m in members]
        return tuple(
            Instance(m.processor, m.incarnation, load) for m, load in heard if load is not None
        )

    def _going_on(self, name: QueryName) -> Spec:
        spec = self.catalog.spec(name)
        if spec.end:
            cause = self.steering.queries[name].cause
            why = f": {cause}" if cause else ""
            raise Refusal(Domain.QUERY, f"query {name!r} is {spec.end}{why}", reason="state")
        return spec

    def _adapting(self, name: QueryName) -> Spec:
        spec = self._going_on(name)
        if spec.phase is not Phase.RUNNING:
            raise Refusal(
                Domain.QUERY,
                f"query {name!r} is {spec.phase}: none of its groups move",
                remedy="resume it first" if spec.phase is Phase.PAUSED else "",
                reason="state",
            )
        if stream := self.rehoming.in_transit(spec):
            raise _in_transit(stream, name)
        return spec

    def _check_memory(self, spec: Spec, split_hosts: SplitHosts) -> None:
        """Refusal if a processor has said that it has too little memory left for the query."""
        members = self.steering.membership.alive()
        for m in members:
            beat = self.steering.load.beats.get(m.processor)
            if beat is None or beat.incarnation != m.incarnation or beat.room_bytes is None:
                continue  # it has not said so yet, and will not start what does not fit
            untold = [
                s
                for s in self.catalog.specs.wanted.values()
                if not s.end and self.steering.load.report(s.name, m) is None
            ]
            room = beat.room_bytes - sum(
                _needed(s, self.steering.queries[s.name].split_hosts, m, members) for s in untold
            )
            needed = _needed(spec, split_hosts, m, members)
            if needed > room:
                raise Refusal(
                    Domain.MEMORY,
                    f"query {spec.name!r} needs at least {needed:,} bytes of memory on processor "
                    f"{m.processor!r} for {spec.plan.partitions} partitions of "
                    f"{len(spec.plan.inputs)} inputs, and {max(0, room):,} of its "
                    f"{m.memory_limit_bytes:,} are left beside other queries",
                    remedy="use fewer partitions, close another query, or give processors more "
                    "memory",
                    reason="state",
                )

    def _put_stream(self, what: str, record: StreamRecord, now_s: float) -> list[Output]:
        self.catalog.streams.wanted[record.name] = record
        puts = {record.key: record.to_json()}
        return self.steering.write((what, record.name), puts, now_s=now_s)

    def _put_spec(self, what: str, spec: Spec, now_s: float, why: str = "") -> list[Output]:
        self.catalog.specs.wanted[spec.name] = spec
        return self.steering.write((what, spec.name, why), {spec.key: spec.to_json()}, now_s=now_s)


def _refuse_without_place(spec: Spec) -> None:
    """ConfigError if state may go to disk and no clean-up would find it there."""
    if policy(spec.policy).spills_locally and spec.spill is None:
        raise ConfigError(
            f"query {spec.name!r}: policy {spec.policy!r} puts state on disk, and neither the "
            "query nor the manager names a place for it",
            remedy="submit it with a spill folder or URI that all processors reach, start the "
            "manager with the setting `spill`, or use policy none or distributed",
        )


def _needed(spec: Spec, split_hosts: SplitHosts, on: Member, members: Sequence[Member]) -> int:
    return smallest_limit(
        inputs=len(spec.plan.inputs),
        partitions=spec.plan.partitions,
        hosted=len(split_hosts.get(on.processor, ())),
        peers=len(members),
    )


def _in_transit(stream: StreamName, query: QueryName) -> Refusal:
    return Refusal(
        Domain.BUSY,
        f"stream {stream!r}, which query {query!r} reads, gets another home",
        remedy="try again in a second",
        reason="busy",
    )
