"""Both sides of a move under any message in any order."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_manager.moves.coordinator import Coordinator
from dovetail_manager.moves.placement import Placement
from dovetail_manager.moves.records import MoveWrite
from dovetail_manager.moves.steps import MoveSettings
from dovetail_processor.moves.instructions import (
    ChooseGroups,
    Local,
)
from dovetail_processor.moves.participant import Participant
from dovetail_proto import messages as m
from dovetail_proto.errors import Domain, Refusal
from dovetail_proto.ids import Epoch, ProcessorId, QueryName
from kit.move_cases import (
    COMMITTED,
    HOSTS,
    ID,
    MAP,
    OLD,
    OTHER,
    SKIPPING,
    SPLITS,
    UNCHANGED,
    H,
    Q,
    R,
    S,
    groups,
    state_of,
)

# Random messages -------------------------------------------------------------------------------

EPOCHS = st.sampled_from([Epoch(1), Epoch(2), Epoch(3)])
IDS = st.sampled_from([OLD.move, ID, OTHER.move])
REFS = st.builds(m.MoveRef, st.sampled_from([Q, QueryName("other")]), EPOCHS, IDS, IDS)
CHUNKS = st.integers(0, 1)
SOME = st.sampled_from(
    [groups(0), groups(0, 1), groups(2, 3), groups(4), groups(1, 0), (), groups(9)]
)
WHO = st.sampled_from([S, R, H])
PATCHES = st.sampled_from([UNCHANGED, COMMITTED, SKIPPING])
REQUESTS = st.one_of(
    st.builds(m.ComputePartitionsToMove, REFS, st.integers(-1, 20), SOME),
    st.builds(m.Reserve, REFS, st.integers(0, 50)),
    st.builds(
        m.DeactivatePartitions, REFS, CHUNKS, SOME, WHO, st.sampled_from([SPLITS, SPLITS[:1], ()])
    ),
    st.builds(m.SendPartitions, REFS, CHUNKS, SOME, WHO),
    st.builds(m.ReceivePartitions, REFS, CHUNKS, SOME, st.integers(0, 50), st.just(b"")),
    st.builds(m.ReactivatePartitions, REFS, CHUNKS, SOME, WHO, PATCHES),
    st.builds(m.FinishMove, REFS),
    st.builds(m.EndOfMovedPartitions, st.just(Q), IDS, CHUNKS, st.sampled_from(SPLITS)),
)
LOCALS = st.builds(Local, st.sampled_from([0, 10, 1000]), st.booleans())


@settings(max_examples=150)
@given(WHO, st.lists(st.tuples(REQUESTS, LOCALS), max_size=25))
def test_any_message_in_any_order_is_taken_or_changes_nothing(
    who: ProcessorId, script: list[tuple[Any, Local]]
) -> None:
    """Forged, late and repeated messages: invariants hold, refusals leave the state alone."""
    machine = Participant(Q, who, MAP, HOSTS.get(who, ()), Epoch(2))
    for message, local in script:
        before = state_of(machine)
        try:
            if isinstance(message, m.EndOfMovedPartitions):
                out = machine.marker(message)
            else:
                out = machine.handle(message, local)
        except Refusal:
            assert state_of(machine) == before
            continue
        machine.check()
        for instruction in out:
            if isinstance(instruction, ChooseGroups):
                chosen = instruction.groups or tuple(sorted(machine.owned))[:2]
                machine.groups_chosen(instruction.ref.move, chosen, (5,) * len(chosen))


REPLIES = st.one_of(
    st.builds(m.PartitionsToMove, REFS, SOME, st.sampled_from([(5,), (5, 5), (), (-1,)])),
    st.builds(m.Reserved, REFS),
    st.builds(m.Deactivated, REFS, CHUNKS),
    st.builds(m.Received, REFS, CHUNKS, st.integers(0, 20)),
    st.builds(m.Reactivated, REFS, CHUNKS, st.integers(0, 3)),
    st.builds(m.MoveFinished, REFS),
    st.builds(
        m.Refused,
        REFS,
        st.integers(-1, 2),
        st.sampled_from(["Reserve", "SendPartitions", "DeactivatePartitions"]),
        st.sampled_from(Domain).map(str),
        st.just("why"),
        EPOCHS,
        st.integers(0, 3),
    ),
)


@settings(max_examples=150)
@given(st.lists(st.tuples(st.sampled_from([S, R, H, ProcessorId("x")]), REPLIES), max_size=25))
def test_any_reply_in_any_order_is_taken_or_changes_nothing(
    script: list[tuple[ProcessorId, Any]],
) -> None:
    """The manager's machine, between its own steps."""
    machine = Coordinator(Q, Epoch(2), Placement(MAP, HOSTS), MoveSettings(chunk_bytes=6))
    machine.numbers = count(5)
    pending = machine.begin(S, R, 10, reason="test", now_s=0.0)
    for now_s, (source, reply) in enumerate(script):
        before = state_of(machine)
        try:
            pending += machine.handle(source, reply, float(now_s))
        except Refusal:
            assert state_of(machine) == before
            continue
        while pending:
            step = pending.pop(0)
            if isinstance(step, MoveWrite):
                pending += machine.persisted(step, float(now_s))
        pending += machine.tick(float(now_s))
        machine.check()


@pytest.mark.parametrize(
    ("arguments", "domain", "named"),
    [
        ((S, S, 10, ()), Domain.MEMBER, "cannot move groups to itself"),
        ((S, R, 0, ()), Domain.MESSAGE, "moves nothing"),
        ((S, R, 0, groups(4)), Domain.GROUP, "group 4 is owned by 'r', not 's'"),
        ((S, R, 0, groups(77)), Domain.GROUP, "group 77 does not exist"),
    ],
)
def test_the_manager_does_not_begin_an_impossible_move(
    arguments: tuple[Any, ...], domain: Domain, named: str
) -> None:
    """To itself, of nothing, of groups that are elsewhere or nowhere."""
    sender, receiver, want, asked = arguments
    machine = Coordinator(Q, Epoch(2), Placement(MAP, HOSTS), MoveSettings())
    before = state_of(machine)
    with pytest.raises(Refusal, match=named) as e:
        machine.begin(sender, receiver, want, groups=asked, reason="test", now_s=0.0)
    assert e.value.domain is domain
    assert state_of(machine) == before


def test_a_processor_takes_part_in_one_move_at_a_time() -> None:
    """The manager refuses a second one before anybody is asked."""
    machine = Coordinator(Q, Epoch(2), Placement(MAP, HOSTS), MoveSettings())
    machine.begin(S, R, 10, reason="test", now_s=0.0)
    with pytest.raises(Refusal, match="'r' is in another move"):
        machine.begin(H, R, 10, reason="test", now_s=0.0)
