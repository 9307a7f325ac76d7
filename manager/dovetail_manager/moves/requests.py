"""The messages of a move, built from where it stands, and what an offer must fulfil."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail_manager.moves.protocol import AFTER_COMMIT, Chunk, ChunkState, Move, MovePhase
from dovetail_proto.errors import Domain, Refusal
from dovetail_proto.ids import GroupId, ProcessorId, SplitId
from dovetail_proto.messages import (
    ComputePartitionsToMove,
    DeactivatePartitions,
    FinishMove,
    Groups,
    MoveRef,
    MoveRequest,
    PartitionsToMove,
    ReactivatePartitions,
    Reserve,
    SendPartitions,
)
from dovetail_proto.partition_map import MapPatch, PartitionMap


def move_request(ref: MoveRef, move: Move) -> MoveRequest:
    """Steps 1, R and F: what those in `move.waiting` are asked."""
    match move.phase:
        case MovePhase.COMPUTING:
            return ComputePartitionsToMove(ref, move.want_bytes, move.groups, move.exclude)
        case MovePhase.RESERVING:
            return Reserve(ref, sum(c.size_bytes for c in move.chunks))
        case _:
            return FinishMove(ref)


def chunk_request(
    ref: MoveRef, move: Move, chunk: Chunk, splits: tuple[SplitId, ...]
) -> MoveRequest:
    """Steps 3 and 5."""
    if chunk.state is ChunkState.DEACTIVATING:
        return DeactivatePartitions(ref, chunk.index, chunk.groups, move.sender, splits)
    return SendPartitions(ref, chunk.index, chunk.groups, move.receiver)


def reactivation(ref: MoveRef, move: Move, chunk: Chunk, patch: MapPatch) -> MoveRequest:
    """Step 8, after a commit or a rollback."""
    return ReactivatePartitions(ref, chunk.index, chunk.groups, owner_of(move, chunk), patch)


def owner_of(move: Move, chunk: Chunk) -> ProcessorId:
    """Who owns the chunk's groups: the receiver from the commit on."""
    return move.receiver if chunk.state in AFTER_COMMIT else move.sender


def check_offer(move: Move, m: PartitionsToMove, current: PartitionMap) -> None:
    """Refuse an offer that is malformed or names groups that the sender does not own."""
    if len(m.groups) != len(m.sizes) or any(size < 0 for size in m.sizes):
        raise Refusal(Domain.MESSAGE, f"move {move.id}: {len(m.sizes)} sizes do not fit")
    if len(set(m.groups)) != len(m.groups):
        raise Refusal(Domain.MESSAGE, f"move {move.id}: a group is named twice")
    if pinned := set(m.groups) & set(move.exclude):
        raise Refusal(Domain.GROUP, f"move {move.id}: group {min(pinned)} is pinned")
    for group in m.groups:
        if current.owner(group) != move.sender:
            raise Refusal(
                Domain.GROUP,
                f"move {move.id}: {move.sender!r} does not own group {group}",
                group=group,
            )


def chunked(groups: Groups, sizes: Sequence[int], chunk_bytes: int) -> list[Chunk]:
    """Groups in the offered order, cut where a chunk would exceed `chunk_bytes`."""
    parts: list[tuple[list[GroupId], int]] = []
    for group, size in zip(groups, sizes, strict=True):
        if not parts or parts[-1][1] + size > chunk_bytes:
            parts.append(([], 0))
        members, held = parts[-1]
        members.append(group)
        parts[-1] = (members, held + size)
    return [Chunk(i, tuple(sorted(members)), held) for i, (members, held) in enumerate(parts)]
