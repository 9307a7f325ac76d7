"""`disk` (S4 4): every processor pushes on its own above θ_m; nothing moves.

The decision is local (`dovetail_processor.adaptation.disk`): the manager has nothing to add.
"""

from __future__ import annotations

from dovetail_manager.adaptation.snapshot import (
    AdaptationSettings,
    Decision,
    Nothing,
    Policy,
    Snapshot,
)


def decide(snapshot: Snapshot, settings: AdaptationSettings) -> list[Decision]:
    """Nothing: processors push by themselves."""
    return [Nothing("policy", "processors push by themselves, nothing moves")]


POLICY = Policy("disk", spills_locally=True, decide=decide)
