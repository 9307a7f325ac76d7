"""Queries on streams that have ended: refused, unless something is still to come."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import httpx
import pyarrow.parquet as pq
import pytest

from dovetail_proto.errors import Refusal
from kit.clusters import PAIR_SQL, pair, same_bag, small_cluster

WAIT_S = 60.0
ROWS = 3_000


def until(true: Callable[[], bool]) -> None:
    """Wait until it is true, for a minute."""
    patience = threading.Event()
    for _ in range(1200):
        if true():
            return
        patience.wait(0.05)
    raise AssertionError("waited in vain")


def test_a_query_on_a_stream_that_brings_nothing_more_is_refused(tmp_path: Path) -> None:
    """It has ended, or its file was read; a file that is still to be read comes whole."""
    left, right = pair(seed=12, rows=ROWS)
    with small_cluster(processors=1) as local:
        cluster = local.cluster
        for name, table in (("l", left), ("r", right)):
            pq.write_table(table, tmp_path / f"{name}.parquet")
            cluster.create_stream(name, path=tmp_path / f"{name}.parquet")
        cluster.stream("l").end()  # its file is not read yet
        sql = PAIR_SQL.format(left="l", right="r")
        query = cluster.submit(sql, name="q")
        until(lambda: all(s.rows == ROWS and s.drained for s in cluster.streams()))
        query.wait(WAIT_S)
        assert same_bag(query.results().to_arrow(), sql, l=left, r=right)

        read = r"nothing more comes on stream 'l': its file '.*l\.parquet' has been read"
        with pytest.raises(Refusal, match=f"{read}.*would find nothing; create another stream"):
            cluster.submit(sql, name="late")
        cluster.stream("sent", left.schema).end()
        sql = PAIR_SQL.format(left="sent", right="r")
        answer = httpx.post(
            f"{local.url}/v1/queries",
            json={"name": "late", "sql": sql},
            headers={"Authorization": f"Bearer {local.token}"},
            timeout=WAIT_S,
        )
        assert answer.status_code == 409
        assert "nothing more comes on stream 'sent': it has ended" in answer.json()["message"]
        assert [q.name for q in cluster.queries()] == ["q"]
