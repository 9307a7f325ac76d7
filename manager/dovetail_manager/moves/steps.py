"""What comes next inside a move: every transition of the table in `protocol`, as a method.

Each one takes the move from one row of the table to the next and returns what to send or write;
none decides which moves there are. `coordinator` calls them as things happen.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dovetail_manager.effects import Send, StepDown
from dovetail_manager.journal import Puts
from dovetail_manager.moves.placement import Placement
from dovetail_manager.moves.protocol import (
    AFTER_COMMIT,
    BEFORE_COMMIT,
    OVER,
    OWNER_FIRST,
    Chunk,
    ChunkState,
    Move,
    MoveEnded,
    MovePhase,
)
from dovetail_manager.moves.records import (
    ChunkCommitted,
    ChunksChosen,
    MoveClosed,
    MoveWrite,
    map_key,
    move_key,
    move_to_json,
)
from dovetail_manager.moves.requests import (
    check_offer,
    chunk_request,
    chunked,
    move_request,
    reactivation,
)
from dovetail_proto.errors import Domain, Refusal
from dovetail_proto.ids import Epoch, MapVersion, MoveId, ProcessorId, QueryName
from dovetail_proto.messages import MoveRef, PartitionsToMove, Reactivated, Refused

NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class MoveSettings:
    """How patient and how wide a move is."""

    resend_s: float = 1.0
    """An unanswered message is repeated; ten round trips of a loaded network are below it."""

    step_timeout_s: float = 10.0
    """A step without an answer for this long is given up, so that tuples are not held back."""

    transfer_bytes_per_s_min: int = 50 << 20
    """What a chunk may take to travel on top of that: a twentieth of what grpcio moves."""

    chunk_bytes: int = 4 << 20
    """Groups travel together up to this size: reading, sending and checking it takes some 20 ms on
    busy machines, far below the 100 ms that a group may be held back; a larger group travels
    alone."""

    chunks_in_flight: int = 2
    """One chunk drains while the one before it travels; more would only hold back longer."""


Instruction = Send | MoveWrite | MoveEnded | StepDown


class Steps:
    """The open moves of one query, and the steps that change them."""

    def __init__(
        self, query: QueryName, epoch: Epoch, placement: Placement, settings: MoveSettings
    ) -> None:
        self.query = query
        self.epoch = epoch
        self.placement = placement
        self.settings = settings
        self.moves: dict[MoveId, Move] = {}  # not ended, in order of their ids

    # Step by step -------------------------------------------------------------------------------

    def chosen(self, move: Move, source: ProcessorId, m: PartitionsToMove) -> list[Instruction]:
        """Step 2: what the sender offers is cut into chunks and written down."""
        if source != move.sender:
            raise Refusal(Domain.MEMBER, f"{source!r} is not the sender of move {move.id}")
        if move.phase is not MovePhase.COMPUTING:
            return []
        check_offer(move, m, self.placement.next_map)
        move.waiting.clear()
        move.phase, move.deadline_s = MovePhase.CHOSEN, NEVER
        move.chunks = chunked(m.groups, m.sizes, self.settings.chunk_bytes)
        return [ChunksChosen(move.id, self.record(move))]

    def fill_pipeline(self, move: Move, now_s: float) -> list[Instruction]:
        """Step 3 for as many chunks as may be in flight."""
        out: list[Instruction] = []
        in_flight = sum(c.state in BEFORE_COMMIT for c in move.chunks)
        for chunk in move.chunks:
            if in_flight >= self.settings.chunks_in_flight:
                break
            if chunk.state is ChunkState.WAITING:
                in_flight += 1
                chunk.state, chunk.waiting = ChunkState.DEACTIVATING, {*self.placement.split_hosts}
                chunk.waiting.add(move.sender)
                chunk.deadline_s = now_s + self.settings.step_timeout_s
                out += self.send(move, chunk, chunk.waiting, now_s)
        return out

    def order_sending(self, move: Move, chunk: Chunk, now_s: float) -> list[Instruction]:
        """Step 5."""
        chunk.state, chunk.waiting = ChunkState.SENDING, {move.receiver}
        travel_s = chunk.size_bytes / self.settings.transfer_bytes_per_s_min
        chunk.deadline_s = now_s + self.settings.step_timeout_s + travel_s
        return self.send(move, chunk, {move.sender}, now_s)

    def commit(self, move: Move, chunk: Chunk) -> ChunkCommitted:
        """C: from here on the chunk can only go forward."""
        chunk.state, chunk.deadline_s = ChunkState.COMMITTING, NEVER
        chunk.waiting.clear()
        changed = self.placement.next_map.moved(chunk.groups, move.receiver)
        self.placement.next_map = changed
        puts = {map_key(self.query): changed.to_json(), **self.record(move)}
        return ChunkCommitted(move.id, puts, chunk.index, changed)

    def reactivated(
        self, move: Move, source: ProcessorId, m: Reactivated, now_s: float
    ) -> list[Instruction]:
        """An answer to step 8."""
        chunk = self.chunk(move, m.chunk)
        if not 0 < m.map_version <= self.placement.next_map.version:
            raise Refusal(Domain.MAP, f"{source!r} claims map version {m.map_version}")
        self.placement.versions[source] = max(
            self.placement.versions.get(source, MapVersion(1)), m.map_version
        )
        if source not in chunk.waiting or chunk.state in BEFORE_COMMIT:
            return []
        return self.answered(move, chunk, source, now_s)

    def answered(
        self, move: Move, chunk: Chunk, source: ProcessorId, now_s: float
    ) -> list[Instruction]:
        """Step 8 is done at `source`: after the owner come the others, after them the end."""
        chunk.waiting.discard(source)
        committed = chunk.state in AFTER_COMMIT
        if chunk.state in OWNER_FIRST and not chunk.waiting:
            chunk.waiting = self.participants(move) - {source}
            chunk.state = ChunkState.RELEASING if committed else ChunkState.RETURNING
            if chunk.waiting:
                return self.send(move, chunk, chunk.waiting, now_s)
        if chunk.waiting:
            return []
        chunk.state = ChunkState.COMMITTED if committed else ChunkState.ROLLED_BACK
        return self.finish_if_over(move, now_s)

    def refused(
        self, move: Move, source: ProcessorId, m: Refused, now_s: float
    ) -> list[Instruction]:
        """A participant cannot do what it was asked; it counts if it was asked just now."""
        if m.domain == Domain.MAP and 0 < m.map_version <= self.placement.map.version:
            self.placement.versions[source] = m.map_version
        if m.domain in (Domain.BUSY, Domain.MAP) or move.failure:
            return []  # the next resend asks again, or the deadline ends it
        name, answering = m.refused, move.waiting
        if m.chunk >= 0:
            chunk = self.chunk(move, m.chunk)
            answering = chunk.waiting | {move.sender}
            current = chunk.state in BEFORE_COMMIT and name in {
                ChunkState.DEACTIVATING: ("DeactivatePartitions",),
                ChunkState.SENDING: ("SendPartitions", "ReceivePartitions"),
            }.get(chunk.state, ())
        else:
            current = (move.phase, name) in (
                (MovePhase.COMPUTING, "ComputePartitionsToMove"),
                (MovePhase.RESERVING, "Reserve"),
            )
        if not current or source not in answering:
            return []
        move.no_room = m.domain == Domain.MEMORY
        return self.give_up(move, f"{source!r} refused {name}: {m.message}", now_s)

    def give_up(self, move: Move, failure: str, now_s: float) -> list[Instruction]:
        """Roll back every chunk that is not committed or committing; begin no other."""
        move.failure = move.failure or failure
        move.deadline_s = NEVER
        out: list[Instruction] = []
        for chunk in move.chunks:
            if chunk.state is ChunkState.WAITING:
                chunk.state = ChunkState.CANCELLED
            elif chunk.state in BEFORE_COMMIT:
                chunk.state, chunk.waiting = ChunkState.RESTORING, {move.sender}
                chunk.deadline_s = NEVER
                out += self.send(move, chunk, chunk.waiting, now_s)
        move.waiting.clear()
        return [*out, *self.finish_if_over(move, now_s)]

    def finish_if_over(self, move: Move, now_s: float) -> list[Instruction]:
        """F when all chunks are over, J3 when everyone has answered it."""
        writing = (MovePhase.PLANNED, MovePhase.CHOSEN, MovePhase.ENDING)
        if move.phase in writing or any(c.state not in OVER for c in move.chunks):
            return []
        if move.phase is not MovePhase.FINISHING:
            move.phase, move.waiting = MovePhase.FINISHING, self.participants(move)
            return self.send_of_move(move, now_s)
        if move.waiting:
            return []
        move.phase, move.resend_s = MovePhase.ENDING, NEVER
        move.outcome, move.ended_s = move.outcome_now(), now_s
        return [MoveClosed(move.id, self.record(move))]

    # Messages -----------------------------------------------------------------------------------

    def send_of_move(self, move: Move, now_s: float) -> list[Instruction]:
        """Send 1, R or F to whoever has not answered."""
        if not move.waiting:
            return []
        move.resend_s = min(move.resend_s, now_s + self.settings.resend_s)
        message = move_request(self.ref(move), move)
        return [Send(p, message) for p in sorted(move.waiting)]

    def send(
        self, move: Move, chunk: Chunk, to: Iterable[ProcessorId], now_s: float
    ) -> list[Instruction]:
        """Send a chunk's message."""
        move.resend_s = min(move.resend_s, now_s + self.settings.resend_s)
        ref, out = self.ref(move), list[Instruction]()
        for p in sorted(to):
            if chunk.state in BEFORE_COMMIT:
                out.append(Send(p, chunk_request(ref, move, chunk, self.placement.splits)))
            else:
                patch = self.placement.map.patch_since(
                    self.placement.versions.get(p, MapVersion(1))
                )
                out.append(Send(p, reactivation(ref, move, chunk, patch)))
        return out

    def asked(self, move: Move, chunk: Chunk) -> set[ProcessorId]:
        """Who gets the chunk's message again: in step 5 that is not who answers."""
        return {move.sender} if chunk.state is ChunkState.SENDING else chunk.waiting

    def ref(self, move: Move) -> MoveRef:
        """Names the move in every message."""
        return MoveRef(self.query, self.epoch, move.id, min(self.moves))

    def participants(self, move: Move) -> set[ProcessorId]:
        """Who takes part in a move and is there."""
        return {*self.placement.split_hosts, move.sender, move.receiver} - self.placement.lost

    def chunk(self, move: Move, index: int) -> Chunk:
        """A chunk by its index; Refusal if there is none."""
        if not 0 <= index < len(move.chunks):
            raise Refusal(Domain.MOVE, f"move {move.id} has no chunk {index}")
        return move.chunks[index]

    def check_source(self, move: Move, source: ProcessorId) -> None:
        """Refuse who has no part in the move."""
        if source not in self.participants(move):
            raise Refusal(Domain.MEMBER, f"{source!r} has no part in move {move.id}")

    def record(self, move: Move) -> Puts:
        """What is written down of a move."""
        return {move_key(move.id): move_to_json(move)}
