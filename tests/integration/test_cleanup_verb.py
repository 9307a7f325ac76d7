"""The clean-up as a verb of a real cluster: REST, gRPC and Python start, watch and cancel it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dovetail.local_cluster import LocalCluster
from dovetail.queries import Query
from dovetail_pipeline.cleanup import Ledger, open_catalog
from dovetail_pipeline.cleanup.stores import below, find_cleanups
from dovetail_pipeline.spark.session import why_unavailable
from dovetail_proto import admin as a
from dovetail_proto.errors import ConfigError, Interrupted, Refusal, SpillError
from dovetail_proto.wire import admin as wire
from kit import cluster_faults
from kit.clusters import PAIR_SQL, gone, pair, same_bag, small_cluster

WAIT_S = 120.0
READ_TOKEN = "reading"
LEFT, RIGHT = pair(seed=5, rows=60_000, keys=20_000)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two processors with too little memory, and a closed query `q` that owes results."""
    folder = tmp_path_factory.mktemp("cluster")
    with small_cluster(memory_bytes=2_500_000, data_dir=folder, read_token=READ_TOKEN) as made:
        streams = [made.cluster.stream("l", LEFT.schema), made.cluster.stream("r", RIGHT.schema)]
        sql = PAIR_SQL.format(left="l", right="r")
        query = made.cluster.submit(sql, name="q", partitions=40, policy="disk")
        for start in range(0, LEFT.num_rows, 10_000):
            streams[0].send(LEFT.slice(start, 10_000))
            streams[1].send(RIGHT.slice(start, 10_000))
        assert query.close(WAIT_S).pushes > 0
        yield made


@pytest.fixture
def query(local: LocalCluster) -> Query:
    """The closed query."""
    return local.cluster.query("q")


def until(done: Callable[[], Any]) -> Any:
    """What `done` returns once it is true."""
    found: list[Any] = []

    def look() -> bool:
        found.append(done())
        return bool(found[-1])

    cluster_faults.until(look, "it was so", WAIT_S)
    return found[-1]


def is_whole(query: Query, output: Path) -> bool:
    """Whether results of the run and those below `output` are the join."""
    run = query.results().to_arrow()
    owed = pq.read_table(output / "phase=cleanup").select(run.column_names)
    assert owed.num_rows > 0
    sql = PAIR_SQL.format(left="a", right="b")
    return same_bag(pa.concat_tables([run, owed]), sql, a=LEFT, b=RIGHT)


def held(query: Query, output: Path) -> Any:
    """A lock that keeps a clean-up into `output` from beginning."""
    (found,) = find_cleanups([query.spill_place()], output="none")
    return Ledger(open_catalog(found.stores), below(str(output))).locked()


def children(local: LocalCluster) -> list[psutil.Process]:
    """The manager's clean-ups."""
    found = psutil.Process(local.processes["manager"].pid).children()
    return [c for c in found if "dovetail_pipeline.service" in " ".join(c.cmdline())]


def test_rest_starts_and_watches_a_clean_up(
    local: LocalCluster, query: Query, tmp_path: Path
) -> None:
    """To the exact join; who may only look may watch it, and the operator's list is kept to."""
    url = f"{local.url}/v1/queries/q/cleanup"
    admin, reader = ({"Authorization": f"Bearer {t}"} for t in (local.token, READ_TOKEN))
    assert httpx.get(url, headers=reader, timeout=WAIT_S).status_code == 404
    body = {"master": "local", "output": str(tmp_path)}
    assert httpx.post(url, headers=reader, json=body, timeout=WAIT_S).status_code == 403
    assert httpx.delete(url, headers=reader, timeout=WAIT_S).status_code == 403
    refused = httpx.post(
        url, headers=admin, json={**body, "master": "spark://elsewhere:7077"}, timeout=WAIT_S
    )
    assert refused.status_code == 400
    assert "'spark://elsewhere:7077' is not one that this cluster allows" in refused.text
    assert (
        httpx.post(url, headers=admin, json={**body, "output": "here"}, timeout=WAIT_S).status_code
        == 400
    )
    begun = httpx.post(url, headers=admin, json=body, timeout=WAIT_S)
    assert begun.status_code == 202, begun.text
    assert begun.json()["state"] == "running"

    def ended() -> Any:
        found = httpx.get(url, headers=reader, timeout=WAIT_S).json()
        return found if found["state"] != "running" else None

    done = until(ended)
    assert (done["state"], done["cause"]) == ("done", "")
    assert done["output"] == f"{tmp_path}/phase=cleanup"
    assert is_whole(query, tmp_path)
    status = httpx.get(f"{local.url}/v1/queries/q", headers=reader, timeout=WAIT_S).json()
    assert status["cleanup"] == [done]


