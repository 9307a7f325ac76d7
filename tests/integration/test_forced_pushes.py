"""Forced pushes (active-disk) on real processes: what is ordered is pushed, and no more."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dovetail import Cluster
from dovetail.queries import Query
from dovetail_manager.adaptation.snapshot import AdaptationSettings
from dovetail_proto.admin import AdaptationRecord
from dovetail_proto.partitioning import canonical_keys, partition_ids
from kit.cli import dovetail
from kit.clusters import PAIR_SQL, same_bag, small_cluster

WAIT_S = 120.0
PARTITIONS = 20
MEMORY_BYTES = 24_000_000
BOUND_BYTES = 2_000_000
ROWS = 60_000  # per stream: state takes about half of the memory it may have
SETTINGS = AdaptationSettings(
    move_interval_s=0.2,
    move_min_fraction=1.0,  # nothing moves: productivity stays where it is
    force_above_ratio=0.01,  # a little state is enough
)
T = TypeVar("T")


def keys_of(owner: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Keys whose groups are first dealt to the first (0) or second (1) of two processors."""
    candidates = np.arange(6 * count + 1000, dtype=np.int64)
    hashes = canonical_keys([pa.array(candidates)], [pa.int64()]).hashes
    halves = partition_ids(hashes, PARTITIONS).astype(np.int64) // (PARTITIONS // 2)
    return candidates[halves == owner][:count]


