"""Members, loads and the manager without I/O."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dovetail_manager import membership
from dovetail_manager.load import RATE_HALF_LIFE_S, LoadTracker
from dovetail_manager.membership import Membership, MemberState
from dovetail_manager.moves.journal import Journal, Write
from dovetail_manager.moves.protocol import Persist, Send
from dovetail_manager.steering import Output, Steering, SteeringSettings
from dovetail_proto.assignment import DiskSettings
from dovetail_proto.errors import ConfigError, Domain, Refusal
from dovetail_proto.ids import Epoch, GroupId, ProcessorId, QueryName, SplitId
from dovetail_proto.messages import (
    ComputePartitionsToMove,
    FinishMove,
    Heard,
    Heartbeat,
    Join,
    Leave,
    MoveRef,
    QueryLoad,
    StopQuery,
)

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


def test_members_that_are_long_gone_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the store too, oldest first; not who had a part in a query that is there."""
    monkeypatch.setattr(membership, "GONE_MAX", 3)
    steering = Steering(Epoch(1), 0, SteeringSettings("1", dead_after_s=10))
    store: dict[str, str] = {}

    def do(outputs: list[Output]) -> None:
        for write in [o for o in outputs if isinstance(o, Write)]:
            for key, text in write.puts.items():
                if text is None:
                    del store[key]
                else:
                    store[key] = text
            do(steering.confirmed(write.revision, 0.0))

    names = [ProcessorId(f"p{n}") for n in range(10)]
    for n, name in enumerate(names):
        do(steering.handle(name, join(name, incarnation=n + 1), 0.0))
        do(steering.handle(name, Leave(name, n + 1), 0.0))
        do(steering.tick(10.0 * n + 1))
    assert sorted(store) == [f"member/{name}" for name in names[-4:]]
    assert sorted(steering.membership.members) == names[-4:]
    do(steering.handle(names[0], join(names[0], incarnation=1), 0.0))
    assert steering.membership.members[names[0]].state is MemberState.ALIVE


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
    first, second = Persist(("a",), {"k": "1"}), Persist(("b",), {"k": "2"})
    assert journal.append(first) == [Write(Epoch(3), 8, {"k": "1"})]
    assert journal.append(second) == []
    assert journal.unanswered() == [Write(Epoch(3), 8, {"k": "1"})]
    assert journal.confirmed(7) == (None, [])
    assert journal.confirmed(8) == (first, [Write(Epoch(3), 9, {"k": "2"})])
    assert journal.confirmed(8) == (None, [])
    assert journal.confirmed(9) == (second, [])
    assert journal.unanswered() == []


# Steering ----------------------------------------------------------------------------------------


class Manager:
    """A manager with a store that answers at once."""

    def __init__(self, epoch: int = 1, entries: dict[str, str] | None = None) -> None:
        self.entries = dict(entries or {})
        self.sent: list[Send] = []
        self.now_s = 0.0
        self.steering, outputs = Steering.resume(
            Epoch(epoch), 0, self.entries, SteeringSettings(version="1"), 0.0
        )
        self.act(outputs)

    def act(self, outputs: list[Output]) -> None:
        """Carry out, and confirm writes."""
        for output in outputs:
            if isinstance(output, Write):
                self.entries.update({k: str(v) for k, v in output.puts.items()})
                self.act(self.steering.confirmed(output.revision, self.now_s))
            elif isinstance(output, Send):
                self.sent.append(output)

    def hear(self, m: Any, source: ProcessorId | None = None) -> list[Any]:
        """Messages that a message leads to."""
        self.sent = []
        self.act(self.steering.handle(source or m.processor, m, self.now_s))
        return [s.message for s in self.sent]

    def pass_time(self, until_s: float) -> list[Any]:
        """Messages of the seconds to come."""
        self.sent = []
        while self.now_s < until_s:
            self.now_s += 0.5
            self.act(self.steering.tick(self.now_s))
        return [s.message for s in self.sent]

    def submit(self, **fields: Any) -> None:
        """Query q over all members."""
        hosts = {A: (SplitId("q/0"),)}
        chosen = {"partitions": 4, "split_hosts": hosts, "policy_name": "lazy-disk", **fields}
        disk = DiskSettings(True)
        self.act(self.steering.submit(Q, **chosen, disk=disk, now_s=self.now_s))


def test_a_member_is_welcomed_when_it_is_written_down() -> None:
    """And known to the next manager."""
    manager = Manager()
    assert manager.hear(join(A)) == [Heard(Epoch(1), A, 1, True)]
    successor = Manager(2, manager.entries)
    assert successor.hear(beat(A)) == [Heard(Epoch(2), A, 1, True)]
    assert successor.hear(beat(B)) == [Heard(Epoch(2), B, 1, False)]


