"""A processor leaves in order while rows arrive: drained, closed, let go, and nothing is missing.

What it spilled is a part of the clean-up, what it found a part of the results; and it may come
back while the query still runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dovetail.local_cluster import MANAGER
from dovetail_proto.transport import Unreachable
from kit.cluster_faults import WAIT_S, FaultyCluster, until
from kit.fault_cases import SHORT_MEMORY, Case


@pytest.fixture
def local() -> Iterator[FaultyCluster]:
    """A cluster of three."""
    with FaultyCluster(processors=3) as made:
        yield made


def test_a_leaver_is_drained_under_load_and_its_spilled_state_is_cleaned_up(
    local: FaultyCluster, tmp_path: Path
) -> None:
    """Its process ends by itself, and run and clean-up together are DuckDB's."""
    files = tmp_path / "files"
    case = Case(local, "leaves", home="p1", results=files, **SHORT_MEMORY)
    logged = Case(local, "logged", home="p2", rows=600)
    for one in (case, logged):
        one.feed(0.5)
    until(lambda: any(i.pushes for i in on(case, "p3")), "p3 has pushed")
    case.allow(1.0)
    local.cluster.leave("p3")
    until(lambda: local.state_of("p3") == "left", "p3 has left")
    assert not case.groups_of("p3")
    until(lambda: not local.processes["p3"].running, "its process has ended")
    for one in (case, logged):
        one.feed(1.0)
        one.query.close()
    assert case.query.cleanup(files, master="local").results > 0
    case.check(
        pa.concat_tables(pq.read_table(f, partitioning=None) for f in files.rglob("*.parquet"))
    )
    logged.check(logged.query.results().to_arrow())


def test_results_of_those_who_left_stay_readable_by_the_same_offsets(local: FaultyCluster) -> None:
    """Also when the successor leaves, when the writer comes back, and when the query was closed."""
    case = Case(local, "kept", home="p1")
    closed = Case(local, "closed", home="p1", rows=600)
    closed.feed(1.0)
    closed.query.close()
    followed = case.query.results(follow=True)
    by_rest = ThreadPoolExecutor(1).submit(follow_by_rest, local, "kept")
    case.feed(0.2)
    case.query.wait()
    early = case.query.results()
    parts = [early.to_arrow()]
    local.leave("p3")
    assert homes(case) == {"p1": "p1", "p2": "p2", "p3": "p1"}
    case.feed(0.4)
    local.restart_dead()
    case.await_moved("p1", "p3")
    case.feed(0.6)
    case.query.wait()
    assert homes(case) == {"p1": "p1", "p2": "p2", "p3": "p1", "p3.2": "p3"}
    local.leave("p3")
    local.leave("p2")
    assert homes(case) == dict.fromkeys(("p1", "p2", "p3", "p3.2"), "p1")
    case.feed(1.0)
    case.query.wait()
    parts.append(case.query.results(offsets=early.offsets).to_arrow())
    case.check(pa.concat_tables(parts))
    case.query.close()
    case.check(followed.to_arrow())
    case.check(by_rest.result(WAIT_S))
    case.check(case.query.results().to_arrow())
    closed.check(closed.query.results().to_arrow())


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_leaver_that_dies_while_it_hands_its_log_over_still_has_it(
    local: FaultyCluster, when: str
) -> None:
    """The query goes on without it; when it is back, its results are, and it may leave again."""
    case = Case(local, "torn", home="p1")
    case.feed(0.5)
    local.arm("p3", f"{when} hands over")
    local.cluster.leave("p3")
    local.await_fault("p3")
    until(lambda: local.state_of("p3") == "dead", "its death is noticed")
    case.feed(0.7)
    with pytest.raises(Unreachable, match="processor 'p3', which has log 'p3'"):
        case.query.results()
    local.restart_dead()
    case.check_so_far()
    local.leave("p3")
    assert homes(case) == {"p1": "p1", "p2": "p2", "p3": "p1"}
    case.feed(1.0)
    case.check_so_far()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_manager_that_dies_when_it_lets_a_leaver_go_is_followed_by_one_that_does(
    local: FaultyCluster, when: str
) -> None:
    """And the new one knows who keeps the log."""
    case = Case(local, "office", home="p1")
    case.feed(0.5)
    local.arm(MANAGER, f"{when} writes left")
    local.cluster.leave("p3")
    local.await_fault(MANAGER)
    local.restart_manager()
    until(lambda: local.state_of("p3") == "left", "p3 has left")
    assert homes(case) == {"p1": "p1", "p2": "p2", "p3": "p1"}
    case.feed(1.0)
    case.check_so_far()


def follow_by_rest(local: FaultyCluster, query: str) -> pa.Table:
    """All results of a query until its end."""
    asked = Request(
        f"{local.url}/v1/queries/{query}/results?follow=true",
        headers={"Authorization": f"Bearer {local.token}"},
    )
    with urlopen(asked) as answer, pa.ipc.open_stream(answer.read()) as reader:
        return reader.read_all()


def homes(case: Case) -> dict[str, str]:
    """Which processor has which log."""
    return {log.name: log.processor for log in case.query.status().logs}


@pytest.mark.parametrize("disk", ["files", "log"])
def test_a_leaver_that_comes_back_takes_part_in_the_query_again(
    local: FaultyCluster, disk: str, tmp_path: Path
) -> None:
    """What it found and spilled before stays, beside what it finds and spills now."""
    files = tmp_path / "files"
    case = Case(
        local,
        "returns",
        home="p1",
        **SHORT_MEMORY,
        **({"results": files} if disk == "files" else {}),
    )
    case.feed(0.4)
    until(lambda: any(i.pushes for i in on(case, "p3")), "p3 has pushed")
    local.cluster.leave("p3")
    until(lambda: local.state_of("p3") == "left", "p3 has left")
    until(lambda: not local.processes["p3"].running, "its process has ended")
    case.feed(0.6)
    local.restart_dead()
    case.await_moved("p1", "p3")
    case.feed(1.0)
    if disk == "log":
        assert case.check_closed(files) > 0
    else:
        case.query.close()
        assert case.query.cleanup(files, master="local").results > 0
        found = [pq.read_table(f, partitioning=None) for f in files.rglob("*.parquet")]
        case.check(pa.concat_tables(found))


def test_a_leaver_that_dies_while_it_is_drained_fails_the_query(local: FaultyCluster) -> None:
    """What it still owned is lost; the results so far are right."""
    case = Case(local, "half", home="p1")
    case.feed(0.5)
    local.arm("p3", "before ships")
    local.cluster.leave("p3")
    local.await_fault("p3")
    assert case.await_failure().startswith("processor p3 died")
    case.end_feeds()
    case.check_sub_bag()


def on(case: Case, name: str) -> list[Any]:
    """What a processor reports of the query."""
    return [i for i in case.query.status().instances if i.processor == name]
