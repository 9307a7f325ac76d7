"""Processors of several threads: their workers are members, own groups, and hand rows over."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa
import pytest

from dovetail import Query
from dovetail.local_cluster import LocalCluster
from dovetail_processor.shell.processor_settings import ProcessorSettings
from dovetail_processor.shell.server import ProcessorServer
from dovetail_proto.errors import Refusal
from dovetail_proto.transport import Unreachable
from kit.cluster_faults import until
from kit.clusters import PAIR_SQL, pair, same_bag, small_cluster

WORKERS = ["p1.0", "p1.1", "p2.0", "p2.1"]


@pytest.fixture
def local() -> Iterator[LocalCluster]:
    """Two processors of two threads each."""
    with small_cluster(threads=2, memory_bytes=128_000_000) as made:
        yield made


def submitted(local: LocalCluster, name: str, tables: dict[str, pa.Table]) -> Query:
    """A query on streams of its own."""
    for stream, table in tables.items():
        local.cluster.stream(stream, table.schema)
    return local.cluster.submit(sql(tables), name=name)


def sql(tables: dict[str, pa.Table]) -> str:
    """The join of both."""
    left, right = tables
    return PAIR_SQL.format(left=left, right=right)


def send(local: LocalCluster, tables: dict[str, pa.Table], begin: int, end: int) -> None:
    """Some rows of each."""
    for stream, table in tables.items():
        local.cluster.stream(stream).send(table.slice(begin, end - begin))


def test_groups_move_between_workers_of_one_process_and_of_two(local: LocalCluster) -> None:
    """Rows and groups go to a neighbour in memory, to others by gRPC; no result is lost."""
    tables = dict(zip(("l", "r"), pair(seed=1), strict=True))
    query = submitted(local, "moving", tables)
    owners = [p.owner for p in query.partitions().partitions]
    assert sorted(set(owners)) == WORKERS
    for n, (source, to) in enumerate((("p1.0", "p1.1"), ("p1.1", "p2.0"), ("p2.1", "p2.0"))):
        send(local, tables, n * 1000, n * 1000 + 500)
        groups = [p.group for p in query.partitions().partitions if p.owner == source][:20]
        asked = query.move(groups, to).id
        send(local, tables, n * 1000 + 500, (n + 1) * 1000)
        until(lambda asked=asked: outcome(query, asked) != "", "the move has ended")
        assert outcome(query, asked) == "completed"
    query.wait()
    assert query.close().state == "closed"
    assert same_bag(query.results().to_arrow(), sql(tables), **tables)


def outcome(query: Query, move: str) -> str:
    """What became of it; empty while it is under way."""
    return next(m.outcome for m in query.moves() if m.id == move)


def test_the_workers_of_a_process_leave_together(local: LocalCluster) -> None:
    """By its name, or when it is told to end; then nobody else may go."""
    tables = dict(zip(("l", "r"), pair(seed=2), strict=True))
    query = submitted(local, "left", tables)
    send(local, tables, 0, 1500)
    os.kill(local.processes["p2"].pid, signal.SIGTERM)
    until(lambda: states(local) == {"p1": {"alive"}, "p2": {"left"}}, "p2 has left")
    send(local, tables, 1500, 3000)
    query.wait()
    with pytest.raises(Refusal, match=r"'p1\.0', 'p1\.1' runs query 'left', and nobody else"):
        local.cluster.leave("p1")
    assert states(local)["p1"] == {"alive"}
    assert query.close().state == "closed"
    assert same_bag(query.results().to_arrow(), sql(tables), **tables)


def test_a_worker_that_leaves_alone_hands_its_results_to_its_neighbour() -> None:
    """There is no other process: rows, groups and files of results stay in this one."""
    with small_cluster(processors=1, threads=2, memory_bytes=128_000_000) as local:
        tables = dict(zip(("l", "r"), pair(seed=4), strict=True))
        query = submitted(local, "alone", tables)
        send(local, tables, 0, 1500)
        query.wait()
        local.cluster.leave("p1.1")
        until(lambda: states(local) == {"p1": {"alive", "left"}}, "p1.1 has left")
        send(local, tables, 1500, 3000)
        assert query.close().state == "closed"
        assert same_bag(query.results().to_arrow(), sql(tables), **tables)


def states(local: LocalCluster) -> dict[str, set[str]]:
    """Of the workers of each process."""
    found: dict[str, set[str]] = {}
    for processor in local.cluster.status().processors:
        found.setdefault(processor.name.partition(".")[0], set()).add(processor.state)
    return found


def test_a_process_that_dies_takes_its_workers_along_and_comes_back(local: LocalCluster) -> None:
    """Its queries fail; what is submitted then runs on the new workers too."""
    tables = dict(zip(("l", "r"), pair(seed=3), strict=True))
    lost = submitted(local, "lost", tables)
    send(local, tables, 0, 300)
    local.kill("p2")
    local.start_processor("p2")
    until(lambda: lost.status().state == "failed", "the query has failed")
    again = {f"again_{name}": table for name, table in tables.items()}
    query = submitted(local, "again", again)
    assert sorted({p.owner for p in query.partitions().partitions}) == WORKERS
    send(local, again, 0, 3000)
    assert query.close().state == "closed"
    assert same_bag(query.results().to_arrow(), sql(again), **again)


def test_a_process_that_comes_back_with_another_number_of_threads_is_told_the_former_one(
    tmp_path: Path,
) -> None:
    """Its results would be away; with as many as before they are read."""
    with small_cluster(processors=1, threads=2, memory_bytes=128_000_000) as local:
        tables = dict(zip(("l", "r"), pair(seed=6), strict=True))
        query = submitted(local, "kept", tables)
        send(local, tables, 0, 3000)
        assert query.close().state == "closed"
        local.kill("p1")
        until(lambda: states(local) == {"p1": {"dead"}}, "p1 is dead")
        with pytest.raises(Unreachable, match=r"'p1\.\d'.* is away") as away:
            query.results().to_arrow()
        assert "--threads" in away.value.remedy
        settings = ProcessorSettings(
            "p1",
            local.address,
            128_000_000,
            tmp_path,
            version("dovetail"),
            security=local.security,
            threads=1,
        )
        other = ProcessorServer(*settings.of_workers())
        other.start()
        with pytest.raises(Refusal, match=r"'p1' had --threads 2 .*results of query 'kept'"):
            until(lambda: other.wait(1.0), "it is refused")
        other.stop()
        local.start_processor("p1")
        assert same_bag(query.results().to_arrow(), sql(tables), **tables)
