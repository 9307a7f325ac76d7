"""The whole manager without I/O: `Steering` and the `Catalog` behind one set of events.

    messages, time, confirmed writes ─▶ steering ─┐
    what operators ask for ─▶ verbs ──────────────┤─▶ Send · Write · Chronicle · Happened
    heartbeats ─▶ closed? failed? assigned? ──────┘

What becomes of a query:

    RUNNING ⇄ PAUSED ─▶ CLOSING ── every member says closed, no move is open ─▶ closed
       └────────┴──────────┴── a member says failed, or dies with part of it ─▶ failed

Both ends are written down with what the instances reported; the query then leaves the assignment,
and its spec stays until it is dropped. `verbs` has what operators ask for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from dovetail_manager.adaptation.active_disk import UNKNOWN
from dovetail_manager.adaptation.snapshot import Nothing
from dovetail_manager.catalog import Catalog, End, Instance, Spec
from dovetail_manager.chronicle import (
    Chronicle,
    adaptations_history,
    decision_status,
    move_ended,
    moves_history,
)
from dovetail_manager.cleanups import CleanupRecord
from dovetail_manager.membership import IN, Member, MemberState
from dovetail_manager.moves.journal import Write, move_from_json, move_key
from dovetail_manager.moves.protocol import Move, MoveEnded, Outcome, Persist, Send, StepDown
from dovetail_manager.moves.protocol import Phase as MovePhase
from dovetail_manager.steering import Output, Steering, SteeringSettings
from dovetail_manager.verbs import Verbs
from dovetail_proto.assignment import Phase
from dovetail_proto.ids import Epoch, MoveId, ProcessorId, QueryName, StreamName
from dovetail_proto.messages import ControlMessage, Heartbeat, Join, Leave, Stage


@dataclass(frozen=True, slots=True)
class Happened:
    """Something to tell people; `kind` is one of `dovetail_proto.admin.EVENT_KINDS`."""

    kind: str
    query: str = ""
    stream: str = ""
    processor: str = ""
    move: str = ""
    text: str = ""


Effect = Send | Write | StepDown | Chronicle | Happened

TOLD = ("member", "joined", "died", "failed")
"""Writes of the steering machine after which the assignments are others."""


class Governor(Verbs):
    """The manager of one epoch. Verbs return outputs: pass them through `effects`."""

    def __init__(self, steering: Steering, catalog: Catalog) -> None:
        super().__init__(steering, catalog)
        steering.beside = self._farewell
        steering.free = self._bequeathed
        steering.rows_left = self._rows_left
        self._warned: set[QueryName] = set()  # of what active-disk does not know
        self._now_s = 0.0  # of the event that is being handled

    @classmethod
    def resume(
        cls,
        epoch: Epoch,
        revision: int,
        entries: Mapping[str, str],
        settings: SteeringSettings,
        now_s: float,
    ) -> tuple[Governor, list[Effect]]:
        """The manager of `epoch`, from what its predecessors wrote; and what it does first."""
        steering, outputs = Steering.resume(epoch, revision, entries, settings, now_s)
        catalog = Catalog()
        catalog.resume(entries)
        self = cls(steering, catalog)
        for name, spec in catalog.specs.wanted.items():
            query = steering.queries[QueryName(name)]
            if spec.settled:
                query.stopping.clear()
        left = [move_from_json(t) for k, t in entries.items() if k.startswith("move/")]
        return self, self.effects([*outputs, *self._left_over(left, now_s)], now_s)

    def _left_over(self, moves: Iterable[Move], now_s: float) -> list[Output]:
        """Records of moves that nobody goes on with: ended ones, and those of ended queries."""
        out: list[Output] = []
        for move in moves:
            query = self.steering.queries.get(move.query)
            if query is None:
                gone = {move_key(move.id): None}
                out += self.steering.write(("forgotten",), gone, now_s=now_s)
            elif move.outcome is not None:
                out.append(MoveEnded(move))
            elif query.over:
                move.outcome, move.phase = Outcome.FAILED, MovePhase.ENDED
                move.failure, move.ended_s = query.cause, now_s
                out.append(MoveEnded(move))
        return out

    # What happens ---------------------------------------------------------------------------------

    def handle(self, source: ProcessorId, m: ControlMessage, now_s: float) -> list[Effect]:
        """Take a message from a processor; Refusal, with nothing changed, if it is out of order."""
        self._now_s = now_s
        out = self.steering.handle(source, m, now_s)
        if isinstance(m, Join):
            self.assignments.joined(m.processor)
        elif isinstance(m, Heartbeat):
            member = self.steering.membership.members.get(m.processor)
            if member and member.state in IN and member.incarnation == m.incarnation:
                self.assignments.heard(m.processor, m.assigned)
                out += self._failures(m, now_s)
        elif isinstance(m, Leave) and m.ends:
            out += self._give_way(m.processor, now_s)
        return self.effects(out, now_s)

    def _give_way(self, leaver: ProcessorId, now_s: float) -> list[Output]:
        """A processor ends: what would keep it is unpinned, or closed while its state is there.

        Said again with every heartbeat of the leaver, so that whatever comes up later is seen too.
        """
        out: list[Output] = []
        for spec in list(self.catalog.specs.wanted.values()):
            if spec.end or spec.phase is Phase.CLOSING:
                continue
            if kept := self._kept_at(spec, leaver):
                why = f"processor {leaver!r} ends, and {kept}"
                out += self.set_phase(spec.name, Phase.CLOSING, why=why, now_s=now_s)
            elif pinned := self.steering.queries[spec.name].pinned_at(leaver):
                out += self.pin(spec.name, pinned, False, now_s=now_s)
        return out

    def _kept_at(self, spec: Spec, leaver: ProcessorId) -> str:
        """Why a query cannot go on without a processor that ends; empty if it can."""
        query = self.steering.queries[spec.name]
        if not self.steering.membership.staying():
            return "nobody is left to go on with the query"
        if stream := self.rehoming.read_from_file(spec, leaver):
            return f"the query reads stream {stream!r} from a file there"
        if spec.phase is Phase.PAUSED and query.depends_on(leaver):
            return "nothing of a paused query can move"
        if query.finds_no_room(leaver):
            return "nobody has room for what the query holds there"
        return ""

    def confirmed(self, revision: int, now_s: float) -> list[Effect]:
        """The store has written `revision`."""
        self._now_s = now_s
        journal = self.steering.journal
        due = bool(journal.queue) and revision == journal.revision + 1
        entry = journal.queue[0] if due else None
        out = self.steering.confirmed(revision, now_s)
        if entry is None:
            return self.effects(out, now_s)
        before = {(n, s.discarded) for n, s in self.catalog.specs.durable.items() if _gone(s)}
        concerned = self.catalog.confirmed(entry.puts)
        if concerned or entry.tag[0] in TOLD:
            self.assignments.changed()
        self.rehoming.confirmed(entry.tag, entry.puts)
        for name, spec in self.catalog.specs.durable.items():
            if _gone(spec) and (name, spec.discarded) not in before:
                self.left[spec.name] = self.assignments.version
        return [*self._told(entry), *self.effects(out, now_s)]

    def store_failed(self) -> list[Effect]:
        """A write was not answered or answered with an error: try again, it is idempotent."""
        return [w for w in self.steering.store_failed() if not isinstance(w, MoveEnded)]

    def recorded(self, move: MoveId, now_s: float) -> list[Effect]:
        """An ended move is in the history: its entry is needed no longer."""
        if self.ended_moves.pop(move, None) is None:
            return []
        return self.effects(
            self.steering.write(("forgotten",), {move_key(move): None}, now_s=now_s), now_s
        )

    def tick(self, now_s: float) -> list[Effect]:
        """Let time pass."""
        self._now_s = now_s
        return self.effects(self.steering.tick(now_s), now_s)

    def next_tick_s(self) -> float:
        """When `tick` will have something to do."""
        return min(self.steering.next_tick_s(), self.assignments.next_s())

    def check(self) -> None:
        """Assert every invariant of the parts."""
        self.steering.check()
        specs, queries = self.catalog.specs.wanted, self.steering.queries
        assert set(specs) == set(queries), "a query without a spec, or a spec without a query"
        for name, spec in specs.items():
            query = queries[QueryName(name)]
            assert (spec.end is End.CLOSED) == query.closed, f"{name}: {spec.end!r}"
            assert (spec.end is End.FAILED) == bool(query.cause), f"{name}: {spec.end!r}"

    # What follows ---------------------------------------------------------------------------------

    def effects(self, outputs: Iterable[Output], now_s: float) -> list[Effect]:
        """What the outputs of the machine and of verbs come to, and whatever is due after them."""
        self._now_s = now_s
        out: list[Effect] = []
        todo = [*outputs, *self._due(now_s)]
        for output in todo:
            if isinstance(output, MoveEnded):
                move = output.move
                self.ended_moves[move.id] = move
                self.assignments.changed()  # a query that is to close may have waited for it
                text = f"{move.outcome}{': ' if move.failure else ''}{move.failure}"
                out += [move_ended(move), _about_move("move-ended", move.query, move.id, text)]
            else:
                out.append(output)
        for query in self.steering.queries.values():
            made, chronicle = self.decisions.unsaved(query, now_s)
            if chronicle is not None:
                out.append(chronicle)
            for record in made:
                if isinstance(record.decision, Nothing) and record.decision.kind == UNKNOWN:
                    out += self._warn(query.name, record.decision.reason)
                if record.admitted and not isinstance(record.decision, Nothing):
                    told = decision_status(record)
                    text = f"{told.decision}: {told.reason}"
                    out.append(Happened("adaptation-decided", query=query.name, text=text))
        out += self.assignments.due(now_s)
        return out

    def _due(self, now_s: float) -> list[Output]:
        """Queries that are closed or dropped everywhere now, streams that need another home."""
        out: list[Output] = []
        for spec in list(self.catalog.specs.wanted.values()):
            query = self.steering.queries[spec.name]
            if spec.phase is Phase.CLOSING and not spec.end and self._closed_everywhere(spec):
                ended = self._ended(spec, End.CLOSED)
                also = {ended.key: ended.to_json()}
                query.orders.clear()
                out += self.steering.close(spec.name, also=also, now_s=now_s)
            elif spec.end is End.FAILED and not spec.settled and query.told and not query.stopping:
                settled = replace(spec.with_instances(self._reports(spec.name)), settled=True)
                out += self._put_spec("settled", settled, now_s)
            if not spec.end:
                resting = spec.phase is not Phase.RUNNING
                query.resting = resting or self.rehoming.in_transit(spec) is not None
        return [*out, *self.rehoming.due(now_s)]

    def _closed_everywhere(self, spec: Spec) -> bool:
        known = self.catalog.specs.durable.get(spec.name)
        if known is None or known.phase is not Phase.CLOSING:
            return False
        if self.steering.queries[spec.name].coordinator.moves:
            return False
        members = self.steering.membership.alive()
        heard = [self.steering.load.report(spec.name, m) for m in members]
        return bool(heard) and all(h is not None and h.stage is Stage.CLOSED for h in heard)

    def _failures(self, m: Heartbeat, now_s: float) -> list[Output]:
        out: list[Output] = []
        for load in m.loads:
            query = self.steering.queries.get(load.query)
            if load.stage is Stage.FAILED and query is not None and not query.over:
                ended = self._ended(self.catalog.spec(load.query), End.FAILED)
                cause = f"processor {m.processor}: {load.cause}"
                also = {ended.key: ended.to_json()}
                out += self.steering.fail(load.query, cause, also=also, now_s=now_s)
        return out

    def _ended(self, spec: Spec, end: End) -> Spec:
        """The spec with its end, and with what everyone reported so far."""
        ended = replace(spec.with_instances(self._reports(spec.name)), end=end, ended_s=self._now_s)
        self.catalog.specs.wanted[spec.name] = ended
        return ended

    def _rows_left(self, name: QueryName) -> tuple[int, tuple[StreamName, ...]]:
        """Rows that a query's inputs still bring, and the streams of which that is unknown."""
        rows, unknown = 0, []
        for i in self.catalog.spec(name).plan.inputs:
            stream = self.catalog.stream(i.stream)
            left = self.steering.load.rows_left(stream.name, stream.home)
            rows += left or 0
            if left is None:
                unknown.append(stream.name)
        return rows, tuple(dict.fromkeys(unknown))

    def _warn(self, name: QueryName, text: str) -> list[Effect]:
        """Once a query: what its policy does not know."""
        if name in self._warned:
            return []
        self._warned.add(name)
        return [Happened("query-warned", query=name, text=text)]

    def _farewell(self, member: Member) -> dict[str, str | None]:
        """A member has left or died: what it reported is kept, and which queries it took along."""
        puts: dict[str, str | None] = {}
        heir = self.steering.membership.heir_of(member.processor)
        for spec in list(self.catalog.specs.wanted.values()):
            changed = spec
            load = self.steering.load.report(spec.name, member)
            if load is not None and not _gone(spec):
                last = Instance(member.processor, member.incarnation, load)
                changed = spec.with_instances((last,))
            if self.steering.queries[spec.name].cause and not spec.end:
                changed = self._ended(changed, End.FAILED)
            if member.state is MemberState.LEFT and heir is not None and spec.has_logs:
                changed = changed.handed_on(member.processor, member.incarnation, heir)
            if changed != spec:
                self.catalog.specs.wanted[spec.name] = changed
                puts[changed.key] = changed.to_json()
        return puts

    def _bequeathed(self, member: Member) -> bool:
        """Whether others have what was at a member that leaves: its streams, its result logs."""
        heir = self.steering.membership.heir_of(member.processor)
        streams = self.catalog.streams.wanted.values()
        at_home = any(s.home == member.processor for s in streams)
        return heir is None or (member.heir == heir and not at_home)

    def _told(self, entry: Persist) -> list[Effect]:
        """What people are told when a write is durable."""
        what, *rest = entry.tag
        match what:
            case "stream-created" | "stream-ended" | "stream-dropped":
                return [Happened(what, stream=rest[0])]
            case "stream-rehomed":
                home = self.catalog.streams.durable[rest[0]].home
                return [Happened(what, stream=rest[0], processor=home)]
            case "query-paused" | "query-resumed" | "query-closing":
                return [Happened(what, query=rest[0], text=rest[1])]
            case "cleanup-started" | "cleanup-ended":
                record = self.catalog.specs.durable[rest[0]].cleanup
                assert record is not None
                text = record.master if what == "cleanup-started" else _how_ended(record)
                return [Happened(what, query=rest[0], text=text)]
            case "submitted" | "closed":
                return [Happened(f"query-{what}", query=rest[0])]
            case "failed":
                return [self._failed(rest[0])]
            case "dropped":
                name = QueryName(rest[0])
                self._warned.discard(name)
                histories = (moves_history(name), adaptations_history(name))
                emptied = [Chronicle(history, {}, keep=0) for history in histories]
                return [Happened("query-dropped", query=name), *emptied]
            case "joined":
                return [Happened("processor-joined", processor=rest[0])]
            case "member":
                member = self.steering.membership.members[ProcessorId(rest[0])]
                kind = "leaving" if member.state is MemberState.LEAVING else "left"
                return [Happened(f"processor-{kind}", processor=rest[0])]
            case "died":
                cause = self.steering.membership.members[ProcessorId(rest[0])].cause
                dead = Happened("processor-died", processor=rest[0], text=cause)
                return [dead, *(self._failed(query) for query in rest[1:])]
            case "planned":
                for query in self.steering.queries.values():
                    if move := query.coordinator.moves.get(MoveId(rest[0])):
                        text = f"from {move.sender} to {move.receiver}: {move.reason}"
                        return [_about_move("move-begun", query.name, move.id, text)]
        return []

    def _failed(self, name: str) -> Happened:
        cause = self.steering.queries[QueryName(name)].cause
        return Happened("query-failed", query=name, text=cause)


def _how_ended(record: CleanupRecord) -> str:
    return f"{record.state}: {record.cause}" if record.cause else str(record.state)


def _gone(spec: Spec) -> bool:
    """Whether nobody has to know of the query any more."""
    return spec.end is End.CLOSED or spec.settled


def _about_move(kind: str, query: str, move: str, text: str) -> Happened:
    return Happened(kind, query=query, move=move, text=text)
