"""More feeds and readers at once than a processor takes: refused by name, and nobody else stops."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from dovetail.local_cluster import LocalCluster
from dovetail_processor.shell.data_plane import FEEDS_MAX, READS_MAX
from dovetail_proto.admin import LogStatus
from dovetail_proto.channels import Channels
from dovetail_proto.errors import Domain, DovetailError, Refusal
from dovetail_proto.feeds import ReadResults
from dovetail_proto.ids import LogName, QueryName
from dovetail_proto.wire.data import encode
from dovetail_proto.wire.methods import INGEST, READ_RESULTS
from kit.cluster_faults import until
from kit.clusters import PAIR_SQL, pair, same_bag, small_cluster

MORE = 44
"""Calls beyond what is taken."""

SQL = PAIR_SQL.format(left="l", right="r")


@pytest.fixture
def local() -> Iterator[LocalCluster]:
    """One processor."""
    with small_cluster(processors=1) as made:
        yield made


def silent_feeds(channels: Channels, log: LogStatus, ended: threading.Event) -> list[Any]:
    """Sources that have called and send nothing until `ended`."""

    def nothing() -> Iterator[bytes]:
        ended.wait()
        yield from ()

    return [channels.stream_stream(log.address, INGEST, nothing()) for _ in range(FEEDS_MAX + MORE)]


def followers(channels: Channels, log: LogStatus, ended: threading.Event) -> list[Any]:
    """Readers of the results to come."""
    asked = encode(ReadResults(QueryName("q"), LogName(log.name), 0, 0, True, log.run, 0))
    count = READS_MAX + MORE
    return [channels.unary_stream(log.address, READ_RESULTS, asked) for _ in range(count)]


def taken(call: Callable[[], object]) -> bool:
    """Make a call; whether it was taken: the processor may not know yet that others have ended."""
    try:
        call()
    except Refusal as e:
        if e.domain is not Domain.BUSY:
            raise
        return False
    return True


@pytest.mark.parametrize("calls", [silent_feeds, followers])
def test_too_many_calls_are_refused_and_stop_nobody(
    local: LocalCluster, calls: Callable[[Channels, LogStatus, threading.Event], list[Any]]
) -> None:
    """A feed that was there before goes on, and so do `wait`, `status` and the answer.

    One that comes too many is sent when there is room again.
    """
    cluster, ended = local.cluster, threading.Event()
    left, right = pair(seed=16)
    for name, table in (("l", left), ("r", right)):
        cluster.stream(name, table.schema)
    query = cluster.submit(SQL, name="q")
    before = cluster.stream("l")
    before.send(left.slice(0, 100))
    channels = Channels(local.security)
    opened = calls(channels, query.status().logs[0], ended)
    late = ThreadPoolExecutor(1)
    try:
        until(lambda: sum(call.done() for call in opened) >= MORE)
        refused = [call for call in opened if call.done()]
        assert len(refused) - MORE in (0, 1), "one more if `before` still keeps its call"
        assert "already" in refused[0].details()
        sent = late.submit(cluster.stream("r").send, right)
        if calls is followers:
            sent.result(60)
            with pytest.raises(DovetailError, match="has 256 readers of results already"):
                next(iter(query.results(follow=True)))
        query.wait()
        assert cluster.status().processors[0].state == "alive"
    finally:
        ended.set()
        for call in opened:
            call.cancel()
    before.send(left.slice(100))
    assert sent.result(60) == len(right)
    late.shutdown()
    query.close()
    found: list[pa.Table] = []
    until(lambda: taken(lambda: found.append(query.results().to_arrow())))
    assert same_bag(found[0], SQL, l=left, r=right)
    channels.close()


def test_streams_that_are_made_for_every_row_leave_no_connections(local: LocalCluster) -> None:
    """More than a processor takes at once; each is let go with its stream."""
    left, right = pair(seed=5, rows=FEEDS_MAX + MORE)
    for name, table in (("l", left), ("r", right)):
        local.cluster.stream(name, table.schema)
    query = local.cluster.submit(SQL, name="q")
    for row in range(left.num_rows):
        local.cluster.stream("l").send(left.slice(row, 1))
    local.cluster.stream("r").send(right)
    assert query.close().state == "closed"
    assert same_bag(query.results().to_arrow(), SQL, l=left, r=right)
