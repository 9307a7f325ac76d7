"""The Python client on a real cluster of two processors, compared with DuckDB."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dovetail
from dovetail import Cluster, LocalCluster, Query, Stream
from dovetail_proto.errors import Domain, InputError, QueryError, Refusal, Unauthenticated
from kit.client_calls import none_left
from kit.cluster_faults import until
from kit.clusters import PAIR_SQL, pair, same_bag, small_cluster

WAIT_S = 120.0


@pytest.fixture(scope="module")
def local() -> Iterator[LocalCluster]:
    """One cluster for all tests of this file; each uses names of its own."""
    with small_cluster(memory_bytes=512_000_000) as made:  # many queries run side by side
        yield made


@pytest.fixture
def cluster(local: LocalCluster) -> Cluster:
    """Its client."""
    return local.cluster


def declared(cluster: Cluster, name: str) -> tuple[Stream, Stream, Query]:
    """Two streams and a query that joins them, named after the test."""
    left, right = pair(0, rows=1)
    streams = [cluster.stream(f"{name}_{s}", t.schema) for s, t in (("l", left), ("r", right))]
    sql = PAIR_SQL.format(left=f"{name}_l", right=f"{name}_r")
    return streams[0], streams[1], cluster.submit(sql, name=name, partitions=20)


def is_join(found: pa.Table, left: pa.Table, right: pa.Table) -> bool:
    """Whether the results are those of the two tables."""
    return same_bag(found, PAIR_SQL.format(left="a", right="b"), a=left, b=right)


AS = {
    "table": lambda t: t,
    "batches": lambda t: t.to_reader(max_chunksize=700),
    "pandas": lambda t: t.to_pandas(),
    "polars": polars.from_arrow,
    "dictionaries": lambda t: t.set_column(1, t.column_names[1], t.column(1).dictionary_encode()),
}


@pytest.mark.parametrize("form", AS)
def test_rows_of_every_form_are_joined_as_duckdb_does(form: str, cluster: Cluster) -> None:
    """Arrow, pandas and Polars, in both inputs."""
    left, right, query = declared(cluster, f"as_{form}")
    tables = pair(seed=len(form))
    assert left.send(AS[form](tables[0])) == tables[0].num_rows
    assert right.send(AS[form](tables[1])) == tables[1].num_rows
    assert query.wait(WAIT_S) == sum(t.num_rows for t in tables)
    assert is_join(query.results().to_arrow(), *tables)


def test_columns_are_matched_by_name(cluster: Cluster) -> None:
    """Their order in what is sent does not matter."""
    left, right, query = declared(cluster, "by_name")
    tables = pair(seed=3)
    left.send(tables[0].select(["v", "k"]))
    right.send(tables[1].select(["w", "k"]).to_pandas().astype({"k": "Int64"}))
    query.wait(WAIT_S)
    assert is_join(query.results().to_arrow(), *tables)


def test_a_query_sees_what_is_sent_after_its_submission(cluster: Cluster) -> None:
    """And nothing of before, however soon after the stream's declaration it came."""
    left, right, first = declared(cluster, "late")
    early, late = pair(seed=4), pair(seed=5)
    left.send(early[0])
    first.wait(WAIT_S)
    sql = PAIR_SQL.format(left="late_l", right="late_r")
    second = cluster.submit(sql, name="late2", partitions=20)
    left.send(late[0])
    right.send(late[1])
    for query in (first, second):
        query.wait(WAIT_S)
    assert is_join(second.results().to_arrow(), *late)
    assert is_join(first.results().to_arrow(), pa.concat_tables([early[0], late[0]]), late[1])


