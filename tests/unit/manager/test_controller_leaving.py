"""Processors that leave, under the manager's machine: when they may go, who keeps their results."""

from __future__ import annotations

from functools import partial

import pytest

from dovetail_manager import members, queries, streams
from dovetail_manager.adaptation import rounds
from dovetail_manager.admin.status import query_status
from dovetail_manager.membership import MemberState
from dovetail_proto.assignment import Phase
from dovetail_proto.errors import Domain, Refusal
from dovetail_proto.handover import Handover
from dovetail_proto.ids import Epoch, GroupId, MapVersion, ProcessorId, QueryName, StreamName
from dovetail_proto.messages import (
    Leave,
    MoveFinished,
    MoveRef,
    PartitionsToMove,
    Pushed,
    PushPartitions,
    Refused,
    Stage,
    StreamLoad,
)
from kit.manager import SCHEMA, Manager, move_on, received, report

Q = QueryName("q")


def test_what_a_leaver_did_stays_in_the_sums() -> None:
    """Its last report is written down in the transaction that lets it go."""
    manager = Manager()
    manager.join("a")
    manager.submit()
    manager.join("b")
    manager.beat("a", report(groups=4, results=3))
    manager.beat("b", report(groups=0, results=9, checksum=1, stage=Stage.CLOSED))
    manager.do(members.ask_to_leave, ProcessorId("b"))
    manager.hand_over("b")
    manager.pass_time(1.5)
    successor = Manager(2, manager.entries)
    [left] = queries.reports(successor.state, successor.query())
    assert (left.processor, left.load.results) == ("b", 9)
    assert [h.kind for h in manager.events[-2:]] == ["processor-leaving", "processor-left"]


def test_a_new_manager_lets_nobody_go_that_has_not_reported_to_it() -> None:
    """The leaver's word that its logs are handed over may come first; what it found is in none."""
    leaver = ProcessorId("c")
    manager = Manager()
    manager.join("a", "b", leaver)
    manager.submit()
    groups = [GroupId(int(g)) for g in manager.query().placement.map.groups_of(leaver)]
    manager.do(rounds.move, Q, groups, ProcessorId("a"))
    move_on(manager)
    received(manager)
    move_on(manager)
    manager.do(members.ask_to_leave, leaver)
    successor = Manager(2, manager.entries)
    member = successor.state.membership.members[leaver]
    over = Leave(leaver, 1, "a")
    successor.hear(leaver, over)
    successor.pass_time(1.5)
    assert member.state is MemberState.LEAVING
    successor.beat(leaver, report(groups=0, results=9, stage=Stage.CLOSED))
    successor.hear(leaver, over)
    successor.pass_time(1.5)
    assert member.state is MemberState.LEFT
    found = queries.reports(successor.state, successor.query())
    assert [r.load.results for r in found if r.processor == leaver] == [9]


@pytest.mark.parametrize("results", [9, 0])
def test_who_leaves_and_comes_back_for_ever_is_kept_as_a_few_sums(results: int) -> None:
    """The query's record does not grow with every return, and nothing of the sums is lost."""
    manager = Manager()
    manager.join("a")
    manager.submit()
    manager.beat("a", report(groups=4, results=3))
    for incarnation in range(1, 13):
        manager.join("b", incarnation=incarnation)
        closed = report(groups=0, results=results, checksum=1, produced=5, stage=Stage.CLOSED)
        manager.beat("a", report(groups=4, results=3))
        manager.beat("b", closed, incarnation=incarnation)
        manager.do(members.ask_to_leave, ProcessorId("b"))
        manager.hand_over("b", incarnation)
        manager.pass_time(1.5)
    found = Manager(2, manager.entries).query().record
    assert len(found.reports) <= 5
    assert sum(i.load.results for i in found.reports) == 12 * results
    assert sum(i.load.produced for i in found.reports) == 12 * 5
    assert len(found.kept) == (12 if results else 0)
    assert not any(found.writes(i) for i in found.reports if i.load.results)


def test_who_leaves_without_an_answer_leaves_no_order_behind() -> None:
    """It owned nothing any more, and had closed, when the order came."""
    manager = Manager()
    manager.join("a", "b")
    manager.submit(policy="active-disk", expected_bytes=10_000)
    manager.join("c")
    query = manager.query()
    for produced in (0, 1000):  # c's reports are of before its groups moved away
        manager.beat("c", report(held_bytes=800), used=900)
        for name in ("a", "b"):
            manager.beat(name, report(held_bytes=800, produced=produced), used=900)
        manager.pass_time(1.0)
    assert query.orders.keys() == {"c"}
    manager.do(members.ask_to_leave, ProcessorId("c"))
    manager.beat("c", report(groups=0, stage=Stage.CLOSED))
    manager.pass_time(1.0)
    manager.hand_over("c")
    manager.pass_time(2.0)
    assert manager.events[-1].kind == "processor-left"
    assert (query.orders, query.admission.ordered) == ({}, {})


