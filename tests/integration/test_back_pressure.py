"""A slow sink slows the source, on another processor too, and memory stays within the limit."""

from __future__ import annotations

import threading
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa

from dovetail_manager.planner import plan_query
from dovetail_processor.sinks import CountingSink
from kit.local_workers import TIMEOUT_S, LocalWorkers

MEMORY_BYTES = 8_000_000
SCHEMA = pa.schema([("k", pa.int64()), ("text", pa.string())])
PLAN = plan_query(
    "SELECT a.text AS x, b.text AS y FROM a JOIN b ON a.k = b.k",
    dict.fromkeys("ab", SCHEMA),
    name="q",
    partitions=16,
)
KEYS = 64
COPIES = 40
"""Of every key in each stream: a batch of b makes KEYS × COPIES results."""


class Gate(CountingSink):
    """A sink that takes nothing until it is opened."""

    opened = threading.Event()

    def write(self, batch: pa.RecordBatch) -> None:
        """Wait for the gate."""
        assert self.opened.wait(TIMEOUT_S)
        super().write(batch)


def batch(keys: list[int]) -> pa.RecordBatch:
    """Rows with a kilobyte of text each, so that results are large."""
    return pa.record_batch([keys, ["x" * 1000] * len(keys)], schema=SCHEMA)


def test_a_sink_that_takes_nothing_stops_the_source_and_nothing_is_lost(tmp_path: Path) -> None:
    """Batches stay unrouted, memory within the limit; once the sink opens all is joined."""
    Gate.opened.clear()
    with (
        patch("dovetail_processor.shell.files.open_sink", lambda *_: Gate(PLAN.output_schema)),
        LocalWorkers(PLAN, ["p1", "p2"], MEMORY_BYTES, tmp_path) as cluster,
    ):
        cluster.assign()
        for _ in range(COPIES):
            assert cluster.send("a", batch(list(range(KEYS)))).wait(TIMEOUT_S)
        sent = [cluster.send("b", batch(list(range(KEYS)))) for _ in range(COPIES)]
        assert not sent[-1].wait(0.5), "the source was not stopped"
        for net in cluster.nets.values():
            assert net.snapshot.used_bytes <= MEMORY_BYTES
        Gate.opened.set()
        assert all(event.wait(TIMEOUT_S) for event in sent)
        assert sum(cluster.close().values()) == KEYS * COPIES * COPIES
