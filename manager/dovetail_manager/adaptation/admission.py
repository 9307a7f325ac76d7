"""Policies only suggest; this loop admits: one adaptation at a time on a processor.

Every round is recorded with the numbers that led to it, and so is why nothing was done; a run of
equal reasons for doing nothing is one record with a count.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Set
from dataclasses import dataclass, replace

from dovetail_manager.adaptation.snapshot import (
    AdaptationSettings,
    Decision,
    MoveState,
    Nothing,
    Policy,
    PushState,
    Snapshot,
)
from dovetail_proto.ids import ProcessorId

HISTORY_MAX = 1000
"""Records kept in memory: a day of moves at the default interval is half of it."""


@dataclass(frozen=True, slots=True)
class Record:
    """One decision, admitted or not."""

    at_s: float
    policy: str
    decision: Decision
    admitted: bool
    objection: str = ""  # why it was not admitted; empty if it was
    repeated: int = 1  # equal `Nothing`s in a row


class Admission:
    """The loop's memory for one query."""

    def __init__(self, policy: Policy, settings: AdaptationSettings) -> None:
        self.policy = policy
        self.settings = settings
        self.history: deque[Record] = deque(maxlen=HISTORY_MAX)
        self.adapted_s = float("-inf")  # when an adaptation was last admitted
        self.forced_bytes = 0  # pushed by order so far, as processors reported it
        self.ordered: dict[ProcessorId, int] = {}  # bytes of pushes ordered and not yet reported

    def decide(self, snapshot: Snapshot, busy: Set[ProcessorId]) -> list[MoveState | PushState]:
        """Ask the policy, and let through what concerns no processor in `busy` or twice."""
        not_free = busy | self.ordered.keys()
        seen = replace(
            snapshot,
            processors=tuple(
                replace(p, free=p.free and p.processor not in not_free) for p in snapshot.processors
            ),
            adapted_s=self.adapted_s,
            forced_bytes=self.forced_bytes + sum(self.ordered.values()),
        )
        admitted: list[MoveState | PushState] = []
        taken: set[ProcessorId] = {p.processor for p in seen.processors if not p.free}
        for decision in self.policy.decide(seen, self.settings):
            if isinstance(decision, Nothing):
                self._record(snapshot.now_s, decision, "")
                continue
            ends = _ends(decision)
            clash = min(ends & taken, default=None)
            self._record(
                snapshot.now_s, decision, f"{clash} adapts already" if clash is not None else ""
            )
            if clash is None:
                taken |= ends
                admitted.append(decision)
                self.adapted_s = snapshot.now_s
                if isinstance(decision, PushState):
                    self.ordered[decision.processor] = decision.want_bytes
        return admitted

    def wait(self, reason: str, now_s: float) -> None:
        """Record that there is too little to decide by, as after a manager's restart."""
        self._record(now_s, Nothing("reports", reason), "")

    def pushed(self, processor: ProcessorId, size_bytes: int) -> None:
        """An ordered push was done, or given up with 0 bytes."""
        if self.ordered.pop(processor, None) is not None:
            self.forced_bytes += size_bytes

    def _record(self, now_s: float, decision: Decision, objection: str) -> None:
        last = self.history[-1] if self.history else None
        if (
            last is not None
            and isinstance(decision, Nothing)
            and isinstance(last.decision, Nothing)
            and last.decision.kind == decision.kind
        ):
            self.history[-1] = replace(last, repeated=last.repeated + 1, at_s=now_s)
            return
        self.history.append(Record(now_s, self.policy.name, decision, not objection, objection))


def _ends(decision: MoveState | PushState) -> set[ProcessorId]:
    if isinstance(decision, MoveState):
        return {decision.sender, decision.receiver}
    return {decision.processor}
