"""Processors whose memory limits differ: each gets, and keeps, what it has room for.

Limits of 64 and 16 MB; two streams whose join state takes about 24 MB.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dovetail import Cluster, Query
from dovetail.local_cluster import LocalCluster
from dovetail_manager.adaptation.snapshot import AdaptationSettings
from kit.cluster_faults import until
from kit.clusters import same_bag, small_cluster

ROWS = 360_000
"""Of each stream: more than 16 MB hold if half of them are there."""

SQL = "SELECT l.k, l.v, r.v AS w FROM l JOIN r ON l.k = r.k"


@pytest.fixture(scope="module")
def local() -> Iterator[LocalCluster]:
    """p1 has 64 MB, p2 16 MB."""
    often = AdaptationSettings(move_interval_s=0.5)
    with small_cluster(processors=1, sample_s=0.2, adaptation=often) as made:
        made.start_processor("p2", memory_bytes=16_000_000)
        yield made


def table(seed: int) -> pa.Table:
    """Every key once, in an order that is the same for all seeds."""
    keys = np.random.default_rng(0).permutation(ROWS)
    return pa.table({"k": keys, "v": np.random.default_rng(seed).random(ROWS)})


def feed(cluster: Cluster, query: Query, tables: dict[str, pa.Table], parts: range) -> None:
    """Send these twentieths of both, each joined and reported before the next.

    So reports of two processors that are not of the same moment differ by less than a move takes.
    """
    for n in parts:
        for name, rows in tables.items():
            cluster.stream(name).send(rows.slice(n * ROWS // 20, ROWS // 20))
        until(partial(reported, query, (n + 1) * ROWS // 20), "they are joined and reported")


def reported(query: Query, combinations: int) -> bool:
    """Whether all have reported so many; what was pushed between two halves of one is missing."""
    status = query.status()
    return status.produced >= combinations or status.pushes > 0


def test_a_distributed_query_fits_where_its_groups_are_dealt_by_limits(
    local: LocalCluster,
) -> None:
    """Four fifths of the groups for four fifths of the memory; the results are DuckDB's."""
    tables = {"l": table(1), "r": table(2)}
    cluster = local.cluster
    for name, rows in tables.items():
        cluster.stream(name, rows.schema)
    query = cluster.submit(SQL, name="dealt", partitions=100, policy="distributed")
    owners = [p.owner for p in query.partitions().partitions]
    assert {p: owners.count(p) for p in ("p1", "p2")} == {"p1": 80, "p2": 20}
    feed(cluster, query, tables, range(20))
    assert query.close().state == "closed"
    assert same_bag(query.results().to_arrow(), SQL, **tables)
    query.drop()


def test_lazy_disk_moves_state_from_the_fuller_to_the_emptier(
    local: LocalCluster, tmp_path: Path
) -> None:
    """Dealt equally, the small processor is the fuller one: groups leave it, and none come."""
    tables = {"l": table(3), "r": table(4)}
    cluster = local.cluster
    for name, rows in tables.items():
        cluster.stream(name, rows.schema)
    query = cluster.submit(
        SQL, name="moved", partitions=100, policy="lazy-disk", weights=(1, 1), results=tmp_path
    )
    feed(cluster, query, tables, range(10))
    until(lambda: any(m.outcome == "completed" for m in query.moves()), "groups have moved")
    feed(cluster, query, tables, range(10, 20))
    assert query.close().state == "closed"
    assert {(m.sender, m.receiver) for m in query.moves()} == {("p2", "p1")}
    owed = query.cleanup(tmp_path, master="local").results
    print(f"{owed} results from the clean-up")
    found = pa.concat_tables(
        pa.parquet.read_table(f, partitioning=None) for f in tmp_path.rglob("*.parquet")
    )
    assert same_bag(found.select(["k", "v", "w"]), SQL, **tables)
