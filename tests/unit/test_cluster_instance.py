"""A join instance between moves: groups that arrive are whole before anything else happens."""

from __future__ import annotations

import time

import numpy as np
import pyarrow as pa

from dovetail_manager.planner import plan_query
from dovetail_processor.cluster.instance import Instance
from dovetail_processor.cluster.shares import cluster_shares
from dovetail_processor.cluster.transit import decode, encode
from dovetail_processor.join.state import FUEL_ROWS
from dovetail_processor.sinks import CountingSink
from dovetail_proto.assignment import DiskSettings
from dovetail_proto.ids import GroupId, MoveId, QueryName, SplitId
from dovetail_proto.messages import EndOfMovedPartitions

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.float64())])
PLAN = plan_query(
    "SELECT a.k, a.v, b.v AS w FROM a JOIN b ON a.k = b.k",
    dict.fromkeys("ab", SCHEMA),
    name="q",
    partitions=2,
)
ALL = (GroupId(0), GroupId(1))
ROWS = 3 * FUEL_ROWS


def instance(live: list[int]) -> Instance:
    """With memory for everything, and a sink that counts."""
    return Instance(
        PLAN,
        np.array(live, np.int64),
        CountingSink(PLAN.output_schema),
        None,
        bounds=cluster_shares(256_000_000, queries=1, inputs=2, partitions=2, hosted=0, peers=2),
        disk=DiskSettings(allowed=False),
        clock=time.monotonic,
        moving=lambda: False,
        wake=lambda: None,
    )


def rows(first: int = 0) -> pa.RecordBatch:
    """Keys that occur once."""
    keys = np.arange(first, first + ROWS)
    return pa.RecordBatch.from_arrays([pa.array(keys), pa.array(keys * 1.0)], schema=SCHEMA)


def work(one: Instance) -> None:
    """Until nothing is left to do."""
    while one.ready:
        one.step()


def hand_over(receiver: Instance) -> None:
    """Rows were joined elsewhere, and their groups have just arrived here."""
    sender = instance([0, 1])
    sender.queues[0].arrived(1, rows(), 1)
    work(sender)
    viewed, counters, _ = sender.leave(ALL)
    receiver.arrive("m1", 0, decode(encode(sender.state, viewed, counters), PLAN, ALL))
    receiver.activate(ALL)


def test_a_marker_waits_until_arrived_groups_are_installed() -> None:
    """Else a group that is sent on at once would leave without its rows."""
    between = instance([])
    hand_over(between)
    marker = EndOfMovedPartitions(QueryName("q"), MoveId("m2"), 0, SplitId("q/0"))
    assert between.queues[0].arrived(1, marker, 0)
    between.overtake(0, ALL)
    steps = 0
    while not (found := between.markers()):
        assert between.ready, "the marker never comes"
        between.step()
        steps += 1
    assert found == [marker]
    assert steps > ROWS // FUEL_ROWS, "installing lets messages in"
    viewed, counters, _ = between.leave(ALL)
    again = decode(encode(between.state, viewed, counters), PLAN, ALL)
    assert again.rows[0].num_rows == ROWS


def test_rows_that_follow_a_group_meet_what_came_with_it() -> None:
    """However early they are: the group goes in first."""
    receiver = instance([])
    hand_over(receiver)
    receiver.queues[1].arrived(1, rows(), 1)
    work(receiver)
    assert receiver.produced == ROWS
    assert receiver.markers() == []
    assert receiver.empty
