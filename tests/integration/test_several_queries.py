"""Queries that share a processor's memory: by need, and whoever came first is safe."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dovetail import Cluster, Query
from dovetail.local_cluster import LocalCluster
from dovetail_proto.errors import Refusal
from kit.cluster_faults import until
from kit.clusters import same_bag, small_cluster

ROWS = 300_000
"""Of each stream: the state of one query takes 20 of the 34 MB that 64 MB leave for state."""

SQL = "SELECT l.k, l.v, r.v AS w FROM {0}_l l JOIN {0}_r r ON l.k = r.k"


@pytest.fixture(scope="module")
def local() -> Iterator[LocalCluster]:
    """One processor of 64 MB."""
    with small_cluster(processors=1) as made:
        yield made


def table(seed: int, rows: int = ROWS) -> pa.Table:
    """Every key once, in any order."""
    rng = np.random.default_rng(seed)
    return pa.table({"k": rng.permutation(rows), "v": rng.random(rows)})


def begin(cluster: Cluster, name: str, policy: str, **more: object) -> Query:
    """A query of this name over two streams of its own."""
    for side in "lr":
        cluster.stream(f"{name}_{side}", table(0, 1).schema)
    return cluster.submit(SQL.format(name), name=name, policy=policy, **more)  # type: ignore[arg-type]


def send(cluster: Cluster, name: str, tables: dict[str, pa.Table], begin: int, end: int) -> None:
    """Some rows of both streams."""
    for side in "lr":
        cluster.stream(f"{name}_{side}").send(tables[f"{name}_{side}"].slice(begin, end - begin))


def overfill(cluster: Cluster, query: Query) -> None:
    """Send more than there is memory for, unless the query stops before."""
    rows = table(3)
    for _ in range(4):
        send(cluster, query.name, {f"{query.name}_{side}": rows for side in "lr"}, 0, ROWS)
        query.wait()


@pytest.mark.parametrize("policy", ["none", "distributed"])
def test_a_query_that_comes_later_does_not_end_the_first(local: LocalCluster, policy: str) -> None:
    """Nor does one that does not fit: it is refused; nor one that grows: it stops itself."""
    cluster = local.cluster
    first = f"first_{policy}"
    tables = {f"{first}_l": table(1), f"{first}_r": table(2)}
    query = begin(cluster, first, policy)
    send(cluster, first, tables, 0, ROWS * 4 // 5)
    query.wait()
    with pytest.raises(
        Refusal,
        match=r"'wide' needs at least 4\d\d,\d{3},\d{3} bytes of memory on processor 'p1' for "
        r"60000 partitions of 2 inputs, and \d+,\d{3},\d{3} of its 64,000,000 are left beside "
        r"other queries; use fewer partitions",
    ):
        begin(cluster, "wide", policy, partitions=60_000)
    second = f"second_{policy}"
    later = begin(cluster, second, policy, counting=True)
    send(cluster, first, tables, ROWS * 4 // 5, ROWS)
    with pytest.raises(Refusal, match=r"memory of 64,000,000 bytes is used up: .* before"):
        overfill(cluster, later)
    assert query.close().state == "closed"
    assert same_bag(query.results().to_arrow(), SQL.format(first), **tables)
    query.drop()
    until(lambda: later.status().state == "failed", "the second has failed")
    later.drop()


def test_queries_that_may_use_the_disk_share_memory_by_need(
    local: LocalCluster, tmp_path: Path
) -> None:
    """The second makes the first push, though nothing comes for it; both are DuckDB's."""
    cluster = local.cluster
    tables = {
        f"{q}_{side}": table(n) for n, (q, side) in enumerate((q, s) for q in "ab" for s in "lr")
    }
    folders = {q: tmp_path / q for q in "ab"}
    queries = {"a": begin(cluster, "a", "disk", results=folders["a"])}
    send(cluster, "a", tables, 0, ROWS)
    queries["a"].wait()
    alone = queries["a"].status()
    assert alone.pushes == 0
    queries["b"] = begin(cluster, "b", "disk", results=folders["b"])
    send(cluster, "b", tables, 0, ROWS)
    queries["b"].wait()
    assert all(q.status().state == "running" for q in queries.values())
    for name, query in queries.items():
        assert query.close().state == "closed"
        query.cleanup(folders[name], master="local")
        found = pa.concat_tables(
            pq.read_table(f, partitioning=None) for f in folders[name].rglob("*.parquet")
        )
        mine = {t: rows for t, rows in tables.items() if t.startswith(name)}
        assert same_bag(found.select(["k", "v", "w"]), SQL.format(name), **mine)


def test_a_value_that_ends_duckdb_ends_one_query_only(local: LocalCluster) -> None:
    """Queries of a processor share its DuckDB, which some timestamps make fail inside."""
    cluster = local.cluster
    times = pa.table({"k": range(3), "t": pa.array(range(3)).cast(pa.timestamp("us"))})
    late = pa.table({"k": [0], "t": pa.array([-(2**63)]).cast(pa.timestamp("us"))})
    for name in ("time_l", "time_r"):
        cluster.stream(name, times.schema)
    sql = "SELECT l.k, {} AS t FROM time_l l JOIN time_r r ON l.k = r.k"
    number, text = sql.format("epoch_us(l.t) + 1"), sql.format("CAST(l.t AS VARCHAR)")
    goes_on = cluster.submit(number, name="goes-on", policy="none")
    ends = cluster.submit(text, name="ends", policy="none")
    cluster.stream("time_l").send(times)
    cluster.stream("time_r").send(times)
    ends.wait()
    cluster.stream("time_l").send(pa.concat_tables([late, times]))
    until(lambda: ends.status().state == "failed", "the query met the value")
    assert "column 't' = CAST(l.t AS TEXT) failed" in ends.status().cause
    assert goes_on.close().state == "closed"
    sent = pa.concat_tables([times, late, times])
    assert same_bag(goes_on.results().to_arrow(), number, time_l=sent, time_r=times)
