"""What `wait` has waited for is in the status, however rare heartbeats are."""

from __future__ import annotations

import json
from collections.abc import Callable

import httpx
import pytest

from dovetail import LocalCluster, Query
from kit.cli import dovetail
from kit.clusters import PAIR_SQL, pair, small_cluster

RARE_S = 60.0
"""Between two heartbeats: far longer than the test takes."""


def by_python(_: LocalCluster, query: Query) -> tuple[int, int]:
    """Rows and results."""
    query.wait()
    status = query.status()
    return sum(i.rows_in for i in status.inputs), status.results


def by_rest(local: LocalCluster, query: Query) -> tuple[int, int]:
    """The same, with nothing but HTTP."""
    head = {"Authorization": f"Bearer {local.token}"}
    with httpx.Client(base_url=f"{local.url}/v1/queries", headers=head, timeout=60) as http:
        assert http.post(f"/{query.name}/wait").is_success
        status = http.get(f"/{query.name}").json()
    return sum(i["rows_in"] for i in status["inputs"]), status["results"]


def by_commands(local: LocalCluster, query: Query) -> tuple[int, int]:
    """The same, as it is typed."""
    here = {"DOVETAIL_URL": local.url, "DOVETAIL_TOKEN": local.token}
    assert dovetail("wait", query.name, environment=here).code == 0
    status = json.loads(dovetail("status", query.name, "--json", environment=here).out)
    return sum(i["rows_in"] for i in status["inputs"]), status["results"]


@pytest.mark.parametrize("wait", [by_python, by_rest, by_commands])
def test_status_after_wait_counts_what_was_waited_for(
    wait: Callable[[LocalCluster, Query], tuple[int, int]],
) -> None:
    """All rows of both streams, and the results that all processors found."""
    left, right = pair(seed=3)
    with small_cluster(heartbeat_s=RARE_S, dead_after_s=3 * RARE_S) as local:
        cluster = local.cluster
        streams = [cluster.stream("l", left.schema), cluster.stream("r", right.schema)]
        query = cluster.submit(PAIR_SQL.format(left="l", right="r"), name="q", partitions=20)
        for stream, table in zip(streams, (left, right), strict=True):
            stream.send(table)
        rows, results = wait(local, query)
        assert rows == left.num_rows + right.num_rows
        assert results == query.results().to_arrow().num_rows > 0
