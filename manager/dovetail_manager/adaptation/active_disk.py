"""`active-disk` (S4 6, Fig. 19): as lazy-disk, and where memory is balanced make room for the
productive by pushing the least productive processor's state before it is full.

    M_least / M_most < θ_d                 ⇒  move, as distributed
    else MaxRate / MinRate > θ_f           ⇒  push on the processor with MinRate
    in all at most M_query − M_cluster     (more would push what fits into memory)

M_cluster is what θ_m leaves for this query's state on all processors: above it they push by
themselves. M_query is told at submission, or estimated; what streams bring that nobody told of is
missing in it, and the reason says so.

A rate is the number of combinations in the sample divided by the processor's groups. After a
push the memory is uneven, so a move follows that brings productive groups to the freed memory.

S4 compares one pair. Processors that no move of the round involves are balanced among themselves,
so the k-th highest rate is compared with the k-th lowest, as `distributed` does with memory; the
first pair is S4's.
"""

from __future__ import annotations

from collections.abc import Sequence

from dovetail_manager.adaptation import distributed
from dovetail_manager.adaptation.snapshot import (
    AdaptationSettings,
    Decision,
    MoveState,
    Nothing,
    Policy,
    ProcessorLoad,
    PushState,
    Snapshot,
)
from dovetail_proto.ids import StreamName

UNKNOWN = "unknown"
"""The kind of reason that people are warned of."""


def decide(snapshot: Snapshot, settings: AdaptationSettings) -> list[Decision]:
    """Moves where memory is uneven, forced pushes among the rest, else why nothing."""
    moves = distributed.decide(snapshot, settings)
    if isinstance(moves[0], Nothing) and moves[0].kind == "interval":
        return moves
    moving = {p for m in moves if isinstance(m, MoveState) for p in (m.sender, m.receiver)}
    rated = sorted(
        (p for p in snapshot.processors if p.free and p.groups > 0 and p.processor not in moving),
        key=lambda p: (p.rate, p.processor),
    )
    if len(rated) < 2:
        return [*moves, Nothing("alone", f"{len(rated)} processors have a rate to compare")]
    left_bytes = snapshot.query_bytes - _cluster_bytes(snapshot, settings) - snapshot.forced_bytes
    pushes: list[Decision] = []
    for low, high in list(zip(rated, reversed(rated), strict=True))[: len(rated) // 2]:
        verdict = _compare(low, high, left_bytes, snapshot, settings)
        if isinstance(verdict, Nothing):
            # Pairs further in differ even less.
            pushes = pushes or [verdict]
            break
        pushes.append(verdict)
        left_bytes -= verdict.want_bytes
        if len(pushes) == settings.pairs_max:
            break
    return [*moves, *pushes]


def _compare(
    low: ProcessorLoad,
    high: ProcessorLoad,
    left_bytes: int,
    snapshot: Snapshot,
    settings: AdaptationSettings,
) -> PushState | Nothing:
    cluster_bytes = _cluster_bytes(snapshot, settings)
    ratio = high.rate / low.rate if low.rate else float("inf") if high.rate else 1.0
    numbers = {
        "min_rate": low.rate,
        "max_rate": high.rate,
        "rate_ratio": ratio,
        "m_query_bytes": float(snapshot.query_bytes),
        "m_cluster_bytes": float(cluster_bytes),
        "forced_bytes": float(snapshot.forced_bytes),
    }
    rates = f"{high.processor} / {low.processor} = {high.rate:.3g} / {low.rate:.3g}"
    if not ratio > settings.force_above_rate_ratio:
        why = f"equally productive: {rates} is not above {settings.force_above_rate_ratio:g}"
        return Nothing("equally productive", why, numbers)
    floor_bytes = int(settings.force_above_ratio * low.state_limit_bytes)
    if low.held_bytes < floor_bytes:
        why = f"{low.processor} holds {low.held_bytes} bytes: no push is forced below {floor_bytes}"
        return Nothing("nearly empty", why, numbers)
    if left_bytes <= 0:
        why = (
            f"M_query {snapshot.query_bytes} − M_cluster {cluster_bytes} − forced so far "
            f"{snapshot.forced_bytes} leaves nothing to push"
        )
        if not snapshot.unknown:
            return Nothing("bound", why, numbers)
        return Nothing(UNKNOWN, f"{why}; {untold(snapshot.unknown)}", numbers)
    want_bytes = min(int(settings.push_fraction * low.held_bytes), left_bytes)
    if want_bytes <= 0:
        return Nothing("empty", f"{low.processor} holds nothing to push", numbers)
    why = f"unequally productive: {rates} is above {settings.force_above_rate_ratio:g}"
    return PushState(low.processor, want_bytes, why, numbers)


def untold(streams: Sequence[StreamName]) -> str:
    """What is not known, and what to do about it."""
    names = ", ".join(map(repr, streams))
    return (
        f"M_query is without what streams {names} still bring, which nobody told: "
        "submit with the expected state, or send with the number of rows"
    )


def _cluster_bytes(snapshot: Snapshot, settings: AdaptationSettings) -> int:
    """M_cluster."""
    return int(settings.spill_above_ratio * sum(p.state_limit_bytes for p in snapshot.processors))


POLICY = Policy("active-disk", spills_locally=True, decide=decide)
