"""Members under the controller: who is answered what, and what a death means for queries."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail_manager import membership, queries
from dovetail_manager.adaptation import rounds
from dovetail_manager.membership import MemberState
from dovetail_proto.assignment import Phase
from dovetail_proto.errors import ConfigError, Domain, Refusal
from dovetail_proto.ids import Epoch, GroupId, MoveId, ProcessorId, QueryName
from dovetail_proto.messages import (
    ComputePartitionsToMove,
    FinishMove,
    Heard,
    Heartbeat,
    Leave,
    MoveRef,
    Stage,
    StopQuery,
)
from kit.manager import Manager, report

A, B = ProcessorId("a"), ProcessorId("b")
Q = QueryName("q")
MOVE = MoveId("0000000001-00000001")


def members_of_q(*names: str) -> Manager:
    """Members, and the query q on all of them."""
    manager = Manager()
    manager.join(*names)
    manager.submit()
    return manager


def heard(manager: Manager) -> list[Any]:
    """All answers to members."""
    return [s.message for s in manager.sent if isinstance(s.message, Heard)]


def test_a_member_is_welcomed_when_it_is_written_down() -> None:
    """And known to the next manager."""
    manager = Manager()
    manager.held = True
    manager.join("a")
    assert heard(manager) == []
    manager.write_all()
    assert heard(manager) == [Heard(Epoch(1), A, 1, True)]
    successor = Manager(2, manager.entries)
    successor.beat("a")
    successor.beat("b")
    assert heard(successor) == [Heard(Epoch(2), A, 1, True), Heard(Epoch(2), B, 1, False)]


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (("p.0", "p.1"), "p", "had --threads 2 .* has 1: results of query 'q' at worker 'p.0'"),
        (("p",), "p.0", "had --threads 1 .* has several: results of query 'q' at worker 'p'"),
    ],
)
def test_a_processor_does_not_come_back_with_other_workers_than_those_that_have_something(
    before: tuple[str, ...], after: str, said: str
) -> None:
    """Its results would be away for good; the error names the threads that it had."""
    manager = Manager()
    manager.join(*before, "other")
    manager.submit()
    with pytest.raises(Refusal, match=said) as refused:
        manager.join(after)
    assert f"--threads {len(before)}" in refused.value.remedy
    manager.join(*before, incarnation=2)
    empty = Manager()
    empty.join(*before, "other")
    empty.join(after)
    assert empty.controller.state.membership.members.keys() == {*before, "other", after}


def test_a_closed_query_that_found_nothing_at_a_processor_lets_it_come_back_as_it_likes() -> None:
    """Nothing of it is there; as little as of one whose logs were handed to a successor."""
    manager = members_of_q("a", "b", "p")  # a and b are the homes of its streams
    manager.do(queries.set_phase, Q, Phase.CLOSING)
    manager.beat("p", report(groups=0, stage=Stage.CLOSED))
    for name in ("a", "b"):
        manager.beat(name, report(stage=Stage.CLOSED, results=5))
    assert manager.query().record.end
    manager.join("p.0", "p.1")
    assert manager.state.membership.members[ProcessorId("p.0")].state is MemberState.ALIVE


def test_members_that_are_long_gone_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the store too, oldest first; not who had a part in a query that is there."""
    monkeypatch.setattr(membership, "GONE_MAX", 3)
    manager = Manager()
    names = [ProcessorId(f"p{n}") for n in range(10)]
    for n, name in enumerate(names):
        manager.join(name, incarnation=n + 1)
        manager.hear(name, Leave(name, n + 1))
        manager.pass_time(1.5)
    assert sorted(manager.entries) == [f"member/{name}" for name in names[-4:]]
    assert sorted(manager.state.membership.members) == names[-4:]
    manager.join(names[0])
    assert manager.state.membership.members[names[0]].state is MemberState.ALIVE


