"""The records of moves and maps, and the writes of a move: what a restarted manager needs.

A move is written down when it is planned (J1), when its chunks are chosen (J2), with each commit
(C), together with the map, and when it has ended (J3).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from dovetail_manager.journal import Puts
from dovetail_manager.moves.protocol import (
    AFTER_COMMIT,
    Chunk,
    ChunkState,
    Move,
    MovePhase,
    Outcome,
)
from dovetail_proto.errors import ConfigError
from dovetail_proto.ids import GroupId, MoveId, ProcessorId, QueryName
from dovetail_proto.partition_map import PartitionMap


@dataclass(frozen=True, slots=True)
class MoveWrite:
    """A write that a query's coordinator asks for; it wants to hear when that is durable."""

    move: MoveId
    puts: Puts


class MovePlanned(MoveWrite):
    """J1."""


class ChunksChosen(MoveWrite):
    """J2."""


@dataclass(frozen=True, slots=True)
class ChunkCommitted(MoveWrite):
    """C: from now on the receiver owns the chunk's groups."""

    chunk: int
    map: PartitionMap


class MoveClosed(MoveWrite):
    """J3, also of a move that was abandoned with its query."""


def move_key(move: MoveId) -> str:
    """Where a move's record is stored."""
    return f"move/{move}"


def map_key(query: QueryName) -> str:
    """Where a query's partition map is stored."""
    return f"map/{query}"


def move_to_json(move: Move) -> str:
    """A move's record: enough to finish or undo it, and for its history."""
    return json.dumps(
        {
            "id": move.id,
            "query": move.query,
            "sender": move.sender,
            "receiver": move.receiver,
            "want_bytes": move.want_bytes,
            "reason": move.reason,
            "asked": move.groups,
            "chunks": [[c.size_bytes, *c.groups] for c in move.chunks],
            "committed": [
                c.index
                for c in move.chunks
                if c.state in AFTER_COMMIT or c.state is ChunkState.COMMITTING
            ],
            "failure": move.failure,
            "started_s": move.started_s,
            "ended_s": move.ended_s,
            "outcome": move.outcome,
        }
    )


def move_from_json(text: str) -> Move:
    """A move as a restarted manager takes it up: committed chunks to complete, others to undo.

    | the record says           | the move resumes as                                         |
    | ------------------------- | ----------------------------------------------------------- |
    | ended                     | history                                                     |
    | planned, no chunks (J1)   | to be finished: the sender may refuse pushes, nothing else  |
    | chunks, not committed (J2)| RESTORING: the chunk may be held back, even be at both ends |
    | chunk committed (C)       | ACTIVATING: the receiver has it and must be told            |

    ConfigError if the text is not such a record. The caller fills in who is waited for.
    """
    try:
        raw: dict[str, Any] = json.loads(text)
        committed = {int(i) for i in raw["committed"]}
        move = Move(
            id=MoveId(raw["id"]),
            query=QueryName(raw["query"]),
            sender=ProcessorId(raw["sender"]),
            receiver=ProcessorId(raw["receiver"]),
            want_bytes=int(raw["want_bytes"]),
            reason=raw["reason"],
            groups=tuple(GroupId(int(g)) for g in raw["asked"]),
            failure=raw["failure"],
            started_s=float(raw["started_s"]),
            ended_s=float(raw["ended_s"]),
            outcome=Outcome(raw["outcome"]) if raw["outcome"] is not None else None,
        )
        over = move.outcome is not None
        for index, (size_bytes, *groups) in enumerate(raw["chunks"]):
            if over:
                state = ChunkState.COMMITTED if index in committed else ChunkState.ROLLED_BACK
            else:
                state = ChunkState.ACTIVATING if index in committed else ChunkState.RESTORING
            chunk = Chunk(index, tuple(GroupId(int(g)) for g in groups), int(size_bytes), state)
            move.chunks.append(chunk)
        move.phase = MovePhase.ENDED if over else MovePhase.MOVING
    except (KeyError, TypeError, ValueError) as e:
        raise ConfigError(
            f"not the record of a move: {e}", remedy="restore the manager's store"
        ) from e
    return move