def test_results_go_on_from_an_offset(cluster: Cluster) -> None:
    """What was read before does not come again; nothing is left out."""
    left, right, query = declared(cluster, "offsets")
    one, two = pair(seed=6), pair(seed=7)
    left.send(one[0])
    right.send(one[1])
    query.wait(WAIT_S)
    reader = query.results()
    parts = [reader.to_arrow()]
    assert is_join(parts[0], *one)
    left.send(two[0])
    query.wait(WAIT_S)
    parts.append(query.results(offsets=reader.offsets).to_arrow())
    assert is_join(pa.concat_tables(parts), pa.concat_tables([one[0], two[0]]), one[1])


def test_a_follower_ends_with_the_query(cluster: Cluster) -> None:
    """And has seen every result by then."""
    left, right, query = declared(cluster, "follow")
    tables = pair(seed=8)
    found: list[pa.Table] = []
    following = query.results(follow=True)
    reader = threading.Thread(target=lambda: found.append(following.to_arrow()))
    reader.start()
    left.send(tables[0])
    right.send(tables[1])
    closed = query.close(WAIT_S)
    reader.join(WAIT_S)
    assert closed.state == "closed"
    assert closed.results == found[0].num_rows
    assert is_join(found[0], *tables)
    assert query.wait() == 6_000, "a closed query has joined everything"


def test_reading_and_waiting_leave_no_call_behind(cluster: Cluster) -> None:
    """A call that is collected at the interpreter's end may keep the program from ending."""
    left, right, query = declared(cluster, "calls")
    tables = pair(seed=9)
    with none_left():
        left.send(tables[0])
        right.send(tables[1])
        for stream in (left, right):
            stream.stop_sending()
        query.wait(WAIT_S)
        assert is_join(query.results().to_arrow(), *tables)
        with query.results(follow=True) as following:
            assert next(following).num_rows
        with contextlib.suppress(Refusal):
            query.wait(1e-6)


def test_a_closed_query_can_be_read_dropped_and_named_again(cluster: Cluster) -> None:
    """Its streams stay."""
    left, right, query = declared(cluster, "again")
    tables = pair(seed=9)
    left.send(tables[0])
    right.send(tables[1])
    query.close(WAIT_S)
    query.close(WAIT_S)
    assert is_join(query.results().to_arrow(), *tables)
    assert query.drop().state == "closed"
    with pytest.raises(Refusal, match="again") as refused:
        query.status()
    assert refused.value.details["reason"] == "unknown"
    sql = PAIR_SQL.format(left="again_l", right="again_r")
    assert cluster.submit(sql, name="again").results().to_arrow().num_rows == 0


def test_a_dropped_stream_is_forgotten_and_may_be_made_anew(cluster: Cluster) -> None:
    """With another schema, and without the memory of who sent what."""
    left, right, query = declared(cluster, "dropped")
    tables = pair(seed=21)
    left.send(tables[0])
    with pytest.raises(Refusal, match="query 'dropped' reads stream 'dropped_l'"):
        left.drop()
    query.close(WAIT_S)
    assert left.drop().rows == tables[0].num_rows
    with pytest.raises(Refusal, match="stream 'dropped_l' is unknown"):
        left.status()
    with pytest.raises((Refusal, InputError), match="dropped_l"):
        left.send(tables[0])
    swapped = [t.rename_columns(["k", n]) for t, n in zip(tables, ("a", "b"), strict=True)]
    anew = cluster.create_stream("dropped_l", swapped[0].schema)
    assert anew.status().rows == 0
    sql = "SELECT l.k, l.a, r.w FROM dropped_l l JOIN dropped_r r ON l.k = r.k"
    again = cluster.submit(sql, name="anew", partitions=20)
    anew.send(swapped[0])
    right.send(tables[1])
    again.wait(WAIT_S)
    joined = "SELECT l.k, l.a, r.w FROM a l JOIN b r ON l.k = r.k"
    assert same_bag(again.results().to_arrow(), joined, a=swapped[0], b=tables[1])


