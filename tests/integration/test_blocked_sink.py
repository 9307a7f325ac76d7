"""Results that cannot be written for a while, on a running cluster: nothing is lost or misread."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail import Stream
from dovetail_manager.moves.steps import MoveSettings
from dovetail_proto.admin import InstanceStatus
from dovetail_proto.cluster_memory import cluster_shares
from dovetail_proto.partitioning import canonical_keys, partition_ids
from kit.blocked_folder import blocked
from kit.cluster_faults import WAIT_S, FaultyCluster, until
from kit.clusters import same_bag

PARTITIONS = 8
MEMORY_BYTES = 8_000_000
BOUNDS = cluster_shares(MEMORY_BYTES, inputs=2, partitions=PARTITIONS, hosted=0, peers=3)
ROW_BYTES = 380  # of memory
ROOM_ROWS = BOUNDS.shares.state // ROW_BYTES
TIMES = 32  # that a key occurs in the left stream
MATCHED_ROWS = BOUNDS.shares.batch // ROW_BYTES // 2
"""One batch of the right stream; its results are more than may wait for the sink, also in what the
state leaves free."""

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])


def texts(keys: NDArray[np.int64], letter: str) -> pa.Table:
    """A row for each key."""
    return pa.table(
        {"k": keys, "v": [f"{letter}{k:05}-" * 50 for k in keys.tolist()]}, schema=SCHEMA
    )


def keys_of(owner: int) -> NDArray[np.int64]:
    """Keys of the first (0) or the second (1) half of the groups."""
    candidates = np.arange(ROOM_ROWS)
    hashes = canonical_keys([pa.array(candidates)], [pa.int64()]).hashes
    halves = partition_ids(hashes, PARTITIONS).astype(np.int64) // (PARTITIONS // 2)
    return candidates[halves == owner]


def heard_s(local: FaultyCluster, name: str) -> float:
    """When the manager last heard of a processor."""
    return next(p.heard_s for p in local.cluster.status().processors if p.name == name)


def test_what_a_blocked_sink_waits_for_stays_while_groups_arrive(tmp_path: Path) -> None:
    """Results are read from the state piece by piece: nothing goes into it before they are out."""
    rows = [keys_of(owner).repeat(TIMES)[: round(0.4 * ROOM_ROWS)] for owner in (0, 1)]
    with FaultyCluster(
        processors=3,
        memory_bytes=MEMORY_BYTES,
        data_dir=tmp_path,
        dead_after_s=WAIT_S,
        moves=MoveSettings(resend_s=0.2, step_timeout_s=WAIT_S),
    ) as local:
        left = local.stream_at("p3", SCHEMA, set())
        right = local.stream_at("p3", SCHEMA, {left.name})
        sql = f"SELECT l.k, l.v, r.v AS w FROM {left.name} l JOIN {right.name} r ON l.k = r.k"
        query = local.cluster.submit(
            sql,
            name="q",
            partitions=PARTITIONS,
            weights=(1, 1, 0),
            policy="disk",
            spill_above_ratio=1.0,  # only what needs memory at once pushes
        )

        def p2() -> InstanceStatus:
            return next(i for i in query.status().instances if i.processor == "p2")

        def beats(number: int) -> None:
            """Let p2 do what it would, for some of its heartbeats."""
            for _ in range(number):
                before_s = heard_s(local, "p2")
                until(lambda s=before_s: heard_s(local, "p2") > s, "p2 is heard")

        def send(stream: Stream, keys: NDArray[np.int64]) -> None:
            table = texts(keys, stream.name[-1])
            stream.send(table)
            sent[stream.name].append(table)

        sent: dict[str, list[pa.Table]] = {left.name: [], right.name: []}
        send(left, rows[0])
        send(left, rows[1])
        query.wait(WAIT_S)
        local.arm("p1", "before hears SendPartitions", "SIGSTOP")
        query.move([0, 1], "p2")
        local.await_fault("p1")  # p2 has room for them, and they are not on their way yet
        matched = np.unique(rows[1])[:MATCHED_ROWS]
        with blocked(tmp_path / "p2" / "results" / "q" / "p2"):
            send(right, matched)
            until(lambda: p2().produced == len(matched) * TIMES, "the batch is joined")
            assert p2().results < p2().produced, "its results wait"
            held_bytes = p2().held_bytes
            local.go_on("p1")
            until(lambda: all(m.ended_s for m in query.moves()), "the groups have arrived")
            [moved] = query.moves()
            assert moved.outcome == "completed"
            beats(20)
            assert p2().held_bytes == held_bytes, "what arrived waits, too"
            assert p2().results < p2().produced, "its results wait still"
        until(lambda: p2().held_bytes > held_bytes, "what arrived is in the state")
        send(right, np.concatenate([np.unique(rows[0]), np.unique(rows[1])]))
        assert query.close(WAIT_S).pushes == 0
        found = query.results().to_arrow()
    tables = {name: pa.concat_tables(parts) for name, parts in sent.items()}
    assert same_bag(found, sql, **tables)
