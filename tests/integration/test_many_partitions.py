"""As many partition groups as a query may have, and no more: refused where they are asked for."""

from __future__ import annotations

import httpx
import pytest

from dovetail_proto.errors import DovetailError
from dovetail_proto.query import PARTITIONS_MAX
from kit.cli import dovetail as run_command
from kit.cluster_faults import until
from kit.clusters import PAIR_SQL, pair, same_bag, small_cluster

SQL = PAIR_SQL.format(left="many_l", right="many_r")
BOUND = str(PARTITIONS_MAX)


def test_a_query_has_as_many_groups_as_every_processor_can_be_told_of() -> None:
    """More are refused by REST, Python and the command line; the most run, and move in one go."""
    left, right = pair(1)
    with small_cluster(memory_bytes=1_000_000_000) as local:
        cluster = local.cluster
        for name, rows in {"many_l": left, "many_r": right}.items():
            cluster.stream(name, rows.schema)
        for partitions in (PARTITIONS_MAX + 1, 1 << 20):
            asked = {"name": "more", "sql": SQL, "partitions": partitions}
            token = {"Authorization": f"Bearer {local.token}"}
            answer = httpx.post(f"{local.url}/v1/queries", json=asked, headers=token, timeout=60)
            assert answer.status_code == 422
            assert BOUND in answer.text
            with pytest.raises(DovetailError, match=BOUND):
                cluster.submit(SQL, name="more", partitions=partitions)
        told = run_command(
            *("submit", "-", "--name", "more", "--partitions", str(1 << 20), "--json"),
            environment={"DOVETAIL_URL": local.url, "DOVETAIL_TOKEN": local.token},
            stdin=SQL,
        )
        assert told.code != 0
        assert BOUND in told.json["error"]["message"]
        query = cluster.submit(SQL, name="most", partitions=PARTITIONS_MAX)
        mine = [p.group for p in query.partitions().partitions if p.owner == "p1"]
        assert len(mine) == PARTITIONS_MAX // 2
        cluster.stream("many_l").send(left)
        query.move(mine, "p2")
        until(lambda: query.moves()[0].outcome == "completed", "half of all groups have moved")
        cluster.stream("many_r").send(right)
        assert query.close().state == "closed"
        assert same_bag(query.results().to_arrow(), SQL, many_l=left, many_r=right)
