"""The moves of all queries in the controller: what their machines ask for, done in order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dovetail_manager import history
from dovetail_manager.adaptation import draining
from dovetail_manager.effects import Send, StepDown
from dovetail_manager.journal import Entry
from dovetail_manager.membership import MemberState
from dovetail_manager.moves.protocol import Move, MoveEnded
from dovetail_manager.moves.records import MovePlanned, MoveWrite, move_key
from dovetail_manager.moves.steps import Instruction
from dovetail_manager.query import Query
from dovetail_manager.state import State
from dovetail_proto.ids import MoveId


@dataclass(frozen=True, slots=True)
class MoveWritten(Entry):
    """A step of a move is written down."""

    query: Query
    step: MoveWrite

    def durable(self, state: State) -> None:
        """Go on with the move; people hear that it begins."""
        move = self.query.coordinator.moves.get(self.step.move)
        if move is not None and isinstance(self.step, MovePlanned):
            text = f"from {move.sender} to {move.receiver}: {move.reason}"
            state.log("move-begun", query=move.query, move=move.id, text=text)
        carry_out(state, self.query, self.query.coordinator.persisted(self.step, state.now_s))


def carry_out(state: State, query: Query, instructions: Iterable[Instruction]) -> None:
    """Do what the coordinator of a query asks for."""
    for instruction in instructions:
        match instruction:
            case Send() | StepDown():
                state.effects.append(instruction)
            case MoveEnded(move):
                ended(state, query, move)
            case _:
                state.write(MoveWritten(instruction.puts, query, instruction))


def ended(state: State, query: Query, move: Move) -> None:
    """A move is over: record it, and let those go on who waited for it."""
    sender = state.membership.members.get(move.sender)
    if sender is not None and sender.state is MemberState.LEAVING:
        draining.note(query, move)
    query.ended_moves[move.id] = move
    state.assignments.changed()  # a query that is to close may have waited for it
    state.effects.append(history.move_ended(move))
    text = f"{move.outcome}{': ' if move.failure else ''}{move.failure}"
    state.log("move-ended", query=move.query, move=move.id, text=text)


def recorded(state: State, move: MoveId) -> None:
    """An ended move is in the history: its entry is needed no longer."""
    for query in state.queries.values():
        if query.ended_moves.pop(move, None) is not None:
            forget(state, move)


def forget(state: State, move: MoveId) -> None:
    """A move's record is needed no longer."""
    state.write(Entry({move_key(move): None}))
