"""What becomes of result logs and spilled state when a query is dropped, on a real cluster."""

from __future__ import annotations

from pathlib import Path

import httpx
import pyarrow as pa
import pyarrow.parquet as pq

from dovetail.local_cluster import LocalCluster
from dovetail.queries import Query
from kit.cluster_faults import until
from kit.clusters import PAIR_SQL, pair, same_bag, small_cluster

WAIT_S = 120.0
LEFT, RIGHT = pair(seed=6, rows=40_000, keys=20_000)


def closed_query(local: LocalCluster) -> Query:
    """A query named `q` that has results and owes some."""
    sql = PAIR_SQL.format(left="l", right="r")
    query = local.cluster.submit(sql, name="q", partitions=40, policy="disk")
    for start in range(0, LEFT.num_rows, 10_000):
        local.cluster.stream("l").send(LEFT.slice(start, 10_000))
        local.cluster.stream("r").send(RIGHT.slice(start, 10_000))
    assert query.close(WAIT_S).pushes > 0
    return query


def test_drop_removes_what_the_query_wrote_unless_it_is_kept(tmp_path: Path) -> None:
    """On every processor and in the shared place; a name that is used again deletes nothing."""
    with small_cluster(memory_bytes=2_500_000, data_dir=tmp_path) as local:
        local.cluster.stream("l", LEFT.schema)
        local.cluster.stream("r", RIGHT.schema)
        logs = [tmp_path / p / "results" / "q" for p in local.names]

        query = closed_query(local)
        kept_spill = Path(query.spill_place())
        headers = {"Authorization": f"Bearer {local.token}"}
        answer = httpx.delete(
            f"{local.url}/v1/queries/q", params={"keep": "true"}, headers=headers, timeout=WAIT_S
        )
        assert answer.status_code == 200, answer.text
        assert all(any(log.glob("*/*.parquet")) for log in logs)

        query = closed_query(local)
        spill = Path(query.spill_place())
        assert spill != kept_spill
        for p in local.names:  # the former run's are put aside, where nobody takes them for these
            assert any((tmp_path / p / "left-over" / kept_spill.name).glob("*/*.parquet"))
        query.cleanup(tmp_path / "owed", master="local")
        query.drop()
        until(lambda: not any(log.exists() for log in logs), "the logs were gone", WAIT_S)
        until(lambda: not spill.exists(), "the spilled state was gone", WAIT_S)
        assert any((tmp_path / "owed").rglob("*.parquet"))
        assert sorted(p.name for p in kept_spill.iterdir()) == local.names

        query = closed_query(local)  # the name is free, and nothing of the former is in the way
        query.cleanup(tmp_path / "again", master="local")
        found = query.results().to_arrow()
        owed = pq.read_table(tmp_path / "again" / "phase=cleanup").select(found.column_names)
        sql = PAIR_SQL.format(left="a", right="b")
        assert same_bag(pa.concat_tables([found, owed]), sql, a=LEFT, b=RIGHT)
