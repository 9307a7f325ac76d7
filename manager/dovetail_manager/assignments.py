"""Who has been told what to run: one version for the whole cluster, told again until it is known.

    a stream, a query or a member changed, and that is durable ─▶ next version ─▶ Assign to everyone
    heartbeat of p1 names the version ─▶ p1 is left alone; until then it is told every second

Versions grow within an epoch and from epoch to epoch, so that a version which a processor had from
a former manager is never taken for one of this manager's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from dovetail_manager.adaptation.policies import policy
from dovetail_manager.catalog import Catalog, End, Spec
from dovetail_manager.membership import MemberState
from dovetail_manager.moves.protocol import Send
from dovetail_manager.steering import Steering
from dovetail_proto.assignment import Assignment, DroppedRun, Leaving, Phase, QueryTask, StreamTask
from dovetail_proto.errors import Domain, Refusal
from dovetail_proto.ids import ProcessorId, QueryName
from dovetail_proto.messages import Assign
from dovetail_proto.wire.control import ENVELOPE_BYTES_MAX

ASSIGNMENT_BYTES_MAX = ENVELOPE_BYTES_MAX // 2
"""What a new query or stream may make of an assignment. One that no message can carry would never
be known anywhere; the other half is for maps, which take more text the more their groups move."""

RESEND_S = 1.0
"""As often as a heartbeat can tell that it has arrived."""

EPOCH_SHIFT = 24
"""Sixteen million changes in one manager's term; epochs of ten digits still fit 63 bits."""


class Assignments:
    """What every member is to run, and how far it knows."""

    def __init__(self, steering: Steering, catalog: Catalog) -> None:
        self._steering = steering
        self._catalog = catalog
        self.first = (steering.epoch << EPOCH_SHIFT) + 1
        self.version = self.first
        self._known: dict[ProcessorId, int] = {}  # version that a member says it carries out
        self._sent_s: dict[ProcessorId, float] = {}  # when it was last told; not yet: left out

    def changed(self) -> None:
        """Something that processors must know is durable: everyone is told anew."""
        self.version += 1
        self._sent_s.clear()

    def joined(self, processor: ProcessorId) -> None:
        """A processor has (again) attached itself: what it was told may be lost."""
        self._known.pop(processor, None)
        self._sent_s.pop(processor, None)

    def heard(self, processor: ProcessorId, assigned: int) -> None:
        """A heartbeat names the version that is carried out there."""
        self._known[processor] = assigned

    def known_everywhere(self, version: int) -> bool:
        """Whether every member carries out `version` or a later one."""
        return not self.unaware(version)

    def unaware(self, version: int) -> list[ProcessorId]:
        """Members that do not carry out `version` or a later one yet."""
        members = [m.processor for m in self._steering.membership.alive()]
        return [p for p in members if self._known.get(p, 0) < version]

    def due(self, now_s: float) -> list[Send]:
        """Assignments to send now."""
        out: list[Send] = []
        for processor in self._untold():
            if now_s >= self._sent_s.get(processor, float("-inf")) + RESEND_S:
                self._sent_s[processor] = now_s
                made = self.of(processor)
                out.append(Send(processor, Assign(made.epoch, made.version, made.to_json())))
        return out

    def next_s(self) -> float:
        """When `due` will have something to send, if nothing happens before."""
        times = [self._sent_s.get(p, float("-inf")) + RESEND_S for p in self._untold()]
        return min(times, default=float("inf"))

    def of(self, processor: ProcessorId) -> Assignment:
        """All that `processor` is to run, as far as it is durable."""
        members = self._steering.membership.alive()
        leavers = [m.processor for m in members if m.state is MemberState.LEAVING]
        return Assignment(
            self._steering.epoch,
            self.version,
            {m.processor: m.address for m in members if m.address},
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
                for _, s in sorted(self._catalog.streams.durable.items())
                if s.home == processor
            ),
            tuple(
                self._task(spec, processor)
                for spec in sorted(self._catalog.specs.durable.values(), key=_by_age)
                if self._runs(spec, processor)
            ),
            leaving=self._leaving(processor) if processor in leavers else None,
            dropped=tuple(
                DroppedRun(spec.name, spec.run, spec.spill)
                for _, spec in sorted(self._catalog.specs.durable.items())
                if spec.discarded
            ),
        )

    def check_size(self, added_bytes: int, told: Iterable[ProcessorId]) -> None:
        """Refusal if so much more text is more than one of these can be told."""
        for processor in told:
            size_bytes = len(self.of(processor).to_json()) + added_bytes
            if size_bytes > ASSIGNMENT_BYTES_MAX:
                raise Refusal(
                    Domain.MESSAGE,
                    f"all that processor {processor!r} is to run would take {size_bytes:,} bytes "
                    f"to tell it, and a message takes {ASSIGNMENT_BYTES_MAX:,}",
                    remedy="drop queries and streams that have ended, or use fewer columns",
                    reason="state",
                )

    def _leaving(self, processor: ProcessorId) -> Leaving:
        specs = self._catalog.specs.durable.values()
        return Leaving(
            self._steering.membership.heir_of(processor),
            {spec.name: spec.run for spec in specs if spec.has_logs},
        )

    def _untold(self) -> list[ProcessorId]:
        return [
            m.processor
            for m in self._steering.membership.alive()
            if not self._steering.unwritten[m.processor]
            and self._known.get(m.processor) != self.version
        ]

    def _runs(self, spec: Spec, processor: ProcessorId) -> bool:
        """Whether a processor has to know of a query: until it has closed or dropped it."""
        if spec.end is End.CLOSED or spec.settled:
            return False
        query = self._steering.queries[spec.name]
        return not query.told or processor in query.stopping

    def _task(self, spec: Spec, processor: ProcessorId) -> QueryTask:
        query = self._steering.queries[spec.name]
        # An instance that has closed takes part in no move: open ones end first, none begins.
        adaptation = self._steering.settings.adaptation
        waits = spec.phase is Phase.CLOSING and query.coordinator.moves
        return QueryTask(
            name=spec.name,
            plan=spec.plan,
            map=query.coordinator.map,
            split_hosts=query.coordinator.split_hosts,
            phase=Phase.PAUSED if waits else spec.phase,
            disk=replace(query.disk, allowed=policy(spec.policy).spills_locally),
            spill=spec.spill,
            results=spec.results,
            counting=spec.counting,
            settle_s=adaptation.settle_intervals * adaptation.move_interval_s,
            paper_restrictions=adaptation.paper_restrictions,
            run=spec.run,
            log=spec.log_of(processor),
        )


def _by_age(spec: Spec) -> tuple[float, QueryName]:
    """Memory that is short stays with those who came first."""
    return spec.created_s, spec.name
