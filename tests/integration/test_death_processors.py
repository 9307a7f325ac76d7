"""A processor is killed at every step of a move: its queries fail, and nothing else does.

p1 sends, p2 receives, p3 hosts the splits, and p4 runs a query that needs none of them. A few
steps are tried in every run of the tests, all of them with DOVETAIL_DEATHS=all.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from kit.cluster_faults import FaultyCluster, until
from kit.fault_cases import SHORT_MEMORY, Case

STEPS = {
    "p1": (
        "hears ComputePartitionsToMove",
        "says PartitionsToMove",
        "hears DeactivatePartitions",
        "says Deactivated",
        "sees marker",
        "hears SendPartitions",
        "ships",
        "hears ReactivatePartitions",
        "says Reactivated",
        "hears FinishMove",
        "says MoveFinished",
    ),
    "p2": (
        "hears Reserve",
        "says Reserved",
        "hears ReceivePartitions",
        "says Received",
        "hears ReactivatePartitions",
        "says Reactivated",
        "hears FinishMove",
        "says MoveFinished",
    ),
    "p3": (
        "hears DeactivatePartitions",
        "marks",
        "says Deactivated",
        "hears ReactivatePartitions",
        "says Reactivated",
        "hears FinishMove",
        "says MoveFinished",
    ),
}
POINTS = [
    (name, f"{when} {step}")
    for name, steps in STEPS.items()
    for step in steps
    for when in ("before", "after")
]
FEW = [
    ("p1", "before sees marker"),
    ("p1", "after ships"),
    ("p2", "after hears ReceivePartitions"),
    ("p2", "before hears ReactivatePartitions"),
    ("p3", "after marks"),
]
BEFORE_COMMIT = ("hears Reserve", "says Reserved", "hears ReceivePartitions", "says Received")
SAID = ("after says Received", "after hears ReceivePartitions")
NUMBERS = count(1)
ALL = os.environ.get("DOVETAIL_DEATHS") == "all"


@pytest.fixture(scope="module")
def local() -> Iterator[FaultyCluster]:
    """One cluster for all tests of this file."""
    with FaultyCluster(processors=4) as made:
        yield made


@pytest.fixture(scope="module")
def bystander(local: FaultyCluster) -> Case:
    """A query that only p4 has a part in; it lives through all tests of this file."""
    return Case(local, "bystander", home="p4", weights=(0, 0, 0, 1), rows=3_000)


def goes_on(bystander: Case) -> None:
    """It takes rows in, and what it finds is exact."""
    routed = bystander.feeds[0].rows_routed
    bystander.feed((routed + 10) / bystander.tables[0].num_rows)
    bystander.check_so_far()


@pytest.mark.parametrize(
    ("victim", "point"), POINTS if ALL else FEW, ids=lambda x: str(x).replace(" ", "-")
)
def test_the_death_of_a_processor_fails_its_queries_alone(
    local: FaultyCluster, bystander: Case, victim: str, point: str
) -> None:
    """The cause names it, results so far are right and stay, others go on, and it may come back."""
    local.restart_dead()
    number = next(NUMBERS)
    case = Case(local, f"d{number}", home="p3", **(SHORT_MEMORY if number % 2 else {}))
    case.feed(0.4)
    local.arm(victim, point)
    case.allow(1.0)
    case.move_to_fault(victim, "p1", "p2")
    if number % 3 == 0:  # started again before anyone has noticed
        local.restart_dead()
    assert case.await_failure().startswith(f"processor {victim} died")
    goes_on(bystander)
    local.restart_dead()
    case.end_feeds()
    # Those who live may still write down what they had found.
    until(lambda: case.rows_logged() == case.check_sub_bag(), "all logs can be read, and are whole")
    goes_on(bystander)
    again = Case(local, f"d{number}again", home="p4", rows=300)
    again.feed(1.0)
    again.check_so_far()
    for query in (case.query, again.query):
        if query is again.query:
            query.close()
        query.drop()


@pytest.mark.parametrize(
    "point",
    [f"{when} {step}" for step in BEFORE_COMMIT for when in ("before", "after")]
    if ALL
    else ["before says Received"],
)
@pytest.mark.parametrize("back", ["at once", "later"])
def test_a_receiver_that_owned_nothing_may_die_before_the_commit(
    local: FaultyCluster, bystander: Case, point: str, back: str, tmp_path: Path
) -> None:
    """The move is rolled back; the query goes on, with the receiver when it is back, and closes."""
    local.restart_dead()
    name = f"r{next(NUMBERS)}"
    case = Case(local, name, home="p3", weights=(1, 0, 1, 0), **SHORT_MEMORY)
    case.feed(0.3)
    local.arm("p2", point)
    case.allow(0.6)
    move = case.move_to_fault("p2", "p1", "p2")
    if back == "at once":
        local.restart_dead()
    case.may_fail = point in SAID
    outcomes = case.await_moves()
    # What it said last may have arrived before it died: then it owned groups.
    if point in SAID and outcomes != {"rolled back"}:
        assert case.await_failure().startswith("processor p2 died")
        return
    assert case.outcome(move) == "rolled back"
    local.restart_dead()
    case.feed(0.8)
    case.await_moved("p1", "p2")
    case.feed(1.0)
    assert case.check_closed(tmp_path) > 0
    goes_on(bystander)


def test_a_processor_takes_along_results_that_it_has_not_written(local: FaultyCluster) -> None:
    """So its death fails the query, though all of its groups had moved away."""
    local.restart_dead()
    case = Case(local, "gone", home="p3", weights=(1, 0, 1, 0))
    case.feed(0.5)
    case.query.wait()
    while case.groups_of("p1"):
        case.await_moved("p1", "p2")
    local.kill("p1")
    assert case.await_failure().startswith("processor p1 died")
    case.end_feeds()
    case.check_sub_bag()


def test_a_query_closes_with_a_processor_that_comes_back_meanwhile(
    local: FaultyCluster, tmp_path: Path
) -> None:
    """Those who would have told it of the end of input may have closed before it is there."""
    local.restart_dead()
    case = Case(local, "late", home="p3", weights=(0, 0, 1, 0))
    case.feed(1.0)
    local.arm("p1", "before hears Assign")
    with pytest.raises(Exception, match="not closed within"):
        case.query.close(0.5)
    local.await_fault("p1")
    local.restart_dead()
    assert case.check_closed(tmp_path) == 0
