"""What goes into the store's histories: ended moves and adaptation decisions, as people read them.

A move's entry in the store is deleted when its record is in the history: between the two it is in
both, and a manager that finds an ended move records it again under the same number. A decision to
do nothing that repeats is one record; its count is written at most every `REPEATS_S`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import takewhile

from dovetail_manager.adaptation.admission import Record
from dovetail_manager.adaptation.snapshot import MoveState, Nothing, PushState
from dovetail_manager.effects import AppendHistory
from dovetail_manager.moves.protocol import Move
from dovetail_proto.admin import AdaptationRecord, MoveStatus
from dovetail_proto.errors import ConfigError
from dovetail_proto.ids import Epoch, QueryName

REPEATS_S = 30.0
"""A count that grows once a second is not worth a write of its own each time."""

NUMBERS_PER_EPOCH = 10**8
"""Ids of moves have eight digits; with epochs below 2**26 numbers stay exact in Redis."""


def moves_history(query: QueryName) -> str:
    """Where a query's ended moves are."""
    return f"moves/{query}"


def adaptations_history(query: QueryName) -> str:
    """Where the decisions about a query are."""
    return f"adaptations/{query}"


def emptied(query: QueryName) -> list[AppendHistory]:
    """The query is dropped: so are its histories."""
    histories = (moves_history(query), adaptations_history(query))
    return [AppendHistory(history, {}, keep=0) for history in histories]


def move_ended(move: Move) -> AppendHistory:
    """The record of an ended move."""
    epoch, number = map(int, move.id.split("-"))
    text = json.dumps(asdict(move_status(move)))
    records = {epoch * NUMBERS_PER_EPOCH + number: text}
    return AppendHistory(moves_history(move.query), records, move=move.id)


def move_status(move: Move) -> MoveStatus:
    """A move as people see it."""
    return MoveStatus(
        id=move.id,
        sender=move.sender,
        receiver=move.receiver,
        phase=str(move.phase),
        outcome=str(move.outcome or ""),
        reason=move.reason,
        failure=move.failure,
        groups=sum(len(c.groups) for c in move.chunks) or len(move.groups),
        size_bytes=sum(c.size_bytes for c in move.chunks),
        started_s=move.started_s,
        ended_s=move.ended_s,
    )


def decision_number(epoch: Epoch, record: Record) -> int:
    """A decision's number in the history."""
    return epoch * NUMBERS_PER_EPOCH + record.number


def decision_status(record: Record) -> AdaptationRecord:
    """A decision as people see it."""
    match record.decision:
        case MoveState(sender, receiver, want_bytes):
            decision = f"move {want_bytes} bytes from {sender} to {receiver}"
        case PushState(processor, want_bytes):
            decision = f"push {want_bytes} bytes of {processor}"
        case Nothing():
            decision = "nothing"
    return AdaptationRecord(
        at_s=record.at_s,
        policy=record.policy,
        decision=decision,
        reason=record.decision.reason,
        admitted=record.admitted,
        objection=record.objection,
        # A ratio to nothing is infinite, which JSON does not know.
        numbers={k: min(v, sys.float_info.max) for k, v in record.decision.numbers.items()},
        repeated_times=record.repeated,
    )


def move_from_record(text: str) -> MoveStatus:
    """Read a record of a moves history."""
    try:
        return MoveStatus(**json.loads(text))
    except (TypeError, ValueError) as e:
        raise ConfigError(f"not the record of a move: {e}", remedy="restore the store") from e


def decision_from_record(text: str) -> AdaptationRecord:
    """Read a record of an adaptations history."""
    try:
        return AdaptationRecord(**json.loads(text))
    except (TypeError, ValueError) as e:
        raise ConfigError(f"not the record of a decision: {e}", remedy="restore the store") from e


@dataclass(slots=True)
class SavedDecisions:
    """How far a query's decisions are in the history."""

    number: int = 0  # of the newest record there
    counts: dict[int, int] = field(default_factory=dict)
    """Of records that may be repeated yet, by their numbers: their counts there."""
    at_s: float = float("-inf")  # when it was put there

    def unsaved(self, decisions: Sequence[Record], now_s: float) -> list[Record]:
        """Decisions that are new or have another count, now to be saved."""
        if not decisions:
            return []
        idle = takewhile(lambda r: isinstance(r.decision, Nothing), reversed(decisions))
        counts = {r.number: r.repeated for r in idle}
        seen = decisions[-1].number == self.number
        if seen and (counts == self.counts or now_s < self.at_s + REPEATS_S):
            return []
        fresh = [
            r
            for r in decisions
            if r.number > self.number or self.counts.get(r.number, r.repeated) != r.repeated
        ]
        self.number, self.counts, self.at_s = decisions[-1].number, counts, now_s
        return fresh


def decisions_made(epoch: Epoch, query: QueryName, fresh: Sequence[Record]) -> AppendHistory:
    """The records of decisions."""
    texts = {decision_number(epoch, r): json.dumps(asdict(decision_status(r))) for r in fresh}
    return AppendHistory(adaptations_history(query), texts)