def test_a_leaver_is_let_go_when_it_has_closed_what_it_had() -> None:
    """A report from before its last group left, or before it closed, would miss results."""
    manager = Manager()
    manager.join("a")
    manager.submit()
    manager.join("b")
    manager.beat("a", report(groups=4))
    manager.beat("b", report(groups=1))
    manager.do(members.ask_to_leave, ProcessorId("b"))
    manager.pass_time(2.0)
    manager.beat("b", report(groups=0))
    manager.pass_time(1.0)
    assert manager.events[-1].kind == "processor-leaving"
    manager.beat("b", report(groups=0, stage=Stage.CLOSED))
    manager.pass_time(1.0)
    assert manager.events[-1].kind == "processor-leaving", "its results are not kept yet"
    manager.hand_over("b")
    manager.pass_time(1.0)
    assert manager.events[-1].kind == "processor-left"


def test_the_logs_of_leavers_are_where_the_last_heir_has_them() -> None:
    """Through comings and goings, a death, and a successor of the manager."""
    manager = Manager()
    manager.join("a")
    manager.submit()
    manager.join("b", "c")

    def leaves(name: str, incarnation: int = 1) -> None:
        closed = report(groups=0, results=9, stage=Stage.CLOSED)
        manager.beat(name, closed, incarnation=incarnation)
        manager.do(members.ask_to_leave, ProcessorId(name))
        manager.hand_over(name, incarnation)
        manager.pass_time(1.0)
        assert manager.events[-1].kind == "processor-left"

    def logs(of: Manager) -> dict[str, str]:
        return {log.name: log.processor for log in query_status(of.state, "q").logs}

    manager.beat("a", report(groups=4))
    leaves("c")
    assert logs(manager) == {"a": "a", "c": "a"}
    manager.join("c", incarnation=2)
    seen = manager.assigned("c")
    assert seen is not None
    assert [q.log for q in seen.queries] == ["c.2"]
    manager.beat("c", report(groups=0), incarnation=2)
    assert logs(manager) == {"a": "a", "c": "a", "c.2": "c"}
    leaves("c", incarnation=2)
    leaves("b")
    expected = {"a": "a", "b": "a", "c": "a", "c.2": "a"}
    assert logs(manager) == expected
    assert logs(Manager(2, manager.entries)) == expected, "also before anyone has reported"


def test_the_log_of_one_that_died_before_it_reported_is_missing_not_empty() -> None:
    """A new manager has not heard of the results there yet; half an answer is no answer."""
    manager = Manager()
    manager.join("a", "b")
    manager.submit()
    manager.beat("a", report(groups=2, results=3))
    successor = Manager(2, manager.entries)
    for _ in range(20):  # "b" is silent
        successor.beat("a", report(groups=2, results=3))
        successor.pass_time(1.0)
    query = query_status(successor.state, "q")
    assert query.state == "failed"
    assert {log.name: log.address for log in query.logs} == {"a": "a:1", "b": ""}


def test_a_leaver_that_found_nothing_or_writes_no_log_leaves_none() -> None:
    """There is nothing to be read."""
    manager = Manager()
    manager.join("a")
    manager.submit()
    manager.submit("counted", counting=True)
    manager.submit("filed", results="/out")
    manager.join("b")
    names = ("q", "counted", "filed")
    manager.beat("b", *(report(n, groups=0, stage=Stage.CLOSED) for n in names))
    manager.do(members.ask_to_leave, ProcessorId("b"))
    told = manager.assigned("b")
    assert told is not None
    assert told.leaving is not None
    assert list(told.leaving.runs) == ["q"]
    manager.hand_over("b")
    manager.pass_time(1.0)
    assert manager.events[-1].kind == "processor-left"
    found = [[log.name for log in query_status(manager.state, n).logs] for n in names]
    assert found == [["a"], [], []]


@pytest.mark.parametrize("policy", ["lazy-disk", "distributed"])
def test_a_leaver_whose_groups_find_no_room_pushes_them_first(policy: str) -> None:
    """If its query's policy uses the disk at all, and when halves were tried."""
    manager = Manager()
    manager.join("a", "b")
    manager.submit(policy=policy)
    query = manager.query()
    leave(manager)
    tried: list[int] = []
    for _ in range(6):
        if len(tried) == 4 or pushes(manager):
            break
        tried += refused_moves(manager, Domain.MEMORY)
    assert tried == ([2, 1, 1] if policy == "lazy-disk" else [2, 1, 1, 1])
    if policy == "lazy-disk":
        [(to, order)] = pushes(manager)
        assert (to, order.size_bytes) == ("a", 700)
        assert any("nobody has room" in r.decision.reason for r in query.admission.history)
        manager.hear("a", Pushed(Q, Epoch(1), order.order, 700))
        manager.pass_time(1.0)
        assert [len(m.groups) for m in query.coordinator.moves.values()] == [2]
        assert query.admission.forced_bytes == 0, "no policy forced it"


