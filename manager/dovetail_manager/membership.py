"""Which processors there are: joining, alive, leaving, gone or dead. A pure machine.

    Join ─▶ ALIVE ── Leave ─▶ LEAVING ── owns, hosts and keeps nothing ─▶ LEFT
              │                  │
              └── silent for `dead_after_s`, or a newer incarnation joins ─▶ DEAD

Invariant: an incarnation that was declared dead is never taken back; a processor that was only
slow hears so at its next heartbeat and stops. Incarnations of a processor grow, so a late Join of
an old one cannot replace a newer one.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from dovetail_proto.errors import ConfigError, Domain, Refusal
from dovetail_proto.ids import OWNER, ProcessorId, process_of
from dovetail_proto.messages import Heartbeat, Join, Leave


class MemberState(StrEnum):
    """How far a processor belongs to the cluster."""

    ALIVE = "alive"
    LEAVING = "leaving"  # its groups are being moved away; it gets no new ones
    LEFT = "left"
    DEAD = "dead"


IN = (MemberState.ALIVE, MemberState.LEAVING)

GONE_MAX = 1000
"""Members that left or died and are still known, so that people can see what became of them: a
processor started anew under another name every ten minutes, for a week."""


@dataclass(slots=True)
class Member:
    """One processor."""

    processor: ProcessorId
    incarnation: int
    memory_limit_bytes: int
    state: MemberState
    heard_s: float  # when it was last heard; a restarted manager starts from its own start
    cause: str = ""  # why it is dead; empty otherwise
    address: str = ""  # where its data plane answers
    successor: str = ""  # who has its result logs, as it says while it leaves

    @property
    def key(self) -> str:
        """Where it is stored."""
        return f"member/{self.processor}"

    def to_json(self) -> str:
        """The record."""
        return json.dumps(asdict(self))


def member_from_json(text: str) -> Member:
    """Read a member's record; ConfigError if it is none."""
    try:
        raw: dict[str, Any] = json.loads(text)
        return Member(**{**raw, "state": MemberState(raw["state"])})
    except (TypeError, ValueError, KeyError) as e:
        raise ConfigError(
            f"not the record of a member: {e}", remedy="restore the manager's store"
        ) from e


