"""`distributed` (S4 5): even out memory by moving groups from the most to the least used.

    M_least / M_most < θ_d   ⇒   move from the most to the least used until both are as full

M is the share of its own limit that a processor uses: S4's machines are equal, ours need not be.
500 of 1000 MB (0.5) beside 90 of 100 MB (0.9) moves 36 MB to the larger, after which both are at
0.54; between equal limits the amount is S4's (M_most − M_least) / 2.

S4 moves one pair at a time. With many processors that takes one interval per processor to
settle, so the k-th most used is paired with the k-th least used, for as long as a pair by itself
fulfils the rule; the first pair is always S4's.
"""

from __future__ import annotations

from dovetail_manager.adaptation.snapshot import (
    AdaptationSettings,
    Decision,
    MoveState,
    Nothing,
    Policy,
    ProcessorLoad,
    Snapshot,
)


def decide(snapshot: Snapshot, settings: AdaptationSettings) -> list[Decision]:
    """The moves of this round, largest difference first, or why there is none."""
    since_s = snapshot.now_s - snapshot.adapted_s
    if since_s < settings.move_interval_s:
        return [
            Nothing(
                "interval",
                f"the last adaptation began {since_s:.1f} s ago, "
                f"the interval is {settings.move_interval_s:g} s",
                {"since_s": since_s},
            )
        ]
    free = sorted(
        (p for p in snapshot.processors if p.free), key=lambda p: (p.used_share, p.processor)
    )
    if len(free) < 2:
        return [Nothing("alone", f"{len(free)} processors are free to adapt, a move needs 2")]
    decisions: list[Decision] = []
    for least, most in list(zip(free, reversed(free), strict=True))[: len(free) // 2]:
        verdict = _pair(least, most, settings)
        if isinstance(verdict, Nothing):
            # Pairs further in differ even less.
            decisions = decisions or [verdict]
            break
        decisions.append(verdict)
        if len(decisions) == settings.pairs_max:
            break
    return decisions


def _pair(least: ProcessorLoad, most: ProcessorLoad, settings: AdaptationSettings) -> Decision:
    ratio = 1.0
    if most.used_bytes:  # whole numbers, so that 80 beside 100 is 0.8 and not the float next to it
        ratio = least.used_bytes * most.limit_bytes / (most.used_bytes * least.limit_bytes)
    want_bytes = _evening_bytes(least, most)
    numbers = {
        "m_least_bytes": float(least.used_bytes),
        "m_least_limit_bytes": float(least.limit_bytes),
        "m_most_bytes": float(most.used_bytes),
        "m_most_limit_bytes": float(most.limit_bytes),
        "ratio": ratio,
        "move_below_ratio": settings.move_below_ratio,
        "want_bytes": float(want_bytes),
    }
    pair = (
        f"{least.processor} / {most.processor} = "
        f"{least.used_share:.0%} / {most.used_share:.0%} = {ratio:.2f}"
    )
    if ratio >= settings.move_below_ratio:
        return Nothing(
            "balanced", f"balanced: {pair} is not below {settings.move_below_ratio:g}", numbers
        )
    # Of the smaller limit: all that a small receiver can take may be little to a large sender.
    floor_bytes = int(settings.move_min_fraction * min(least.limit_bytes, most.limit_bytes))
    if want_bytes < floor_bytes:
        return Nothing(
            "too small",
            f"too small: {want_bytes} bytes would make both as full, a move takes {floor_bytes}",
            numbers,
        )
    return MoveState(
        most.processor,
        least.processor,
        want_bytes,
        f"uneven: {pair} is below {settings.move_below_ratio:g}",
        numbers,
    )


def _evening_bytes(least: ProcessorLoad, most: ProcessorLoad) -> int:
    """What has to move so that both use the same share of their limits."""
    limits = least.limit_bytes + most.limit_bytes
    return (most.used_bytes * least.limit_bytes - least.used_bytes * most.limit_bytes) // limits


POLICY = Policy("distributed", spills_locally=False, decide=decide)
