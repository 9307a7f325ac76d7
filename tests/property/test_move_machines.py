"""Both sides of a move, one message at a time: bad input is refused by name and changes nothing."""

from __future__ import annotations

from collections import deque
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_manager.moves.coordinator import Coordinator
from dovetail_manager.moves.journal import map_key, move_from_json
from dovetail_manager.moves.protocol import MoveEnded, Outcome, Persist, Send, StepDown
from dovetail_manager.moves.steps import MoveSettings
from dovetail_processor.moves.instructions import (
    ChooseGroups,
    Local,
    Reply,
    SendMarkers,
    ShipGroups,
)
from dovetail_processor.moves.participant import Participant
from dovetail_proto import messages as m
from dovetail_proto.errors import ConfigError, Domain, Refusal, RetryHint
from dovetail_proto.ids import Epoch, GroupId, MapVersion, MoveId, ProcessorId, QueryName, SplitId
from dovetail_proto.partition_map import MapPatch, PartitionMap, map_from_json

Q = QueryName("q")
S, R, H = ProcessorId("s"), ProcessorId("r"), ProcessorId("h")
SPLITS = (SplitId("q/0"), SplitId("q/1"))
HOSTS = {S: (SPLITS[0],), H: (SPLITS[1],)}
MAP = PartitionMap.initial(Q, [S, S, S, S, R, R])
ROOMY = Local(free_bytes=1000, pushing=False)
ID = MoveId("0000000002-00000005")
REF = m.MoveRef(Q, Epoch(2), ID, ID)


def groups(*ids: int) -> m.Groups:
    """Typed ids."""
    return tuple(GroupId(i) for i in ids)


def state_of(thing: Any) -> Any:
    """Everything that a machine remembers, as plain comparable data."""
    if isinstance(thing, str | int | float | bytes | None):
        return repr(thing)
    if isinstance(thing, PartitionMap):
        return thing.to_json()
    if isinstance(thing, np.ndarray):
        return thing.tolist()
    if is_dataclass(thing) and not isinstance(thing, type):
        return [(f.name, state_of(getattr(thing, f.name, None))) for f in fields(thing)]
    if isinstance(thing, dict):
        return [(state_of(k), state_of(v)) for k, v in thing.items()]
    if isinstance(thing, set | frozenset):
        return sorted(map(repr, thing))
    if isinstance(thing, list | tuple | deque):
        return [state_of(t) for t in thing]
    if hasattr(thing, "__dict__"):
        return [(k, state_of(v)) for k, v in vars(thing).items()]
    return repr(thing)


def sender_at(step: int) -> Participant:
    """The sender (and host of split 0) after `step` of moving groups 0 and 1 in chunk 0."""
    p = Participant(Q, S, MAP, HOSTS[S], Epoch(2))
    if step >= 1:
        p.handle(m.ComputePartitionsToMove(REF, 10), ROOMY)
        p.groups_chosen(ID, groups(0, 1), (5, 5))
    if step >= 3:
        p.handle(m.DeactivatePartitions(REF, 0, groups(0, 1), S, SPLITS), ROOMY)
    if step >= 5:
        p.handle(m.SendPartitions(REF, 0, groups(0, 1), R), ROOMY)
        for split in SPLITS:
            p.marker(m.EndOfMovedPartitions(Q, ID, 0, split))
    return p


def receiver_at(step: int) -> Participant:
    """The receiver after `step`."""
    p = Participant(Q, R, MAP, (), Epoch(2))
    if step >= 2:
        p.handle(m.Reserve(REF, 10), ROOMY)
    if step >= 6:
        p.handle(m.ReceivePartitions(REF, 0, groups(0, 1), 10, b""), ROOMY)
    return p


def host_at(step: int) -> Participant:
    """A processor that only hosts a split."""
    p = Participant(Q, H, MAP, HOSTS[H], Epoch(2))
    if step >= 3:
        p.handle(m.DeactivatePartitions(REF, 0, groups(0, 1), S, SPLITS), ROOMY)
    return p


