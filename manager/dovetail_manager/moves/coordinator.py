"""Runs the moves of one query: which message or write comes next, after whatever happens.

A pure machine: replies, confirmed writes and the time go in, messages and writes come out; the
table of steps is in `protocol`. It keeps one rule above all: a group's owner changes by the
confirmed write of a new map version, and by nothing else. Before that write any trouble rolls
the chunk back; once the write is issued, the chunk can only go forward.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dovetail_manager.moves.journal import map_key
from dovetail_manager.moves.protocol import (
    AFTER_COMMIT,
    BEFORE_COMMIT,
    ChunkState,
    Instruction,
    Move,
    MoveEnded,
    Outcome,
    Phase,
    StepDown,
)
from dovetail_manager.moves.requests import owner_of
from dovetail_manager.moves.steps import NEVER, MoveSteps
from dovetail_proto.errors import Domain, Refusal
from dovetail_proto.ids import GroupId, MoveId, ProcessorId, move_id
from dovetail_proto.messages import (
    Deactivated,
    MoveFinished,
    MoveReply,
    PartitionsToMove,
    Reactivated,
    Received,
    Refused,
    Reserved,
)


class Coordinator(MoveSteps):
    """The moves of one query under one manager. Not thread-safe; feed it one event at a time."""

    # What others ask for ------------------------------------------------------------------------

    def begin(
        self,
        sender: ProcessorId,
        receiver: ProcessorId,
        want_bytes: int,
        *,
        groups: Sequence[GroupId] = (),
        exclude: Sequence[GroupId] = (),
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
        move = Move(
            id=move_id(self.epoch, next(self.numbers)),
            query=self.query,
            sender=sender,
            receiver=receiver,
            want_bytes=want_bytes,
            reason=reason,
            groups=tuple(sorted(set(groups))),
            exclude=tuple(sorted(set(exclude))),
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

    def release(self, processor: ProcessorId) -> dict[str, str | None]:
        """A processor is gone and has left nothing unwritten: the map forgets that it was here.

        The entries to write; `released` is called when they are durable.
        """
        if processor not in self.map_tail.processors:
            return {}
        self.map_writes.append(self.map_tail.without(processor))
        return {map_key(self.query): self.map_tail.to_json()}

    def released(self) -> None:
        """What `release` asked for is durable."""
        self.map = self.map_writes.popleft()

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
