"""What the manager remembers for processors that were away when a query was dropped."""

from __future__ import annotations

import pytest

from dovetail_manager import queries, removals
from dovetail_proto.assignment import DroppedRun, Phase
from dovetail_proto.ids import QueryName
from dovetail_proto.messages import Stage
from kit.manager import Manager, report


def without_b(*names: str) -> Manager:
    """Members a and b closed these queries; then b died."""
    manager = Manager()
    manager.join("a", "b")
    for name in names:
        manager.now_s += 1
        manager.submit(name)
        manager.do(queries.set_phase, QueryName(name), Phase.CLOSING)
    closed = [report(name, stage=Stage.CLOSED) for name in names]
    for member in ("a", "b"):
        manager.beat(member, *closed)
    for _ in range(12):
        manager.pass_time(1)
        manager.beat("a")
    return manager


def drop(manager: Manager, name: str) -> DroppedRun:
    """With all that it wrote."""
    record = manager.query(name).record
    manager.do(queries.discard, QueryName(name))
    manager.beat("a")
    manager.now_s += 1
    manager.do(queries.drop, QueryName(name))
    return DroppedRun(record.name, record.run, record.spill)


def remembered(manager: Manager) -> set[str]:
    """The runs, as the store has them."""
    kinds = (key.partition("/") for key in manager.entries)
    return {run for kind, _, run in kinds if kind == "removal"}


def test_who_was_away_is_told_what_was_dropped_until_it_has_carried_that_out() -> None:
    """By the next manager too; of what was kept, or was not dropped, nobody hears."""
    manager = without_b("dropped", "kept", "closed")
    gone = drop(manager, "dropped")
    manager.do(queries.drop, QueryName("kept"))
    assert remembered(manager) == {gone.run}
    successor = Manager(2, manager.entries)
    successor.join("a", incarnation=2)
    successor.join("b", incarnation=2)
    for member, told in (("a", ()), ("b", (gone,))):
        assigned = successor.assigned(member)
        assert assigned is not None
        assert assigned.dropped == told
    successor.beat("a", incarnation=2)
    assert remembered(successor) == {gone.run}
    successor.beat("b", incarnation=2)
    assert remembered(successor) == set()
    assert Manager(3, successor.entries).state.removals == {}


def test_of_processors_that_never_come_back_the_newest_removals_are_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So they do not pile up."""
    monkeypatch.setattr(removals, "REMOVALS_MAX", 2)
    manager = without_b("q1", "q2", "q3")
    runs = [drop(manager, name).run for name in ("q1", "q2", "q3")]
    assert remembered(manager) == set(runs[1:])
