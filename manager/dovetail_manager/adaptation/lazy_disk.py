"""`lazy-disk` (S4 6, Fig. 18): move as `distributed`, spill locally only when memory is short.

    at the manager        if M_least / M_most < θ_d: start a move
    at the sender         wait while indiskAdaptation; set nodiskAdaptation; compute; move; clear
    at every processor    if M_u / M_a > θ_m and not nodiskAdaptation:
                              set indiskAdaptation; push; clear

The flags live at the processor, where both adaptations meet: `Participant.adapting` is
nodiskAdaptation, `Local.pushing` is indiskAdaptation.
"""

from __future__ import annotations

from dovetail_manager.adaptation import distributed
from dovetail_manager.adaptation.snapshot import AdaptationSettings, Decision, Policy, Snapshot


def decide(snapshot: Snapshot, settings: AdaptationSettings) -> list[Decision]:
    """The manager's half of Fig. 18."""
    return distributed.decide(snapshot, settings)


POLICY = Policy("lazy-disk", spills_locally=True, decide=decide)
