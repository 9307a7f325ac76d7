"""The split host's role: hold a chunk's tuples back while it travels, and mark the end in-band.

    Deactivate ─▶ held ── Reactivate ─▶ released to the owner that the map names

Invariant: a held group belongs to exactly one chunk of one move that has not ended here, so the
Reactivate of that chunk releases it, and nothing else does.
"""

from __future__ import annotations

from dovetail_processor.moves.instructions import (
    HoldGroups,
    Instruction,
    ReleaseGroups,
    SendMarkers,
)
from dovetail_proto.errors import Domain, Refusal
from dovetail_proto.ids import GroupId, MoveId, ProcessorId, SplitId
from dovetail_proto.messages import DeactivatePartitions
from dovetail_proto.partition_map import PartitionMap


class SplitHost:
    """See the module. Does nothing on a processor without splits."""

    def __init__(self, splits: tuple[SplitId, ...]) -> None:
        self.splits = splits
        self.held: dict[GroupId, tuple[MoveId, int]] = {}  # by whose chunk; empty outside moves

    def check_deactivate(self, m: DeactivatePartitions, known: PartitionMap) -> None:
        """Refuse step 3 if the sender does not own a group, or another chunk holds it."""
        for group in m.groups:
            owner = known.owner(group)
            if owner != m.sender:
                raise Refusal(
                    Domain.GROUP,
                    f"move {m.ref.move} chunk {m.chunk}: group {group} is owned by {owner!r}, "
                    f"not by the sender {m.sender!r}",
                    group=group,
                )
            holder = self.held.get(group)
            if holder is not None and holder != (m.ref.move, m.chunk):
                raise Refusal(
                    Domain.GROUP,
                    f"move {m.ref.move} chunk {m.chunk}: group {group} is held back for move "
                    f"{holder[0]} chunk {holder[1]}",
                    group=group,
                )
        if missing := set(self.splits) - set(m.splits):
            raise Refusal(
                Domain.MESSAGE,
                f"move {m.ref.move}: DeactivatePartitions does not know split {min(missing)!r}",
            )

    def deactivate(self, m: DeactivatePartitions) -> list[Instruction]:
        """Step 3: hold, then mark. A repeated message changes nothing."""
        if not self.splits or m.groups[0] in self.held:
            return []
        for group in m.groups:
            self.held[group] = (m.ref.move, m.chunk)
        return [
            HoldGroups(m.groups),
            SendMarkers(m.ref.move, m.chunk, m.sender, self.splits),
        ]

    def reactivate(self, move: MoveId, chunk: int, owner: ProcessorId) -> list[Instruction]:
        """Step 8: send what is held to the owner."""
        groups = tuple(g for g, holder in self.held.items() if holder == (move, chunk))
        for group in groups:
            del self.held[group]
        return [ReleaseGroups(groups, owner)] if groups else []

    def finish(self, move: MoveId) -> None:
        """The move is over; refuse while it still holds a group back."""
        for group, holder in self.held.items():
            if holder[0] == move:
                raise Refusal(
                    Domain.STEP, f"move {move}: FinishMove while group {group} is held back"
                )
