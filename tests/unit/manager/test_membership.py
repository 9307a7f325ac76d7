"""Members, their loads and the journal: the parts of the controller, each by itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dovetail_manager.journal import Entry, Journal, Write
from dovetail_manager.load import RATE_HALF_LIFE_S, LoadTracker
from dovetail_manager.membership import Membership, MemberState
from dovetail_proto.errors import Refusal
from dovetail_proto.ids import Epoch, ProcessorId, QueryName
from dovetail_proto.messages import Heartbeat, Join, Leave, QueryLoad

A, B = ProcessorId("a"), ProcessorId("b")
Q = QueryName("q")


def join(who: ProcessorId, incarnation: int = 1, version: str = "1") -> Join:
    """A processor of 100 bytes."""
    return Join(who, incarnation, version, 100)


def beat(who: ProcessorId, produced: int = 0, groups: int = 10, incarnation: int = 1) -> Heartbeat:
    """A heartbeat with one load."""
    return Heartbeat(who, incarnation, 50, (QueryLoad(Q, groups, 40, 5, produced),), False)


# Membership --------------------------------------------------------------------------------------


def test_a_silent_member_is_declared_dead_and_stays_dead() -> None:
    """Also when it speaks again, or repeats its Join."""
    members = Membership("1", dead_after_s=10)
    members.join(join(A), 0.0)
    for second in range(1, 10):
        assert members.tick(float(second)) == []
    [dead] = members.tick(10.0)
    assert (dead.state, dead.cause) == (MemberState.DEAD, "it was silent for 10.0 s")
    with pytest.raises(Refusal, match="incarnation 1, is dead"):
        members.heartbeat(beat(A), 11.0)
    with pytest.raises(Refusal, match="incarnation 1 of processor 'a' is over"):
        members.join(join(A), 11.0)


def test_a_manager_that_slept_does_not_blame_its_members() -> None:
    """If its own tick is late by half the patience, heartbeats may still wait to be read."""
    members = Membership("1", dead_after_s=10)
    members.join(join(A), 0.0)
    members.tick(1.0)
    assert members.tick(60.0) == []
    for second in range(61, 70):
        assert members.tick(float(second)) == []
    assert len(members.tick(70.0)) == 1


def test_a_new_incarnation_proves_the_former_dead() -> None:
    """A late Join of the former one cannot bring it back."""
    members = Membership("1", dead_after_s=10)
    members.join(join(A, 5), 0.0)
    dead, new = members.join(join(A, 6), 1.0)
    assert (dead.state, dead.incarnation, dead.cause) == (
        MemberState.DEAD,
        5,
        "it was started again",
    )
    assert (new.state, new.incarnation) == (MemberState.ALIVE, 6)
    with pytest.raises(Refusal, match="incarnation 5"):
        members.join(join(A, 5), 2.0)
    assert members.join(join(A, 6), 3.0) == []


def test_leaving_ends_when_the_member_is_drained() -> None:
    """Alive, leaving, left; a stranger cannot leave."""
    members = Membership("1", dead_after_s=10)
    members.join(join(A), 0.0)
    assert members.drained(A) == []
    [leaving] = members.leave(Leave(A, 1), 1.0)
    assert leaving.state is MemberState.LEAVING
    assert members.leave(Leave(A, 1), 2.0) == []
    [left] = members.drained(A)
    assert left.state is MemberState.LEFT
    with pytest.raises(Refusal, match="'b', incarnation 1, is unknown"):
        members.leave(Leave(B, 1), 3.0)


@pytest.mark.parametrize(
    ("m", "named"),
    [
        (join(A, version="2"), "runs Dovetail 2, the manager 1; run the same version"),
        (join(ProcessorId("A b")), "name 'A b'"),
        (Join(A, 1, "1", 0), "no memory limit"),
    ],
)
def test_strangers_that_do_not_fit_are_refused(m: Join, named: str) -> None:
    """Another version, a bad name, no limit; nobody was taken in."""
    members = Membership("1", dead_after_s=10)
    with pytest.raises(Refusal, match=named):
        members.join(m, 0.0)
    assert members.members == {}


# Load --------------------------------------------------------------------------------------------


def test_rates_are_smoothed_with_a_half_life() -> None:
    """From 0, a steady rate of 2 per group and second is reached by half in one half life."""
    members = Membership("1", dead_after_s=1e9)
    members.join(join(A), 0.0)
    tracker = LoadTracker()
    for second in range(int(RATE_HALF_LIFE_S) + 1):
        tracker.heartbeat(beat(A, produced=20 * second), float(second))
    [seen] = tracker.loads(Q, members.alive())
    assert seen.rate == pytest.approx(1.0)
    assert (seen.used_bytes, seen.held_bytes, seen.groups) == (50, 40, 10)


def test_a_new_incarnation_starts_its_counters_afresh() -> None:
    """Its count of combinations is lower; that is no negative rate."""
    members = Membership("1", dead_after_s=1e9)
    members.join(join(A, 1), 0.0)
    tracker = LoadTracker()
    tracker.heartbeat(beat(A, produced=1000), 0.0)
    members.join(join(A, 2), 1.0)
    assert tracker.loads(Q, members.alive()) == ()
    tracker.heartbeat(beat(A, produced=10, incarnation=2), 2.0)
    assert tracker.loads(Q, members.alive())[0].rate == 0.0


def test_the_state_of_a_query_is_told_or_estimated() -> None:
    """Bytes of memory held and pushed, and as much per row for the rows that are still to come."""
    tracker = LoadTracker()
    for who in (A, B):
        load = QueryLoad(Q, 10, 40, 5, 0, rows_in=(4, 6), pushed_bytes=20)
        tracker.heartbeat(replace(beat(who), loads=(load,)), 0.0)
    assert tracker.query_bytes(Q, rows_left=0) == 2 * 60
    assert tracker.query_bytes(Q, rows_left=30) == 2 * 60 + 30 * 6


# Journal -----------------------------------------------------------------------------------------


def test_writes_are_issued_one_at_a_time_and_in_order() -> None:
    """A late confirmation of an older write confirms nothing."""
    journal = Journal(Epoch(3), revision=7)
    first, second = Entry({"k": "1"}), Entry({"k": "2"})
    assert journal.append(first) == [Write(Epoch(3), 8, {"k": "1"})]
    assert journal.append(second) == []
    assert journal.unanswered() == [Write(Epoch(3), 8, {"k": "1"})]
    assert journal.confirmed(7) == (None, [])
    assert journal.confirmed(8) == (first, [Write(Epoch(3), 9, {"k": "2"})])
    assert journal.confirmed(8) == (None, [])
    assert journal.confirmed(9) == (second, [])
    assert journal.unanswered() == []
