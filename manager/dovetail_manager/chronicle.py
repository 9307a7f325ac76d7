"""What goes into the store's histories: ended moves and adaptation decisions, as people read them.

A move's entry in the store is deleted when its record is in the history: between the two it is in
both, and a successor that finds an ended move records it again under the same number. A decision to
do nothing that repeats is one record; its count is written at most every `REPEATS_S`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import takewhile

from dovetail_manager.adaptation.admission import Record
from dovetail_manager.adaptation.snapshot import MoveState, Nothing, PushState
from dovetail_manager.moves.protocol import Move
from dovetail_manager.queries import Query
from dovetail_proto.admin import AdaptationRecord, MoveStatus
from dovetail_proto.errors import ConfigError
from dovetail_proto.ids import Epoch, MoveId, QueryName

KEEP = 1000
"""Records of one history: a day of moves at the default interval is half of it."""

REPEATS_S = 30.0
"""A count that grows once a second is not worth a write of its own each time."""

NUMBERS_PER_EPOCH = 10**8
"""Ids of moves have eight digits; with epochs below 2**26 numbers stay exact in Redis."""


@dataclass(frozen=True, slots=True)
class Chronicle:
    """Put `records` into a history; then report `move`, if there is one."""

    history: str
    records: Mapping[int, str]
    keep: int = KEEP
    move: MoveId | None = None


def moves_history(query: QueryName) -> str:
    """Where a query's ended moves are."""
    return f"moves/{query}"


def adaptations_history(query: QueryName) -> str:
    """Where the decisions about a query are."""
    return f"adaptations/{query}"


def move_ended(move: Move) -> Chronicle:
    """The record of an ended move."""
    epoch, number = map(int, move.id.split("-"))
    text = json.dumps(asdict(move_status(move)))
    records = {epoch * NUMBERS_PER_EPOCH + number: text}
    return Chronicle(moves_history(move.query), records, move=move.id)


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
class _Saved:
    """How far a query's decisions are in the history."""

    number: int = 0  # of the newest record there
    counts: dict[int, int] = field(default_factory=dict)
    """Of records that may be repeated yet, by their numbers: their counts there."""
    at_s: float = float("-inf")  # when it was put there


class Decisions:
    """Follows the decisions about all queries into their histories."""

    def __init__(self, epoch: Epoch) -> None:
        self._epoch = epoch
        self._saved: dict[QueryName, _Saved] = {}

    def number(self, record: Record) -> int:
        """A record's number in the history."""
        return self._epoch * NUMBERS_PER_EPOCH + record.number

    def unsaved(self, query: Query, now_s: float) -> tuple[list[Record], Chronicle | None]:
        """Decisions made since the last time, and what to write, if anything."""
        saved = self._saved.setdefault(query.name, _Saved())
        history = query.admission.history
        if not history:
            return [], None
        idle = list(takewhile(lambda r: isinstance(r.decision, Nothing), reversed(history)))
        counts = {r.number: r.repeated for r in idle}
        known = history[-1].number == saved.number
        if known and (counts == saved.counts or now_s < saved.at_s + REPEATS_S):
            return [], None
        fresh = [
            r
            for r in history
            if r.number > saved.number or saved.counts.get(r.number, r.repeated) != r.repeated
        ]
        made = [r for r in fresh if r.number > saved.number]
        self._saved[query.name] = _Saved(history[-1].number, counts, now_s)
        texts = {self.number(r): json.dumps(asdict(decision_status(r))) for r in fresh}
        return made, Chronicle(adaptations_history(query.name), texts)

    def forget(self, query: QueryName) -> None:
        """The query is dropped."""
        self._saved.pop(query, None)
