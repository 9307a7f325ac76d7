"""The receiver's role: keep room, hold what arrives inert, make it live when it is committed.

    Reserve ─▶ Reserved ── ReceivePartitions ─▶ Inert ── Reactivate ─▶ live | forgotten

Invariant: `reserved_bytes` + inert bytes never exceed what was free when they were taken, so a
move cannot push the receiver over its memory limit.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dovetail_processor.moves.instructions import (
    ActivateGroups,
    DropInert,
    Instruction,
    Local,
    Reply,
    StoreInert,
)
from dovetail_proto.errors import Domain, Refusal
from dovetail_proto.ids import GroupId, MoveId, ProcessorId
from dovetail_proto.messages import Groups, Received, ReceivePartitions, Reserve, Reserved


@dataclass(frozen=True, slots=True)
class InertChunk:
    """A chunk that has arrived and is not committed yet."""

    groups: Groups
    size_bytes: int


@dataclass(slots=True)
class Incoming:
    """The one move that this processor is the receiver of."""

    move: MoveId
    reserved_bytes: int  # kept free and not yet used by arrived chunks
    inert: dict[int, InertChunk] = field(default_factory=dict)  # arrived, not reactivated


class Receiver:
    """See the module. `owned` is shared with the participant."""

    def __init__(self, processor: ProcessorId, owned: set[GroupId]) -> None:
        self.processor = processor
        self.owned = owned
        self.incoming: Incoming | None = None  # None when not the receiver of any move

    @property
    def reserved_bytes(self) -> int:
        """Memory that must stay free although nothing occupies it yet."""
        return self.incoming.reserved_bytes if self.incoming else 0

    def reserve(self, m: Reserve, local: Local) -> list[Instruction]:
        """Before step 3: keep room, or refuse."""
        if self.incoming is None:
            if m.size_bytes > local.free_bytes:
                raise Refusal(
                    Domain.MEMORY,
                    f"move {m.ref.move}: processor {self.processor!r} has no room for "
                    f"{m.size_bytes} bytes, {max(local.free_bytes, 0)} are free",
                    free_bytes=max(local.free_bytes, 0),
                )
            self.incoming = Incoming(m.ref.move, m.size_bytes)
        return [Reply(Reserved(m.ref))]

    def receive(self, m: ReceivePartitions, local: Local) -> list[Instruction]:
        """Step 7: keep the chunk inert and say so; a repeated chunk is only acknowledged."""
        incoming = self.incoming
        if incoming is None or incoming.move != m.ref.move:
            raise Refusal(
                Domain.STEP,
                f"ReceivePartitions of move {m.ref.move} before Reserve at {self.processor!r}",
            )
        if m.chunk in incoming.inert:
            return [Reply(Received(m.ref, m.chunk, incoming.inert[m.chunk].size_bytes))]
        here = self.owned.union(*(c.groups for c in incoming.inert.values()))
        for group in m.groups:
            if group in here:
                raise Refusal(
                    Domain.GROUP,
                    f"move {m.ref.move} chunk {m.chunk}: group {group} is here already",
                    group=group,
                )
        if m.size_bytes > incoming.reserved_bytes + local.free_bytes:
            raise Refusal(
                Domain.MEMORY,
                f"move {m.ref.move} chunk {m.chunk}: {m.size_bytes} bytes came, "
                f"{incoming.reserved_bytes} are reserved and {local.free_bytes} free",
            )
        incoming.reserved_bytes = max(0, incoming.reserved_bytes - m.size_bytes)
        incoming.inert[m.chunk] = InertChunk(m.groups, m.size_bytes)
        return [
            StoreInert(m.ref.move, m.chunk, m.groups),
            Reply(Received(m.ref, m.chunk, m.size_bytes)),
        ]

    def check_reactivate(self, move: MoveId, chunk: int, groups: Groups, owner: str) -> None:
        """Refuse to become the owner of groups that never arrived."""
        if owner != self.processor or self.owned.issuperset(groups):
            return
        incoming = self.incoming
        arrived = incoming.inert.get(chunk) if incoming and incoming.move == move else None
        if arrived is None or arrived.groups != groups:
            raise Refusal(
                Domain.GROUP,
                f"move {move} chunk {chunk}: the groups never arrived at {self.processor!r}",
            )

    def reactivate(self, move: MoveId, chunk: int, owner: ProcessorId) -> list[Instruction]:
        """Step 8: what arrived becomes live, or is forgotten."""
        incoming = self.incoming
        if incoming is None or incoming.move != move or chunk not in incoming.inert:
            return []
        ended = incoming.inert.pop(chunk)
        if owner == self.processor:
            self.owned.update(ended.groups)
            return [ActivateGroups(move, chunk, ended.groups)]
        return [DropInert(move, chunk, ended.groups)]

    def finish(self, move: MoveId) -> None:
        """The move is over: what is left of the reservation is free again."""
        incoming = self.incoming
        if incoming is None or incoming.move != move:
            return
        if incoming.inert:
            raise Refusal(
                Domain.STEP, f"move {move}: FinishMove while chunk {min(incoming.inert)} is inert"
            )
        self.incoming = None

    def check(self) -> None:
        """Assert what the fields promise."""
        if self.incoming is None:
            return
        assert self.incoming.reserved_bytes >= 0
        seen: set[GroupId] = set()
        for chunk in self.incoming.inert.values():
            assert seen.isdisjoint(chunk.groups), "two inert chunks share a group"
            seen.update(chunk.groups)
        assert self.owned.isdisjoint(seen), "a group is both live and inert"
