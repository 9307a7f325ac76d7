"""Policies only suggest; this loop admits: one adaptation at a time on a processor.

Every round is recorded with the numbers that led to it, and so is why nothing was done. A policy
may have several reasons for that in every round: between two adaptations each is one record with a
count, so what is recorded of idle time does not grow with it.
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
    number: int = 0  # grows by one per record of a manager; 0: only looked at
    repeated: int = 1  # times that `Nothing` had this reason since the last adaptation


class Admission:
    """The loop's memory for one query."""

    def __init__(self, policy: Policy, settings: AdaptationSettings) -> None:
        self.policy = policy
        self.settings = settings
        self.history: deque[Record] = deque(maxlen=HISTORY_MAX)
        self.adapted_s = float("-inf")  # when an adaptation was last admitted
        self.forced_bytes = 0  # pushed by order so far, as processors reported it
        self.ordered: dict[ProcessorId, int] = {}  # bytes of pushes ordered and not yet reported
        self.recorded = 0  # records made so far; numbers the next one

    def decide(
        self, snapshot: Snapshot, busy: Set[ProcessorId], *, now: bool = False
    ) -> list[MoveState | PushState]:
        """Ask the policy, and let through what concerns no processor in `busy` or twice.

        With `now` the interval since the last adaptation does not matter.
        """
        admitted: list[MoveState | PushState] = []
        for decision, objection in self._judged(snapshot, busy, now):
            self._record(snapshot.now_s, decision, objection)
            if objection or isinstance(decision, Nothing):
                continue
            admitted.append(decision)
            self.adapted_s = snapshot.now_s
            if isinstance(decision, PushState):
                self.ordered[decision.processor] = decision.want_bytes
        return admitted

    def preview(self, snapshot: Snapshot, busy: Set[ProcessorId]) -> list[Record]:
        """What `decide(..., now=True)` would record; nothing is remembered."""
        return [
            Record(snapshot.now_s, self.policy.name, decision, not objection, objection)
            for decision, objection in self._judged(snapshot, busy, True)
        ]

    def _judged(
        self, snapshot: Snapshot, busy: Set[ProcessorId], now: bool
    ) -> list[tuple[Decision, str]]:
        """The policy's decisions, each with the objection to it, if there is one."""
        not_free = busy | self.ordered.keys()
        seen = replace(
            snapshot,
            processors=tuple(
                replace(p, free=p.free and p.processor not in not_free) for p in snapshot.processors
            ),
            adapted_s=float("-inf") if now else self.adapted_s,
            forced_bytes=self.forced_bytes + sum(self.ordered.values()),
        )
        judged: list[tuple[Decision, str]] = []
        taken: set[ProcessorId] = {p.processor for p in seen.processors if not p.free}
        for decision in self.policy.decide(seen, self.settings):
            ends = set() if isinstance(decision, Nothing) else _ends(decision)
            clash = min(ends & taken, default=None)
            if clash is None:
                taken |= ends
            judged.append((decision, f"{clash} adapts already" if clash is not None else ""))
        return judged

    def wait(self, reason: str, now_s: float) -> None:
        """Record that there is too little to decide by, as after a manager's restart."""
        self._record(now_s, Nothing("reports", reason), "")

    def note(self, decision: PushState, now_s: float) -> None:
        """Record what no policy decided: a leaver has to push."""
        self._record(now_s, decision, "")

    def pushed(self, processor: ProcessorId, size_bytes: int) -> None:
        """An ordered push was done, or given up with 0 bytes."""
        if self.ordered.pop(processor, None) is not None:
            self.forced_bytes += size_bytes

    def _record(self, now_s: float, decision: Decision, objection: str) -> None:
        for back, record in enumerate(reversed(self.history), 1):
            if not (isinstance(decision, Nothing) and isinstance(record.decision, Nothing)):
                break
            if record.decision.kind == decision.kind:
                repeated = record.repeated + 1
                self.history[-back] = replace(record, repeated=repeated, at_s=now_s)
                return
        self.recorded += 1
        self.history.append(
            Record(
                now_s, self.policy.name, decision, not objection, objection, number=self.recorded
            )
        )


def _ends(decision: MoveState | PushState) -> set[ProcessorId]:
    if isinstance(decision, MoveState):
        return {decision.sender, decision.receiver}
    return {decision.processor}
