"""The local half of S4 Fig. 18: when a processor pushes to disk on its own, and how much."""

from __future__ import annotations


def bytes_to_push(
    *,
    used_bytes: int,
    limit_bytes: int,
    held_bytes: int,
    spill_above_ratio: float,
    push_fraction: float,
    no_disk_adaptation: bool,
    in_disk_adaptation: bool,
) -> int:
    """How many bytes of state to push now; 0 if none.

    M_u / M_a > θ_m starts a push of `push_fraction` of the state, unless a move involves this
    processor (nodiskAdaptation) or a push runs already (indiskAdaptation).
    """
    if no_disk_adaptation or in_disk_adaptation:
        return 0
    if used_bytes <= spill_above_ratio * limit_bytes:
        return 0
    return max(1, int(push_fraction * held_bytes)) if held_bytes > 0 else 0
