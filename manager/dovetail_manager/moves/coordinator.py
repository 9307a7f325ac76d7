"""Runs the moves of one query: which message or write comes next, after whatever happens.

A pure machine: replies, confirmed writes and the time go in, messages and writes come out; the
table of steps is in `protocol`. It keeps one rule above all: a group's owner changes by the
confirmed write of a new map version, and by nothing else. Before that write any trouble rolls
the chunk back; once the write is issued, the chunk can only go forward.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

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
    MoveEnded,
    Outcome,
    Persist,
    Phase,
    Send,
    StepDown,
)
from dovetail_manager.moves.requests import (
    check_offer,
    chunk_request,
    chunked,
    move_request,
    owner_of,
    reactivation,
)
from dovetail_proto.errors import Domain, Refusal
from dovetail_proto.ids import (
    Epoch,
    GroupId,
    MapVersion,
    MoveId,
    ProcessorId,
    QueryName,
    SplitId,
    move_id,
)
from dovetail_proto.messages import (
    Deactivated,
    MoveFinished,
    MoveRef,
    MoveReply,
    PartitionsToMove,
    Reactivated,
    Received,
    Refused,
    Reserved,
)
from dovetail_proto.partition_map import PartitionMap

NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class MoveSettings:
    """How patient and how wide a move is."""

    resend_s: float = 1.0
    """An unanswered message is repeated; ten round trips of a loaded network are below it."""

    step_timeout_s: float = 10.0
    """A chunk without progress is given up before its tuples are held back for longer."""

    chunk_bytes: int = 16 << 20
    """Groups travel together up to this size: 16 ms at 1 GB/s, far below the 100 ms that a
    group may be held back; a larger group travels alone."""

    chunks_in_flight: int = 2
    """One chunk drains while the one before it travels; more would only hold back longer."""


class Coordinator:
    """The moves of one query under one manager. Not thread-safe; feed it one event at a time."""

    def __init__(
        self,
        query: QueryName,
        epoch: Epoch,
        known: PartitionMap,
        split_hosts: Mapping[ProcessorId, tuple[SplitId, ...]],
        settings: MoveSettings,
    ) -> None:
        self.query = query
        self.epoch = epoch
        self.settings = settings
        self.map = known  # as the store has it
        self.map_writes: deque[PartitionMap] = deque()  # newer versions, issued, not confirmed
        self.split_hosts = dict(split_hosts)
        self.splits = tuple(sorted(s for splits in split_hosts.values() for s in splits))
        self.moves: dict[MoveId, Move] = {}  # not ended, in order of their ids
        self.moves_begun = 0  # by this manager; numbers the next id
        self.lost: set[ProcessorId] = set()  # died without owning or hosting anything
        self.map_known: dict[ProcessorId, MapVersion] = {}  # a version each participant surely has

    @property
    def map_tail(self) -> PartitionMap:
        """The map as the store will have it when all issued writes are confirmed."""
        return self.map_writes[-1] if self.map_writes else self.map

    # What others ask for ------------------------------------------------------------------------

    def begin(
        self,
        sender: ProcessorId,
        receiver: ProcessorId,
        want_bytes: int,
        *,
        groups: Sequence[GroupId] = (),
        reason: str,
        now_s: float,
    ) -> list[Instruction]:
        """Start a move; Refusal if it cannot be or either end is in a move already."""
        if sender == receiver:
            raise Refusal(Domain.MEMBER, f"{sender!r} cannot move groups to itself")
        if busy := self.busy() & {sender, receiver}:
            raise Refusal(Domain.BUSY, f"processor {min(busy)!r} is in another move")
        if want_bytes <= 0 and not groups:
            raise Refusal(Domain.MESSAGE, f"a move of {want_bytes} bytes moves nothing")
        for group in groups:
            if self.map_tail.owner(group) != sender:
                raise Refusal(
                    Domain.GROUP,
                    f"group {group} is owned by {self.map_tail.owner(group)!r}, not {sender!r}",
                )
        self.moves_begun += 1
        move = Move(
            id=move_id(self.epoch, self.moves_begun),
            query=self.query,
            sender=sender,
            receiver=receiver,
            want_bytes=want_bytes,
            reason=reason,
            groups=tuple(sorted(set(groups))),
            started_s=now_s,
        )
        self.moves[move.id] = move
        return [self._journal("planned", move)]

    def busy(self) -> set[ProcessorId]:
        """Senders and receivers of moves that have not ended."""
        return {p for move in self.moves.values() for p in (move.sender, move.receiver)}

    def abandon(self, cause: str, now_s: float) -> list[Instruction]:
        """The query failed: every move ends where it stands; processors drop their part."""
        out: list[Instruction] = []
        for move in list(self.moves.values()):
            move.failure, move.outcome, move.ended_s = cause, Outcome.FAILED, now_s
            out += [self._journal("abandoned", move), MoveEnded(move)]
        self.moves.clear()
        return out

    def lose(self, processor: ProcessorId, now_s: float) -> list[Instruction]:
        """A processor died that owns no group and hosts no split: its moves are rolled back."""
        assert processor not in self.split_hosts
        assert not len(self.map_tail.groups_of(processor))
        self.lost.add(processor)
        out: list[Instruction] = []
        for move in list(self.moves.values()):
            if processor in (move.sender, move.receiver):
                move.waiting.discard(processor)
                for chunk in move.open_chunks():
                    if processor in chunk.waiting and chunk.state not in BEFORE_COMMIT:
                        out += self._answered(move, chunk, processor, now_s)
                if move.phase in (Phase.COMPUTING, Phase.RESERVING, Phase.MOVING):
                    out += self._give_up(move, f"{processor!r} died", now_s)
                else:
                    out += self._finish_if_over(move, now_s)
        return out

    def regain(self, processor: ProcessorId) -> None:
        """A new incarnation of a processor that died is here, empty."""
        self.lost.discard(processor)
        self.map_known.pop(processor, None)

    def take_up(self, moves: Iterable[Move], now_s: float) -> list[Instruction]:
        """Adopt the open moves of a former manager: complete what is committed, undo the rest."""
        out: list[Instruction] = []
        for move in sorted(moves, key=lambda m: m.id):
            self.moves[move.id] = move
            move.failure = move.failure or "the manager was restarted"
            for chunk in move.open_chunks():
                chunk.waiting = {owner_of(move, chunk)}
                out += self._send(move, chunk, chunk.waiting, now_s)
            out += self._finish_if_over(move, now_s)
        return out

    # What happens -------------------------------------------------------------------------------

    def handle(self, source: ProcessorId, m: MoveReply, now_s: float) -> list[Instruction]:
        """Take a reply. Late and repeated ones change nothing; forged ones raise Refusal."""
        if isinstance(m, Refused) and m.epoch > self.epoch:
            return [StepDown(f"{source!r} obeys the manager of epoch {m.epoch}")]
        if m.ref.epoch != self.epoch:
            return []  # an answer to a former manager, whose steps are undone or repeated anyway
        move = self.moves.get(m.ref.move)
        if move is None:
            raise Refusal(
                Domain.MOVE,
                f"{type(m).__name__} from {source!r}: move {m.ref.move} is unknown or has ended",
            )
        self._check_source(move, source)
        match m:
            case PartitionsToMove():
                return self._chosen(move, source, m)
            case Reserved():
                if move.phase is not Phase.RESERVING or source not in move.waiting:
                    return []
                move.waiting.clear()
                move.phase, move.deadline_s = Phase.MOVING, NEVER
                return self._fill_pipeline(move, now_s)
            case Deactivated():
                chunk = self._chunk(move, m.chunk)
                if chunk.state is not ChunkState.DEACTIVATING:
                    return []
                chunk.waiting.discard(source)
                return [] if chunk.waiting else self._order_sending(move, chunk, now_s)
            case Received():
                chunk = self._chunk(move, m.chunk)
                if source != move.receiver:
                    raise Refusal(Domain.MEMBER, f"{source!r} is not the receiver of {move.id}")
                if chunk.state is not ChunkState.SENDING:
                    return []
                return [self._commit(move, chunk), *self._fill_pipeline(move, now_s)]
            case Reactivated():
                return self._reactivated(move, source, m, now_s)
            case MoveFinished():
                if move.phase is not Phase.FINISHING:
                    return []
                move.waiting.discard(source)
                return self._finish_if_over(move, now_s)
            case Refused():
                return self._refused(move, source, m, now_s)

    def persisted(self, tag: tuple[str, ...], now_s: float) -> list[Instruction]:
        """A write that this machine asked for is durable."""
        what, move_name, *rest = tag
        move = self.moves.get(MoveId(move_name))
        if what == "commit":
            self.map = self.map_writes.popleft()
        if move is None:
            return []
        match what:
            case "planned" if self.lost & {move.sender, move.receiver}:
                move.phase = Phase.MOVING
                return self._give_up(move, "a processor died", now_s)
            case "planned":
                move.phase, move.waiting = Phase.COMPUTING, {move.sender}
                move.deadline_s = now_s + self.settings.step_timeout_s
                return self._send_of_move(move, now_s)
            case "chosen":
                if not move.chunks or move.failure or self.lost & {move.sender, move.receiver}:
                    move.phase = Phase.MOVING
                    return self._give_up(move, move.failure or "nothing is worth moving", now_s)
                move.phase, move.waiting = Phase.RESERVING, {move.receiver}
                move.deadline_s = now_s + self.settings.step_timeout_s
                return self._send_of_move(move, now_s)
            case "commit":
                chunk = move.chunks[int(rest[0])]
                chunk.state, chunk.waiting = ChunkState.ACTIVATING, {move.receiver}
                return self._send(move, chunk, chunk.waiting, now_s)
            case _:
                move.phase = Phase.ENDED
                del self.moves[move.id]
                return [MoveEnded(move)]

    def tick(self, now_s: float) -> list[Instruction]:
        """Give up what is past its deadline, repeat what is unanswered."""
        out: list[Instruction] = []
        for move in list(self.moves.values()):
            late = [c for c in move.chunks if c.deadline_s <= now_s]
            if late or move.deadline_s <= now_s:
                step = late[0].state if late else move.phase
                out += self._give_up(
                    move, f"no answer within {self.settings.step_timeout_s} s while {step}", now_s
                )
            if move.resend_s <= now_s:
                move.resend_s = NEVER
                out += self._send_of_move(move, now_s)
                for chunk in move.open_chunks():
                    if chunk.waiting:
                        out += self._send(move, chunk, self._asked(move, chunk), now_s)
        return out

    def next_tick_s(self) -> float:
        """When `tick` will have something to do, if nothing happens before."""
        times = [NEVER]
        for move in self.moves.values():
            times += [move.resend_s, move.deadline_s, *(c.deadline_s for c in move.chunks)]
        return min(times)

    def check(self) -> None:
        """Assert every invariant that the fields promise."""
        ends = [p for move in self.moves.values() for p in (move.sender, move.receiver)]
        assert len(ends) == len(set(ends)), "a processor is in two moves"
        travelling: set[GroupId] = set()
        for move in self.moves.values():
            move.check()
            for chunk in move.open_chunks():
                assert travelling.isdisjoint(chunk.groups), "a group is in two chunks"
                travelling.update(chunk.groups)
                if chunk.state in AFTER_COMMIT:
                    assert all(self.map.owner(g) == move.receiver for g in chunk.groups)
                elif chunk.state is not ChunkState.COMMITTING:
                    assert all(self.map_tail.owner(g) == move.sender for g in chunk.groups)

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
                chunk.began_s = now_s
                chunk.deadline_s = now_s + self.settings.step_timeout_s
                out += self._send(move, chunk, chunk.waiting, now_s)
        return out

    def _order_sending(self, move: Move, chunk: Chunk, now_s: float) -> list[Instruction]:
        chunk.state, chunk.waiting = ChunkState.SENDING, {move.receiver}
        chunk.deadline_s = now_s + self.settings.step_timeout_s
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
