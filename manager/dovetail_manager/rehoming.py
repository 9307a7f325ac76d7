"""Streams whose home leaves, or is gone, get another one.

    home is gone, no query reads ─▶ another home, at once
    home leaves ── no group of a reader moves ─▶ `next_home` is durable: nothing more is taken in
                ── nobody is left to go to, or it was started anew ─▶ it stays after all
                ── all that came is joined: the home reports its handover ─▶ in one transaction the
                   stream is at `next_home`, and the readers' splits with it
                ── everyone knows ─▶ groups may move again

A reader is a query that has not ended. Sources are sent on by the old home and the new one knows
how far each of them was, so that nothing is lost and nothing comes twice. Whoever dies meanwhile
takes the readers along, as every host of a split does; a manager that dies leaves its successor
where the store is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dovetail_manager.adaptation.initial import next_home
from dovetail_manager.assignments import Assignments
from dovetail_manager.catalog import Catalog, Spec, StreamRecord
from dovetail_manager.membership import Member, MemberState
from dovetail_manager.queries import query_from_json
from dovetail_manager.steering import Output, Steering
from dovetail_proto.assignment import Phase
from dovetail_proto.errors import Domain, Refusal
from dovetail_proto.ids import ProcessorId, QueryName, StreamName


class Rehoming:
    """See the module."""

    def __init__(self, steering: Steering, catalog: Catalog, assignments: Assignments) -> None:
        self._steering = steering
        self._catalog = catalog
        self._assignments = assignments
        self._moved: dict[str, int] = {}  # the first assignment with a stream's new home
        self._frozen: dict[str, int] = {}  # the first with which it takes nothing more in

    def in_transit(self, spec: Spec) -> StreamName | None:
        """A stream of the query that goes, or is about to go, to another home."""
        streams = (self._catalog.streams.wanted[i.stream] for i in spec.plan.inputs)
        return next((s.name for s in streams if self.moves(s)), None)

    def moves(self, record: StreamRecord) -> bool:
        """Whether a stream goes, or is about to go, to another home."""
        return record.moving or self._state(record) is MemberState.LEAVING

    def check_leave(self, processor: ProcessorId) -> None:
        """Refusal if a stream cannot go from this home now."""
        for record in self._catalog.streams.wanted.values():
            for spec in self._readers(record) if record.home == processor else ():
                reads = f"query {spec.name!r} reads stream {record.name!r} at {processor!r}"
                if record.path is not None:
                    raise _kept(f"{reads} from {record.path!r}", "close the query first")
                if spec.phase is Phase.PAUSED:
                    raise _kept(f"{reads} and is paused", "resume it first")

    def read_from_file(self, spec: Spec, home: ProcessorId) -> StreamName | None:
        """A stream that this home reads from a file for the query: others may not have it."""
        streams = (self._catalog.streams.wanted[i.stream] for i in spec.plan.inputs)
        return next((s.name for s in streams if s.home == home and s.path is not None), None)

    def due(self, now_s: float) -> list[Output]:
        """What can be done now."""
        out: list[Output] = []
        for record in list(self._catalog.streams.wanted.values()):
            state = self._state(record)
            if state is MemberState.ALIVE and not record.moving:
                continue
            if self._catalog.streams.durable.get(record.name) != record:
                continue
            known = self._moved.get(record.name, self._assignments.first)
            stays = state is MemberState.ALIVE or not self._steering.membership.staying()
            if record.handover and self._assignments.known_everywhere(known):
                out += self._put("stream-settled", replace(record, handover=""), {}, now_s)
            elif record.next_home is not None and stays:
                out += self._put("stream-stays", replace(record, next_home=None), {}, now_s)
            elif not record.handover and state is MemberState.LEAVING:
                out += self._hand_on(record, now_s)
            elif state not in (MemberState.ALIVE, MemberState.LEAVING):
                out += self._replace(record, now_s)
        return out

    def confirmed(self, tag: tuple[str, ...], puts: Mapping[str, str | None]) -> None:
        """A write is durable, and the assignments are those after it."""
        if tag[0] == "stream-leaving":
            self._frozen[tag[1]] = self._assignments.version
        if tag[0] != "stream-rehomed":
            return
        self._moved[tag[1]] = self._assignments.version
        for key, text in puts.items():
            kind, _, name = key.partition("/")
            query = self._steering.queries.get(QueryName(name))
            if kind == "query" and text is not None and query is not None:
                query.coordinator.set_hosts(query_from_json(text).split_hosts)

    def _hand_on(self, record: StreamRecord, now_s: float) -> list[Output]:
        """The next step of a stream whose home leaves."""
        readers = self._readers(record)
        queries = [self._steering.queries[s.name] for s in readers]
        alive = self._steering.membership.staying()
        if not alive or any(q.coordinator.moves for q in queries):
            return []
        if record.next_home is None and any(s.phase is not Phase.RUNNING for s in readers):
            return []  # what waits for a paused query could not be joined
        if record.path is not None and readers:
            return []  # another processor may not have the file
        if record.next_home not in alive:
            chosen = replace(record, next_home=self._chosen())
            return self._put("stream-leaving", chosen, {}, now_s)
        handover = self._handover(record)
        if not handover or any(s.phase is Phase.CLOSING for s in readers):
            return []
        puts: dict[str, str | None] = {}
        for spec, query in zip(readers, queries, strict=True):
            inputs = [n for n, i in enumerate(spec.plan.inputs) if i.stream == record.name]
            query.hand_on(inputs, record.home, record.next_home)
            puts[query.key] = query.to_json()
        moved = replace(record, home=record.next_home, next_home=None, handover=handover)
        return self._put("stream-rehomed", moved, puts, now_s)

    def _replace(self, record: StreamRecord, now_s: float) -> list[Output]:
        """A stream whose home left or died: what was sent there and read by nobody is gone."""
        if not self._steering.membership.staying() or self._readers(record):
            return []
        moved = replace(record, home=self._chosen(), next_home=None, handover="")
        return self._put("stream-rehomed", moved, {}, now_s)

    def _handover(self, record: StreamRecord) -> str:
        member = self._member(record)
        beat = self._steering.load.beats.get(record.home)
        if member is None or beat is None or beat.incarnation != member.incarnation:
            return ""
        if beat.assigned < self._frozen.get(record.name, self._assignments.first):
            return ""  # from before; it may have taken something in since
        return next((s.handover for s in beat.streams if s.stream == record.name), "")

    def _readers(self, record: StreamRecord) -> list[Spec]:
        specs = self._catalog.specs.wanted.values()
        return [s for s in specs if not s.end and record.name in {i.stream for i in s.plan.inputs}]

    def _chosen(self) -> ProcessorId:
        return next_home(
            [s.home for s in self._catalog.streams.wanted.values()],
            self._steering.membership.staying(),
        )

    def _member(self, record: StreamRecord) -> Member | None:
        return self._steering.membership.members.get(record.home)

    def _state(self, record: StreamRecord) -> MemberState | None:
        member = self._member(record)
        return None if member is None else member.state

    def _put(
        self, what: str, record: StreamRecord, also: Mapping[str, str | None], now_s: float
    ) -> list[Output]:
        self._catalog.streams.wanted[record.name] = record
        puts = {record.key: record.to_json(), **also}
        return self._steering.write((what, record.name), puts, now_s=now_s)


def _kept(why: str, remedy: str) -> Refusal:
    return Refusal(Domain.MEMBER, why, remedy=remedy, reason="state")
