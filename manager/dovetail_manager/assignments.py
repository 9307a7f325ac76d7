"""Who has been told what to run: one version for the whole cluster, told again until it is known.

    a stream, a query or a member changed, and that is durable ─▶ next version ─▶ Assign to everyone
    heartbeat of p1 names the version ─▶ p1 is left alone; until then it is told every second

Versions grow within an epoch and from epoch to epoch, so that a version which a processor had from
a former manager is never taken for one of this manager's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from dovetail_manager.adaptation.policies import policy
from dovetail_manager.membership import MemberState
from dovetail_manager.records import End, QueryRecord
from dovetail_manager.refusals import wrong_state
from dovetail_proto.assignment import (
    Assignment,
    DroppedRun,
    Leaving,
    Peer,
    Phase,
    QueryTask,
    StreamTask,
)
from dovetail_proto.errors import Domain
from dovetail_proto.ids import Epoch, ProcessorId, QueryName
from dovetail_proto.messages import Assign
from dovetail_proto.wire.control import ENVELOPE_BYTES_MAX

if TYPE_CHECKING:
    from dovetail_manager.query import Query
    from dovetail_manager.state import State

ASSIGNMENT_BYTES_MAX = ENVELOPE_BYTES_MAX // 2
"""What a new query or stream may make of an assignment. One that no message can carry would never
be known anywhere; the other half is for maps, which take more text the more their groups move."""

RESEND_S = 1.0
"""As often as a heartbeat can tell that it has arrived."""

EPOCH_SHIFT = 24
"""Sixteen million changes in one manager's term; epochs of ten digits still fit 63 bits."""


class Assignments:
    """The version of what members are to run, and which one each carries out."""

    def __init__(self, epoch: Epoch) -> None:
        self.first = (epoch << EPOCH_SHIFT) + 1
        self.version = self.first
        self._carried_out: dict[ProcessorId, int] = {}  # as a member's last heartbeat says
        self._sent_s: dict[ProcessorId, float] = {}  # of this version; not yet: left out

    def changed(self) -> None:
        """Something that processors must know is durable: everyone is told anew."""
        self.version += 1
        self._sent_s.clear()

    def joined(self, processor: ProcessorId) -> None:
        """A processor has (again) attached itself: what it was told may be lost."""
        self._carried_out.pop(processor, None)
        self._sent_s.pop(processor, None)

    def heard(self, processor: ProcessorId, assigned: int) -> None:
        """A heartbeat names the version that is carried out there."""
        self._carried_out[processor] = assigned

    def unaware(self, state: State, version: int) -> list[ProcessorId]:
        """Members that do not carry out `version` or a later one yet."""
        members = [m.processor for m in state.membership.alive()]
        return [p for p in members if self._carried_out.get(p, 0) < version]

    def send_due(self, state: State) -> None:
        """Send what is to be sent now."""
        for processor in self._untold(state):
            if state.now_s >= self._due_s(processor):
                self._sent_s[processor] = state.now_s
                made = assignment_of(state, processor)
                state.send(processor, Assign(made.epoch, made.version, made.to_json()))

    def next_s(self, state: State) -> float:
        """When `send_due` will have something to send, if nothing happens before."""
        return min(map(self._due_s, self._untold(state)), default=float("inf"))

    def _due_s(self, processor: ProcessorId) -> float:
        return self._sent_s.get(processor, float("-inf")) + RESEND_S

    def _untold(self, state: State) -> list[ProcessorId]:
        members = state.membership
        return [
            m.processor
            for m in members.alive()
            if not members.unwritten[m.processor]
            and self._carried_out.get(m.processor) != self.version
        ]


def assignment_of(state: State, processor: ProcessorId) -> Assignment:
    """All that `processor` is to run, as far as it is durable."""
    members = state.membership.alive()
    leavers = [m.processor for m in members if m.state is MemberState.LEAVING]
    streams = [s.durable for _, s in sorted(state.streams.items()) if s.durable is not None]
    queries = [(q, q.durable) for _, q in sorted(state.queries.items()) if q.durable is not None]
    return Assignment(
        state.epoch,
        state.assignments.version,
        {m.processor: Peer(m.address, m.incarnation) for m in members if m.address},
        tuple(
            StreamTask(
                s.name,
                s.schema,
                s.ended,
                s.path,
                s.created_s,
                leaves=s.next_home is not None,
                handover=s.handover,
            )
            for s in streams
            if s.home == processor
        ),
        tuple(
            _task(state, query, durable, processor)
            for query, durable in sorted(queries, key=lambda pair: _by_age(pair[1]))
            if _runs(query, durable, processor)
        ),
        leaving=_leaving(state, processor) if processor in leavers else None,
        dropped=(
            *(DroppedRun(r.name, r.run, r.spill) for _, r in queries if r.discarded),
            *(r.run for _, r in sorted(state.removals.items()) if processor in r.away),
        ),
    )


def check_size(state: State, added_bytes: int, processors: Iterable[ProcessorId]) -> None:
    """Refusal if so much more text is more than one of these can be told."""
    for processor in processors:
        size_bytes = len(assignment_of(state, processor).to_json()) + added_bytes
        if size_bytes > ASSIGNMENT_BYTES_MAX:
            raise wrong_state(
                Domain.MESSAGE,
                f"all that processor {processor!r} is to run would take {size_bytes:,} bytes "
                f"to tell it, and a message takes {ASSIGNMENT_BYTES_MAX:,}",
                "drop queries and streams that have ended, or use fewer columns",
            )


def _leaving(state: State, processor: ProcessorId) -> Leaving:
    records = [q.durable for q in state.queries.values() if q.durable is not None]
    return Leaving(
        state.membership.successor_of(processor), {r.name: r.run for r in records if r.has_logs}
    )


def _runs(query: Query, durable: QueryRecord, processor: ProcessorId) -> bool:
    """Whether a processor has to know of a query: until it has closed or dropped it."""
    if durable.end is End.FAILED:
        return not durable.stopped and processor in query.stopping
    return not durable.end


def _task(state: State, query: Query, durable: QueryRecord, processor: ProcessorId) -> QueryTask:
    # A join that has closed takes part in no move: open ones end first, none begins.
    adaptation = state.settings.adaptation
    waits = durable.phase is Phase.CLOSING and query.coordinator.moves
    return QueryTask(
        name=durable.name,
        plan=durable.plan,
        map=query.placement.map,
        split_hosts=query.placement.split_hosts,
        phase=Phase.PAUSED if waits else durable.phase,
        disk=replace(durable.disk, allowed=policy(durable.policy).spills_locally),
        spill=durable.spill,
        results=durable.results,
        counting=durable.counting,
        settle_s=adaptation.settle_intervals * adaptation.move_interval_s,
        paper_restrictions=adaptation.paper_restrictions,
        run=durable.run,
        log=durable.log_of(processor),
        keep_s=durable.keep_results_s,
        keep_bytes=durable.keep_results_bytes,
    )


def _by_age(record: QueryRecord) -> tuple[float, QueryName]:
    """Memory that is short stays with those who came first."""
    return record.created_s, record.name
