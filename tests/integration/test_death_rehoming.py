"""The home of streams leaves while rows arrive and queries read: nothing is lost or comes twice.

Its splits go on at another processor; whoever dies meanwhile is replaced, or fails the query.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dovetail.local_cluster import MANAGER
from dovetail_proto.transport import Unreachable
from kit.cluster_faults import WAIT_S, FaultyCluster, until
from kit.clusters import PAIR_SQL, pair, same_bag
from kit.fault_cases import SHORT_MEMORY, Case


@pytest.fixture
def local() -> Iterator[FaultyCluster]:
    """A cluster of three."""
    with FaultyCluster(processors=3) as made:
        yield made


def begin_to_leave(local: FaultyCluster, name: str) -> None:
    """As `leave`, without waiting for an answer: the manager may die or be stopped before it."""

    def ask() -> None:
        with contextlib.suppress(Unreachable):
            local.cluster.leave(name)

    threading.Thread(target=ask, daemon=True).start()


def rows_in(case: Case) -> list[int]:
    """What the query says it has taken in, per input."""
    return [i.rows_in for i in case.query.status().inputs]


def test_homes_leave_one_after_the_other_while_rows_arrive(
    local: FaultyCluster, tmp_path: Path
) -> None:
    """Down to the last processor; what was spilled on the way is cleaned up."""
    spilling = Case(local, "spilling", home="p3", **SHORT_MEMORY)
    mixed = Case(local, "mixed", home="p2", seed=1)
    spilling.feed(0.2)
    mixed.feed(0.2)
    for share, leaver in ((0.6, "p3"), (1.0, "p2")):
        for case in (spilling, mixed):
            case.allow(share)
        local.leave(leaver)
        until(lambda n=leaver: not local.processes[n].running, "its process has ended")
    assert {s.home for s in local.cluster.streams()} == {"p1"}
    for case in (spilling, mixed):
        case.feed(1.0)
        case.query.wait(WAIT_S)
        until(lambda c=case: rows_in(c) == [1_500, 1_500], "all rows are counted once")
    mixed.check_so_far()
    assert spilling.check_closed(tmp_path / "cleaned") > 0


def test_a_query_closes_while_a_home_leaves(local: FaultyCluster) -> None:
    """Whichever comes first."""
    first = Case(local, "first", home="p3")
    second = Case(local, "second", home="p3", seed=1)
    for case in (first, second):
        case.feed(0.5)
    local.cluster.leave("p3")
    first.query.close(WAIT_S)
    until(lambda: local.state_of("p3") == "left", "p3 has left")
    first.check(first.query.results().to_arrow())
    second.feed(1.0)
    second.query.close(WAIT_S)
    second.check(second.query.results().to_arrow())


@pytest.mark.parametrize("written", ["leaves home", "rehomed", "settled"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_manager_that_dies_meanwhile_is_followed_by_one_that_goes_on(
    local: FaultyCluster, when: str, written: str
) -> None:
    """Rows that came while it was away are joined too."""
    case = Case(local, "office", home="p3")
    case.feed(0.3)
    local.arm(MANAGER, f"{when} writes {written}")
    case.allow(1.0)
    begin_to_leave(local, "p3")
    local.await_fault(MANAGER)
    local.restart_manager()
    until(lambda: local.state_of("p3") == "left", "p3 has left")
    case.feed(1.0)
    case.check_so_far()
    case.await_moved("p1", "p2")
    case.check_so_far()


@pytest.mark.parametrize("who", ["p1", "p2"])
def test_others_that_hear_late_of_the_new_home_miss_nothing(local: FaultyCluster, who: str) -> None:
    """Stopped for a while: the next home, or an instance whose split has moved."""
    case = Case(local, "late", home="p3")
    case.feed(0.3)
    local.arm(MANAGER, "after writes rehomed", "SIGSTOP")
    case.allow(1.0)
    begin_to_leave(local, "p3")
    local.await_fault(MANAGER)
    local.arm(who, "before hears Assign", "SIGSTOP")
    local.go_on(MANAGER)
    local.await_fault(who)
    until(lambda: home_of(local, case) != "p3", "it is known")
    local.go_on(who)
    until(lambda: local.state_of("p3") == "left", "p3 has left")
    case.feed(1.0)
    case.check_so_far()


@pytest.mark.parametrize("who", ["leaver", "next home"])
def test_a_death_meanwhile_fails_the_query_and_the_streams_live_on(
    local: FaultyCluster, who: str
) -> None:
    """As the death of any host of a split does; what was found is right."""
    case = Case(local, "torn", home="p3")
    case.may_fail = True
    case.feed(0.3)
    local.arm(MANAGER, f"after writes {'leaves home' if who == 'leaver' else 'rehomed'}", "SIGSTOP")
    begin_to_leave(local, "p3")
    local.await_fault(MANAGER)
    dying = "p3" if who == "leaver" else "p1"
    local.arm(dying, "before hears Assign")
    local.go_on(MANAGER)
    local.await_fault(dying)
    assert f"processor {dying} died" in case.await_failure()
    case.check_sub_bag()
    case.end_feeds()
    until(lambda: home_of(local, case) not in ("p3", dying), "the streams have another home")
    again = Case(local, "again", home=home_of(local, case), seed=2, rows=300)
    again.feed(1.0)
    again.check_so_far()


def test_rows_that_come_by_rest_meanwhile_are_taken_in_once(local: FaultyCluster) -> None:
    """The manager asks the next home, once there is one."""
    left, right = pair(3, rows=300, keys=50)
    sql = "SELECT a.{0} AS k FROM a JOIN b ON a.{0} = b.{0}".format(left.column_names[0])
    streams = {"a": local.cluster.stream("a", left.schema), "b": None}
    local.cluster.stream("b", right.schema)
    query = local.cluster.submit(sql, name="rest")
    home = streams["a"].status().home

    def post(stream: str, table: pa.Table) -> None:
        rows = table.to_pylist()
        asked = Request(
            f"{local.url}/v1/streams/{stream}/batches",
            data=json.dumps(rows).encode(),
            headers={"Authorization": f"Bearer {local.token}", "Content-Type": "application/json"},
            method="POST",
        )
        with urlopen(asked, timeout=WAIT_S) as answer:
            assert answer.status == 200

    local.cluster.leave(home)
    for at in range(0, 300, 10):
        post("a", left.slice(at, 10))
        post("b", right.slice(at, 10))
    until(lambda: local.state_of(home) == "left", "it has left")
    query.wait(WAIT_S)
    assert same_bag(query.results().to_arrow(), sql, a=left, b=right)


def home_of(local: FaultyCluster, case: Case) -> str:
    """Where the query's first stream is at home, as the manager says."""
    return local.cluster.stream(case.streams[0].name).status().home


def test_a_leaver_goes_although_nobody_has_room_for_what_it_holds(tmp_path: Path) -> None:
    """It pushes to disk what it could not hand on, and the clean-up produces what that owes."""
    left, right = pair(5, rows=150_000, keys=150_000)
    sql = PAIR_SQL.format(left="a", right="b")
    with FaultyCluster(processors=2, memory_bytes=9_000_000) as local:
        streams = {n: local.cluster.stream(n, t.schema) for n, t in {"a": left, "b": right}.items()}
        query = local.cluster.submit(sql, name="full", policy="lazy-disk", results=tmp_path)
        for name, table in {"a": left, "b": right}.items():
            streams[name].send(table[:140_000])
        query.wait(WAIT_S)
        local.leave("p2")
        for name, table in {"a": left, "b": right}.items():
            streams[name].send(table[140_000:])
        query.close(WAIT_S)
        assert query.cleanup(tmp_path, master="local").results > 0
    files = [pq.read_table(f, partitioning=None) for f in sorted(tmp_path.rglob("*.parquet"))]
    assert same_bag(pa.concat_tables(files), sql, a=left, b=right)
