"""A join instance between moves: groups that arrive are whole before anything else happens."""

from __future__ import annotations

import time
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail_manager.planner import plan_query
from dovetail_processor.adaptation.recent_output import RecentOutput
from dovetail_processor.cluster.duties import Duties
from dovetail_processor.cluster.instance import Instance
from dovetail_processor.cluster.transit import counters, decode, encode
from dovetail_processor.join.state import FUEL_ROWS, JoinState
from dovetail_processor.sinks import CountingSink, SinkTotals
from dovetail_proto.assignment import DiskSettings, Phase, QueryTask
from dovetail_proto.cluster_memory import cluster_shares
from dovetail_proto.ids import Epoch, GroupId, MoveId, ProcessorId, QueryName, SplitId
from dovetail_proto.messages import ControlMessage, EndOfMovedPartitions, Pushed, PushPartitions
from dovetail_proto.partition_map import PartitionMap
from dovetail_proto.partitioning import canonical_keys, partition_ids
from dovetail_proto.spill_format import SpillStore
from kit.clusters import same_bag

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.float64())])
PLAN = plan_query(
    "SELECT a.k, a.v, b.v AS w FROM a JOIN b ON a.k = b.k",
    dict.fromkeys("ab", SCHEMA),
    name="q",
    partitions=2,
)
ALL = (GroupId(0), GroupId(1))
ROWS = 3 * FUEL_ROWS
WAIT_S = 60.0


