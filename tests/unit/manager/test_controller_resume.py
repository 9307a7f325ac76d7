"""A manager that is started anew goes on from any prefix of what the former one wrote."""

from __future__ import annotations

from dovetail_manager import members, queries
from dovetail_manager.adaptation import rounds
from dovetail_manager.records import CleanupRecord, CleanupState
from dovetail_proto.assignment import Phase
from dovetail_proto.handover import Handover
from dovetail_proto.ids import GroupId, ProcessorId, QueryName, StreamName
from dovetail_proto.messages import Stage, StreamLoad
from kit.manager import Manager, move_on, received, report

Q = QueryName("q")


def whole_life() -> Manager:
    """Members join, a query runs, moves, is pinned and paused, a home leaves, all is dropped."""
    manager = Manager()
    manager.join("a", "b")
    manager.submit()
    manager.do(rounds.move, Q, [GroupId(0)], ProcessorId("b"))
    move_on(manager)
    received(manager)
    move_on(manager)
    manager.do(rounds.pin, Q, [GroupId(3)], True)
    for phase in (Phase.PAUSED, Phase.RUNNING):
        manager.do(queries.set_phase, Q, phase)
    manager.do(members.ask_to_leave, ProcessorId("a"))
    done = Handover(7, {"feed": 3}, {Q: 7}).to_json()
    manager.beat("a", report(), streams=(StreamLoad(StreamName("s"), 7, False, done),))
    for _ in range(3):
        for name in ("a", "b"):
            manager.beat(name, report(results=2))
        manager.pass_time(1.0)
        move_on(manager)
        received(manager)
        move_on(manager)
    manager.beat("a", report(groups=0, results=2, stage=Stage.CLOSED))
    manager.hand_over("a")
    manager.pass_time(1.0)
    manager.do(queries.set_phase, Q, Phase.CLOSING)
    manager.beat("b", report(groups=4, results=3, stage=Stage.CLOSED))
    cleanup = CleanupRecord("local", "", 0, manager.now_s, CleanupState.DONE)
    manager.do(queries.start_cleanup, Q, cleanup)
    for verb in (queries.discard, queries.drop):
        manager.beat("b")
        manager.do(verb, Q)
    return manager


def test_any_prefix_of_the_writes_is_a_state_to_go_on_from() -> None:
    """The records are those that were written, nothing is told that is not, and time may pass."""
    life = whole_life()
    kinds = {event.kind for event in life.events}
    assert {"processor-left", "stream-rehomed", "move-ended", "query-dropped"} <= kinds
    assert len(life.prefixes) > 20
    for prefix in life.prefixes:
        successor = Manager(2, prefix)
        written = {k for k in prefix if k.startswith(("query/", "stream/"))}
        records = [q.record for q in successor.state.queries.values()]
        streams = list(successor.state.declared().values())
        assert {r.key for r in (*records, *streams)} == written
        assert all(prefix[r.key] == r.to_json() for r in records)
        successor.pass_time(2.0)
        for name in ("a", "b"):
            successor.beat(name, report())
