"""A processor that leaves: its groups move to whoever has room, or go to disk first.

All of them are tried, then half, then a quarter: see `DRAIN_FAILURES_MAX`.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

from dovetail_manager.adaptation.snapshot import ProcessorLoad, PushState
from dovetail_manager.moves.protocol import Move, Outcome
from dovetail_manager.moves.steps import Instruction
from dovetail_manager.query import Query
from dovetail_proto.ids import GroupId, ProcessorId

DRAIN_FAILURES_MAX = 3
"""In a row: neither all of a leaver's groups find room, nor half of them, nor a quarter."""


def drain(
    query: Query,
    leaver: ProcessorId,
    loads: Iterable[ProcessorLoad],
    busy: Set[ProcessorId],
    now_s: float,
) -> list[Instruction]:
    """Move a leaver's groups to who has the most room; half as many if that is little."""
    owned = query.placement.next_map.groups_of(leaver)
    groups = [GroupId(int(g)) for g in owned if int(g) not in query.record.pinned]
    takers = [p for p in loads if p.free and p.processor not in busy]
    if leaver in busy or not takers or not groups:
        return []
    taker = min(takers, key=lambda p: (p.used_bytes - p.limit_bytes, p.processor)).processor
    share = max(1, len(groups) >> query.drain_failures.get(leaver, 0))
    reason = f"{leaver} leaves"
    return query.coordinator.begin(
        leaver, taker, 0, groups=groups[:share], reason=reason, now_s=now_s
    )


def unload(query: Query, leaver: ProcessorId, loads: Iterable[ProcessorLoad]) -> PushState | None:
    """What a leaver has to push to disk before its groups find room elsewhere, if so."""
    failures = query.drain_failures.get(leaver, 0)
    if failures < DRAIN_FAILURES_MAX or not query.admission.policy.spills_locally:
        return None
    held_bytes = next((p.held_bytes for p in loads if p.processor == leaver), 0)
    del query.drain_failures[leaver]
    reason = f"{leaver} leaves, and nobody has room for what it holds"
    return PushState(leaver, held_bytes, reason) if held_bytes else None


def finds_no_room(query: Query, leaver: ProcessorId) -> bool:
    """Whether not even one of a leaver's groups finds room, and none may go to disk."""
    owned = len(query.placement.next_map.groups_of(leaver))
    failures = query.drain_failures.get(leaver, 0)
    tried = owned >> max(0, failures - 1)  # by the last move, see `drain`
    return owned > 0 and failures > 0 and tried <= 1 and not query.admission.policy.spills_locally


def note(query: Query, move: Move) -> None:
    """Note how a move of a leaver's groups went; whatever fails but for room is tried again."""
    if move.outcome is not Outcome.ROLLED_BACK:
        query.drain_failures.pop(move.sender, None)
    elif move.no_room:
        query.drain_failures[move.sender] = query.drain_failures.get(move.sender, 0) + 1
