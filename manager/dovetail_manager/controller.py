"""The manager without I/O: events in, effects out, time as an argument.

    messages of processors ─ handle ──────┐
    what operators ask for ─ do ──────────┤
    time passes ─ tick ───────────────────┼─▶ State ─▶ what is due ─▶ list of effects:
    the store has written ─ confirmed ────┤              Send · Write · AppendHistory · LogEvent
    a move is in the history ─ recorded ──┘

Whatever must survive is written before anyone is told: an event decides and writes, the
confirmation of the write tells. `resume` rebuilds the machine from what the store holds, after any
prefix of the writes. Of two managers at once, the store and the processors believe the one with
the greater epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from dovetail_manager import members, queries, removals, streams
from dovetail_manager.adaptation import rounds
from dovetail_manager.effects import Effect
from dovetail_manager.membership import IN, member_from_json
from dovetail_manager.moves import journal as moves
from dovetail_manager.moves.protocol import Move, MovePhase, Outcome
from dovetail_manager.moves.records import map_key, move_from_json
from dovetail_manager.query import stop
from dovetail_manager.records import query_from_json, stream_from_json
from dovetail_manager.removals import removal_from_json
from dovetail_manager.state import ControllerSettings, State, Stream
from dovetail_proto.errors import Domain, Refusal
from dovetail_proto.ids import Epoch, MoveId, ProcessorId
from dovetail_proto.messages import (
    ControlMessage,
    Heartbeat,
    Join,
    Leave,
    MoveReply,
    Pushed,
    QueryStopped,
)
from dovetail_proto.partition_map import map_from_json

T = TypeVar("T")


class Controller:
    """The machine of one epoch. Not thread-safe; feed it one event at a time."""

    def __init__(self, state: State) -> None:
        self.state = state

    @classmethod
    def resume(
        cls,
        epoch: Epoch,
        revision: int,
        entries: Mapping[str, str],
        settings: ControllerSettings,
        now_s: float,
    ) -> tuple[Controller, list[Effect]]:
        """The controller of `epoch`, from what former ones wrote; and what it does first."""
        self = cls(State(epoch, revision, settings))
        state = self._at(now_s)
        of_kind = {
            kind: [text for key, text in entries.items() if key.startswith(f"{kind}/")]
            for kind in ("member", "stream", "query", "move", "removal")
        }
        state.membership.restore([member_from_json(t) for t in of_kind["member"]], now_s)
        for record in map(stream_from_json, of_kind["stream"]):
            state.streams[record.name] = Stream(record, record)
        for submitted in map(query_from_json, of_kind["query"]):
            current = map_from_json(entries[map_key(submitted.name)])
            state.add_query(submitted, current).durable = submitted
        state.removals = {r.run.run: r for r in map(removal_from_json, of_kind["removal"])}
        self._take_up([move_from_json(t) for t in of_kind["move"]])
        return self, self._effects()

    def _take_up(self, found: list[Move]) -> None:
        """Go on with the moves of a former manager, and have failed queries dropped."""
        state = self.state
        gone = [m.processor for m in state.membership.members.values() if m.state not in IN]
        for query in state.queries.values():
            if query.record.cause and not query.record.stopped:
                query.stopping = {m.processor for m in state.membership.alive()}
                stop(state, query)
            elif not query.record.end:
                query.placement.lost.update(gone)
                mine = [m for m in found if m.query == query.name and m.outcome is None]
                moves.carry_out(state, query, query.coordinator.take_up(mine, state.now_s))
        for move in found:
            moved = state.queries.get(move.query)
            if moved is None:
                moves.forget(state, move.id)
            elif move.outcome is not None:
                moves.ended(state, moved, move)
            elif moved.record.end:
                move.outcome, move.phase = Outcome.FAILED, MovePhase.ENDED
                move.failure, move.ended_s = moved.record.cause, state.now_s
                moves.ended(state, moved, move)

    # What happens ---------------------------------------------------------------------------------

    def handle(self, source: ProcessorId, m: ControlMessage, now_s: float) -> list[Effect]:
        """Take a message from a processor; Refusal, with nothing changed, if it is out of order."""
        state = self._at(now_s)
        if isinstance(m, Join | Heartbeat | Leave) and m.processor != source:
            raise Refusal(Domain.MEMBER, f"{source!r} speaks for {m.processor!r}")
        match m:
            case Join():
                members.joined(state, m)
            case Heartbeat():
                members.heartbeat(state, m)
            case Leave():
                members.leave(state, m)
            case Pushed():
                rounds.pushed(state, source, m)
            case QueryStopped():
                state.query(m.query).stopping.discard(source)
            case _ if isinstance(m, MoveReply):
                query = state.query(m.ref.query)
                moves.carry_out(state, query, query.coordinator.handle(source, m, now_s))
            case _:
                raise Refusal(Domain.MESSAGE, f"{type(m).__name__} is for processors")
        return self._effects()

    def do(self, verb: Callable[[State], T], now_s: float) -> tuple[T, list[Effect]]:
        """Do what an operator asks for: what the verb returns, and its effects.

        Raises what it raises; then nothing has changed.
        """
        return verb(self._at(now_s)), self._effects()

    def tick(self, now_s: float) -> list[Effect]:
        """Let time pass: deaths, resends, and once per sample an adaptation round."""
        state = self._at(now_s)
        for member in state.membership.tick(now_s):
            members.died(state, member)
        for query in state.queries.values():
            moves.carry_out(state, query, query.coordinator.tick(now_s))
        if now_s >= state.sampled_s + state.settings.sample_s:
            state.sampled_s = now_s
            for query in state.queries.values():
                if query.failure_is_durable:
                    stop(state, query)
                elif not query.record.end:
                    rounds.adapt(state, query)
            members.let_go(state)
        return self._effects()

    def confirmed(self, revision: int, now_s: float) -> list[Effect]:
        """The store has written `revision`."""
        state = self._at(now_s)
        entry, writes = state.journal.confirmed(revision)
        if entry is not None:
            entry.durable(state)
        state.effects += writes
        return self._effects()

    def store_failed(self) -> list[Effect]:
        """A write was not answered or answered with an error: try again, it is idempotent."""
        return [*self.state.journal.unanswered()]

    def recorded(self, move: MoveId, now_s: float) -> list[Effect]:
        """An ended move is in the history."""
        moves.recorded(self._at(now_s), move)
        return self._effects()

    def next_tick_s(self) -> float:
        """When `tick` will have something to do."""
        state = self.state
        return min(
            state.sampled_s + state.settings.sample_s,
            state.membership.next_tick_s(),
            state.assignments.next_s(state),
            *(q.coordinator.next_tick_s() for q in state.queries.values()),
        )

    def check(self) -> None:
        """Assert every invariant of the parts."""
        self.state.check()

    def _at(self, now_s: float) -> State:
        self.state.now_s = now_s
        return self.state

    def _effects(self) -> list[Effect]:
        """What the event led to, and whatever is due after it."""
        state = self.state
        queries.end_due(state)
        streams.rehome_due(state)
        removals.strike_out_due(state)
        rounds.record_decisions(state)
        state.assignments.send_due(state)
        effects, state.effects = state.effects, []
        return effects
