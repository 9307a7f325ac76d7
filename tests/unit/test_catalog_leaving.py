"""Processors that leave, under the manager's machine: when they may go, who keeps their results."""

from __future__ import annotations

from functools import partial

import pytest

from dovetail_manager.admin.status import query_status
from dovetail_proto.errors import Domain
from dovetail_proto.handover import Handover
from dovetail_proto.ids import Epoch, MapVersion, ProcessorId, QueryName, StreamName
from dovetail_proto.messages import (
    MoveFinished,
    MoveRef,
    PartitionsToMove,
    Pushed,
    PushPartitions,
    Refused,
    Stage,
    StreamLoad,
)
from kit.governed import Governed, report

Q = QueryName("q")


def test_what_a_leaver_did_stays_in_the_sums() -> None:
    """Its last report is written down in the transaction that lets it go."""
    manager = Governed()
    manager.join("a")
    manager.submit()
    manager.join("b")
    manager.beat("a", report(groups=4, results=3))
    manager.beat("b", report(groups=0, results=9, checksum=1, stage=Stage.CLOSED))
    manager.do("leave", ProcessorId("b"))
    manager.bequeath("b")
    manager.pass_time(1.5)
    successor = Governed(2, manager.entries)
    [left] = successor.governor.instances(Q)
    assert (left.processor, left.load.results) == ("b", 9)
    assert [h.kind for h in manager.happened[-2:]] == ["processor-leaving", "processor-left"]


def test_a_leaver_is_let_go_when_it_has_closed_what_it_had() -> None:
    """A report from before its last group left, or before it closed, would miss results."""
    manager = Governed()
    manager.join("a")
    manager.submit()
    manager.join("b")
    manager.beat("a", report(groups=4))
    manager.beat("b", report(groups=1))
    manager.do("leave", ProcessorId("b"))
    manager.pass_time(2.0)
    manager.beat("b", report(groups=0))
    manager.pass_time(1.0)
    assert manager.happened[-1].kind == "processor-leaving"
    manager.beat("b", report(groups=0, stage=Stage.CLOSED))
    manager.pass_time(1.0)
    assert manager.happened[-1].kind == "processor-leaving", "its results are not kept yet"
    manager.bequeath("b")
    manager.pass_time(1.0)
    assert manager.happened[-1].kind == "processor-left"


def test_the_logs_of_leavers_are_where_the_last_heir_has_them() -> None:
    """Through comings and goings, a death, and a successor of the manager."""
    manager = Governed()
    manager.join("a")
    manager.submit()
    manager.join("b", "c")

    def leaves(name: str, incarnation: int = 1) -> None:
        closed = report(groups=0, results=9, stage=Stage.CLOSED)
        manager.beat(name, closed, incarnation=incarnation)
        manager.do("leave", ProcessorId(name))
        manager.bequeath(name, incarnation)
        manager.pass_time(1.0)
        assert manager.happened[-1].kind == "processor-left"

    def logs(of: Governed) -> dict[str, str]:
        return {log.name: log.processor for log in query_status(of.governor, "q").logs}

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
    assert logs(Governed(2, manager.entries)) == expected, "also before anyone has reported"


def test_a_leaver_that_found_nothing_or_writes_no_log_leaves_none() -> None:
    """There is nothing to be read."""
    manager = Governed()
    manager.join("a")
    manager.submit()
    manager.submit("counted", counting=True)
    manager.submit("filed", results="/out")
    manager.join("b")
    names = ("q", "counted", "filed")
    manager.beat("b", *(report(n, groups=0, stage=Stage.CLOSED) for n in names))
    manager.do("leave", ProcessorId("b"))
    told = manager.assigned("b")
    assert told is not None
    assert told.leaving is not None
    assert list(told.leaving.runs) == ["q"]
    manager.bequeath("b")
    manager.pass_time(1.0)
    assert manager.happened[-1].kind == "processor-left"
    found = [[log.name for log in query_status(manager.governor, n).logs] for n in names]
    assert found == [["a"], [], []]


@pytest.mark.parametrize("policy", ["lazy-disk", "distributed"])
def test_a_leaver_whose_groups_find_no_room_pushes_them_first(policy: str) -> None:
    """If its query's policy uses the disk at all, and when halves were tried."""
    manager = Governed()
    manager.join("a", "b")
    manager.submit(policy=policy)
    held = partial(report, held_bytes=700)
    for name in ("a", "b"):
        manager.beat(name, held())
    manager.do("leave", ProcessorId("a"))
    query = manager.governor.steering.queries[Q]
    done = StreamLoad(StreamName("s"), 0, False, Handover(0, {}, {}).to_json())
    manager.beat("a", held(), streams=(done,))
    manager.beat("b", held())
    tried: list[int] = []
    for _ in range(6):
        if len(tried) == 4 or pushes(manager):
            break
        manager.pass_time(1.0)
        for name in ("a", "b"):
            manager.beat(name, held())
        for move in list(query.coordinator.moves.values()):
            ref = MoveRef(Q, Epoch(1), move.id, move.id)
            manager.hear("a", PartitionsToMove(ref, move.groups, (10,) * len(move.groups)))
            tried.append(len(move.groups))
            manager.hear(
                "b", Refused(ref, -1, "Reserve", Domain.MEMBER, "no room", Epoch(1), MapVersion(1))
            )
            for who in ("a", "b"):
                manager.hear(who, MoveFinished(ref))
    assert tried == ([2, 1, 1] if policy == "lazy-disk" else [2, 1, 1, 1])
    if policy == "lazy-disk":
        [(to, order)] = pushes(manager)
        assert (to, order.size_bytes) == ("a", 700)
        assert any("nobody has room" in r.decision.reason for r in query.admission.history)
        manager.hear("a", Pushed(Q, Epoch(1), order.order, 700))
        manager.pass_time(1.0)
        assert [len(m.groups) for m in query.coordinator.moves.values()] == [2]
        assert query.admission.forced_bytes == 0, "no policy forced it"


def pushes(manager: Governed) -> list[tuple[str, PushPartitions]]:
    """Orders to push, to whom."""
    sent = [(s.to, s.message) for s in manager.sent]
    return list({to: m for to, m in sent if isinstance(m, PushPartitions)}.items())
