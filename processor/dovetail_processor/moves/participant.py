"""A processor's side of the moves of one query: fencing first, then the three roles.

One processor may be sender or receiver of one move at a time and host splits for any number of
moves. The order of every message is: fence it, let every role it touches object, and only then
change anything. So a refused message leaves the machine as it was.

Late, repeated and reordered messages:
- an epoch below the highest seen is refused; a higher one is adopted when its message is accepted;
- a chunk that was reactivated is remembered until its move finishes, a finished move until the
  manager says that every older move has ended (`oldest_open`): both refuse to start again, and
  answer ReactivatePartitions and FinishMove as done.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from dovetail_processor.moves.instructions import AdoptMap, Instruction, Local, Reply
from dovetail_processor.moves.receiver import Receiver
from dovetail_processor.moves.sender import Sender
from dovetail_processor.moves.split_host import SplitHost
from dovetail_proto.errors import Domain, Refusal
from dovetail_proto.ids import Epoch, GroupId, MoveId, ProcessorId, QueryName, SplitId
from dovetail_proto.messages import (
    ComputePartitionsToMove,
    Deactivated,
    DeactivatePartitions,
    EndOfMovedPartitions,
    FinishMove,
    Groups,
    MoveFinished,
    MoveRef,
    MoveRequest,
    Reactivated,
    ReactivatePartitions,
    ReceivePartitions,
    Reserve,
    SendPartitions,
)
from dovetail_proto.partition_map import PartitionMap


class Participant:
    """The machine. `handle` raises Refusal, with nothing changed, or returns instructions."""

    def __init__(
        self,
        query: QueryName,
        processor: ProcessorId,
        known: PartitionMap,
        splits: Iterable[SplitId] = (),
        epoch: Epoch = Epoch(0),  # noqa: B008 - an int
    ) -> None:
        self.query = query
        self.processor = processor
        self.map = known  # the newest version heard of; splits route by it
        self.epoch = epoch  # the highest accepted
        self.owned: set[GroupId] = {GroupId(int(g)) for g in known.groups_of(processor)}
        self.sender = Sender(processor, self.owned)
        self.receiver = Receiver(processor, self.owned)
        self.split_host = SplitHost(tuple(splits))
        self.oldest_open = MoveId("")  # every move before it has ended everywhere
        self.ended: set[MoveId] = set()  # finished here, not before `oldest_open`
        self.ended_chunks: dict[MoveId, set[int]] = {}  # reactivated here, of unfinished moves

    @property
    def adapting(self) -> MoveId | None:
        """The move that keeps pushes out (nodiskAdaptation, S4 Fig. 18); None outside moves."""
        if self.sender.outgoing is not None:
            return self.sender.outgoing.move
        return self.receiver.incoming.move if self.receiver.incoming is not None else None

    @property
    def reserved_bytes(self) -> int:
        """Memory kept free for chunks that have not arrived yet."""
        return self.receiver.reserved_bytes

    def handle(self, m: MoveRequest, local: Local) -> list[Instruction]:
        """Take one message; Refusal if it may not happen now or ever."""
        over = self._fence(m.ref)
        match m:
            case ReactivatePartitions():
                out = self._reactivate(m, over)
            case FinishMove():
                out = self._finish(m, over)
            case _ if over:
                raise Refusal(Domain.MOVE, f"{type(m).__name__}: move {m.ref.move} has ended")
            case ComputePartitionsToMove():
                if m.groups:
                    self._check_groups(m.ref, m.groups)
                elif m.want_bytes <= 0:
                    raise Refusal(
                        Domain.MESSAGE, f"move {m.ref.move}: {m.want_bytes} bytes are nothing"
                    )
                self._check_free(m.ref, self.receiver.incoming is not None)
                out = self.sender.compute(m, local.pushing)
            case Reserve():
                self._check_free(m.ref, local.pushing or self.sender.outgoing is not None)
                if local.reading:  # the same groups might come back before they are gone
                    raise Refusal(
                        Domain.BUSY,
                        f"move {m.ref.move}: processor {self.processor!r} still reads groups that "
                        "it has sent away",
                    )
                out = self.receiver.reserve(m, local)
            case DeactivatePartitions():
                out = self._deactivate(m)
            case SendPartitions():
                self._check_chunk_open(m.ref, m.chunk)
                out = self.sender.send(m)
            case ReceivePartitions():
                self._check_chunk_open(m.ref, m.chunk)
                self._check_groups(m.ref, m.groups)
                out = self.receiver.receive(m, local)
        self._adopt(m.ref)
        return out

    def marker(self, m: EndOfMovedPartitions) -> list[Instruction]:
        """Take an in-band marker; one of a move that ended meanwhile changes nothing."""
        if m.query != self.query:
            raise Refusal(Domain.QUERY, f"marker of query {m.query!r} on a link of {self.query!r}")
        return self.sender.marker(m)

    def host(self, splits: Iterable[SplitId], known: PartitionMap) -> list[Instruction]:
        """Host these splits from now on, and route by `known`; no move of the query is open.

        Who takes part in no move hears of no new map, and may host none of the splits till now.
        """
        assert not self.split_host.held, "splits are handed on while a group is held back"
        self.split_host.splits = tuple(splits)
        if known.version <= self.map.version:
            return []
        self.map = known
        return [AdoptMap(known)]

    def groups_chosen(
        self, move: MoveId, groups: Groups, sizes: tuple[int, ...]
    ) -> list[Instruction]:
        """The processor's answer to ChooseGroups."""
        return self.sender.chosen(move, groups, sizes)

    def push_finished(self) -> list[Instruction]:
        """The processor's push to disk has ended (indiskAdaptation is cleared)."""
        return self.sender.push_finished()

    def may_push(self) -> bool:
        """Whether a push to disk may start: not while a move involves this processor's state."""
        return self.adapting is None

    def check(self) -> None:
        """Assert every invariant that the fields promise."""
        self.sender.check()
        self.receiver.check()
        assert self.sender.outgoing is None or self.receiver.incoming is None
        assert all(m >= self.oldest_open for m in self.ended)
        assert self.ended.isdisjoint(self.ended_chunks)
        for move, chunk in self.split_host.held.values():
            assert move not in self.ended, "a finished move holds a group back"
            assert chunk not in self.ended_chunks.get(move, ()), "an ended chunk is held back"

    def _fence(self, ref: MoveRef) -> bool:
        """Refuse what comes from a deposed manager or another query; whether the move is over."""
        if ref.query != self.query:
            raise Refusal(
                Domain.QUERY, f"query {ref.query!r} is unknown at processor {self.processor!r}"
            )
        if ref.epoch < self.epoch:
            raise Refusal(
                Domain.EPOCH,
                f"epoch {ref.epoch} is over: the manager of epoch {self.epoch} leads",
                remedy="step down",
                epoch=self.epoch,
            )
        return ref.move < self.oldest_open or ref.move in self.ended

    def _adopt(self, ref: MoveRef) -> None:
        self.epoch = max(self.epoch, ref.epoch)
        if ref.oldest_open > self.oldest_open:
            self.oldest_open = ref.oldest_open
            self.ended = {m for m in self.ended if m >= self.oldest_open}

    def _check_free(self, ref: MoveRef, taken: bool) -> None:
        """One adaptation at a time on a processor (S4 6)."""
        if taken or self.adapting not in (None, ref.move):
            raise Refusal(
                Domain.BUSY,
                f"move {ref.move}: processor {self.processor!r} is busy with "
                f"{self.adapting or 'a push to disk'}",
            )

    def _check_chunk_open(self, ref: MoveRef, chunk: int) -> None:
        if chunk in self.ended_chunks.get(ref.move, ()):
            raise Refusal(Domain.STEP, f"move {ref.move} chunk {chunk} was reactivated already")

    def _check_groups(self, ref: MoveRef, groups: Groups) -> None:
        if not groups or any(a >= b for a, b in itertools.pairwise(groups)):
            raise Refusal(Domain.MESSAGE, f"move {ref.move}: groups must ascend and be at least 1")
        self.map.owner(groups[0])
        self.map.owner(groups[-1])

    def _deactivate(self, m: DeactivatePartitions) -> list[Instruction]:
        if not m.splits:
            raise Refusal(Domain.MESSAGE, f"move {m.ref.move}: a query has at least one split")
        self._check_chunk_open(m.ref, m.chunk)
        self._check_groups(m.ref, m.groups)
        self.split_host.check_deactivate(m, self.map)
        if m.sender == self.processor:
            self.sender.check_deactivate(m)
            self.sender.deactivate(m)
        return [*self.split_host.deactivate(m), Reply(Deactivated(m.ref, m.chunk))]

    def _reactivate(self, m: ReactivatePartitions, over: bool) -> list[Instruction]:
        known = self.map.applied(m.patch)
        if over or m.chunk in self.ended_chunks.get(m.ref.move, ()):
            out: list[Instruction] = []
        else:
            self._check_groups(m.ref, m.groups)
            for group in m.groups:
                if known.owner(group) != m.owner:
                    raise Refusal(
                        Domain.MAP,
                        f"move {m.ref.move} chunk {m.chunk}: map version {known.version} gives "
                        f"group {group} to {known.owner(group)!r}, not to {m.owner!r}",
                        version=self.map.version,
                    )
            self.receiver.check_reactivate(m.ref.move, m.chunk, m.groups, m.owner)
            # Live before released: a split of this very processor may send at once.
            out = self.receiver.reactivate(m.ref.move, m.chunk, m.owner)
            out += self.sender.reactivate(m.ref.move, m.chunk, m.owner)
            out += self.split_host.reactivate(m.ref.move, m.chunk, m.owner)
            self.ended_chunks.setdefault(m.ref.move, set()).add(m.chunk)
        if known is not self.map:
            self.map = known
            out.insert(0, AdoptMap(known))
        return [*out, Reply(Reactivated(m.ref, m.chunk, known.version))]

    def _finish(self, m: FinishMove, over: bool) -> list[Instruction]:
        if not over:
            # Sender and receiver of one move are never the same: at most one of these acts.
            self.split_host.finish(m.ref.move)
            self.sender.finish(m.ref.move)
            self.receiver.finish(m.ref.move)
            self.ended.add(m.ref.move)
            self.ended_chunks.pop(m.ref.move, None)
        return [Reply(MoveFinished(m.ref))]
