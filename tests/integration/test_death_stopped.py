"""Processes that are stopped in the middle of a move, for longer than others wait, and go on then.

Whoever is stopped for longer than `dead_after_s` is dead to the others: when it goes on it hears
so, drops what it has and joins anew. Whoever is stopped for longer than a step of a move may take,
and no longer, costs the move and nothing else. A manager that sleeps blames nobody for it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from dovetail_manager.moves.steps import MoveSettings
from kit.cluster_faults import DEAD_AFTER_S, FaultyCluster, until
from kit.fault_cases import SHORT_MEMORY, Case

FEW = [("p1", "before ships"), ("p2", "before says Received"), ("p3", "after marks")]
MORE = [
    ("p1", "after hears DeactivatePartitions"),
    ("p1", "before hears ReactivatePartitions"),
    ("p1", "before sees marker"),
    ("p2", "before hears Reserve"),
    ("p2", "before hears ReceivePartitions"),
    ("p2", "before hears ReactivatePartitions"),
    ("p3", "before hears DeactivatePartitions"),
    ("p3", "before hears ReactivatePartitions"),
]
MANAGER_POINTS = ["before writes commit", "after says SendPartitions", "before hears Received"]
ALL = os.environ.get("DOVETAIL_DEATHS") == "all"
POINTS = [*FEW, *MORE] if ALL else FEW
NUMBERS = count(1)


@pytest.fixture(scope="module")
def hasty() -> Iterator[FaultyCluster]:
    """A cluster in which the silent are soon dead."""
    with FaultyCluster(processors=4) as made:
        yield made


@pytest.fixture(scope="module")
def patient() -> Iterator[FaultyCluster]:
    """A cluster in which nobody is declared dead, and moves are soon given up."""
    moves = MoveSettings(resend_s=0.2, step_timeout_s=0.5)
    with FaultyCluster(processors=3, dead_after_s=60.0, moves=moves) as made:
        yield made


@pytest.mark.parametrize(("name", "point"), POINTS, ids=lambda x: str(x).replace(" ", "-"))
def test_a_processor_stopped_for_too_long_is_let_go_and_joins_anew(
    hasty: FaultyCluster, name: str, point: str
) -> None:
    """Its query has failed by then, with right results; others have gone on and go on with it."""
    hasty.restart_dead()
    number = next(NUMBERS)
    bystander = Case(hasty, f"b{number}", home="p4", weights=(0, 0, 0, 1))
    case = Case(hasty, f"s{number}", home="p3", **(SHORT_MEMORY if number % 2 else {}))
    case.feed(0.4)
    hasty.arm(name, point, "SIGSTOP")
    case.allow(1.0)
    case.move_to_fault(name, "p1", "p2")
    assert case.await_failure().startswith(f"processor {name} died: it was silent")
    bystander.feed(0.5)
    bystander.check_so_far()
    former = hasty.incarnation(name)
    hasty.go_on(name)
    until(hasty.all_joined, "it is a member again")
    assert hasty.incarnation(name) > former
    case.end_feeds()
    case.check_sub_bag()
    bystander.feed(1.0)
    bystander.check_so_far()
    bystander.query.close()
    again = Case(hasty, f"a{number}", home="p4", rows=300)
    again.feed(0.5)
    again.await_moved("p1", "p2")
    again.feed(1.0)
    again.check_so_far()
    again.query.close()


@pytest.mark.parametrize(("name", "point"), POINTS, ids=lambda x: str(x).replace(" ", "-"))
def test_a_processor_stopped_for_longer_than_a_step_costs_the_move_alone(
    patient: FaultyCluster, name: str, point: str, tmp_path: Path
) -> None:
    """It is undone or completed when the processor goes on; every result comes once."""
    number = next(NUMBERS)
    case = Case(patient, f"t{number}", home="p3", **(SHORT_MEMORY if number % 2 else {}))
    case.feed(0.3)
    patient.arm(name, point, "SIGSTOP")
    case.allow(0.7)
    case.move_to_fault(name, "p1", "p2")
    if "Reactivate" not in point:  # there it is committed, and waited for
        until(lambda: bool(case.query.moves()[0].failure), "the move is given up")
    patient.go_on(name)
    assert case.await_moves() <= {"completed", "rolled back"}
    case.feed(0.8)
    case.await_moved("p1", "p2")
    case.feed(1.0)
    case.check_closed(tmp_path)


@pytest.mark.parametrize("point", MANAGER_POINTS if ALL else MANAGER_POINTS[:1])
def test_a_manager_that_slept_blames_nobody(
    hasty: FaultyCluster, point: str, tmp_path: Path
) -> None:
    """Though it has heard of nobody for longer than the dead are silent."""
    hasty.restart_dead()
    case = Case(hasty, f"z{next(NUMBERS)}", home="p3")
    case.feed(0.3)
    hasty.arm("manager", point, "SIGSTOP")
    case.allow(0.7)
    case.begin_move("p1", "p2")
    hasty.await_fault("manager")
    slept_until_s = time.monotonic() + 1.5 * DEAD_AFTER_S
    until(lambda: time.monotonic() > slept_until_s, "the manager has slept")
    hasty.go_on("manager")
    assert case.await_moves() <= {"completed", "rolled back"}
    case.feed(1.0)
    case.check_closed(tmp_path)
