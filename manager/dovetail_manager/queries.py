"""A query as the manager runs it, and the records of queries and members in the store."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Set
from dataclasses import asdict, dataclass, field
from typing import Any

from dovetail_manager.adaptation.admission import Admission
from dovetail_manager.adaptation.snapshot import ProcessorLoad, PushState
from dovetail_manager.membership import Member, MemberState
from dovetail_manager.moves.coordinator import Coordinator
from dovetail_manager.moves.protocol import Instruction, Move, Outcome
from dovetail_proto.assignment import DiskSettings
from dovetail_proto.errors import ConfigError
from dovetail_proto.ids import (
    GroupId,
    MoveId,
    ProcessorId,
    QueryName,
    SplitId,
    input_of,
    next_split,
)
from dovetail_proto.messages import PushPartitions

DRAIN_FAILURES_MAX = 3
"""In a row: neither all of a leaver's groups find room, nor half of them, nor a quarter."""


@dataclass(slots=True)
class Query:
    """One submitted query. Its machines are given to it by the manager in office."""

    name: QueryName
    policy_name: str
    split_hosts: Mapping[ProcessorId, tuple[SplitId, ...]]  # as decided; durable: coordinator's
    disk: DiskSettings  # its own θ_m, θ_t and so on; `allowed` follows from the policy
    expected_bytes: int | None  # told at submission; None: estimated
    cause: str = ""  # why it failed; empty while it runs
    closed: bool = False  # it has ended well; its record and map are kept to be looked at
    pinned: frozenset[GroupId] = frozenset()  # stay where they are, whatever a policy says
    resting: bool = False  # paused or closing: no adaptation begins, open ones end
    told: bool = False  # the failure is durable: `stopping` says who has to drop the query yet
    forced_bytes: int = 0  # as written last; `admission` counts on from it
    stopping: set[ProcessorId] = field(default_factory=set)  # have to drop a failed query yet
    orders: dict[ProcessorId, PushPartitions] = field(default_factory=dict)  # not answered yet
    drain_failures: dict[ProcessorId, int] = field(default_factory=dict)
    """Per leaver: moves in a row that found no room for its groups."""
    coordinator: Coordinator = field(init=False)
    admission: Admission = field(init=False)

    @property
    def key(self) -> str:
        """Where its record is stored."""
        return f"query/{self.name}"

    @property
    def over(self) -> bool:
        """Whether it has ended, well or not."""
        return self.closed or bool(self.cause)

    def pinned_at(self, processor: ProcessorId) -> list[GroupId]:
        """The pinned groups that `processor` owns."""
        known = self.coordinator.map_tail
        return sorted(g for g in self.pinned if known.owner(g) == processor)

    def depends_on(self, processor: ProcessorId) -> bool:
        """Whether the query would lose state or input with `processor`."""
        if self.over:
            return False
        owned = self.coordinator.map_tail.groups_of(processor)
        hosts = (self.split_hosts, self.coordinator.split_hosts)
        return len(owned) > 0 or any(processor in h for h in hosts)

    def hand_on(self, inputs: Iterable[int], leaver: ProcessorId, to: ProcessorId) -> None:
        """Have `to` host the splits of these inputs, with links of their own."""
        chosen = set(inputs)
        going = [s for s in self.split_hosts[leaver] if input_of(s) in chosen]
        hosts = {p: [s for s in splits if s not in going] for p, splits in self.split_hosts.items()}
        hosts[to] = [*hosts.get(to, ()), *map(next_split, going)]
        self.split_hosts = {p: tuple(sorted(s)) for p, s in hosts.items() if s}

    def was_at(self, processor: ProcessorId) -> bool:
        """Whether `processor` owned a group since it came: results and state may be there."""
        return processor in self.coordinator.map_tail.processors

    def owns(self, move: str) -> bool:
        """Whether `move` is an open move of this query."""
        return MoveId(move) in self.coordinator.moves

    def void_order(self, processor: ProcessorId) -> None:
        """Whoever is gone answers no order."""
        self.orders.pop(processor, None)
        self.admission.pushed(processor, 0)

    def drain(
        self,
        leaver: ProcessorId,
        loads: Iterable[ProcessorLoad],
        busy: Set[ProcessorId],
        now_s: float,
    ) -> list[Instruction]:
        """Move a leaver's groups to who has the most room; half as many if that is little."""
        owned = self.coordinator.map_tail.groups_of(leaver)
        groups = [GroupId(int(g)) for g in owned if int(g) not in self.pinned]
        takers = [p for p in loads if p.free and p.processor not in busy]
        if leaver in busy or not takers or not groups:
            return []
        taker = min(takers, key=lambda p: (p.used_bytes - p.limit_bytes, p.processor)).processor
        share = max(1, len(groups) >> self.drain_failures.get(leaver, 0))
        return self.coordinator.begin(
            leaver,
            taker,
            0,
            groups=groups[:share],
            reason=f"{leaver} leaves",
            now_s=now_s,
        )

    def unload(self, leaver: ProcessorId, loads: Iterable[ProcessorLoad]) -> PushState | None:
        """What a leaver has to push to disk before its groups find room elsewhere, if so."""
        failures = self.drain_failures.get(leaver, 0)
        if failures < DRAIN_FAILURES_MAX or not self.admission.policy.spills_locally:
            return None
        held_bytes = next((p.held_bytes for p in loads if p.processor == leaver), 0)
        del self.drain_failures[leaver]
        reason = f"{leaver} leaves, and nobody has room for what it holds"
        return PushState(leaver, held_bytes, reason) if held_bytes else None

    def finds_no_room(self, leaver: ProcessorId) -> bool:
        """Whether not even one of a leaver's groups finds room, and none may go to disk."""
        owned = len(self.coordinator.map_tail.groups_of(leaver))
        failures = self.drain_failures.get(leaver, 0)
        tried = owned >> max(0, failures - 1)  # by the last move, see `drain`
        return (
            owned > 0 and failures > 0 and tried <= 1 and not self.admission.policy.spills_locally
        )

    def drained(self, move: Move) -> None:
        """Note how a move of a leaver's groups went; whatever fails but for room is tried again."""
        if move.outcome is not Outcome.ROLLED_BACK:
            self.drain_failures.pop(move.sender, None)
        elif move.no_room:
            failures = self.drain_failures.get(move.sender, 0)
            self.drain_failures[move.sender] = failures + 1

    def to_json(self) -> str:
        """The record."""
        return json.dumps(
            {
                "name": self.name,
                "policy": self.policy_name,
                "split_hosts": dict(self.split_hosts),
                "disk": asdict(self.disk),
                "expected_bytes": self.expected_bytes,
                "cause": self.cause,
                "closed": self.closed,
                "pinned": sorted(self.pinned),
                "forced_bytes": self.admission.forced_bytes,
            }
        )


def query_from_json(text: str) -> Query:
    """Read a query's record; its machines are the caller's."""
    try:
        raw: dict[str, Any] = json.loads(text)
        hosts = {
            ProcessorId(p): tuple(SplitId(s) for s in splits)
            for p, splits in raw["split_hosts"].items()
        }
        return Query(
            QueryName(raw["name"]),
            raw["policy"],
            hosts,
            DiskSettings(**raw["disk"]),
            raw["expected_bytes"],
            cause=raw["cause"],
            closed=raw["closed"],
            pinned=frozenset(GroupId(int(g)) for g in raw["pinned"]),
            forced_bytes=int(raw["forced_bytes"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise ConfigError(
            f"not the record of a query: {e}", remedy="restore the manager's store"
        ) from e


def member_to_json(member: Member) -> str:
    """A member's record."""
    return json.dumps(asdict(member))


def member_from_json(text: str) -> Member:
    """Read a member's record."""
    try:
        raw: dict[str, Any] = json.loads(text)
        return Member(**{**raw, "state": MemberState(raw["state"])})
    except (TypeError, ValueError, KeyError) as e:
        raise ConfigError(
            f"not the record of a member: {e}", remedy="restore the manager's store"
        ) from e
