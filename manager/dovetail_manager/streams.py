"""The life of a stream: created, ended, dropped, and given another home when its home leaves.

    home is gone, no query reads ─▶ another home, at once
    home leaves ── no group of a reader moves ─▶ `next_home` is durable: nothing more is taken in
                ── nobody is left to go to, or it was started anew ─▶ it stays after all
                ── all that came is joined: the home reports its handover ─▶ in one transaction the
                   stream is at `next_home`, and the readers' splits with it
                ── everyone knows ─▶ groups may move again

A reader is a query that has not ended. Sources are sent on by the old home and the new one knows
how far each of them was, so that nothing is lost and nothing comes twice. Whoever dies meanwhile
takes the readers along, as every host of a split does; the next manager goes on where the store is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import pyarrow as pa

from dovetail_manager.adaptation.initial import next_home
from dovetail_manager.assignments import check_size
from dovetail_manager.journal import Entry
from dovetail_manager.membership import MemberState
from dovetail_manager.query import Query, recorded
from dovetail_manager.records import QueryRecord, StreamRecord
from dovetail_manager.refusals import busy, exists, wrong_state
from dovetail_manager.state import State, Stream
from dovetail_proto.assignment import Phase
from dovetail_proto.errors import Domain
from dovetail_proto.ids import ProcessorId, QueryName, StreamName


class Change(StrEnum):
    """Why a stream's record is new."""

    CREATED = "stream-created"
    ENDED = "stream-ended"
    FROZEN = "frozen"  # its home leaves, and takes nothing more in
    STAYS = "stays"  # after all
    REHOMED = "stream-rehomed"
    SETTLED = "settled"  # everyone knows its new home


@dataclass(frozen=True, slots=True)
class StreamWritten(Entry):
    """A stream's record is new."""

    stream: Stream
    record: StreamRecord
    change: Change
    readers: tuple[tuple[Query, QueryRecord], ...] = ()  # with their splits at the new home

    def durable(self, state: State) -> None:
        """Tell processors, and people what they may want to know."""
        self.stream.durable = self.record
        for query, record in self.readers:
            recorded(state, query, record)
        state.assignments.changed()
        if self.change is Change.FROZEN:
            self.stream.frozen_version = state.assignments.version
        if self.change is Change.REHOMED:
            self.stream.rehomed_version = state.assignments.version
            state.log(self.change, stream=self.record.name, processor=self.record.home)
        elif self.change in (Change.CREATED, Change.ENDED):
            state.log(self.change, stream=self.record.name)


@dataclass(frozen=True, slots=True)
class StreamDropped(Entry):
    """A stream is forgotten."""

    stream: Stream
    name: StreamName

    def durable(self, state: State) -> None:
        """Tell its home and people."""
        self.stream.durable = None
        if self.stream.record is None:
            del state.streams[self.name]
        state.assignments.changed()
        state.log("stream-dropped", stream=self.name)


# What operators ask for ---------------------------------------------------------------------------


def create(state: State, name: StreamName, schema: pa.Schema, path: str | None) -> None:
    """Declare a stream and give it a home."""
    if name in state.declared():
        raise exists(Domain.STREAM, f"stream {name!r} exists already")
    record = StreamRecord(name, schema, _home(state), state.now_s, path=path)
    check_size(state, len(record.to_json()), [record.home])
    _put(state, record, Change.CREATED)


def end(state: State, name: StreamName) -> None:
    """Nothing more may be sent; no writes if that is so already."""
    record = state.stream(name)
    if not record.ended:
        _put(state, replace(record, ended=True), Change.ENDED)


def drop(state: State, name: StreamName) -> None:
    """Forget a stream; Refusal if a query reads it."""
    record = state.stream(name)
    for query in state.readers(name):
        raise wrong_state(
            Domain.STREAM, f"query {query.name!r} reads stream {name!r}", "close the query first"
        )
    stream = state.streams[name]
    stream.record = None
    state.write(StreamDropped({record.key: None}, stream, name))


# Another home -------------------------------------------------------------------------------------


def in_transit(state: State, record: QueryRecord) -> StreamName | None:
    """A stream of the query that goes, or is about to go, to another home."""
    return next((n for n, s in state.inputs(record).items() if _moves(state, s)), None)


def refuse_in_transit(state: State, record: QueryRecord) -> None:
    """Refusal while a stream of the query gets another home."""
    if stream := in_transit(state, record):
        raise busy(f"stream {stream!r}, which query {record.name!r} reads, gets another home")


def refuse_over(state: State, record: StreamRecord, reader: QueryName) -> None:
    """Refusal if a new query would read a stream of which nothing more can come.

    A stream that has ended takes no rows, and queries are not given those of before. A file is read
    once, from the first query on; until then it does not matter that its stream has ended.
    """
    load = state.load.stream(record.name, record.home)
    was_read = load is not None and load.ended and load.rows_left == 0
    if was_read if record.path else record.ended:
        end = f"its file {record.path!r} has been read" if record.path else "it has ended"
        raise wrong_state(
            Domain.STREAM,
            f"nothing more comes on stream {record.name!r}: {end}; query {reader!r} would find "
            "nothing",
            "create another stream, submit the query on it, then "
            + ("it is read" if record.path else "send the rows"),
        )