COMMITTED = MAP.moved(groups(0, 1), R).patch_since(MapVersion(1))
UNCHANGED = MapPatch(Q, MapVersion(1), MapVersion(1), ())
SKIPPING = MapPatch(Q, MapVersion(5), MapVersion(6), ())
OLD = m.MoveRef(Q, Epoch(1), MoveId("0000000001-00000001"), MoveId("0000000001-00000001"))
OTHER = m.MoveRef(Q, Epoch(2), MoveId("0000000002-00000009"), ID)
STRANGE = m.MoveRef(QueryName("other"), Epoch(2), ID, ID)

BAD: dict[str, tuple[Participant, m.MoveRequest, Local, Domain, str]] = {
    "an old epoch": (
        sender_at(0),
        m.ComputePartitionsToMove(OLD, 10),
        ROOMY,
        Domain.EPOCH,
        "epoch 1 is over: the manager of epoch 2 is in office",
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
    machine = Coordinator(Q, Epoch(2), MAP, HOSTS, MoveSettings(chunk_bytes=6))
    machine.moves_begun = 4
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
            if isinstance(step, Persist):
                pending += machine.persisted(step.tag, float(now_s))
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
    machine = Coordinator(Q, Epoch(2), MAP, HOSTS, MoveSettings())
    before = state_of(machine)
    with pytest.raises(Refusal, match=named) as e:
        machine.begin(sender, receiver, want, groups=asked, reason="test", now_s=0.0)
    assert e.value.domain is domain
    assert state_of(machine) == before


def test_a_processor_takes_part_in_one_move_at_a_time() -> None:
    """The manager refuses a second one before anybody is asked."""
    machine = Coordinator(Q, Epoch(2), MAP, HOSTS, MoveSettings())
    machine.begin(S, R, 10, reason="test", now_s=0.0)
    with pytest.raises(Refusal, match="'r' is in another move"):
        machine.begin(H, R, 10, reason="test", now_s=0.0)


# The manager dies at every write ---------------------------------------------------------------


class Cluster:
    """Three participants and a store; messages arrive at once and in order."""

    def __init__(self) -> None:
        self.entries: dict[str, str] = {map_key(Q): MAP.to_json()}
        self.participants = {
            p: Participant(Q, p, MAP, HOSTS.get(p, ()), Epoch(1)) for p in (S, R, H)
        }
        self.ended: list[Any] = []
        self.told: list[str] = []

    def run(self, machine: Coordinator, todo: list[Any], die_at: int, after: bool) -> bool:
        """Carry out instructions; False if the manager died at its `die_at`-th write."""
        writes = 0
        queue = deque(todo)
        while queue:
            step = queue.popleft()
            if isinstance(step, Persist):
                writes += 1
                if writes == die_at and not after:
                    return False
                self.entries.update({k: str(v) for k, v in step.puts.items()})
                if writes == die_at:
                    return False
                queue.extend(machine.persisted(step.tag, 0.0))
            elif isinstance(step, MoveEnded):
                self.ended.append(step.move)
            elif isinstance(step, Send):
                self.told.append(type(step.message).__name__)
                for reply in self.deliver(step.to, step.message):
                    queue.extend(machine.handle(step.to, reply, 0.0))
        return True

    def deliver(self, to: ProcessorId, message: Any) -> list[Any]:
        """What the manager hears back, from whomever."""
        participant, replies = self.participants[to], []
        todo = deque(participant.handle(message, ROOMY))
        while todo:
            match todo.popleft():
                case Reply(reply):
                    replies.append(reply)
                case ChooseGroups(ref):
                    todo.extend(participant.groups_chosen(ref.move, groups(0, 1, 2), (5, 5, 5)))
                case SendMarkers(move, chunk, sender, splits):
                    for split in splits:
                        marker = m.EndOfMovedPartitions(Q, move, chunk, split)
                        shipped = self.participants[sender].marker(marker)
                        assert shipped == []
                case ShipGroups(ref, chunk, some, receiver):
                    state = m.ReceivePartitions(ref, chunk, some, 5, b"")
                    replies += [("from", receiver, r) for r in self.deliver(receiver, state)]
                case _:
                    pass
        return replies


def start(cluster: Cluster, epoch: int) -> tuple[Coordinator, list[Any]]:
    """A manager of `epoch`, from the store."""
    known = map_from_json(cluster.entries[map_key(Q)])
    machine = Coordinator(Q, Epoch(epoch), known, HOSTS, MoveSettings(chunk_bytes=6))
    original = machine.handle

    def handle(source: ProcessorId, reply: Any, now_s: float) -> Any:
        if isinstance(reply, tuple):
            _, source, reply = reply
        return original(source, reply, now_s)

    machine.handle = handle  # type: ignore[method-assign]
    moves = [move_from_json(t) for k, t in cluster.entries.items() if k.startswith("move/")]
    todo = machine.take_up([v for v in moves if v.outcome is None], 0.0)
    return machine, todo


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("die_at", range(1, 7))
def test_a_manager_that_dies_at_any_write_leaves_a_move_that_its_successor_ends(
    die_at: int, after: bool
) -> None:
    """Committed chunks are completed, others rolled back; everyone agrees with the stored map."""
    cluster = Cluster()
    machine, _ = start(cluster, 1)
    begun = machine.begin(S, R, 15, reason="test", now_s=0.0)
    survived = cluster.run(machine, begun, die_at, after)
    assert survived == (die_at > 6)
    successor, todo = start(cluster, 2)
    assert cluster.run(successor, todo, 0, False)
    assert not successor.moves
    known = map_from_json(cluster.entries[map_key(Q)])
    committed = known.version - 1
    assert committed == max(0, min(3, die_at - 3 + after))
    for name, p in cluster.participants.items():
        assert p.owned == set(known.groups_of(name).tolist())
        assert p.adapting is None
        assert not p.split_host.held
    # A move that was written down and not ended is ended by the successor.
    expected = {0: Outcome.ROLLED_BACK, 3: Outcome.COMPLETED}.get(committed, Outcome.PARTLY)
    if (die_at, after) not in ((1, False), (6, True)):
        assert [v.outcome for v in cluster.ended] == [expected]


def test_the_eight_steps_come_in_the_papers_order() -> None:
    """One chunk: the names of S4 Fig. 13, with Reserve before step 3 and FinishMove at the end."""
    cluster = Cluster()
    machine, _ = start(cluster, 1)
    machine.settings = MoveSettings(chunk_bytes=100)
    cluster.run(machine, machine.begin(S, R, 15, reason="test", now_s=0.0), 0, False)
    assert cluster.told == [
        "ComputePartitionsToMove",
        "Reserve",
        *["DeactivatePartitions"] * 2,
        "SendPartitions",
        *["ReactivatePartitions"] * 3,
        *["FinishMove"] * 3,
    ]
    assert cluster.ended[0].outcome is Outcome.COMPLETED


def test_a_manager_that_hears_of_a_higher_epoch_steps_down() -> None:
    """A processor obeys somebody else: no decision of this manager counts any more."""
    machine = Coordinator(Q, Epoch(2), MAP, HOSTS, MoveSettings())
    refused = m.Refused(REF, -1, "Reserve", Domain.EPOCH, "", Epoch(3), MapVersion(1))
    [step_down] = machine.handle(S, refused, 0.0)
    assert isinstance(step_down, StepDown)
    assert "epoch 3" in step_down.cause


def test_damaged_records_of_moves_are_refused() -> None:
    """With our error, whatever is in the store."""
    for text in ("", "[]", "{}", '{"id": 7}'):
        with pytest.raises(ConfigError, match="not the record of a move"):
            move_from_json(text)
