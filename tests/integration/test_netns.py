"""Processors on links that are cut, slow and lossy: real namespaces, real TCP, real timeouts.

A link is cut exactly at a step of a move: the process is stopped there, its link is cut, and it
goes on. p1 sends, p2 receives, p3 hosts the splits, p4 has a query of its own.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from dovetail_manager.moves.steps import MoveSettings
from dovetail_proto.errors import Refusal
from kit.cluster_faults import FaultyCluster, until
from kit.fault_cases import SHORT_MEMORY, Case
from kit.network_namespaces import Network, network, why_forbidden

ALL = os.environ.get("DOVETAIL_DEATHS") == "all"
FEW = [("p1", "before ships"), ("p2", "before says Received")]
MORE = [
    ("p1", "before says PartitionsToMove"),
    ("p1", "before sees marker"),
    ("p2", "before hears Reserve"),
    ("p2", "before says Reactivated"),
    ("p3", "before marks"),
    ("p3", "before hears ReactivatePartitions"),
]
CUTS = [*FEW, *MORE] if ALL else FEW
NUMBERS = count(1)
Start = Callable[..., tuple[FaultyCluster, Network]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a cluster in namespaces: `slow` are the processors whose links are bad."""
    if why := why_forbidden():
        warnings.warn(f"no processors in network namespaces: {why}", stacklevel=1)
        pytest.skip(why)
    with network() as net:
        started: list[FaultyCluster] = []

        def start_cluster(
            processors: int, slow: tuple[str, ...] = (), **settings: Any
        ) -> tuple[FaultyCluster, Network]:
            for n in range(processors):
                name = f"p{n + 1}"
                bad = {"delay_s": 0.05, "loss": 0.05} if name in slow else {}
                net.add(name, **bad)
            made = FaultyCluster(
                processors=processors,
                listen=f"{net.here}:0",
                rest=f"{net.here}:0",
                **settings,
            )
            made.namespaces, made.hosts = net.namespaces, net.addresses
            started.append(made)
            made.start()
            return made, net

        try:
            yield start_cluster
        finally:
            for cluster in started:
                cluster.stop()


def cut_at(local: FaultyCluster, net: Network, case: Case, name: str, point: str) -> None:
    """Begin a move and cut a processor off when it comes to `point`."""
    local.arm(name, point, "SIGSTOP")
    case.move_to_fault(name, "p1", "p2")
    net.cut(name)
    local.go_on(name)


def test_a_cut_that_is_soon_mended_costs_the_move_alone(start: Start, tmp_path: Path) -> None:
    """It is given up or completed, the processor goes on, and every result comes once."""
    local, net = start(3, dead_after_s=60.0, moves=MoveSettings(resend_s=0.2, step_timeout_s=0.5))
    for name, point in CUTS:
        number = next(NUMBERS)
        case = Case(local, f"c{number}", home="p3", **(SHORT_MEMORY if number % 2 else {}))
        case.feed(0.3)
        case.allow(0.7)
        cut_at(local, net, case, name, point)
        if "Reactivate" not in point:
            until(lambda seen=case: bool(seen.query.moves()[0].failure), "the move is given up")
        net.mend(name)
        assert case.await_moves() <= {"completed", "rolled back"}, (name, point)
        case.feed(0.8)
        case.await_moved("p1", "p2")
        case.feed(1.0)
        case.check_closed(tmp_path / str(number))


def test_a_processor_cut_off_for_too_long_fails_its_queries_alone(start: Start) -> None:
    """Right results so far, others go on, and it joins anew when the link is mended."""
    local, net = start(4)
    bystander = Case(local, "bystander", home="p4", weights=(0, 0, 0, 1))
    for n, (name, point) in enumerate(CUTS):
        until(local.all_joined, "all are members")
        case = Case(local, f"f{n}", home="p3", **(SHORT_MEMORY if n % 2 else {}))
        case.feed(0.4)
        case.allow(0.8)
        cut_at(local, net, case, name, point)
        assert case.await_failure().startswith(f"processor {name} died: it was silent")
        bystander.feed((2 * n + 1) / (2 * len(CUTS)))
        bystander.check_so_far()
        former = local.incarnation(name)
        net.mend(name)
        until(local.all_joined, "it is a member again")
        assert local.incarnation(name) > former
        case.end_feeds()
        case.check_sub_bag()
        bystander.feed((2 * n + 2) / (2 * len(CUTS)))
        bystander.check_so_far()
    again = Case(local, "again", home="p3")
    again.feed(0.5)
    again.await_moved("p1", "p2")
    again.feed(1.0)
    again.check_so_far()


@pytest.mark.parametrize("seconds", [1.0, 12.0] if ALL else [1.0])
def test_a_query_closes_though_a_processor_is_cut_off_at_its_end(
    start: Start, seconds: float, tmp_path: Path
) -> None:
    """What was lost on the way is sent again, by those too who were ready before."""
    local, net = start(3, dead_after_s=60.0)
    case = Case(local, "ends", home="p3")
    case.feed(0.9)
    case.query.wait()
    net.cut("p2")
    case.feed(1.0)
    with pytest.raises(Refusal, match="not closed within"):
        case.query.close(seconds)  # beyond 10 s, connections are given up and made anew
    net.mend("p2")
    case.check_closed(tmp_path)


def test_slow_and_lossy_links_change_no_result(start: Start, tmp_path: Path) -> None:
    """50 ms each way and every twentieth frame lost, at the receiver and at the split host."""
    moves = MoveSettings(resend_s=0.5, step_timeout_s=10.0)
    local, _ = start(3, slow=("p2", "p3"), dead_after_s=30.0, moves=moves)
    for name, settings in (("ample", {}), ("short", SHORT_MEMORY)):
        case = Case(local, name, home="p3", rows=900, **settings)
        case.feed(0.3)
        case.allow(1.0)
        began_s = time.monotonic()
        case.await_moved("p1", "p2")
        case.await_moved("p2", "p1")
        assert time.monotonic() - began_s > 0.1, "no slow link was on the way"
        case.feed(1.0)
        case.check_closed(tmp_path / name)
