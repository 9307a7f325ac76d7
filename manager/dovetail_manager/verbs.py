"""What operators ask of the cluster, as changes of the catalog and of the machine that steers.

Every verb checks, changes what is wanted, and returns messages and writes; Refusal or ConfigError,
with nothing changed, if it cannot be. Processors hear of a change when it is durable. `governor`
has the events.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from dovetail_manager.adaptation.admission import Record
from dovetail_manager.adaptation.initial import next_home, place_splits
from dovetail_manager.adaptation.policies import policy
from dovetail_manager.assignments import Assignments
from dovetail_manager.catalog import Catalog, End, Instance, Spec, StreamRecord
from dovetail_manager.chronicle import Decisions
from dovetail_manager.membership import MemberState
from dovetail_manager.moves.journal import move_key
from dovetail_manager.moves.protocol import Move
from dovetail_manager.rehoming import Rehoming
from dovetail_manager.steering import Output, Steering
from dovetail_proto.assignment import Phase
from dovetail_proto.errors import Domain, Refusal
from dovetail_proto.ids import GroupId, MoveId, ProcessorId, QueryName, StreamName
from dovetail_proto.messages import Leave


class Verbs:
    """The state of the manager, and the verbs that change it."""

    def __init__(self, steering: Steering, catalog: Catalog) -> None:
        self.steering = steering
        self.catalog = catalog
        self.assignments = Assignments(steering, catalog)
        self.rehoming = Rehoming(steering, catalog, self.assignments)
        self.decisions = Decisions(steering.epoch)
        self.ended_moves: dict[MoveId, Move] = {}  # ended, not yet in the history
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
        record = StreamRecord(
            name, schema, next_home(homes, self.steering.membership.staying()), now_s, path=path
        )
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
        out = self.steering.submit(
            spec.name,
            partitions=spec.plan.partitions,
            split_hosts=place_splits(spec.name, [s.home for s in streams]),
            policy_name=spec.policy,
            weights=weights,
            expected_bytes=expected_bytes,
            also={spec.key: spec.to_json()},
            now_s=now_s,
        )
        self.catalog.specs.wanted[spec.name] = spec
        return out

    def set_phase(self, name: QueryName, phase: Phase, *, now_s: float) -> list[Output]:
        """Pause, resume or close a query; no writes if it is in that phase already."""
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
        return self._put_spec(what, replace(spec, phase=phase), now_s)

    def set_policy(self, name: QueryName, policy_name: str, *, now_s: float) -> list[Output]:
        """Adapt by another policy from now on; whether processors push by themselves follows."""
        spec = self._going_on(name)
        changed = replace(spec, policy=policy(policy_name).name)
        out = self.steering.set_policy(
            name, policy_name, also={changed.key: changed.to_json()}, now_s=now_s
        )
        self.catalog.specs.wanted[name] = changed
        return out

    def drop(self, name: QueryName, *, now_s: float) -> list[Output]:
        """Forget a query that has ended; Refusal of domain `busy` while somebody still has it."""
        spec = self.catalog.spec(name)
        if not spec.end:
            raise Refusal(
                Domain.QUERY,
                f"query {name!r} is {spec.phase}",
                remedy="close it first",
                reason="state",
            )
        known = self.catalog.specs.durable.get(name)
        gone = known is not None and (known.end is End.CLOSED or known.settled)
        if not gone or not self.assignments.known_everywhere(
            self.left.get(name, self.assignments.first)
        ):
            raise Refusal(
                Domain.BUSY,
                f"query {name!r} has ended but a processor has not let go of it yet",
                remedy="try again in a second",
                reason="busy",
            )
        moves = [m for m in self.ended_moves.values() if m.query == name]
        for move in moves:
            del self.ended_moves[move.id]
        del self.catalog.specs.wanted[name]
        self.left.pop(name, None)
        self.decisions.forget(name)
        also = {spec.key: None, **{move_key(m.id): None for m in moves}}
        return self.steering.drop(name, also=also, now_s=now_s)

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

    def _put_stream(self, what: str, record: StreamRecord, now_s: float) -> list[Output]:
        self.catalog.streams.wanted[record.name] = record
        puts = {record.key: record.to_json()}
        return self.steering.write((what, record.name), puts, now_s=now_s)

    def _put_spec(self, what: str, spec: Spec, now_s: float) -> list[Output]:
        self.catalog.specs.wanted[spec.name] = spec
        return self.steering.write((what, spec.name), {spec.key: spec.to_json()}, now_s=now_s)


def _in_transit(stream: StreamName, query: QueryName) -> Refusal:
    return Refusal(
        Domain.BUSY,
        f"stream {stream!r}, which query {query!r} reads, gets another home",
        remedy="try again in a second",
        reason="busy",
    )
