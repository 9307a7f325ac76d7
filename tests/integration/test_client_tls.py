"""A whole cluster over TLS: REST, the control line, links between processors, feeds and results."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail import certificates
from dovetail.cluster import Cluster
from dovetail_proto.errors import DovetailError
from dovetail_proto.transport import Security, Unreachable
from kit.clusters import PAIR_SQL, pair, same_bag, small_cluster


@pytest.mark.parametrize("mutual", [False, True], ids=["TLS", "mTLS"])
def test_a_cluster_joins_over_tls(mutual: bool, tmp_path: Path) -> None:
    """Exactly, and talks to nobody who does not know its authority or its token."""
    folder = tmp_path / "certs"
    certificates.init(folder)
    security = Security(
        token="all",
        authority=folder / "ca.pem",
        certificate=folder / "manager.pem",
        key=folder / "manager.key",
        mutual=mutual,
    )
    left, right = pair(seed=5)
    with small_cluster(security=security) as local:
        assert local.url.startswith("https://")
        local.cluster.stream("l", left.schema)
        local.cluster.stream("r", right.schema)
        sql = PAIR_SQL.format(left="l", right="r")
        query = local.cluster.submit(sql, name="secret", partitions=8)
        as_client = Security(
            "all",
            security.authority,
            *((folder / "client.pem", folder / "client.key") if mutual else (None, None)),
        )
        with Cluster(local.url, as_client) as client:
            client.stream("l").send(left)
            client.stream("r").send(right)
            client.query("secret").wait()
            found = client.query("secret").results().to_arrow()
        assert same_bag(found, sql, l=left, r=right)
        first = query.partitions().partitions[0]
        query.move([first.group], "p2" if first.owner == "p1" else "p1")
        for stranger in (
            Security("all"),  # does not know the authority
            Security("none", security.authority, as_client.certificate, as_client.key),
        ):
            with Cluster(local.url, stranger) as client, pytest.raises(DovetailError) as refused:
                client.queries()
            assert isinstance(refused.value, Unreachable) == (stranger.authority is None)
