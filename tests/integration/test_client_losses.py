"""What a user is told when a processor dies, or comes back without what it had."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dovetail import LocalCluster, LostResultsWarning, UnreadWarning
from dovetail_proto.errors import OutputError, Refusal
from dovetail_proto.transport import Unreachable
from kit.cli import dovetail as run_command
from kit.cluster_faults import until
from kit.clusters import PAIR_SQL, pair, same_bag, small_cluster

DEAD_AFTER_S = 8.0
"""A processor that loads its kernels on a busy machine is silent for a second or two."""


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalCluster]:
    """A cluster whose processors come and go."""
    with small_cluster(data_dir=tmp_path / "cluster", dead_after_s=DEAD_AFTER_S) as made:
        yield made


def fed(local: LocalCluster, name: str) -> tuple[pa.Table, pa.Table]:
    """A query that has joined two tables."""
    left, right = pair(seed=5)
    streams = [local.cluster.stream(f"{name}_{s}", t.schema) for s, t in zip("lr", (left, right))]  # noqa: B905
    sql = PAIR_SQL.format(left=f"{name}_l", right=f"{name}_r")
    query = local.cluster.submit(sql, name=name, partitions=20)
    for stream, table in zip(streams, (left, right), strict=True):
        stream.send(table)
    query.wait()
    return left, right


def rows_found(left: pa.Table, right: pa.Table) -> int:
    """How many rows DuckDB finds."""
    sql = PAIR_SQL.format(left="l", right="r")
    return len(duckdb.connect().register("l", left).register("r", right).sql(sql))


def test_results_that_are_missing_are_an_error(local: LocalCluster, tmp_path: Path) -> None:
    """On every face, for as long as a processor lacks what it found; then all are there again."""
    cluster = local.cluster
    left, right = fed(local, "q")
    query = cluster.query("q")
    query.close()
    data = tmp_path / "cluster" / "p2"
    local.kill("p2")
    until(lambda: cluster.status().processors[1].state == "dead")
    with pytest.raises(Unreachable, match=r"'p2'.* is away; start 'p2' again.*--log"):
        query.results()
    data.rename(tmp_path / "aside")
    local.start_processor("p2")
    missing = r"processor 'p2' does not have log 'p2' of query 'q' whole.*start it with the data"
    with pytest.raises(OutputError, match=missing):
        query.results().to_arrow()
    url = {"DOVETAIL_URL": local.url, "DOVETAIL_TOKEN": local.token}
    said = run_command("results", "q", "--format", "jsonl", environment=url)
    assert said.code == OutputError.exit_code
    assert "does not have log 'p2'" in said.err
    rest = cluster.admin._http.get("/v1/queries/q/results")
    assert rest.status_code == 503
    assert "does not have log 'p2'" in rest.json()["message"]
    some = run_command("results", "q", "--log", "p1", "--format", "jsonl", environment=url)
    assert some.code == 0
    assert 0 < len(some.out.splitlines()) == query.results(logs=["p1"]).to_arrow().num_rows
    local.kill("p2")
    until(lambda: cluster.status().processors[1].state == "dead")
    data.rename(tmp_path / "other")
    (tmp_path / "aside").rename(data)
    local.start_processor("p2")
    assert same_bag(
        query.results().to_arrow(), PAIR_SQL.format(left="l", right="r"), l=left, r=right
    )
    gone = sorted(data.glob("results/q/p2/segment-*.parquet"))[-1]
    gone.unlink()
    with pytest.raises(OutputError, match="rows are in"):
        query.results().to_arrow()


def test_results_that_died_with_a_processor_are_counted(local: LocalCluster) -> None:
    """On every face: those that were found, and not written when it was killed."""
    cluster = local.cluster
    found = rows_found(*fed(local, "q"))
    query = cluster.query("q")
    until(lambda: query.status().results == found)
    local.kill("p2")
    until(lambda: query.status().state == "failed")
    local.start_processor("p2")
    read = query.results()
    with pytest.warns(LostResultsWarning, match=r"has failed \(processor p2 died") as warned:
        rows = read.to_arrow().num_rows
    assert 0 < rows < found
    assert read.lost == found - rows
    said = f"{read.lost:,} of the {found:,} results that it had found"
    assert said in str(warned[0].message)
    url = {"DOVETAIL_URL": local.url, "DOVETAIL_TOKEN": local.token}
    told = run_command("results", "q", "--format", "jsonl", environment=url)
    assert f"warning: {warned[0].message}" in told.err
    assert told.code == 0
    assert len(told.out.splitlines()) == rows
    rest = cluster.admin._http.get(
        "/v1/queries/q/results", headers={"Accept": "application/x-ndjson"}
    )
    assert rest.headers["Dovetail-Found"] == str(found)
    assert rest.headers["Dovetail-Failed"].startswith("processor p2 died: it was silent for")
    assert len(rest.text.splitlines()) == rows


def test_a_feed_tells_what_became_of_its_rows(local: LocalCluster, tmp_path: Path) -> None:
    """Nobody reads them; the query failed; the stream's home died with what it had taken in."""
    cluster = local.cluster
    table = pa.table({"k": list(range(100)), "v": [0.0] * 100})
    lonely = cluster.stream("lonely", table.schema)
    with pytest.warns(UnreadWarning, match=r"no query reads stream 'lonely': 100 rows went"):
        lonely.send(table)
    fed(local, "q")
    left = cluster.stream("q_l")
    home = left.status().home
    other = {"p1": "p2", "p2": "p1"}[home]
    local.kill(home)
    with pytest.warns(UnreadWarning, match=f"query 'q', .* failed: processor {home} died"):
        left.send(table)  # waits until the stream has another home
    assert left.status().home == other
    local.start_processor(home)

    told = [0]  # rows routed so far

    def parts() -> Iterator[pa.RecordBatch]:
        while not told[-1]:
            yield from table.to_batches()
        local.kill(other)
        local.start_processor(other)
        yield from table.to_batches()

    rows = pa.RecordBatchReader.from_batches(table.schema, parts())
    with pytest.raises(
        Refusal, match=r"knows no batch of source .* query 'q', .*send every"
    ) as lost:
        left.send(rows, told.append)
    assert lost.value.details["rows_routed"] >= 100
    with pytest.warns(UnreadWarning, match="no query reads stream 'q_l': 100 rows"):
        left.send(table)  # the same object goes on
    pq.write_table(table, tmp_path / "more.parquet")
    said = run_command(
        "feed",
        "q_l",
        tmp_path / "more.parquet",
        environment={"DOVETAIL_URL": local.url, "DOVETAIL_TOKEN": local.token},
    )
    assert said.code == 0
    assert "warning: no query reads stream 'q_l': 100 rows went nowhere" in said.err
    assert f"query 'q', which reads it, has failed: processor {home} died" in said.err


def test_a_processor_that_left_and_came_back_may_die_if_it_owns_nothing(
    local: LocalCluster, tmp_path: Path
) -> None:
    """What it had found before is with its successor; a manager started again knows that."""
    cluster = local.cluster
    left, right = pair(seed=6)
    streams = [cluster.stream("l", left.schema), cluster.stream("r", right.schema)]
    sql = PAIR_SQL.format(left="l", right="r")
    query = cluster.submit(sql, name="q", partitions=20, policy="disk")
    half = left.num_rows // 2
    for stream, table in zip(streams, (left, right), strict=True):
        stream.send(table.slice(0, half))
    cluster.leave("p2")
    until(lambda: not local.processes["p2"].running)
    assert cluster.status().processors[1].state == "left"
    local.start_processor("p2")
    until(lambda: any(i.processor == "p2" and not i.groups for i in query.status().instances))
    local.kill("manager")
    local.restart_manager()
    local.kill("p2")
    until(lambda: cluster.status().processors[1].state == "dead")
    for stream, table in zip(streams, (left, right), strict=True):
        stream.send(table.slice(half))
    assert query.close().state == "closed"
    assert same_bag(query.results().to_arrow(), sql, l=left, r=right)