class Membership:
    """All processors that are in, and the newest of those that were. Methods return the members
    whose state changed."""

    def __init__(self, version: str, dead_after_s: float) -> None:
        self.version = version
        self.dead_after_s = dead_after_s
        self.members: dict[ProcessorId, Member] = {}
        self.unwritten: Counter[ProcessorId] = Counter()  # changes of a member not yet durable
        self.ticked_s = float("inf")  # when `tick` was last called; inf before the first time

    def restore(self, members: list[Member], now_s: float) -> None:
        """Take over what the store knows; everyone gets a fresh grace period."""
        for member in members:
            member.heard_s = now_s
            self.members[member.processor] = member

    def workers_of(self, processor: ProcessorId) -> list[Member]:
        """The member of this name; else the workers of the processor, those that are in first."""
        if processor in self.members:
            return [self.members[processor]]
        found = [m for p, m in sorted(self.members.items()) if process_of(p) == processor]
        return [m for m in found if m.state in IN] or found

    def join(self, m: Join, now_s: float) -> list[Member]:
        """Take a processor in. A newer incarnation proves the former one dead.

        Returns the dead former incarnation, if it was in, and the new member; nothing if this
        incarnation is in already.
        """
        if not OWNER.fullmatch(m.processor):
            raise Refusal(Domain.MESSAGE, f"processor name {m.processor!r} is not allowed")
        if m.version != self.version:
            raise Refusal(
                Domain.MEMBER,
                f"processor {m.processor!r} runs Dovetail {m.version}, the manager {self.version}",
                remedy="run the same version everywhere",
            )
        if m.memory_limit_bytes <= 0:
            raise Refusal(Domain.MESSAGE, f"processor {m.processor!r} has no memory limit")
        former = self.members.get(m.processor)
        if former is not None and m.incarnation <= former.incarnation:
            if m.incarnation == former.incarnation and former.state in IN:
                former.heard_s = now_s
                return []
            raise Refusal(
                Domain.MEMBER,
                f"incarnation {m.incarnation} of processor {m.processor!r} is over",
                remedy="start it again",
                reason="over",
            )
        changed: list[Member] = []
        if former is not None and former.state in IN:
            former.state, former.cause = MemberState.DEAD, "it was started again"
            changed.append(former)
        member = Member(
            m.processor,
            m.incarnation,
            m.memory_limit_bytes,
            MemberState.ALIVE,
            now_s,
            address=m.address,
        )
        self.members[m.processor] = member
        return [*changed, member]

    def heartbeat(self, m: Heartbeat | Leave, now_s: float) -> Member:
        """Note that a member is alive; Refusal if it is none (any more)."""
        member = self.members.get(m.processor)
        if member is None or member.incarnation != m.incarnation or member.state not in IN:
            state = f"is {member.state}" if member else "is unknown"
            raise Refusal(
                Domain.MEMBER,
                f"processor {m.processor!r}, incarnation {m.incarnation}, {state}",
                remedy="start it again",
            )
        member.heard_s = now_s
        return member

    def leave(self, m: Leave, now_s: float) -> list[Member]:
        """Start draining a member; nothing if it is leaving already."""
        member = self.heartbeat(m, now_s)
        member.successor = m.successor
        if member.state is MemberState.LEAVING:
            return []
        member.state = MemberState.LEAVING
        return [member]

    def drained(self, processor: ProcessorId) -> list[Member]:
        """A leaving member owns and hosts nothing any more: let it go."""
        member = self.members.get(processor)
        if member is None or member.state is not MemberState.LEAVING:
            return []
        member.state = MemberState.LEFT
        return [member]

    def forget(self, needed: Callable[[ProcessorId], bool]) -> list[ProcessorId]:
        """Drop the oldest of those that are gone, but for those that are `needed`; returns them.

        One of them that was only slow is taken in as new if it comes back: nothing that is known
        here was ever at it.
        """
        gone = sorted(
            (m for m in self.members.values() if m.state not in IN), key=lambda m: m.incarnation
        )
        old = [m.processor for m in gone[: max(0, len(gone) - GONE_MAX)] if not needed(m.processor)]
        for processor in old:
            del self.members[processor]
            del self.unwritten[processor]
        return old

    def successor_of(self, leaver: ProcessorId) -> ProcessorId | None:
        """Who gets the result logs of a member that leaves, if anyone is there."""
        return next((p for p in self.staying() if p != leaver), None)

    def tick(self, now_s: float) -> list[Member]:
        """Declare dead who has been silent for too long.

        Unless it was the manager that slept: if `tick` itself comes late by half the patience,
        heartbeats may still wait to be read, and everyone gets a fresh grace period.
        """
        if now_s - self.ticked_s > self.dead_after_s / 2:
            for m in self.members.values():
                m.heard_s = now_s
        self.ticked_s = now_s
        dead = [
            m
            for m in self.members.values()
            if m.state in IN and now_s >= m.heard_s + self.dead_after_s
        ]
        for member in dead:
            member.state = MemberState.DEAD
            member.cause = f"it was silent for {now_s - member.heard_s:.1f} s"
        return dead

    def alive(self) -> list[Member]:
        """Members that are in, by name."""
        return sorted((m for m in self.members.values() if m.state in IN), key=_by_name)

    def staying(self) -> list[ProcessorId]:
        """Who is in and does not leave, by name."""
        return [m.processor for m in self.alive() if m.state is MemberState.ALIVE]

    def next_tick_s(self) -> float:
        """When `tick` may declare somebody dead."""
        heard = [m.heard_s for m in self.members.values() if m.state in IN]
        return min(heard, default=float("inf")) + self.dead_after_s


def _by_name(member: Member) -> ProcessorId:
    return member.processor
