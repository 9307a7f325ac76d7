"""The move of partition groups between two processors (S4 5.1, Fig. 13), seen by the manager.

Steps 3 to 8 run per chunk of groups, pipelined; 1, 2, R and F once per move. "Owner" is the
receiver after a commit and the sender after a rollback.

step  from → to            message                  true afterwards                if it fails
----  -------------------  -----------------------  -----------------------------  ------------
 J1   manager → store      (move planned)           a restarted manager knows it   nothing began
 1    manager → sender     ComputePartitionsToMove  sender starts no push          finish
 2    sender → manager     PartitionsToMove         groups and sizes are known     finish
 J2   manager → store      (chunks chosen)          what may be held back is known finish
 R    manager ⇄ receiver   Reserve, Reserved        receiver keeps room            finish
 3    manager → sender,    DeactivatePartitions     splits hold the chunk back,    roll back
      split hosts                                   markers follow the last tuple
 4    those → manager      Deactivated              nothing new is sent to sender  roll back
 5    manager → sender     SendPartitions           sender ships when drained      roll back
 6    sender → receiver    ReceivePartitions        (all markers were in)          roll back
 7    receiver → manager   Received                 an inert copy is at receiver   roll back
 C    manager → store      (map version + 1)        THE COMMIT: receiver owns      retry the write
 8a   manager ⇄ owner      ReactivatePartitions     the groups are live there      retry for ever
 8b   manager ⇄ the others ReactivatePartitions     held tuples flow to the owner, retry for ever
                                                    the other copy is gone
 F    manager ⇄ all        FinishMove, MoveFinished late messages find it shut     retry for ever
 J3   manager → store      (move ended)             history                        retry the write

To roll back is 8a and 8b with the sender as owner. "Retry for ever" ends when the participant
answers or is declared dead, which fails the query. A restarted manager finishes committed chunks
and rolls back the others, whatever step they were at; that needs no more than J1, J2 and C.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from dovetail_proto.ids import MoveId, ProcessorId, QueryName
from dovetail_proto.messages import Groups


class MovePhase(StrEnum):
    """Where a move as a whole stands."""

    PLANNED = "planned"  # J1 is being written
    COMPUTING = "computing"  # step 1 sent, waiting for step 2
    CHOSEN = "chosen"  # J2 is being written
    RESERVING = "reserving"  # R sent
    MOVING = "moving"  # chunks are under way
    FINISHING = "finishing"  # F sent
    ENDING = "ending"  # J3 is being written
    ENDED = "ended"


class ChunkState(StrEnum):
    """Where a chunk stands."""

    WAITING = "waiting"  # not begun
    DEACTIVATING = "deactivating"  # step 3 sent, waiting for step 4
    SENDING = "sending"  # step 5 sent, waiting for step 7
    COMMITTING = "committing"  # C is being written: must not be rolled back any more
    ACTIVATING = "activating"  # committed; 8a sent
    RELEASING = "releasing"  # committed; 8b sent
    RESTORING = "restoring"  # rolled back; 8a sent
    RETURNING = "returning"  # rolled back; 8b sent
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    CANCELLED = "cancelled"  # never begun


BEFORE_COMMIT = (ChunkState.DEACTIVATING, ChunkState.SENDING)
AFTER_COMMIT = (ChunkState.ACTIVATING, ChunkState.RELEASING, ChunkState.COMMITTED)
OWNER_FIRST = (ChunkState.ACTIVATING, ChunkState.RESTORING)
OVER = (ChunkState.COMMITTED, ChunkState.ROLLED_BACK, ChunkState.CANCELLED)


class Outcome(StrEnum):
    """How a move ended."""

    COMPLETED = "completed"  # every chunk was committed
    PARTLY = "partly"  # some chunks were committed, the others rolled back or never begun
    ROLLED_BACK = "rolled back"  # no chunk was committed
    FAILED = "failed"  # the query failed meanwhile


@dataclass(slots=True)
class Chunk:
    """Some groups of a move that travel together."""

    index: int
    groups: Groups
    size_bytes: int  # as offered in step 2
    state: ChunkState = ChunkState.WAITING
    waiting: set[ProcessorId] = field(default_factory=set)  # who has to answer; empty if nobody
    deadline_s: float = float("inf")  # when a chunk before its commit is given up


@dataclass(slots=True)
class Move:
    """One move of groups from `sender` to `receiver`."""

    id: MoveId
    query: QueryName
    sender: ProcessorId
    receiver: ProcessorId
    want_bytes: int
    reason: str  # why it was decided, with the numbers
    groups: Groups = ()  # asked for by an operator or a drain; empty: the sender chooses
    exclude: Groups = ()  # pinned when the move was decided: the sender does not choose them
    phase: MovePhase = MovePhase.PLANNED
    chunks: list[Chunk] = field(default_factory=list)  # empty until step 2
    waiting: set[ProcessorId] = field(default_factory=set)  # as in Chunk, for 1, R and F
    deadline_s: float = float("inf")  # when a move before step 3 is given up
    resend_s: float = float("inf")  # when unanswered messages are sent again
    failure: str = ""  # why chunks are rolled back; empty while all goes well
    no_room: bool = False  # it failed because the receiver's memory is short
    started_s: float = 0.0
    ended_s: float = 0.0
    outcome: Outcome | None = None  # None until it has ended

    def outcome_now(self) -> Outcome:
        """How it ends if it ended with its chunks as they are."""
        committed = sum(c.state in AFTER_COMMIT for c in self.chunks)
        if committed == 0:
            return Outcome.ROLLED_BACK
        return Outcome.COMPLETED if committed == len(self.chunks) else Outcome.PARTLY

    def open_chunks(self) -> Iterator[Chunk]:
        """Chunks that are begun and not over."""
        return (c for c in self.chunks if c.state not in OVER and c.state != ChunkState.WAITING)

    def check(self) -> None:
        """Assert what the fields promise."""
        assert self.sender != self.receiver
        for chunk in self.chunks:
            if chunk.state in (ChunkState.WAITING, ChunkState.COMMITTING, *OVER):
                assert not chunk.waiting, f"{chunk.state} waits for {chunk.waiting}"
            else:
                assert chunk.waiting, f"{chunk.state} waits for nobody"
            assert (chunk.deadline_s < float("inf")) == (chunk.state in BEFORE_COMMIT)
        if self.phase in (MovePhase.COMPUTING, MovePhase.RESERVING, MovePhase.FINISHING):
            assert self.waiting
        else:
            assert not self.waiting
        if self.phase is MovePhase.MOVING:
            assert any(c.state not in OVER for c in self.chunks)
        elif self.phase in (MovePhase.FINISHING, MovePhase.ENDING, MovePhase.ENDED):
            assert all(c.state in OVER for c in self.chunks)


@dataclass(frozen=True, slots=True)
class MoveEnded:
    """A move is over, for history, metrics and the draining of a processor that leaves."""

    move: Move
