"""What callers of a cluster may name: places below its roots, empty folders, known streams."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from dovetail.cluster import Cluster
from dovetail.local_cluster import LocalCluster
from dovetail_manager.server import ManagerServer
from dovetail_proto import admin as a
from dovetail_proto.errors import ConfigError, DovetailError, QueryError, Refusal
from dovetail_proto.roots import ANYWHERE, Roots
from dovetail_proto.transport import Security, call_metadata, open_channel, raised
from dovetail_proto.wire import admin as wire
from kit.clusters import PAIR_SQL, pair, same_bag, small_cluster

LEFT, RIGHT = pair(seed=31)
READ_TOKEN = "may-look"
SPILL = "s3://me:hush@lake/run?secret_key=hush"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`inside` is the root; `outside` is not, and links lead there."""
    folder = tmp_path_factory.mktemp("roots")
    for place in ("inside/day", "inside/mixed", "outside", "inside/full"):
        (folder / place).mkdir(parents=True)
    (folder / "inside/full/notes.txt").write_text("keep me")
    pq.write_table(LEFT, folder / "inside/day/left.parquet")
    pq.write_table(LEFT, folder / "outside/left.parquet")
    pq.write_table(RIGHT, folder / "inside/right.parquet")
    (folder / "inside/mixed/left.parquet").symlink_to(folder / "outside/left.parquet")
    (folder / "inside/link").symlink_to(folder / "outside")
    return folder


@pytest.fixture(scope="module")
def local(folder: Path) -> Iterator[LocalCluster]:
    """Two processors, with one root beside their data, and a place for spill with credentials."""
    roots = [str(folder / "inside"), "s3://lake?secret_key=hush"]
    with small_cluster(roots=roots, read_token=READ_TOKEN, here="manager") as started:
        yield started


def test_a_query_reads_and_writes_below_the_roots(local: LocalCluster, folder: Path) -> None:
    """Files in, files out; the folder is its own, and another query may not have it."""
    cluster = local.cluster
    cluster.create_stream("l", LEFT.schema, path=folder / "inside/day")
    cluster.create_stream("r", RIGHT.schema, path=folder / "inside/right.parquet")
    sql = PAIR_SQL.format(left="l", right="r")
    out = folder / "inside/out"
    query = cluster.submit(sql, name="files", results=out, spill=folder / "inside/spill")
    query.wait()
    query.close()
    assert same_bag(pq.read_table(out), sql, l=LEFT, r=RIGHT)
    with pytest.raises(ConfigError, match="is not empty"):
        cluster.submit(sql, name="again", results=out)


@pytest.mark.parametrize(
    "path", ["outside/left.parquet", "inside/../outside", "inside/link/left.parquet"]
)
def test_a_stream_outside_the_roots_is_refused_over_every_face(
    path: str, local: LocalCluster, folder: Path
) -> None:
    """With the place and the remedy; nothing is declared."""
    with pytest.raises(ConfigError, match="outside the roots") as refused:
        local.cluster.create_stream("secret", LEFT.schema, path=f"{folder}/{path}")
    assert "--root" in refused.value.remedy
    request = a.CreateStream("secret", LEFT.schema.serialize().to_pybytes(), f"{folder}/{path}")
    with open_channel(local.address, local.security) as channel:
        call = channel.unary_unary("/dovetail.v1.Admin/CreateStream")
        with pytest.raises(Exception, match="outside the roots") as error:
            call(wire.encode(request), metadata=call_metadata(local.security))
        assert isinstance(raised(error.value), ConfigError)  # type: ignore[arg-type]
    assert "secret" not in {s.name for s in local.cluster.streams()}


