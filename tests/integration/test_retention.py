"""Results that are not kept any more: everybody who asks for them is told what there is."""

from __future__ import annotations

import httpx
import numpy as np
import pyarrow as pa
import pytest

from dovetail_proto.errors import Refusal
from dovetail_proto.log_reader import Offset
from kit.cluster_faults import until
from kit.clusters import small_cluster

SCHEMA = pa.schema([("k", pa.int64())])
ROWS = 20_000
SQL = "SELECT a.k, b.k AS j, a.k + 1 AS i FROM a JOIN b ON a.k = b.k"


def test_an_offset_that_is_gone_names_the_oldest_there_is() -> None:
    """In Python and over REST; who reads from the beginning gets what is kept, without a gap."""
    with small_cluster(processors=1) as local:
        cluster = local.cluster
        streams = [cluster.stream(name, SCHEMA) for name in ("a", "b")]
        query = cluster.submit(SQL, name="q", keep_results_bytes=1)
        (log,) = {log.name for log in query.status().logs}
        sent = 0

        def gone() -> Refusal | None:
            """More results, all read: what left memory is put into a segment for that."""
            nonlocal sent
            for stream in streams:
                stream.send(pa.table({"k": np.arange(sent, sent + ROWS)}))
            sent += ROWS
            query.wait()
            query.results().to_arrow()
            try:
                query.results(offsets={log: Offset(0, 1)}).to_arrow()
            except Refusal as e:
                return e
            return None

        found: list[Refusal | None] = [None]

        def is_gone() -> bool:
            found[0] = gone()
            return found[0] is not None

        until(is_gone)
        refused = found[0]
        assert refused is not None
        oldest = refused.details["oldest"]
        assert oldest > 0
        assert f"the oldest is segment {oldest}" in str(refused)
        answer = httpx.get(
            f"{local.url}/v1/queries/q/results?log={log}&segment=0&row=1",
            headers={"Authorization": f"Bearer {local.token}"},
            timeout=60,
        )
        assert answer.status_code == 410
        assert "the oldest is segment" in answer.json()["message"]
        query.close()
        kept = query.results().to_arrow()
        keys = kept["k"].to_pylist()
        assert 0 < len(keys) < sent
        assert len(set(keys)) == len(keys)
        assert max(keys) == sent - 1


def test_what_is_kept_of_a_log_is_refused_where_there_is_none() -> None:
    """Files and counts are not the cluster's to remove."""
    with small_cluster(processors=1) as local:
        for name in ("a", "b"):
            local.cluster.stream(name, SCHEMA)
        with pytest.raises(Exception, match="what is kept of result logs is said, and it has none"):
            local.cluster.submit(SQL, name="q", counting=True, keep_results_s=60.0)
