"""A query under this manager: its record, the machines that move and adapt it, its writes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dovetail_manager.adaptation.admission import Admission
from dovetail_manager.history import SavedDecisions
from dovetail_manager.journal import Entry
from dovetail_manager.moves.coordinator import Coordinator
from dovetail_manager.moves.placement import Placement
from dovetail_manager.moves.protocol import Move
from dovetail_manager.records import End, QueryRecord
from dovetail_proto.ids import GroupId, MoveId, ProcessorId, QueryName
from dovetail_proto.messages import PushPartitions, StopQuery

if TYPE_CHECKING:
    from dovetail_manager.state import State


@dataclass(frozen=True, slots=True)
class CleanupProgress:
    """How far a running clean-up is."""

    stage: str = "starting"
    bins_done: int = 0
    bins: int = 0
    combinations: int = 0
    owed: int = 0  # 0: not known


@dataclass(slots=True, eq=False)
class Query:
    """One submitted query."""

    record: QueryRecord  # as decided
    durable: QueryRecord | None  # as the store has it; None until its submission is there
    placement: Placement
    coordinator: Coordinator
    admission: Admission
    stopping: set[ProcessorId] = field(default_factory=set)
    """Who has to drop a failed query yet; empty until its failure is durable."""
    orders: dict[ProcessorId, PushPartitions] = field(default_factory=dict)  # not answered yet
    drain_failures: dict[ProcessorId, int] = field(default_factory=dict)
    """Per leaver: moves in a row that found no room for its groups."""
    ended_moves: dict[MoveId, Move] = field(default_factory=dict)  # not in the history yet
    saved: SavedDecisions = field(default_factory=SavedDecisions)
    unassigned_version: int = 0  # of the first assignment without a query that has ended
    cleanup_progress: CleanupProgress = field(default_factory=CleanupProgress)
    warned: bool = False  # people were told what its policy does not know

    @property
    def name(self) -> QueryName:
        """As it was submitted."""
        return self.record.name

    @property
    def failure_is_durable(self) -> bool:
        """Whether it has failed, and the store has it: processors may be told."""
        return self.durable is not None and self.durable.end is End.FAILED

    def pinned_at(self, processor: ProcessorId) -> list[GroupId]:
        """The pinned groups that `processor` owns."""
        owner = self.placement.next_map.owner
        return sorted(g for g in self.record.pinned if owner(g) == processor)

    def depends_on(self, processor: ProcessorId) -> bool:
        """Whether the query would lose state or input with `processor`."""
        hosts = (self.record.split_hosts, self.placement.split_hosts)
        hosting = any(processor in h for h in hosts)
        return not self.record.end and (hosting or self.placement.owns_groups(processor))

    def void_order(self, processor: ProcessorId) -> None:
        """Whoever is gone answers no order."""
        self.orders.pop(processor, None)
        self.admission.pushed(processor, 0)

    def check(self) -> None:
        """Assert every invariant of the parts."""
        self.record.check()
        self.coordinator.check()
        assert not (self.record.end and self.coordinator.moves), "a query that has ended moves"
        assert self.failure_is_durable or not self.stopping, "a failure is told too early"


@dataclass(frozen=True, slots=True)
class QueryWritten(Entry):
    """A query's record is new: it was submitted, paused, pinned, has ended and so on."""

    query: Query
    record: QueryRecord
    event: str = ""  # what people are told, beside a failure; empty: nothing
    text: str = ""

    def durable(self, state: State) -> None:
        """Tell processors and people."""
        recorded(state, self.query, self.record)
        if self.event:
            state.log(self.event, query=self.record.name, text=self.text)


def put(state: State, query: Query, record: QueryRecord, event: str = "", text: str = "") -> None:
    """A query's record is to be this one."""
    query.record = record
    state.write(QueryWritten({record.key: record.to_json()}, query, record, event, text))


def recorded(state: State, query: Query, record: QueryRecord) -> None:
    """A query's record is durable: tell whoever has to know, and to drop it if it has failed."""
    before, query.durable = query.durable, record
    query.coordinator.set_hosts(record.split_hosts)
    if before is None or _told(before) != _told(record):
        state.assignments.changed()
    if record.finished and not (
        before and before.finished and before.discarded == record.discarded
    ):
        query.unassigned_version = state.assignments.version
    if record.end is End.FAILED and not (before and before.end):
        query.stopping = {m.processor for m in state.membership.alive()}
        state.log("query-failed", query=record.name, text=record.cause)
        stop(state, query)


def stop(state: State, query: Query) -> None:
    """Tell whoever has not dropped a failed query yet to do so."""
    query.stopping &= {m.processor for m in state.membership.alive()}  # others may be gone
    for processor in sorted(query.stopping):
        state.send(processor, StopQuery(query.name, state.epoch, query.record.cause))


def _told(record: QueryRecord) -> QueryRecord:
    """The record without what no processor is told."""
    return replace(record, pinned=frozenset(), forced_bytes=0)
