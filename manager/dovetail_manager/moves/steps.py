"""What comes next inside a move: every transition of the table in `protocol`, as a method.

Each one takes the move from one row of the table to the next and returns what to send or write;
none decides which moves there are. `coordinator` calls them as things happen.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count

from dovetail_manager.moves.journal import map_key, move_key, move_to_json
from dovetail_manager.moves.protocol import (
    AFTER_COMMIT,
    BEFORE_COMMIT,
    OVER,
    OWNER_FIRST,
    Chunk,
    ChunkState,
    Instruction,
    Move,
    Persist,
    Phase,
    Send,
)
from dovetail_manager.moves.requests import (
    check_offer,
    chunk_request,
    chunked,
    move_request,
    reactivation,
)
from dovetail_proto.errors import Domain, Refusal
from dovetail_proto.ids import Epoch, MapVersion, MoveId, ProcessorId, QueryName, SplitId
from dovetail_proto.messages import MoveRef, PartitionsToMove, Reactivated, Refused
from dovetail_proto.partition_map import PartitionMap

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


class MoveSteps:
    """The state of one query's moves, and the steps that change it."""

    def __init__(
        self,
        query: QueryName,
        epoch: Epoch,
        known: PartitionMap,
        split_hosts: Mapping[ProcessorId, tuple[SplitId, ...]],
        settings: MoveSettings,
        *,
        numbers: Iterator[int] | None = None,
    ) -> None:
        self.query = query
        self.epoch = epoch
        self.settings = settings
        self.map = known  # as the store has it
        self.map_writes: deque[PartitionMap] = deque()  # newer versions, issued, not confirmed
        self.moves: dict[MoveId, Move] = {}  # not ended, in order of their ids
        self.set_hosts(split_hosts)
        # Of the moves to come. All queries of a manager share them: ids are keys of its store.
        self.numbers = numbers if numbers is not None else count(1)
        self.lost: set[ProcessorId] = set()  # died without owning or hosting anything
        self.map_known: dict[ProcessorId, MapVersion] = {}  # a version each participant surely has

    def set_hosts(self, split_hosts: Mapping[ProcessorId, tuple[SplitId, ...]]) -> None:
        """These host the splits from now on, as the store has it; no move is open."""
        assert not self.moves, "splits are handed on while groups move"
        self.split_hosts = dict(split_hosts)
        self.splits = tuple(sorted(s for splits in split_hosts.values() for s in splits))

    @property
    def map_tail(self) -> PartitionMap:
        """The map as the store will have it when all issued writes are confirmed."""
        return self.map_writes[-1] if self.map_writes else self.map

    # Step by step -------------------------------------------------------------------------------

    def _chosen(self, move: Move, source: ProcessorId, m: PartitionsToMove) -> list[Instruction]:
        if source != move.sender:
            raise Refusal(Domain.MEMBER, f"{source!r} is not the sender of move {move.id}")
        if move.phase is not Phase.COMPUTING:
            return []
        check_offer(move, m, self.map_tail)
        move.waiting.clear()
        move.phase, move.deadline_s = Phase.CHOSEN, NEVER
        move.chunks = chunked(m.groups, m.sizes, self.settings.chunk_bytes)
        return [self._journal("chosen", move)]

    def _fill_pipeline(self, move: Move, now_s: float) -> list[Instruction]:
        out: list[Instruction] = []
        in_flight = sum(c.state in BEFORE_COMMIT for c in move.chunks)
        for chunk in move.chunks:
            if in_flight >= self.settings.chunks_in_flight:
                break
            if chunk.state is ChunkState.WAITING:
                in_flight += 1
                chunk.state, chunk.waiting = ChunkState.DEACTIVATING, {*self.split_hosts}
                chunk.waiting.add(move.sender)
                chunk.deadline_s = now_s + self.settings.step_timeout_s
                out += self._send(move, chunk, chunk.waiting, now_s)
        return out

    def _order_sending(self, move: Move, chunk: Chunk, now_s: float) -> list[Instruction]:
        chunk.state, chunk.waiting = ChunkState.SENDING, {move.receiver}
        travel_s = chunk.size_bytes / self.settings.transfer_bytes_per_s_min
        chunk.deadline_s = now_s + self.settings.step_timeout_s + travel_s
        return self._send(move, chunk, {move.sender}, now_s)

    def _commit(self, move: Move, chunk: Chunk) -> Persist:
        chunk.state, chunk.deadline_s = ChunkState.COMMITTING, NEVER
        chunk.waiting.clear()
        self.map_writes.append(self.map_tail.moved(chunk.groups, move.receiver))
        return Persist(
            ("commit", move.id, str(chunk.index)),
            {map_key(self.query): self.map_tail.to_json(), move_key(move.id): move_to_json(move)},
        )

    def _reactivated(
        self, move: Move, source: ProcessorId, m: Reactivated, now_s: float
    ) -> list[Instruction]:
        chunk = self._chunk(move, m.chunk)
        if not 0 < m.map_version <= self.map_tail.version:
            raise Refusal(Domain.MAP, f"{source!r} claims map version {m.map_version}")
        self.map_known[source] = max(self.map_known.get(source, MapVersion(1)), m.map_version)
        if source not in chunk.waiting or chunk.state in BEFORE_COMMIT:
            return []
        return self._answered(move, chunk, source, now_s)

    def _answered(
        self, move: Move, chunk: Chunk, source: ProcessorId, now_s: float
    ) -> list[Instruction]:
        """Step 8 is done at `source`: after the owner come the others, after them the end."""
        chunk.waiting.discard(source)
        committed = chunk.state in AFTER_COMMIT
        if chunk.state in OWNER_FIRST and not chunk.waiting:
            chunk.waiting = self._participants(move) - {source}
            chunk.state = ChunkState.RELEASING if committed else ChunkState.RETURNING
            if chunk.waiting:
                return self._send(move, chunk, chunk.waiting, now_s)
        if chunk.waiting:
            return []
        chunk.state = ChunkState.COMMITTED if committed else ChunkState.ROLLED_BACK
        return self._finish_if_over(move, now_s)

    def _refused(
        self, move: Move, source: ProcessorId, m: Refused, now_s: float
    ) -> list[Instruction]:
        if m.domain == Domain.MAP and 0 < m.map_version <= self.map.version:
            self.map_known[source] = m.map_version
        if m.domain in (Domain.BUSY, Domain.MAP) or move.failure:
            return []  # the next resend asks again, or the deadline ends it
        name, answering = m.refused, move.waiting
        if m.chunk >= 0:
            chunk = self._chunk(move, m.chunk)
            answering = chunk.waiting | {move.sender}
            current = chunk.state in BEFORE_COMMIT and name in {
                ChunkState.DEACTIVATING: ("DeactivatePartitions",),
                ChunkState.SENDING: ("SendPartitions", "ReceivePartitions"),
            }.get(chunk.state, ())
        else:
            current = (move.phase, name) in (
                (Phase.COMPUTING, "ComputePartitionsToMove"),
                (Phase.RESERVING, "Reserve"),
            )
        if not current or source not in answering:
            return []
        move.no_room = m.domain == Domain.MEMORY
        return self._give_up(move, f"{source!r} refused {name}: {m.message}", now_s)

    def _give_up(self, move: Move, failure: str, now_s: float) -> list[Instruction]:
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
                out += self._send(move, chunk, chunk.waiting, now_s)
        move.waiting.clear()
        return [*out, *self._finish_if_over(move, now_s)]

    def _finish_if_over(self, move: Move, now_s: float) -> list[Instruction]:
        writing = (Phase.PLANNED, Phase.CHOSEN, Phase.ENDING)
        if move.phase in writing or any(c.state not in OVER for c in move.chunks):
            return []
        if move.phase is not Phase.FINISHING:
            move.phase, move.waiting = Phase.FINISHING, self._participants(move)
            return self._send_of_move(move, now_s)
        if move.waiting:
            return []
        move.phase, move.resend_s = Phase.ENDING, NEVER
        move.outcome, move.ended_s = move.outcome_now(), now_s
        return [self._journal("ended", move)]

    # Messages -----------------------------------------------------------------------------------

    def _send_of_move(self, move: Move, now_s: float) -> list[Instruction]:
        if not move.waiting:
            return []
        move.resend_s = min(move.resend_s, now_s + self.settings.resend_s)
        message = move_request(self._ref(move), move)
        return [Send(p, message) for p in sorted(move.waiting)]

    def _send(
        self, move: Move, chunk: Chunk, to: Iterable[ProcessorId], now_s: float
    ) -> list[Instruction]:
        move.resend_s = min(move.resend_s, now_s + self.settings.resend_s)
        ref, out = self._ref(move), list[Instruction]()
        for p in sorted(to):
            if chunk.state in BEFORE_COMMIT:
                out.append(Send(p, chunk_request(ref, move, chunk, self.splits)))
            else:
                patch = self.map.patch_since(self.map_known.get(p, MapVersion(1)))
                out.append(Send(p, reactivation(ref, move, chunk, patch)))
        return out

    def _asked(self, move: Move, chunk: Chunk) -> set[ProcessorId]:
        """Who gets the chunk's message again: in step 5 that is not who answers."""
        return {move.sender} if chunk.state is ChunkState.SENDING else chunk.waiting

    def _ref(self, move: Move) -> MoveRef:
        return MoveRef(self.query, self.epoch, move.id, min(self.moves))

    def _participants(self, move: Move) -> set[ProcessorId]:
        return {*self.split_hosts, move.sender, move.receiver} - self.lost

    def _chunk(self, move: Move, index: int) -> Chunk:
        if not 0 <= index < len(move.chunks):
            raise Refusal(Domain.MOVE, f"move {move.id} has no chunk {index}")
        return move.chunks[index]

    def _check_source(self, move: Move, source: ProcessorId) -> None:
        if source not in self._participants(move):
            raise Refusal(Domain.MEMBER, f"{source!r} has no part in move {move.id}")

    def _journal(self, what: str, move: Move) -> Persist:
        return Persist((what, move.id), {move_key(move.id): move_to_json(move)})
