"""What becomes of result logs and spilled state when a query is dropped, on a real cluster."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import httpx
import pyarrow as pa
import pyarrow.parquet as pq

from dovetail.local_cluster import LocalCluster
from dovetail.queries import Query
from kit.cluster_faults import FaultyCluster, until
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


def test_a_processor_that_was_away_removes_what_was_dropped_meanwhile(tmp_path: Path) -> None:
    """When it is back, whichever manager is there then; not what is kept, or not dropped at all."""
    sql = PAIR_SQL.format(left="l", right="r")
    with FaultyCluster(processors=2, data_dir=tmp_path, memory_bytes=24_000_000) as local:
        cluster = local.cluster
        left, right = LEFT.slice(0, 10_000), RIGHT.slice(0, 10_000)
        streams = [cluster.stream("l", LEFT.schema), cluster.stream("r", RIGHT.schema)]
        dropped, kept, closed = (
            cluster.submit(sql, name=name, policy="disk", spill=tmp_path / f"spill-{name}")
            for name in ("dropped", "kept", "closed")
        )
        streams[0].send(left)
        streams[1].send(right)
        for query in (dropped, kept, closed):
            query.close(WAIT_S)
        [at_p1, at_p2] = [tmp_path / p / "results" for p in local.names]
        unshared = tmp_path / "unshared"  # a folder of p2's machine that nobody else has
        shutil.copytree(tmp_path / "spill-dropped" / "p2", unshared)

        local.processes["p2"].send_signal(signal.SIGKILL)
        until(lambda: local.state_of("p2") == "dead", "it is missed")
        dropped.drop()
        kept.drop(keep=True)
        until(lambda: not (at_p1 / "dropped").exists(), "who is there removes it", WAIT_S)
        until(lambda: not (tmp_path / "spill-dropped" / "p2").exists(), "shared", WAIT_S)
        (tmp_path / "spill-dropped").mkdir(exist_ok=True)
        unshared.rename(tmp_path / "spill-dropped" / "p2")
        assert any((at_p2 / "dropped").glob("*/*.parquet"))
        local.restart_manager()
        local.start_processor("p2")
        until(lambda: not (at_p2 / "dropped").exists(), "it removes it too", WAIT_S)
        until(lambda: not (tmp_path / "spill-dropped" / "p2").exists(), "its store too", WAIT_S)
        for place in (at_p1, at_p2):
            assert any((place / "kept").glob("*/*.parquet"))
        assert (tmp_path / "spill-kept" / "p2").exists()
        assert (tmp_path / "spill-closed" / "p2").exists()
        assert same_bag(closed.results().to_arrow(), sql, l=left, r=right)