def refuse_moving(state: State, record: StreamRecord) -> None:
    """Refusal while a stream gets another home."""
    if _moves(state, record):
        raise busy(f"stream {record.name!r} gets another home: {record.home!r} leaves")


def check_leave(state: State, home: ProcessorId) -> None:
    """Refusal if a stream cannot go from this home now."""
    for record in state.declared().values():
        for query in state.readers(record.name) if record.home == home else ():
            reads = f"query {query.name!r} reads stream {record.name!r} at {home!r}"
            if record.path is not None:
                raise wrong_state(
                    Domain.MEMBER, f"{reads} from {record.path!r}", "close the query first"
                )
            if query.record.phase is Phase.PAUSED:
                raise wrong_state(Domain.MEMBER, f"{reads} and is paused", "resume it first")


def read_from_file(state: State, record: QueryRecord, home: ProcessorId) -> StreamName | None:
    """A stream that this home reads from a file for the query: others may not have it."""
    read = state.inputs(record).values()
    return next((s.name for s in read if s.home == home and s.path is not None), None)


def rehome_due(state: State) -> None:
    """Take the next step with every stream whose home leaves or is gone, if it can be taken."""
    for record in state.declared().values():
        stream = state.streams[record.name]
        home = _home_state(state, record)
        if (home is MemberState.ALIVE and not record.moving) or stream.durable != record:
            continue
        rehomed_version = stream.rehomed_version or state.assignments.first
        stays = home is MemberState.ALIVE or not state.membership.staying()
        if record.handover and not state.assignments.unaware(state, rehomed_version):
            _put(state, replace(record, handover=""), Change.SETTLED)
        elif record.next_home is not None and stays:
            _put(state, replace(record, next_home=None), Change.STAYS)
        elif not record.handover and home is MemberState.LEAVING:
            _hand_on(state, record)
        elif home not in (MemberState.ALIVE, MemberState.LEAVING):
            _replace_home(state, record)


def _hand_on(state: State, record: StreamRecord) -> None:
    """The next step of a stream whose home leaves."""
    readers = state.readers(record.name)
    staying = state.membership.staying()
    if not staying or any(q.coordinator.moves for q in readers):
        return
    if record.next_home is None and any(q.record.phase is not Phase.RUNNING for q in readers):
        return  # what waits for a paused query could not be joined
    if record.path is not None and readers:
        return  # another processor may not have the file
    if record.next_home not in staying:
        _put(state, replace(record, next_home=_home(state)), Change.FROZEN)
        return
    handover = _handover(state, record)
    if not handover or any(q.record.phase is Phase.CLOSING for q in readers):
        return
    for query in readers:
        inputs = query.record.inputs_from(record.name)
        query.record = query.record.hosted_by(inputs, record.home, record.next_home)
    moved = replace(record, home=record.next_home, next_home=None, handover=handover)
    _put(state, moved, Change.REHOMED, readers)


def _replace_home(state: State, record: StreamRecord) -> None:
    """A stream whose home left or died: what was sent there and read by nobody is gone."""
    if state.membership.staying() and not state.readers(record.name):
        moved = replace(record, home=_home(state), next_home=None, handover="")
        _put(state, moved, Change.REHOMED)


def _handover(state: State, record: StreamRecord) -> str:
    """What the home said when all that came was joined; empty until it has."""
    member = state.membership.members.get(record.home)
    beat = state.load.beats.get(record.home)
    if member is None or beat is None or beat.incarnation != member.incarnation:
        return ""
    if beat.assigned < (state.streams[record.name].frozen_version or state.assignments.first):
        return ""  # from before; it may have taken something in since
    return next((s.handover for s in beat.streams if s.stream == record.name), "")


def _moves(state: State, record: StreamRecord) -> bool:
    """Whether a stream goes, or is about to go, to another home."""
    return record.moving or _home_state(state, record) is MemberState.LEAVING


def _home_state(state: State, record: StreamRecord) -> MemberState | None:
    member = state.membership.members.get(record.home)
    return None if member is None else member.state


def _home(state: State) -> ProcessorId:
    return next_home([s.home for s in state.declared().values()], state.membership.staying())


def _put(state: State, record: StreamRecord, change: Change, readers: Sequence[Query] = ()) -> None:
    stream = state.streams.setdefault(record.name, Stream())
    stream.record = record
    changed = tuple((q, q.record) for q in readers)
    puts = {r.key: r.to_json() for _, r in changed}
    state.write(
        StreamWritten({record.key: record.to_json(), **puts}, stream, record, change, changed)
    )