def test_operators_move_and_pin_groups_while_rows_arrive(cluster: Cluster) -> None:
    """The results stay exact, and the map and the history tell of it."""
    left, right, query = declared(cluster, "moved")
    tables = pair(seed=10)
    left.send(tables[0])
    mine = [p.group for p in query.partitions().partitions if p.owner == "p1"]
    move = query.move(mine[:3], "p2")
    right.send(tables[1])
    until(lambda: query.moves()[0].ended_s > 0)
    assert (query.moves()[0].id, query.moves()[0].outcome) == (move.id, "completed")
    assert {query.partitions().partitions[g].owner for g in mine[:3]} == {"p2"}
    pinned = query.pin(mine[:1])
    assert [p.group for p in pinned.partitions if p.pinned] == mine[:1]
    assert not any(p.pinned for p in query.unpin(mine[:1]).partitions)
    assert query.rebalance(dry_run=True)
    until(lambda: bool(query.adaptations()))
    assert query.set_policy("active-disk").policy == "active-disk"
    query.wait(WAIT_S)
    assert is_join(query.results().to_arrow(), *tables)


def test_what_is_sent_to_a_paused_query_is_joined_when_it_goes_on(cluster: Cluster) -> None:
    """Whoever sends waits for it."""
    left, right, query = declared(cluster, "paused")
    tables = pair(seed=11)
    left.send(tables[0])
    assert query.pause().state == "paused"
    sender = threading.Thread(target=right.send, args=(tables[1],))
    sender.start()
    query.resume()
    sender.join(WAIT_S)
    query.wait(WAIT_S)
    assert is_join(query.results().to_arrow(), *tables)


def test_a_stream_can_be_read_from_a_file(cluster: Cluster, tmp_path: Path) -> None:
    """Its home reads it once a query listens; nobody may send to it."""
    tables = pair(seed=12)
    for name, table in zip(("file_l", "file_r"), tables, strict=True):
        pq.write_table(table, tmp_path / f"{name}.parquet")
        cluster.create_stream(name, path=tmp_path / f"{name}.parquet")
    sql = PAIR_SQL.format(left="file_l", right="file_r")
    query = cluster.submit(sql, name="file", partitions=20)
    until(lambda: all(s.drained for s in cluster.streams() if s.name.startswith("file_")))
    query.wait(WAIT_S)
    assert is_join(query.results().to_arrow(), *tables)
    with pytest.raises(InputError, match="is read from"):
        cluster.stream("file_l").send(tables[0])


def test_results_come_as_frames(cluster: Cluster) -> None:
    """pandas and Polars."""
    left, right, query = declared(cluster, "frames")
    tables = pair(seed=13)
    left.send(tables[0])
    right.send(tables[1])
    query.wait(WAIT_S)
    frame = query.results().to_polars()
    assert isinstance(frame, polars.DataFrame)
    assert is_join(frame.to_arrow(), *tables)
    assert list(query.results().to_pandas().columns) == ["k", "v", "w"]


def test_notebooks_show_tables(cluster: Cluster) -> None:
    """With names and numbers, and nothing that is not escaped."""
    left, _, query = declared(cluster, "shown")
    assert "p2" in cluster._repr_html_()
    assert "shown_l" in left._repr_html_()
    assert "lazy-disk" in query._repr_html_()
    assert repr(query) == "Query('shown')"


def wrong_schema(cluster: Cluster) -> None:
    """Another type."""
    cluster.stream("refused_l").send(pa.table({"k": ["text"], "v": [1.0]}))


def missing_column(cluster: Cluster) -> None:
    """One column less."""
    cluster.stream("refused_l").send(pa.table({"k": [1]}).to_pandas())


def large_row(cluster: Cluster) -> None:
    """One value beyond the limit of a batch."""
    cluster.stream("refused_r").send(pa.table({"k": [1], "w": ["x" * (65 << 20)]}))


def ended_stream(cluster: Cluster) -> None:
    """Sending after the end."""
    stream = cluster.stream("refused_end", pa.schema([("k", pa.int64())]))
    stream.end()
    stream.end()
    stream.send(pa.table({"k": [1]}))


REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "another schema": (
        lambda c: c.stream("refused_l", pa.schema([("x", pa.int8())])),
        Refusal,
        "stream 'refused_l' exists already",
    ),
    "a second stream": (
        lambda c: c.create_stream("refused_l", pa.schema([("x", pa.int8())])),
        Refusal,
        "stream 'refused_l' exists already",
    ),
    "a bad name": (
        lambda c: c.create_stream("Refused!", pa.schema([("x", pa.int8())])),
        Refusal,
        "name",
    ),
    "a second query": (
        lambda c: c.submit(PAIR_SQL.format(left="refused_l", right="refused_r"), name="refused"),
        Refusal,
        "query 'refused' exists already",
    ),
    "bad SQL": (lambda c: c.submit("SELECT", name="bad"), QueryError, "no FROM clause"),
    "an unknown table": (
        lambda c: c.submit("SELECT a.k FROM nope a JOIN refused_l b ON a.k = b.k", name="bad"),
        QueryError,
        "nope",
    ),
    "an unknown query": (lambda c: c.query("nope"), Refusal, "query 'nope'"),
    "an unknown stream": (lambda c: c.stream("nope"), Refusal, "stream 'nope'"),
    "a wrong schema": (wrong_schema, InputError, r"its columns are \(k string, v double\)"),
    "a missing column": (missing_column, InputError, "without v"),
    "a large row": (large_row, InputError, "a row has 68"),
    "an ended stream": (ended_stream, InputError, "stream 'refused_end' has ended"),
    "a move to itself": (
        lambda c: c.query("refused").move([_first_of(c, "p1")], "p1"),
        Refusal,
        "p1",
    ),
    "an unknown group": (lambda c: c.query("refused").move([20], "p1"), Refusal, "20"),
    "an unknown processor": (lambda c: c.query("refused").move([0], "p9"), Refusal, "p9"),
    "no rows at all": (
        lambda c: c.stream("refused_l").send([1, 2]),
        InputError,
        "cannot come as list",
    ),
    "an open query": (lambda c: c.query("refused").cleanup(None), Refusal, "is running"),
    "a query to drop": (lambda c: c.query("refused").drop(), Refusal, "close it first"),
    "a stream in use": (lambda c: c.stream("refused_l").drop(), Refusal, "query 'refused' reads"),
    "an unknown policy": (lambda c: c.query("refused").set_policy("magic"), Refusal, "policy"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_done_is_refused_by_name(what: str, cluster: Cluster) -> None:
    """And changes nothing: the query goes on."""
    if "refused" not in {q.name for q in cluster.queries()}:
        declared(cluster, "refused")
    ask, kind, text = REFUSED[what]
    with pytest.raises(kind, match=text):
        ask(cluster)
    assert cluster.query("refused").status().state == "running"


def test_a_wrong_token_is_refused_everywhere(local: LocalCluster) -> None:
    """By the manager and by processors."""
    with dovetail.connect(local.url, "wrong") as stranger, pytest.raises(Unauthenticated):
        stranger.status()
    with dovetail.connect(local.url, "wrong") as stranger:
        address = local.cluster.status().processors[0].address
        with pytest.raises(dovetail.DovetailError, match="token"):
            stranger._channels.joined({"p1": address}, "any", WAIT_S)


def test_a_query_that_only_counts_has_no_results_to_read(cluster: Cluster) -> None:
    """The refusal says where they are."""
    declared(cluster, "counted_once")
    sql = PAIR_SQL.format(left="counted_once_l", right="counted_once_r")
    query = cluster.submit(sql, name="counted", counting=True)
    with pytest.raises(Refusal, match="were counted") as refused:
        query.results()
    assert refused.value.domain is Domain.QUERY


def _first_of(cluster: Cluster, owner: str) -> int:
    owned = cluster.query("refused").partitions().partitions
    return next(p.group for p in owned if p.owner == owner)