def test_a_death_fails_the_queries_that_lost_state_with_it() -> None:
    """The cause is named, written down, and told to the others until they answer."""
    manager = Manager()
    manager.hear(join(A))
    manager.hear(join(B))
    manager.submit()
    for second in range(1, 13):
        manager.now_s = float(second)
        manager.hear(beat(A))
        told = manager.pass_time(second + 0.5)
    stop = StopQuery(Q, Epoch(1), "processor b died: it was silent for 10.5 s")
    assert stop in told
    successor = Manager(2, manager.entries)
    assert successor.steering.queries[Q].cause == stop.cause
    assert StopQuery(Q, Epoch(2), stop.cause) in successor.pass_time(1.0)


def test_a_member_without_state_may_die_alone() -> None:
    """A query that it neither owned groups of nor hosted splits of goes on."""
    manager = Manager()
    manager.hear(join(A))
    manager.submit()
    manager.hear(join(B))
    for second in range(1, 15):
        manager.now_s = float(second)
        manager.hear(beat(A))
        manager.pass_time(second + 0.5)
    assert manager.steering.membership.members[B].state is MemberState.DEAD
    assert manager.steering.queries[Q].cause == ""


@pytest.mark.parametrize(
    ("m", "source", "domain", "named"),
    [
        (Leave(A, 1), A, Domain.MEMBER, "runs query 'q', and nobody else is there"),
        (Leave(A, 1), B, Domain.MEMBER, "'b' speaks for 'a'"),
        (Heard(Epoch(1), A, 1, True), A, Domain.MESSAGE, "Heard is for processors"),
        (
            FinishMove(MoveRef(Q, Epoch(1), "0000000001-00000001", "0000000001-00000001")),  # type: ignore[arg-type]
            A,
            Domain.MESSAGE,
            "FinishMove is for processors",
        ),
    ],
)
def test_messages_out_of_place_are_refused(
    m: Any, source: ProcessorId, domain: Domain, named: str
) -> None:
    """By name, and nothing was written."""
    manager = Manager()
    manager.hear(join(A))
    manager.submit()
    before = dict(manager.entries)
    with pytest.raises(Refusal, match=named) as e:
        manager.hear(m, source)
    assert e.value.domain is domain
    assert manager.entries == before


def test_a_query_name_is_taken_once() -> None:
    """The second query of that name is refused, the first goes on."""
    manager = Manager()
    manager.hear(join(A))
    manager.submit()
    with pytest.raises(Refusal, match="query 'q' exists already; use another name"):
        manager.submit()


def test_nothing_is_decided_before_everyone_has_reported() -> None:
    """As after a restart: half the cluster looks like an uneven cluster."""
    manager = Manager()
    manager.hear(join(A))
    manager.hear(join(B))
    manager.submit()
    manager.hear(beat(A))
    manager.pass_time(3.0)
    [record] = manager.steering.queries[Q].admission.history
    assert "b has not reported yet" in record.decision.reason


@pytest.mark.parametrize(
    ("groups", "to", "domain", "named"),
    [
        ((0,), "a", Domain.MEMBER, "'a' cannot move groups to itself"),
        ((0,), "z", Domain.MEMBER, "processor 'z' is unknown"),
        ((0, 3), "b", Domain.GROUP, "groups 0, 3 have 2 owners; name groups of one processor"),
        ((), "b", Domain.GROUP, r"groups \(none\) have 0 owners"),
        ((77,), "b", Domain.GROUP, "group 77 does not exist"),
    ],
)
def test_an_operators_impossible_move_is_refused(
    groups: tuple[int, ...], to: str, domain: Domain, named: str
) -> None:
    """To itself, to a stranger, of several owners, of nothing; nothing was written."""
    manager = Manager()
    manager.hear(join(A))
    manager.hear(join(B))
    manager.submit()
    before = dict(manager.entries)
    with pytest.raises(Refusal, match=named) as e:
        manager.steering.move(Q, [GroupId(g) for g in groups], ProcessorId(to), now_s=0.0)
    assert e.value.domain is domain
    assert manager.entries == before


def test_an_operators_move_asks_for_exactly_its_groups() -> None:
    """And keeps both ends from any other adaptation until it has ended."""
    manager = Manager()
    manager.hear(join(A))
    manager.hear(join(B))
    manager.submit()
    manager.act(manager.steering.move(Q, [GroupId(1)], B, now_s=0.0))
    [asked] = [s for s in manager.sent if isinstance(s.message, ComputePartitionsToMove)]
    assert (asked.to, asked.message.groups) == (A, (1,))
    with pytest.raises(Refusal, match="'a' is in another adaptation"):
        manager.steering.move(Q, [GroupId(0)], B, now_s=0.0)


def test_a_new_policy_outlives_the_manager() -> None:
    """It is written down; an unknown one is refused and changes nothing."""
    manager = Manager()
    manager.hear(join(A))
    manager.submit()
    manager.act(manager.steering.set_policy(Q, "active-disk", now_s=0.0))
    assert Manager(2, manager.entries).steering.queries[Q].admission.policy.name == "active-disk"
    with pytest.raises(ConfigError, match="policy 'best' does not exist"):
        manager.steering.set_policy(Q, "best", now_s=0.0)
    assert manager.steering.queries[Q].admission.policy.name == "active-disk"