def test_results_and_spill_outside_the_roots_are_refused(local: LocalCluster, folder: Path) -> None:
    """So are folders that hold something, and results on an object store, which nobody writes."""
    cluster = local.cluster
    cluster.stream("a", LEFT.schema)
    cluster.stream("b", RIGHT.schema)
    sql = PAIR_SQL.format(left="a", right="b")
    for wanted, match in (
        ({"results": folder / "outside/new"}, "results .* outside the roots"),
        ({"spill": folder / "inside/link/new"}, "spill .* outside the roots"),
        ({"spill": "s3://other/run"}, "spill .* outside the roots"),
        ({"results": folder / "inside/full"}, "is not empty: it holds 'notes.txt'"),
        ({"results": "s3://lake/out"}, "is a URI, and only folders"),
    ):
        with pytest.raises(ConfigError, match=match):
            cluster.submit(sql, name="elsewhere", **wanted)  # type: ignore[arg-type]
    assert "elsewhere" not in {q.name for q in cluster.queries()}
    assert not Path("s3:").exists()


def test_a_processor_looks_again_before_it_opens_a_file(local: LocalCluster, folder: Path) -> None:
    """Also at every file of a folder: a link there may lead elsewhere. Others are not touched."""
    cluster, manager = local.cluster, local._manager
    assert isinstance(manager, ManagerServer)
    cluster.stream("c", RIGHT.schema)
    cluster.create_stream("mixed", LEFT.schema, path=folder / "inside/mixed")
    manager.admin._roots = Roots((ANYWHERE,))  # as if it were of another mind
    try:
        cluster.create_stream("alien", LEFT.schema, path=folder / "outside/left.parquet")
        for name, wanted in (
            ("mixed", {}),
            ("alien", {}),
            ("written", {"results": folder / "outside/new"}),
            ("spilled", {"spill": folder / "outside/spill"}),
        ):
            stream = name if name in ("mixed", "alien") else "mixed"
            sql = PAIR_SQL.format(left=stream, right="c")
            why = failure(cluster, sql, name, **wanted)  # type: ignore[arg-type]
            assert "outside the roots" in why
    finally:
        manager.admin._roots = Roots(manager.settings.roots)
    assert sorted(p.name for p in (folder / "outside").iterdir()) == ["left.parquet"]
    assert sorted(p.name for p in (folder / "inside/full").iterdir()) == ["notes.txt"]


def test_an_unknown_stream_is_refused_with_the_ones_there_are(local: LocalCluster) -> None:
    """And with how a cluster gets another; a comment behind the last `;` is no statement."""
    cluster = local.cluster
    cluster.stream("f", LEFT.schema)
    cluster.stream("g", RIGHT.schema)
    with pytest.raises(QueryError, match=r"there are: .*f, g.*; .*`dovetail stream create`"):
        cluster.submit(PAIR_SQL.format(left="elsewhere", right="g"), name="other")
    sql = PAIR_SQL.format(left="f", right="g")
    assert cluster.submit(f"{sql}; -- that is all", name="said").status().state == "running"


def test_credentials_in_a_spill_uri_are_shown_to_nobody(local: LocalCluster) -> None:
    """Not in answers, events, causes or errors; the reading role least of all."""
    cluster = local.cluster
    cluster.stream("d", LEFT.schema)
    cluster.stream("e", RIGHT.schema)
    sql = PAIR_SQL.format(left="d", right="e")
    why = failure(cluster, sql, "hidden", spill=SPILL)
    shown = [why]
    with Cluster(local.url, Security(READ_TOKEN)) as reader:
        status = reader.query("hidden").status()
        shown += [repr(status), repr(reader.query("hidden"))]
    with pytest.raises(DovetailError) as refused:
        cluster.query("hidden").spill_place()
    shown += [str(refused.value), repr(local._manager and local._manager.admin.events(0))]
    assert status.spill == "s3://…@lake/run?secret_key=…"
    assert [s for s in shown if "hush" in s] == []
    logs = "".join(p.read_text() for p in (local.data_dir / "logs").iterdir())
    assert "hush" not in logs


def failure(cluster: Cluster, sql: str, name: str, **wanted: object) -> str:
    """Submit a query that cannot start; why it failed."""
    with pytest.raises(Refusal, match="failed"):
        cluster.submit(sql, name=name, **wanted).close()  # type: ignore[arg-type]
    return cluster.query(name).status().cause
