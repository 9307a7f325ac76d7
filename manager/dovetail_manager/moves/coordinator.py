"""Runs the moves of one query: which message or write comes next, after whatever happens.

A pure machine: replies, confirmed writes and the time go in, messages and writes come out; the
table of steps is in `protocol`. It keeps one rule above all: a group's owner changes by the
confirmed write of a new map version, and by nothing else. Before that write any trouble rolls
the chunk back; once the write is issued, the chunk can only go forward.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import count

from dovetail_manager.effects import StepDown
from dovetail_manager.moves.placement import Placement, SplitHosts
from dovetail_manager.moves.protocol import (
    AFTER_COMMIT,
    BEFORE_COMMIT,
    ChunkState,
    Move,
    MoveEnded,
    MovePhase,
    Outcome,
)
from dovetail_manager.moves.records import (
    ChunkCommitted,
    ChunksChosen,
    MoveClosed,
    MovePlanned,
    MoveWrite,
)
from dovetail_manager.moves.requests import owner_of
from dovetail_manager.moves.steps import NEVER, Instruction, MoveSettings, Steps
from dovetail_proto.errors import Domain, Refusal
from dovetail_proto.ids import Epoch, GroupId, ProcessorId, QueryName, move_id
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


class Coordinator:
    """The moves of one query under one manager. Not thread-safe; feed it one event at a time."""

    def __init__(
        self,
        query: QueryName,
        epoch: Epoch,
        placement: Placement,
        settings: MoveSettings,
        *,
        numbers: Iterator[int] | None = None,
    ) -> None:
        self.placement = placement
        self._steps = Steps(query, epoch, placement, settings)
        self.moves = self._steps.moves  # not ended, in order of their ids
        # Of the moves to come. All queries of a manager share them: ids are keys of its store.
        self.numbers = numbers if numbers is not None else count(1)

    def set_hosts(self, split_hosts: SplitHosts) -> None:
        """These host the splits, as the store has it; no move is open if they are others."""
        if split_hosts != self.placement.split_hosts:
            assert not self.moves, "splits are handed on while groups move"
            self.placement.split_hosts = split_hosts

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
            if (owner := self.placement.next_map.owner(group)) != sender:
                raise Refusal(Domain.GROUP, f"group {group} is owned by {owner!r}, not {sender!r}")
        move = Move(
            id=move_id(self._steps.epoch, next(self.numbers)),
            query=self._steps.query,
            sender=sender,
            receiver=receiver,
            want_bytes=want_bytes,
            reason=reason,
            groups=tuple(sorted(set(groups))),
            exclude=tuple(sorted(set(exclude))),
            started_s=now_s,
        )
        self.moves[move.id] = move
        return [MovePlanned(move.id, self._steps.record(move))]

    def busy(self) -> set[ProcessorId]:
        """Senders and receivers of moves that have not ended."""
        return {p for move in self.moves.values() for p in (move.sender, move.receiver)}

    def abandon(self, cause: str, now_s: float) -> list[Instruction]:
        """The query failed: every move ends where it stands; processors drop their part."""
        out: list[Instruction] = []
        for move in list(self.moves.values()):
            move.failure, move.outcome, move.ended_s = cause, Outcome.FAILED, now_s
            out += [MoveClosed(move.id, self._steps.record(move)), MoveEnded(move)]
        self.moves.clear()
        return out

    def lose(self, processor: ProcessorId, now_s: float) -> list[Instruction]:
        """A processor died that owns no group and hosts no split: its moves are rolled back."""
        assert processor not in self.placement.split_hosts
        assert not len(self.placement.next_map.groups_of(processor))
        self.placement.lost.add(processor)
        out: list[Instruction] = []
        for move in list(self.moves.values()):
            if processor in (move.sender, move.receiver):
                move.waiting.discard(processor)
                for chunk in move.open_chunks():
                    if processor in chunk.waiting and chunk.state not in BEFORE_COMMIT:
                        out += self._steps.answered(move, chunk, processor, now_s)
                if move.phase in (MovePhase.COMPUTING, MovePhase.RESERVING, MovePhase.MOVING):
                    out += self._steps.give_up(move, f"{processor!r} died", now_s)
                else:
                    out += self._steps.finish_if_over(move, now_s)
        return out

    def take_up(self, moves: Iterable[Move], now_s: float) -> list[Instruction]:
        """Adopt the open moves of a former manager: complete what is committed, undo the rest."""
        out: list[Instruction] = []
        for move in sorted(moves, key=lambda m: m.id):
            self.moves[move.id] = move
            move.failure = move.failure or "the manager was restarted"
            for chunk in move.open_chunks():
                chunk.waiting = {owner_of(move, chunk)}
                out += self._steps.send(move, chunk, chunk.waiting, now_s)
            out += self._steps.finish_if_over(move, now_s)
        return out

    # What happens -------------------------------------------------------------------------------

    def handle(self, source: ProcessorId, m: MoveReply, now_s: float) -> list[Instruction]:
        """Take a reply. Late and repeated ones change nothing; forged ones raise Refusal."""
        if isinstance(m, Refused) and m.epoch > self._steps.epoch:
            return [StepDown(f"{source!r} obeys the manager of epoch {m.epoch}")]
        if m.ref.epoch != self._steps.epoch:
            return []  # an answer to a former manager, whose steps are undone or repeated anyway
        move = self.moves.get(m.ref.move)
        if move is None:
            raise Refusal(
                Domain.MOVE,
                f"{type(m).__name__} from {source!r}: move {m.ref.move} is unknown or has ended",
            )
        self._steps.check_source(move, source)
        match m:
            case PartitionsToMove():
                return self._steps.chosen(move, source, m)
            case Reserved():
                if move.phase is not MovePhase.RESERVING or source not in move.waiting:
                    return []
                move.waiting.clear()
                move.phase, move.deadline_s = MovePhase.MOVING, NEVER
                return self._steps.fill_pipeline(move, now_s)
            case Deactivated():
                chunk = self._steps.chunk(move, m.chunk)
                if chunk.state is not ChunkState.DEACTIVATING:
                    return []
                chunk.waiting.discard(source)
                return [] if chunk.waiting else self._steps.order_sending(move, chunk, now_s)
            case Received():
                chunk = self._steps.chunk(move, m.chunk)
                if source != move.receiver:
                    raise Refusal(Domain.MEMBER, f"{source!r} is not the receiver of {move.id}")
                if chunk.state is not ChunkState.SENDING:
                    return []
                return [self._steps.commit(move, chunk), *self._steps.fill_pipeline(move, now_s)]
            case Reactivated():
                return self._steps.reactivated(move, source, m, now_s)
            case MoveFinished():
                if move.phase is not MovePhase.FINISHING:
                    return []
                move.waiting.discard(source)
                return self._steps.finish_if_over(move, now_s)
            case Refused():
                return self._steps.refused(move, source, m, now_s)

    def persisted(self, entry: MoveWrite, now_s: float) -> list[Instruction]:
        """A write that this machine asked for is durable."""
        if isinstance(entry, ChunkCommitted):
            self.placement.map = entry.map
        move = self.moves.get(entry.move)
        if move is None:
            return []
        lost = self.placement.lost & {move.sender, move.receiver}
        match entry:
            case MovePlanned() if lost:
                move.phase = MovePhase.MOVING
                return self._steps.give_up(move, "a processor died", now_s)
            case MovePlanned():
                move.phase, move.waiting = MovePhase.COMPUTING, {move.sender}
                move.deadline_s = now_s + self._steps.settings.step_timeout_s
                return self._steps.send_of_move(move, now_s)
            case ChunksChosen() if not move.chunks or move.failure or lost:
                move.phase = MovePhase.MOVING
                return self._steps.give_up(move, move.failure or "nothing is worth moving", now_s)
            case ChunksChosen():
                move.phase, move.waiting = MovePhase.RESERVING, {move.receiver}
                move.deadline_s = now_s + self._steps.settings.step_timeout_s
                return self._steps.send_of_move(move, now_s)
            case ChunkCommitted():
                chunk = move.chunks[entry.chunk]
                chunk.state, chunk.waiting = ChunkState.ACTIVATING, {move.receiver}
                return self._steps.send(move, chunk, chunk.waiting, now_s)
            case _:
                move.phase = MovePhase.ENDED
                del self.moves[move.id]
                return [MoveEnded(move)]

    def tick(self, now_s: float) -> list[Instruction]:
        """Give up what is past its deadline, repeat what is unanswered."""
        out: list[Instruction] = []
        for move in list(self.moves.values()):
            late = [c for c in move.chunks if c.deadline_s <= now_s]
            if late or move.deadline_s <= now_s:
                step = late[0].state if late else move.phase
                out += self._steps.give_up(
                    move,
                    f"no answer within {self._steps.settings.step_timeout_s} s while {step}",
                    now_s,
                )
            if move.resend_s <= now_s:
                move.resend_s = NEVER
                out += self._steps.send_of_move(move, now_s)
                for chunk in move.open_chunks():
                    if chunk.waiting:
                        out += self._steps.send(move, chunk, self._steps.asked(move, chunk), now_s)
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
                    assert all(self.placement.map.owner(g) == move.receiver for g in chunk.groups)
                elif chunk.state is not ChunkState.COMMITTING:
                    assert all(
                        self.placement.next_map.owner(g) == move.sender for g in chunk.groups
                    )
