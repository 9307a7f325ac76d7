"""The manager is killed at every step of a move, and started again: nothing is lost or doubled.

Processors go on joining while it is away. A few steps are tried in every run of the tests, all of
them with DOVETAIL_DEATHS=all.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from kit.cluster_faults import FaultyCluster, until
from kit.fault_cases import SHORT_MEMORY, Case

HEARD = ("PartitionsToMove", "Reserved", "Deactivated", "Received", "Reactivated", "MoveFinished")
SAID = (
    "ComputePartitionsToMove",
    "Reserve",
    "DeactivatePartitions",
    "SendPartitions",
    "ReactivatePartitions",
    "FinishMove",
)
WRITTEN = ("planned", "chosen", "commit", "ended")
POINTS = [
    f"{when} {what}"
    for what in (
        *(f"writes {w}" for w in WRITTEN),
        *(f"says {m}" for m in SAID),
        *(f"hears {m}" for m in HEARD),
    )
    for when in ("before", "after")
]
FEW = (
    "after writes planned",
    "after says DeactivatePartitions",
    "before hears Received",
    "before writes commit",
    "after writes commit",
    "after says ReactivatePartitions",
)
NUMBERS = count(1)
ALL = os.environ.get("DOVETAIL_DEATHS") == "all"


@pytest.fixture(scope="module")
def local() -> Iterator[FaultyCluster]:
    """One cluster for all tests of this file."""
    with FaultyCluster(processors=3) as made:
        yield made


@pytest.mark.parametrize("memory", ["ample", "short"])
@pytest.mark.parametrize("points", [[p] for p in POINTS] if ALL else [list(FEW)], ids="+".join)
def test_a_manager_killed_in_a_move_goes_on_where_it_stopped(
    local: FaultyCluster, points: list[str], memory: str, tmp_path: Path
) -> None:
    """The open move is completed or rolled back, and the results of all rows are DuckDB's."""
    local.restart_dead()
    spill = SHORT_MEMORY if memory == "short" else {}
    case = Case(local, f"m{next(NUMBERS)}", home="p3", **spill)
    share = 0.9 / len(points)
    for n, point in enumerate(points):
        case.feed((n + 0.3) * share)
        local.arm("manager", point)
        case.allow((n + 0.6) * share)
        sender, receiver = ("p1", "p2") if len(case.groups_of("p1")) > 1 else ("p2", "p1")
        case.move_to_fault("manager", sender, receiver)
        before = case.rows_found()
        case.feed((n + 1) * share)
        until(lambda seen=before: case.rows_found() > seen, "processors go on joining")
        local.restart_manager()
        outcome = case.await_moves()
        assert outcome <= {"completed", "rolled back"}, (point, outcome)
        if point == "after writes commit":
            assert case.last_asked().outcome == "completed"
        if memory == "ample":
            case.check_so_far()
    case.feed(1.0)
    cleaned = case.check_closed(tmp_path)
    assert (cleaned > 0) == (memory == "short")
    case.query.drop()