def test_grpc_starts_a_clean_up_on_spark(local: LocalCluster, query: Query, tmp_path: Path) -> None:
    """`spark` is the first Spark master that the manager allows: local[*]."""
    if (problem := why_unavailable()) is not None:
        pytest.skip(f"Spark cannot run here: {problem.message}")
    metadata = [("authorization", f"Bearer {local.token}")]

    with grpc.insecure_channel(local.address) as channel:

        def ask(verb: str, request: Any) -> a.CleanupStatus:
            call = channel.unary_unary(f"/dovetail.v1.Admin/{verb}")
            return wire.decode(
                a.CleanupStatus, call(wire.encode(request), metadata=metadata, timeout=WAIT_S)
            )

        begun = ask("StartCleanup", a.StartCleanup("q", "spark", str(tmp_path)))
        assert (begun.state, begun.master) == ("running", "local[*]")
        done = until(lambda: (s := ask("GetCleanup", a.QueryRef("q"))).state != "running" and s)
        assert (done.state, done.cause) == ("done", "")
        assert ask("CancelCleanup", a.QueryRef("q")) == done  # it is over
    assert is_whole(query, tmp_path)


def test_a_cancelled_clean_up_is_resumed(local: LocalCluster, query: Query, tmp_path: Path) -> None:
    """From Python: cancelled cleanly, refused twice at once, then gone on with."""
    with held(query, tmp_path):
        assert query.start_cleanup(tmp_path, master="local").state == "running"
        with pytest.raises(Refusal, match="is being cleaned up already"):
            query.start_cleanup(tmp_path)
        with pytest.raises(Refusal, match="is being cleaned up"):
            query.drop()
        (child,) = until(lambda: children(local))
        assert query.cancel_cleanup().state == "cancelled"
        assert gone(child.pid)
        with pytest.raises(Interrupted, match="was cancelled"):
            query.cleanup(tmp_path, stop=lambda: True)
    heard: list[a.CleanupStatus] = []
    done = query.cleanup(tmp_path, tell=heard.append)
    assert done.combinations == done.owed > 0
    assert heard[0].state == "running"
    assert is_whole(query, tmp_path)
    with pytest.raises(ConfigError, match="only counted its results"):
        query.cleanup()  # it has no folder of its own
    counted = query.cleanup(None)
    assert (counted.results, counted.checksum) == (done.results, done.checksum)


def test_a_clean_up_goes_on_after_the_manager_was_killed(
    local: LocalCluster, query: Query, tmp_path: Path
) -> None:
    """Its process ends with the manager; the next manager starts it again from the record."""
    with held(query, tmp_path):
        query.start_cleanup(tmp_path, master="local")
        (child,) = until(lambda: children(local))
        local.kill("manager")
        until(lambda: gone(child.pid))
        local.restart_manager()
        assert query.cleanup_status().state == "running"
        until(lambda: children(local))
    done = until(lambda: (s := query.cleanup_status()).state != "running" and s)
    assert (done.state, done.cause) == ("done", "")
    assert is_whole(query, tmp_path)


def test_a_store_that_is_not_there_is_named(query: Query, tmp_path: Path) -> None:
    """Before anything is made: results would be missing."""
    spill = Path(query.spill_place())
    shutil.move(spill / "p2", tmp_path / "p2")
    with pytest.raises(SpillError, match="the spill store of processor 'p2' is missing"):
        query.cleanup(tmp_path / "out")
    shutil.move(tmp_path / "p2", spill / "p2")
    shutil.move(spill, tmp_path / "all")
    with pytest.raises(SpillError, match=f"none of its spill stores is at {spill}"):
        query.cleanup(tmp_path / "out")
    shutil.move(tmp_path / "all", spill)
    assert query.cleanup_status().state == "failed"
    assert not (tmp_path / "out").exists()


def test_a_query_that_pushed_nothing_needs_no_output(local: LocalCluster) -> None:
    """Nothing is owed, nothing is started."""
    cluster = local.cluster
    sql = PAIR_SQL.format(left="l", right="r")
    query = cluster.submit(sql, name="idle", partitions=40, policy="disk")
    with pytest.raises(Refusal, match="is running; what it owes is not known"):
        query.cleanup()
    query.close(WAIT_S)
    done = query.cleanup()
    assert (done.state, done.owed, done.results) == ("done", 0, 0)
    query.drop()
