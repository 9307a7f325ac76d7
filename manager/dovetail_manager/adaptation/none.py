"""`none`: never adapt. Queues push back; a query whose state alone fills the memory stops."""

from __future__ import annotations

from dovetail_manager.adaptation.snapshot import (
    AdaptationSettings,
    Decision,
    Nothing,
    Policy,
    Snapshot,
)


def decide(snapshot: Snapshot, settings: AdaptationSettings) -> list[Decision]:
    """Nothing, always."""
    return [Nothing("policy", "the policy is none")]


POLICY = Policy("none", spills_locally=False, decide=decide)