def test_a_death_fails_the_queries_that_lost_state_with_it() -> None:
    """The cause is named, written down, and told to the others until they answer."""
    manager = members_of_q("a", "b")
    for _ in range(12):
        manager.beat("a", report())
        manager.pass_time(1.0)
    stops = [s for s in manager.sent if isinstance(s.message, StopQuery)]
    assert len(stops) > 1
    assert {s.to for s in stops} == {A}
    cause = manager.query().record.cause
    assert cause == "processor b died: it was silent for 10.0 s"
    successor = Manager(2, manager.entries)
    assert successor.query().record.cause == cause
    assert StopQuery(Q, Epoch(2), cause) in [s.message for s in successor.sent]


def test_a_member_is_heard_while_the_store_is_away() -> None:
    """It leaves, which cannot be written for longer than a silent one would be let live."""
    manager = members_of_q("a", "b")
    manager.held = True
    manager.hear("b", Leave(B, 1))
    for _ in range(24):
        for name in ("a", "b"):
            manager.beat(name, report())
        manager.pass_time(0.5)
    manager.write_all()
    assert manager.state.membership.members[B].state is MemberState.LEAVING
    assert manager.query().record.cause == ""


def test_a_member_without_state_may_die_alone() -> None:
    """A query that it neither owned groups of nor hosted splits of goes on."""
    manager = members_of_q("a")
    manager.join("b")
    for _ in range(14):
        manager.beat("a", report())
        manager.pass_time(1.0)
    assert manager.state.membership.members[B].state is MemberState.DEAD
    assert manager.query().record.cause == ""


@pytest.mark.parametrize(
    ("m", "source", "domain", "named"),
    [
        (Leave(A, 1), A, Domain.MEMBER, "runs query 'q', and nobody else is there"),
        (Leave(A, 1), B, Domain.MEMBER, "'b' speaks for 'a'"),
        (Heartbeat(A, 1, 0, (), False), B, Domain.MEMBER, "'b' speaks for 'a'"),
        (Heard(Epoch(1), A, 1, True), A, Domain.MESSAGE, "Heard is for processors"),
        (FinishMove(MoveRef(Q, Epoch(1), MOVE, MOVE)), A, Domain.MESSAGE, "is for processors"),
    ],
)
def test_messages_out_of_place_are_refused(
    m: Any, source: ProcessorId, domain: Domain, named: str
) -> None:
    """By name, and nothing was written."""
    manager = members_of_q("a")
    before = dict(manager.entries)
    with pytest.raises(Refusal, match=named) as e:
        manager.hear(source, m)
    assert e.value.domain is domain
    assert manager.entries == before


def test_nothing_is_decided_before_everyone_has_reported() -> None:
    """As after a restart: half the cluster looks like an uneven cluster."""
    manager = members_of_q("a", "b")
    manager.beat("a", report())
    manager.pass_time(3.0)
    [record] = manager.query().admission.history
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
    manager = members_of_q("a", "b")
    before = dict(manager.entries)
    with pytest.raises(Refusal, match=named) as e:
        manager.do(rounds.move, Q, [GroupId(g) for g in groups], ProcessorId(to))
    assert e.value.domain is domain
    assert manager.entries == before


def test_an_operators_move_asks_for_exactly_its_groups() -> None:
    """And keeps both ends from any other adaptation until it has ended."""
    manager = members_of_q("a", "b")
    manager.do(rounds.move, Q, [GroupId(1)], B)
    [asked] = [s for s in manager.sent if isinstance(s.message, ComputePartitionsToMove)]
    assert isinstance(asked.message, ComputePartitionsToMove)
    assert (asked.to, asked.message.groups) == (A, (1,))
    with pytest.raises(Refusal, match="'a' is in another adaptation"):
        manager.do(rounds.move, Q, [GroupId(0)], B)


def test_a_new_policy_outlives_the_manager() -> None:
    """It is written down; an unknown one is refused and changes nothing."""
    manager = members_of_q("a")
    manager.do(queries.set_policy, Q, "active-disk")
    assert Manager(2, manager.entries).query().admission.policy.name == "active-disk"
    with pytest.raises(ConfigError, match="policy 'best' does not exist"):
        manager.do(queries.set_policy, Q, "best")
    assert manager.query().admission.policy.name == "active-disk"