def instance(live: list[int], store: SpillStore | None = None) -> Instance:
    """With memory for everything, and a sink that counts."""
    return Instance(
        PLAN,
        np.array(live, np.int64),
        CountingSink(PLAN.output_schema),
        store,
        bounds=cluster_shares(256_000_000, inputs=2, partitions=2, hosted=0, peers=2),
        slab_bytes=128_000_000,
        disk=DiskSettings(allowed=store is not None),
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
    viewed, known, _ = sender.leave(ALL)
    receiver.arrive("m1", 0, decode(encode(sender.state, viewed, known), PLAN, ALL))
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
    viewed, known, _ = between.leave(ALL)
    again = decode(encode(between.state, viewed, known), PLAN, ALL)
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


class Told:
    """A shell that keeps what the manager is told."""

    def __init__(self) -> None:
        self.said: list[ControlMessage] = []

    def tell_manager(self, message: ControlMessage) -> None:
        """Remember it."""
        self.said.append(message)


def test_an_order_to_push_waits_for_the_end_of_a_batch(tmp_path: Path) -> None:
    """It is answered when the push is done, with the bytes that it took from memory."""
    one = instance([0, 1], SpillStore.create(str(tmp_path / "spill"), PLAN))
    shell = Told()
    known = PartitionMap.initial(QueryName("q"), [ProcessorId("p1")] * PLAN.partitions)
    task = QueryTask(QueryName("q"), PLAN, known, {}, Phase.RUNNING, DiskSettings(True), None, None)
    nothing = SimpleNamespace(splits={})
    duties = Duties(task, ProcessorId("p1"), nothing, one, shell)  # type: ignore[arg-type]
    one.queues[0].arrived(1, rows(), 1)
    one.step()
    assert not one.state.idle
    duties.handle(PushPartitions(QueryName("q"), Epoch(1), 1, 1), None)
    while one.ready:
        duties.look_at_pushes()
        assert not shell.said
        one.step()
    held = one.state.group_bytes().tolist()
    duties.look_at_pushes()
    while not shell.said:
        assert one.pusher is not None
        one.pusher.finish()
        duties.look_at_pushes()
    assert shell.said == [Pushed(QueryName("q"), Epoch(1), 1, max(held))]
    assert one.state.group_bytes().tolist() == [0 if h == max(held) else h for h in held]


class _Gated:
    """Keeps results; takes none before it is opened."""

    held_bytes = 0

    def __init__(self) -> None:
        self.opened = Event()
        self.batches: list[pa.RecordBatch] = []

    def write(self, batch: pa.RecordBatch) -> None:
        """Waits for the test."""
        assert self.opened.wait(WAIT_S)
        self.batches.append(batch)

    def roll(self) -> None:
        """Nothing is ever unfinished."""

    def close(self) -> SinkTotals:
        """All is kept."""
        return SinkTotals(sum(b.num_rows for b in self.batches), 0, 0, ())

    def abort(self) -> None:
        """Nothing to drop."""


TEXTS = pa.schema([("k", pa.int64()), ("v", pa.string())])
TEXT_PLAN = plan_query(
    "SELECT a.k, a.v, b.v AS w FROM a JOIN b ON a.k = b.k",
    dict.fromkeys("ab", TEXTS),
    name="q",
    partitions=8,
)


def test_groups_that_arrive_wait_for_results_that_wait_for_the_sink(tmp_path: Path) -> None:
    """Results that are not emitted yet are read from the state: nothing may be pushed before."""
    keys = np.arange(11_000)
    group_of = partition_ids(canonical_keys([pa.array(keys)], TEXT_PLAN.key_types).hashes, 8)
    here = keys[group_of < 4]

    def texts(of: NDArray[np.int64], letter: str) -> pa.RecordBatch:
        values = pa.array([f"{letter}{k}-" * 45 for k in of.tolist()])
        return pa.RecordBatch.from_arrays([pa.array(of), values], schema=TEXTS)

    sink, woken = _Gated(), Event()
    receiver = Instance(
        TEXT_PLAN,
        np.arange(4),
        sink,
        SpillStore.create(str(tmp_path), TEXT_PLAN),
        bounds=cluster_shares(5_000_000, inputs=2, partitions=8, hosted=0, peers=2),
        slab_bytes=cluster_shares(
            5_000_000, inputs=2, partitions=8, hosted=0, peers=2
        ).shares.state,
        disk=DiskSettings(allowed=True, spill_above_ratio=1.0),
        clock=time.monotonic,
        moving=lambda: True,  # only what needs memory at once pushes
        wake=woken.set,
    )
    left, right = texts(here, "a"), texts(here[-1_200:], "b")
    receiver.queues[0].arrived(1, left, 1)
    work(receiver)
    receiver.queues[1].arrived(1, right, 1)
    work(receiver)
    assert receiver.state.idle, "the batch is joined"
    assert not receiver.settled, "and its results wait for the sink"
    sender = JoinState(TEXT_PLAN, 64_000_000, chunk_rows=1_000)
    elsewhere = np.arange(4, 8)
    sender.begin(0, texts(keys[group_of >= 4], "a"), 0.0)
    while sender.advance() is not None:
        pass
    output = RecentOutput(sender.produced, sender.generation, 0.0)
    moved = encode(sender, sender.view(elsewhere), counters(sender, elsewhere, output, 0.0))
    receiver.arrive("m1", 0, decode(moved, TEXT_PLAN, elsewhere.tolist()))
    work(receiver)
    sink.opened.set()
    while not receiver.empty:
        woken.clear()
        work(receiver)
        receiver.markers()  # what is joined makes room in the queues
        assert receiver.empty or receiver.ready or woken.wait(WAIT_S), "nothing gets on"
    receiver.stop()
    assert receiver.pusher is not None
    assert receiver.pusher.pushes, "what arrived needed memory"
    sql = "SELECT a.k, a.v, b.v AS w FROM a JOIN b ON a.k = b.k"
    found = pa.Table.from_batches(sink.batches)
    assert same_bag(found, sql, a=pa.table(left), b=pa.table(right))


def test_a_push_under_way_makes_room_also_when_the_policy_forbids_the_next(tmp_path: Path) -> None:
    """The join waits for its end instead of asking other queries for memory, or failing."""
    one = instance([0, 1], SpillStore.create(str(tmp_path / "spill"), PLAN))
    one.queues[0].arrived(1, rows(), 1)
    work(one)
    assert one.push(1)
    one.set_shares(one.bounds, DiskSettings(allowed=False))
    one.now()
    assert one.short is None
    assert one.pusher is not None
    one.pusher.finish()
    assert one.pushes == 1
