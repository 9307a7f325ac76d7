"""What a manager writes down, in which order, and what its successor reads.

The store is a map of text to text with an epoch and a revision. A write carries both: the store
refuses another epoch than its own (the writer was replaced) and takes the next revision only, so
a write that was repeated or came late can neither be done twice nor undo a newer one.

    manager                         store
      │── Write(epoch 3, rev 8) ──────▶│ epoch = 3, rev = 7: done, rev = 8
      │        (answer lost)           │
      │── Write(epoch 3, rev 8) ──────▶│ rev = 8 already: done before, says yes
      ✗                                │ acquire → epoch 4
      │── Write(epoch 3, rev 9) ──────▶│ fenced

One write is under way at a time; the others wait in order, so the store is always a prefix of
what was decided. Keys: `map/<query>`, `move/<id>`, `query/<name>`, `member/<processor>`.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dovetail_manager.moves.protocol import (
    AFTER_COMMIT,
    Chunk,
    ChunkState,
    Move,
    Outcome,
    Persist,
    Phase,
)
from dovetail_proto.errors import ConfigError
from dovetail_proto.ids import Epoch, GroupId, MoveId, ProcessorId, QueryName


@dataclass(frozen=True, slots=True)
class Write:
    """One transaction for the store."""

    epoch: Epoch
    revision: int
    puts: Mapping[str, str | None]


class Journal:
    """The writes of one manager in office, one at a time."""

    def __init__(self, epoch: Epoch, revision: int) -> None:
        self.epoch = epoch
        self.revision = revision  # of the last write that is known to be durable
        self.queue: deque[Persist] = deque()  # the first one is under way

    def append(self, entry: Persist) -> list[Write]:
        """Queue an entry; the write to issue now, if none is under way."""
        self.queue.append(entry)
        return [self._write()] if len(self.queue) == 1 else []

    def confirmed(self, revision: int) -> tuple[Persist | None, list[Write]]:
        """The store has `revision`: the entry that is durable now, and the write to issue next.

        A late confirmation of an older revision confirms nothing.
        """
        if not self.queue or revision != self.revision + 1:
            return None, []
        self.revision = revision
        entry = self.queue.popleft()
        return entry, [self._write()] if self.queue else []

    def unanswered(self) -> list[Write]:
        """The write under way, to be issued again after an error or a time-out."""
        return [self._write()] if self.queue else []

    def _write(self) -> Write:
        return Write(self.epoch, self.revision + 1, self.queue[0].puts)


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
        move.phase = Phase.ENDED if over else Phase.MOVING
    except (KeyError, TypeError, ValueError) as e:
        raise ConfigError(
            f"not the record of a move: {e}", remedy="restore the manager's store"
        ) from e
    return move