def test_a_leaver_pushes_nothing_for_any_other_failure() -> None:
    """Whatever was rolled back before it left, or fails for another reason than want of room."""
    manager = Manager()
    manager.join("a", "b")
    manager.submit(policy="lazy-disk")
    for name in ("a", "b"):
        manager.beat(name, HELD())
    for _ in range(3):
        manager.do(rounds.move, Q, (GroupId(0),), ProcessorId("b"))
        assert refused_moves(manager, Domain.MEMORY) == [1]
    leave(manager)
    tried = [n for _ in range(5) for n in refused_moves(manager, Domain.STEP)]
    assert len(tried) > 3
    assert set(tried) == {2}, "all of its groups every time"
    assert not pushes(manager)


def test_who_ends_is_kept_by_no_pinned_group() -> None:
    """Nor can somebody else, or a former incarnation, say that it ends."""
    manager = Manager()
    manager.join("a", "b")
    manager.submit()
    query = manager.query()
    manager.do(rounds.pin, Q, (GroupId(0), GroupId(1)), True)
    owners = {query.placement.next_map.owner(g) for g in query.record.pinned}
    assert owners == {"a"}
    before = dict(manager.entries)
    for source, forged in (("a", ends("a", incarnation=2)), ("b", ends("a"))):
        with pytest.raises(Refusal):
            manager.hear(source, forged)
        assert manager.entries == before
    manager.hear("a", ends("a"))
    assert not query.record.pinned
    assert manager.query().record.phase is Phase.RUNNING


@pytest.mark.parametrize("why", ["alone", "file", "paused", "no room"])
def test_a_query_that_keeps_who_ends_is_closed_and_the_event_says_why(why: str) -> None:
    """Said again, or by another leaver, it is closed once."""
    manager = Manager()
    manager.join("a", "b", *("c" if why == "paused" else ""))
    if why == "file":
        manager.do(streams.create, StreamName("s"), SCHEMA, "/data/s.parquet")
    manager.submit(policy="distributed")
    leaver, told = "a", ""
    match why:
        case "alone":
            manager.hear("b", ends("b"))
            told = "nobody is left to go on with the query"
        case "file":
            told = "the query reads stream 's' from a file there"
        case "paused":
            leaver, told = "c", "nothing of a paused query can move"
            manager.do(queries.set_phase, Q, Phase.PAUSED)
        case "no room":
            told = "nobody has room for what the query holds there"
            leave(manager)
            tried: list[int] = []
            while len(tried) < 2:
                manager.hear("a", ends("a"))
                assert manager.query().record.phase is Phase.RUNNING
                tried += refused_moves(manager, Domain.MEMORY)
            assert tried == [2, 1]
    for _ in range(2):
        manager.hear(leaver, ends(leaver))
    [closing] = [h for h in manager.events if h.kind == "query-closing"]
    assert closing.text == f"processor {leaver!r} ends, and {told}"


HELD = partial(report, held_bytes=700)


def ends(name: str, incarnation: int = 1) -> Leave:
    """What a processor says that was told to end."""
    return Leave(ProcessorId(name), incarnation, "", ends=True)


def leave(manager: Manager) -> None:
    """Have a leave, whose stream is handed over at once."""
    for name in ("a", "b"):
        manager.beat(name, HELD())
    manager.do(members.ask_to_leave, ProcessorId("a"))
    done = StreamLoad(StreamName("s"), 0, False, Handover(0, {}, {}).to_json())
    manager.beat("a", HELD(), streams=(done,))
    manager.beat("b", HELD())


def refused_moves(manager: Manager, domain: Domain) -> list[int]:
    """Let a second pass, and have b refuse the moves that are open then: of how many groups."""
    manager.pass_time(1.0)
    for name in ("a", "b"):
        manager.beat(name, HELD())
    tried: list[int] = []
    for move in list(manager.query().coordinator.moves.values()):
        ref = MoveRef(Q, Epoch(1), move.id, move.id)
        manager.hear("a", PartitionsToMove(ref, move.groups, (10,) * len(move.groups)))
        tried.append(len(move.groups))
        manager.hear("b", Refused(ref, -1, "Reserve", domain, "no", Epoch(1), MapVersion(1)))
        for who in ("a", "b"):
            manager.hear(who, MoveFinished(ref))
    return tried


def pushes(manager: Manager) -> list[tuple[str, PushPartitions]]:
    """Orders to push, to whom."""
    sent = [(s.to, s.message) for s in manager.sent]
    return list({to: m for to, m in sent if isinstance(m, PushPartitions)}.items())
