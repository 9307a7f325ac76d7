"""Bad input to a participant of a move is refused by name and changes nothing."""

from __future__ import annotations

import pytest

from dovetail_processor.moves.instructions import (
    ChooseGroups,
    Local,
    Reply,
    ShipGroups,
)
from dovetail_processor.moves.participant import Participant
from dovetail_proto import messages as m
from dovetail_proto.errors import Domain, Refusal, RetryHint
from dovetail_proto.ids import Epoch
from kit.move_cases import (
    COMMITTED,
    ID,
    OLD,
    OTHER,
    REF,
    ROOMY,
    SKIPPING,
    SPLITS,
    STRANGE,
    UNCHANGED,
    Q,
    R,
    S,
    groups,
    host_at,
    receiver_at,
    sender_at,
    state_of,
)

BAD: dict[str, tuple[Participant, m.MoveRequest, Local, Domain, str]] = {
    "an old epoch": (
        sender_at(0),
        m.ComputePartitionsToMove(OLD, 10),
        ROOMY,
        Domain.EPOCH,
        "epoch 1 is over: the manager of epoch 2 leads",
    ),
    "an unknown query": (
        sender_at(0),
        m.ComputePartitionsToMove(STRANGE, 10),
        ROOMY,
        Domain.QUERY,
        "query 'other' is unknown at processor 's'",
    ),
    "a move of nothing": (
        sender_at(0),
        m.ComputePartitionsToMove(REF, 0),
        ROOMY,
        Domain.MESSAGE,
        "0 bytes",
    ),
    "a group that the sender does not own": (
        sender_at(0),
        m.ComputePartitionsToMove(REF, 0, groups(4)),
        ROOMY,
        Domain.GROUP,
        "does not own group 4",
    ),
    "a group that does not exist": (
        sender_at(0),
        m.ComputePartitionsToMove(REF, 0, groups(99)),
        ROOMY,
        Domain.GROUP,
        "group 99 does not exist",
    ),
    "a second move at once": (
        sender_at(1),
        m.ComputePartitionsToMove(OTHER, 10),
        ROOMY,
        Domain.BUSY,
        f"busy with {ID}",
    ),
    "a sender asked to receive": (
        sender_at(1),
        m.Reserve(OTHER, 10),
        ROOMY,
        Domain.BUSY,
        f"busy with {ID}",
    ),
    "a receiver that pushes to disk": (
        receiver_at(0),
        m.Reserve(REF, 10),
        Local(1000, pushing=True),
        Domain.BUSY,
        "a push to disk",
    ),
    "a receiver without room": (
        receiver_at(0),
        m.Reserve(REF, 1001),
        ROOMY,
        Domain.MEMORY,
        "no room for 1001 bytes, 1000 are free",
    ),
    "more than was reserved and is free": (
        receiver_at(2),
        m.ReceivePartitions(REF, 0, groups(0), 15, b""),
        Local(4, pushing=False),
        Domain.MEMORY,
        "15 bytes came, 10 are reserved and 4 free",
    ),
    "state without a reservation": (
        receiver_at(0),
        m.ReceivePartitions(REF, 0, groups(0), 5, b""),
        ROOMY,
        Domain.STEP,
        "before Reserve",
    ),
    "state that the receiver owns": (
        receiver_at(2),
        m.ReceivePartitions(REF, 0, groups(4), 5, b""),
        ROOMY,
        Domain.GROUP,
        "group 4 is here already",
    ),
    "the same state in two chunks": (
        receiver_at(6),
        m.ReceivePartitions(REF, 1, groups(1), 5, b""),
        ROOMY,
        Domain.GROUP,
        "group 1 is here already",
    ),
    "step 3 before step 2": (
        sender_at(0),
        m.DeactivatePartitions(REF, 0, groups(0), S, SPLITS),
        ROOMY,
        Domain.MOVE,
        "is not its sender",
    ),
    "step 3 of groups that were not offered": (
        sender_at(1),
        m.DeactivatePartitions(REF, 0, groups(2), S, SPLITS),
        ROOMY,
        Domain.GROUP,
        "did not offer it",
    ),
    "step 3 of another sender's groups": (
        host_at(0),
        m.DeactivatePartitions(REF, 0, groups(4), S, SPLITS),
        ROOMY,
        Domain.GROUP,
        "group 4 is owned by 'r', not by the sender 's'",
    ),
    "step 3 of groups that another move holds": (
        host_at(3),
        m.DeactivatePartitions(OTHER, 0, groups(1, 2), S, SPLITS),
        ROOMY,
        Domain.GROUP,
        "group 1 is held back for move",
    ),
    "step 3 without splits": (
        host_at(0),
        m.DeactivatePartitions(REF, 0, groups(0), S, ()),
        ROOMY,
        Domain.MESSAGE,
        "at least one split",
    ),
    "step 3 that forgets a split": (
        host_at(0),
        m.DeactivatePartitions(REF, 0, groups(0), S, SPLITS[:1]),
        ROOMY,
        Domain.MESSAGE,
        "does not know split 'q/1'",
    ),
    "groups out of order": (
        host_at(0),
        m.DeactivatePartitions(REF, 0, groups(1, 0), S, SPLITS),
        ROOMY,
        Domain.MESSAGE,
        "must ascend",
    ),
    "step 5 before step 3": (
        sender_at(1),
        m.SendPartitions(REF, 0, groups(0), R),
        ROOMY,
        Domain.STEP,
        "SendPartitions before DeactivatePartitions",
    ),
    "a move to itself": (
        sender_at(3),
        m.SendPartitions(REF, 0, groups(0, 1), S),
        ROOMY,
        Domain.MEMBER,
        "is the sender itself",
    ),
    "a map that skips versions": (
        host_at(3),
        m.ReactivatePartitions(REF, 0, groups(0, 1), R, SKIPPING),
        ROOMY,
        Domain.MAP,
        "5→6 of query 'q' does not follow version 1",
    ),
    "an owner that the map does not name": (
        host_at(3),
        m.ReactivatePartitions(REF, 0, groups(0, 1), R, UNCHANGED),
        ROOMY,
        Domain.MAP,
        "gives group 0 to 's', not to 'r'",
    ),
    "to own what never arrived": (
        receiver_at(2),
        m.ReactivatePartitions(REF, 0, groups(0, 1), R, COMMITTED),
        ROOMY,
        Domain.GROUP,
        "never arrived",
    ),
    "the end while a chunk is out": (
        sender_at(5),
        m.FinishMove(REF),
        ROOMY,
        Domain.STEP,
        "FinishMove while",
    ),
    "the end while a chunk is inert": (
        receiver_at(6),
        m.FinishMove(REF),
        ROOMY,
        Domain.STEP,
        "chunk 0 is inert",
    ),
    "the end while a group is held back": (
        host_at(3),
        m.FinishMove(REF),
        ROOMY,
        Domain.STEP,
        "group 0 is held back",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_participant_refuses_by_name_and_stays_as_it_was(case: str) -> None:
    """Which rule, which value; and not a field of the machine has changed."""
    machine, message, local, domain, named = BAD[case]
    before = state_of(machine)
    with pytest.raises(Refusal) as e:
        machine.handle(message, local)
    assert e.value.domain is domain
    assert named in e.value.message
    assert state_of(machine) == before


def test_refusals_say_whether_to_try_again() -> None:
    """A busy processor later, a wrong map after a look, an old epoch never."""
    assert Refusal(Domain.BUSY, "x").retry_hint is RetryHint.LATER
    assert Refusal(Domain.MAP, "x").retry_hint is RetryHint.REFRESH
    assert Refusal(Domain.EPOCH, "x").retry_hint is RetryHint.NEVER


def test_a_late_step_of_an_ended_move_finds_it_shut() -> None:
    """After FinishMove everything is refused but its repetition, also once it is forgotten."""
    host = host_at(3)
    host.handle(m.ReactivatePartitions(REF, 0, groups(0, 1), S, UNCHANGED), ROOMY)
    late = m.DeactivatePartitions(REF, 0, groups(0, 1), S, SPLITS)
    with pytest.raises(Refusal, match="chunk 0 was reactivated already"):
        host.handle(late, ROOMY)
    host.handle(m.FinishMove(REF), ROOMY)
    assert host.handle(m.FinishMove(REF), ROOMY) == [Reply(m.MoveFinished(REF))]
    with pytest.raises(Refusal, match=f"move {ID} has ended"):
        host.handle(late, ROOMY)
    later = m.MoveRef(Q, Epoch(2), OTHER.move, OTHER.move)
    host.handle(m.DeactivatePartitions(later, 0, groups(0), S, SPLITS), ROOMY)
    assert not host.ended
    with pytest.raises(Refusal, match=f"move {ID} has ended"):
        host.handle(late, ROOMY)


def test_a_sender_waits_for_a_push_to_end() -> None:
    """indiskAdaptation delays the choice; nodiskAdaptation then keeps pushes out (Fig. 18)."""
    p = sender_at(0)
    assert p.may_push()
    assert p.handle(m.ComputePartitionsToMove(REF, 10), Local(1000, pushing=True)) == []
    assert not p.may_push()
    assert p.push_finished() == [ChooseGroups(REF, 10, ())]


def test_a_sender_ships_only_when_every_marker_is_in() -> None:
    """In whatever order SendPartitions and the markers come; repeated orders ship again."""
    p = sender_at(3)
    order = m.SendPartitions(REF, 0, groups(0, 1), R)
    assert p.marker(m.EndOfMovedPartitions(Q, ID, 0, SPLITS[1])) == []
    assert p.handle(order, ROOMY) == []
    ship = [ShipGroups(REF, 0, groups(0, 1), R)]
    assert p.marker(m.EndOfMovedPartitions(Q, ID, 0, SPLITS[0])) == ship
    assert p.marker(m.EndOfMovedPartitions(Q, ID, 0, SPLITS[0])) == []
    assert p.handle(order, ROOMY) == ship
