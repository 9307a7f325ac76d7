"""The sender's role: choose groups, wait for every split's marker, ship, then drop or take back.

    Compute ─▶ Waiting (a push runs: indiskAdaptation) ─▶ Choosing ─▶ Offered
    per chunk:  Deactivate ─▶ Draining ── SendPartitions and all markers ─▶ Shipped
                                                   Reactivate ─▶ dropped | taken back

Invariant: a group leaves `owned` only by ReactivatePartitions that names another owner, which the
manager sends only after the commit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from dovetail_processor.moves.instructions import (
    ChooseGroups,
    DropGroups,
    Instruction,
    ReattachGroups,
    Reply,
    ShipGroups,
)
from dovetail_proto.errors import Domain, Refusal
from dovetail_proto.ids import GroupId, MoveId, ProcessorId, SplitId
from dovetail_proto.messages import (
    ComputePartitionsToMove,
    DeactivatePartitions,
    EndOfMovedPartitions,
    Groups,
    MoveRef,
    PartitionsToMove,
    SendPartitions,
)


class Offer(StrEnum):
    """How far the choice of groups has come."""

    WAITING = "waiting"  # for a push to end; nothing is chosen yet
    CHOOSING = "choosing"  # the processor computes
    OFFERED = "offered"  # PartitionsToMove was answered


@dataclass(slots=True)
class OutgoingChunk:
    """One chunk on its way out, from DeactivatePartitions to ReactivatePartitions."""

    groups: Groups
    splits: frozenset[SplitId]  # whose markers must be in before shipping
    send: SendPartitions | None = None  # the order to ship; None until it came
    shipped: bool = False  # detached and sent at least once; only after all markers


@dataclass(slots=True)
class Outgoing:
    """The one move that this processor is the sender of."""

    request: ComputePartitionsToMove
    offer: Offer
    groups: Groups = ()  # offered; empty until then
    sizes: tuple[int, ...] = ()
    chunks: dict[int, OutgoingChunk] = field(default_factory=dict)  # not yet reactivated
    markers: dict[int, set[SplitId]] = field(default_factory=dict)  # by chunk, may come early

    @property
    def move(self) -> MoveId:
        """Whose state this is."""
        return self.request.ref.move


class Sender:
    """See the module. `owned` is shared with the participant: what is live on this processor."""

    def __init__(self, processor: ProcessorId, owned: set[GroupId]) -> None:
        self.processor = processor
        self.owned = owned
        self.outgoing: Outgoing | None = None  # None when not the sender of any move

    def compute(self, m: ComputePartitionsToMove, pushing: bool) -> list[Instruction]:
        """Step 1. Sets nodiskAdaptation by being busy; waits for a running push (Fig. 18)."""
        if self.outgoing is not None and self.outgoing.move == m.ref.move:
            if self.outgoing.offer is Offer.OFFERED:
                return [self._answer(m.ref)]
            return []
        if foreign := [g for g in m.groups if g not in self.owned]:
            raise Refusal(
                Domain.GROUP,
                f"move {m.ref.move}: processor {self.processor!r} does not own group {foreign[0]}",
                group=foreign[0],
            )
        self.outgoing = Outgoing(m, Offer.WAITING if pushing else Offer.CHOOSING)
        return [] if pushing else [_choice(m)]

    def push_finished(self) -> list[Instruction]:
        """A push has ended: a sender that waited for it goes on."""
        out = self.outgoing
        if out is None or out.offer is not Offer.WAITING:
            return []
        out.offer = Offer.CHOOSING
        return [_choice(out.request)]

    def chosen(self, move: MoveId, groups: Groups, sizes: tuple[int, ...]) -> list[Instruction]:
        """Step 2: the processor has computed. Nothing happens if the move ended meanwhile."""
        out = self.outgoing
        if out is None or out.move != move or out.offer is not Offer.CHOOSING:
            return []
        assert set(groups) <= self.owned, "the processor chose a group that it does not own"
        out.offer, out.groups, out.sizes = Offer.OFFERED, groups, sizes
        return [self._answer(out.request.ref)]

    def check_deactivate(self, m: DeactivatePartitions) -> None:
        """Refuse step 3 unless it names offered groups of this move that no other chunk has."""
        out = self._of(m.ref, "DeactivatePartitions")
        known = out.chunks.get(m.chunk)
        if known is not None:
            if known.groups != m.groups:
                raise Refusal(Domain.STEP, f"move {m.ref.move} chunk {m.chunk}: other groups")
            return
        offered = set(out.groups).difference(*(chunk.groups for chunk in out.chunks.values()))
        for group in m.groups:
            if group not in self.owned or group not in offered:
                raise Refusal(
                    Domain.GROUP,
                    f"move {m.ref.move} chunk {m.chunk}: processor {self.processor!r} does not "
                    f"own group {group} or did not offer it",
                    group=group,
                )

    def deactivate(self, m: DeactivatePartitions) -> None:
        """Step 3: start waiting for markers. `check_deactivate` has passed."""
        assert self.outgoing is not None
        self.outgoing.chunks.setdefault(m.chunk, OutgoingChunk(m.groups, frozenset(m.splits)))

    def send(self, m: SendPartitions) -> list[Instruction]:
        """Step 5: ship once all markers are in; a repeated order ships again."""
        out = self._of(m.ref, "SendPartitions")
        chunk = out.chunks.get(m.chunk)
        if chunk is None or chunk.groups != m.groups:
            raise Refusal(
                Domain.STEP,
                f"move {m.ref.move} chunk {m.chunk}: SendPartitions before DeactivatePartitions "
                "of the same groups",
            )
        if m.receiver == self.processor:
            raise Refusal(Domain.MEMBER, f"move {m.ref.move}: {m.receiver!r} is the sender itself")
        chunk.send = m
        return self._ship_if_drained(out, m.chunk)

    def leaving(self, move: MoveId) -> Groups:
        """The groups that were offered for a move; none if this is not its sender."""
        return self.outgoing.groups if self.outgoing and self.outgoing.move == move else ()

    def marker(self, m: EndOfMovedPartitions) -> list[Instruction]:
        """In-band, between steps 4 and 6: one more split has nothing left for the chunk."""
        out = self.outgoing
        if out is None or out.move != m.move:
            return []  # of a move that ended here: rolled back while the marker was on its way
        out.markers.setdefault(m.chunk, set()).add(m.split)
        chunk = out.chunks.get(m.chunk)
        if chunk is None or chunk.shipped:
            return []
        return self._ship_if_drained(out, m.chunk)

    def reactivate(self, move: MoveId, chunk: int, owner: ProcessorId) -> list[Instruction]:
        """Step 8: the groups are somebody else's (drop) or still ours (take back)."""
        out = self.outgoing
        if out is None or out.move != move or chunk not in out.chunks:
            return []
        ended = out.chunks.pop(chunk)
        if owner == self.processor:
            return [ReattachGroups(ended.groups)]
        self.owned.difference_update(ended.groups)
        return [DropGroups(ended.groups)]

    def finish(self, move: MoveId) -> None:
        """The move is over; refuse while a chunk is still out."""
        out = self.outgoing
        if out is None or out.move != move:
            return
        if out.chunks:
            raise Refusal(
                Domain.STEP,
                f"move {move}: FinishMove while chunk {min(out.chunks)} is deactivated",
            )
        self.outgoing = None

    def check(self) -> None:
        """Assert what the fields promise."""
        out = self.outgoing
        if out is None:
            return
        seen: set[GroupId] = set()
        for number, chunk in out.chunks.items():
            assert seen.isdisjoint(chunk.groups), "two chunks share a group"
            seen.update(chunk.groups)
            assert self.owned.issuperset(chunk.groups), "an outgoing group is not owned"
            if chunk.shipped:
                assert chunk.send is not None
                assert chunk.splits <= out.markers.get(number, set()), "shipped before drained"
        assert seen <= set(out.groups)
        assert not out.chunks or out.offer is Offer.OFFERED

    def _of(self, ref: MoveRef, what: str) -> Outgoing:
        out = self.outgoing
        if out is None or out.move != ref.move:
            raise Refusal(
                Domain.MOVE,
                f"{what} of move {ref.move}: processor {self.processor!r} is not its sender",
            )
        if out.offer is not Offer.OFFERED:
            raise Refusal(Domain.STEP, f"{what} of move {ref.move} before PartitionsToMove")
        return out

    def _answer(self, ref: MoveRef) -> Reply:
        assert self.outgoing is not None
        return Reply(PartitionsToMove(ref, self.outgoing.groups, self.outgoing.sizes))

    def _ship_if_drained(self, out: Outgoing, number: int) -> list[Instruction]:
        chunk = out.chunks[number]
        if chunk.send is None or not chunk.splits <= out.markers.get(number, set()):
            return []
        chunk.shipped = True
        order = chunk.send
        return [ShipGroups(order.ref, number, chunk.groups, order.receiver)]


def _choice(m: ComputePartitionsToMove) -> ChooseGroups:
    return ChooseGroups(m.ref, m.want_bytes, m.groups, m.exclude)