def uneven(seed: int) -> tuple[pa.Table, pa.Table]:
    """Keys of the first processor occur ten times in each stream, those of the second in one."""
    rng = np.random.default_rng(seed)
    half = ROWS // 2
    matched, unmatched = np.resize(keys_of(0, half // 10), half), keys_of(1, 2 * half)
    tables = []
    for column, mine in (("v", unmatched[:half]), ("w", unmatched[half:])):
        keys = rng.permutation(np.concatenate([matched, mine]))
        tables.append(pa.table({"k": keys, column: rng.random(ROWS)}))
    return tables[0], tables[1]


def until(found: Callable[[], T | None]) -> T:
    """What is found within a minute."""
    patience = threading.Event()
    for _ in range(600):
        if (one := found()) is not None:
            return one
        patience.wait(0.1)
    raise AssertionError("waited in vain")


def last(query: Query, kind: str) -> AdaptationRecord | None:
    """The newest decision whose reason has these words."""
    return next((r for r in query.adaptations() if kind in r.reason), None)


def cluster_bytes(cluster: Cluster, sql: str) -> int:
    """M_cluster of a query, as the policy counts it."""
    query = cluster.submit(sql, name="empty", partitions=PARTITIONS, policy="active-disk")
    compared = until(
        lambda: next((r for r in query.adaptations() if "m_cluster_bytes" in r.numbers), None)
    )
    query.close(WAIT_S)
    query.drop()
    return int(compared.numbers["m_cluster_bytes"])


def test_forced_pushes_stop_at_what_memory_cannot_hold(tmp_path: Path) -> None:
    """Bytes of memory are ordered, and bytes of memory are counted; files are smaller."""
    left, right = uneven(seed=1)
    sql = PAIR_SQL.format(left="l", right="r")
    with small_cluster(
        memory_bytes=MEMORY_BYTES, data_dir=tmp_path, adaptation=SETTINGS, sample_s=0.2
    ) as local:
        cluster = local.cluster
        streams = [cluster.stream("l", left.schema), cluster.stream("r", right.schema)]
        asked = {"name": "q", "partitions": PARTITIONS, "policy": "active-disk"}
        expected = cluster_bytes(cluster, sql) + BOUND_BYTES
        query = cluster.submit(sql, expected_state=expected, push_fraction=0.1, **asked)
        streams[0].send(left)
        streams[1].send(right)
        query.wait(WAIT_S)
        until(lambda: last(query, "leaves nothing to push"))
        orders = [r for r in query.adaptations() if r.decision.startswith("push")]
        status = until(lambda: s if (s := query.status()).pushes == len(orders) else None)
        [bound] = [r for r in query.rebalance(dry_run=True) if "leaves nothing" in r.reason]
        on_disk = sum(pq.read_metadata(f).num_rows for f in (tmp_path / "spill").rglob("*.parquet"))
        productive, barren = sorted(status.instances, key=lambda i: i.processor)
        assert productive.pushes == 0
        assert len(orders) > 2, "the query's own share is pushed at once, not the manager's"
        bytes_per_row = barren.held_bytes / (ROWS - on_disk)
        largest = 1.5 * 2 * ROWS / PARTITIONS * bytes_per_row
        went = on_disk * bytes_per_row
        assert BOUND_BYTES <= went <= BOUND_BYTES + largest
        assert abs(bound.numbers["forced_bytes"] - went) < 0.1 * went

        late = pa.table({"k": right["k"].slice(0, 5000), "v": right["w"].slice(0, 5000)})
        streams[0].send(late)  # some of it matches what is on disk
        query.close(WAIT_S)
        query.cleanup(tmp_path / "owed", master="local")
        run = query.results().to_arrow()
    owed = pq.read_table(tmp_path / "owed" / "phase=cleanup").select(run.column_names)
    assert owed.num_rows > 0
    sent = pa.concat_tables([left, late])
    assert same_bag(pa.concat_tables([run, owed]), sql, l=sent, r=right)


BATCH_ROWS = 64 << 10
HOT_ROWS = (10_000, 12_000)  # of a key, by stream: 120 million combinations, which take seconds


def with_hot_keys(seed: int) -> tuple[pa.Table, pa.Table]:
    """A batch of each stream: a key of each processor is hot, and all it gives fails `< 1`."""
    rng = np.random.default_rng(seed)
    hot = [keys_of(owner, 1)[0] for owner in (0, 1)]
    tables = []
    for column, times in zip("vw", HOT_ROWS, strict=True):
        rest = rng.permutation(3 * BATCH_ROWS)[: BATCH_ROWS - 2 * times] + max(hot) + 1
        keys = np.concatenate([np.repeat(hot, times), rest])
        values = np.concatenate([np.ones(2 * times), rng.random(len(rest))])
        order = rng.permutation(BATCH_ROWS)
        tables.append(pa.table({"k": keys[order], column: values[order]}))
    return tables[0], tables[1]


def test_a_push_that_is_ordered_in_the_middle_of_a_batch_follows_it(tmp_path: Path) -> None:
    """It is not answered before it is done: every order is one push, and its bytes count once."""
    left, right = with_hot_keys(seed=3)
    sql = PAIR_SQL.format(left="l", right="r") + " WHERE l.v + r.w < 1"
    settings = replace(SETTINGS, force_above_rate_ratio=0.5)  # whoever is busier
    with small_cluster(
        memory_bytes=MEMORY_BYTES, data_dir=tmp_path, adaptation=settings, sample_s=0.2
    ) as local:
        cluster = local.cluster
        streams = [cluster.stream("l", left.schema), cluster.stream("r", right.schema)]
        expected = cluster_bytes(cluster, sql) + BOUND_BYTES
        asked = {"name": "q", "partitions": PARTITIONS, "policy": "lazy-disk"}
        query = cluster.submit(sql, expected_state=expected, push_fraction=0.1, **asked)
        streams[0].send(left)
        query.wait(WAIT_S)
        streams[1].send(right)
        under_way = 2 * HOT_ROWS[0] * HOT_ROWS[1]
        until(lambda: query.status().produced or None)
        query.set_policy("active-disk")
        until(lambda: next((r for r in query.adaptations() if r.decision[:4] == "push"), None))
        status = query.status()
        assert 0 < status.produced < under_way, "the order did not come in the middle of a batch"
        assert status.pushes == 0
        query.wait(WAIT_S)
        until(lambda: last(query, "leaves nothing to push"))
        orders = [r for r in query.adaptations() if r.decision.startswith("push")]
        status = until(lambda: s if (s := query.status()).pushes >= len(orders) else None)
        assert status.pushes == len(orders)
        [bound] = [r for r in query.rebalance(dry_run=True) if "leaves nothing" in r.reason]
        on_disk = sum(pq.read_metadata(f).num_rows for f in (tmp_path / "spill").rglob("*.parquet"))
        bytes_per_row = status.held_bytes / (2 * BATCH_ROWS - on_disk)
        largest = 1.5 * 2 * BATCH_ROWS / PARTITIONS * bytes_per_row
        forced = bound.numbers["forced_bytes"]
        assert BOUND_BYTES <= forced <= BOUND_BYTES + largest
        # A row of a hot key, which shares the key's entry in the index, takes less than others.
        assert abs(forced - on_disk * bytes_per_row) < 0.3 * forced
        query.close(WAIT_S)
        query.cleanup(tmp_path / "owed", master="local")
        found = query.results().to_arrow()
    owed = pq.read_table(tmp_path / "owed" / "phase=cleanup").select(found.column_names)
    assert same_bag(pa.concat_tables([found, owed]), sql, l=left, r=right)


def test_what_will_come_is_estimated_from_files_and_announced_rows(tmp_path: Path) -> None:
    """Bytes per row so far times the rows left; where nobody says how many, people are warned."""
    left, right = uneven(seed=2)
    pq.write_table(right, tmp_path / "right.parquet")
    sql = PAIR_SQL.format(left="l", right="r")
    with small_cluster(adaptation=SETTINGS, sample_s=0.2, here="manager") as local:
        cluster = local.cluster
        cluster.create_stream("r", path=tmp_path / "right.parquet")
        fed = cluster.stream("l", left.schema)
        asked = {"partitions": PARTITIONS, "policy": "active-disk"}
        query = cluster.submit(sql, name="q", **asked)

        def estimate() -> float | None:
            """M_query, when all that has come is in the reports."""
            if sum(i.rows_in for i in query.status().inputs) < 2 * ROWS:
                return None
            looked = [r.numbers for r in query.rebalance(dry_run=True)]
            return next((n["m_query_bytes"] for n in looked if "m_query_bytes" in n), None)

        # A reader of three times as many rows as were sent so far, which waits after a third.
        sent, go_on = threading.Event(), threading.Event()
        told_to: list[bool] = []

        def rows() -> Iterator[pa.RecordBatch]:
            yield from left.to_batches()
            sent.set()
            told_to.append(go_on.wait(WAIT_S))

        reader = pa.RecordBatchReader.from_batches(left.schema, rows())
        feeding = threading.Thread(target=fed.send, args=(reader,), kwargs={"rows": 3 * ROWS})
        feeding.start()
        try:
            assert sent.wait(WAIT_S)
            expected = until(estimate)
            held = query.status().held_bytes
            assert 1.9 * held < expected < 2.1 * held  # two streams are in, as many rows will come
        finally:
            go_on.set()
            feeding.join(WAIT_S)
        assert told_to == [True]  # it was still to come when it was estimated

        reader = pa.RecordBatchReader.from_batches(left.schema, left.to_batches())
        fed.send(reader)  # without a word on how many follow
        warned = until(lambda: last(query, "'l' still bring, which nobody told"))
        untold = "M_query is without what streams 'l' still bring, which nobody told"
        assert query.status().warning.startswith(untold)
        here = {"DOVETAIL_URL": local.url, "DOVETAIL_TOKEN": local.token}
        assert f"warning        {untold}" in dovetail("status", "q", environment=here).out
        head = {"Authorization": f"Bearer {local.token}"}
        with httpx.stream("GET", f"{local.url}/v1/events", headers=head, timeout=WAIT_S) as events:
            lines = events.iter_lines()
            assert "event: query-warned" in lines
            assert json.loads(next(lines).removeprefix("data: "))["query"] == "q"
        assert "submit with the expected state" in warned.reason
        over_rest = httpx.get(f"{local.url}/v1/queries/q", headers=head).json()
        assert over_rest["warning"] == query.status().warning
        fed.end()
        until(lambda: not query.status().warning)  # nothing more comes: that is known
