"""A query on one worker: from its opening to its end, and what it does when something fails."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dovetail_manager.planner import plan_query
from dovetail_processor.adaptation.recent_output import RecentOutput
from dovetail_processor.join.state import JoinState
from dovetail_processor.join.transfer import counters, decode, encode
from dovetail_proto.assignment import DiskSettings, Phase
from dovetail_proto.errors import OutputError, SpillError
from dovetail_proto.ids import Epoch, QueryName, split_id
from dovetail_proto.messages import Pushed, PushPartitions, Stage
from dovetail_proto.partition_map import PartitionMap
from dovetail_proto.partitioning import canonical_keys, partition_ids
from dovetail_proto.spill_format import SpillStore
from kit import join_cases as cases
from kit.clusters import same_bag
from kit.hand_shell import HERE, HandWorker

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.float64())])
SQL = "SELECT a.k, a.v, b.v AS w FROM a JOIN b ON a.k = b.k"
PLAN = plan_query(SQL, dict.fromkeys("ab", SCHEMA), name="q", partitions=8)


def rows(first: int, count: int = 1_000) -> pa.RecordBatch:
    """Keys that occur once."""
    keys = np.arange(first, first + count)
    return pa.RecordBatch.from_arrays([pa.array(keys), pa.array(keys * 1.0)], schema=SCHEMA)


def joined(one: HandWorker) -> None:
    """The query runs, and some rows of both streams are joined."""
    one.assign()
    one.settle()
    for stream in "ab":
        one.send(stream, rows(0))
        one.settle()
    assert one.query.stage is Stage.RUNNING, one.query.cause


def close(one: HandWorker) -> None:
    """The query closes, as far as that goes without jobs."""
    one.assign(phase=Phase.CLOSING)
    for _ in range(3):
        one.now_s += 1.0
        one.work()


def test_rows_wait_until_the_files_are_open_and_then_all_are_joined() -> None:
    """Nothing is lost that came before the sink could be opened."""
    one = HandWorker(PLAN)
    one.assign()
    answers = [one.send(stream, rows(0)) for stream in "ab"]
    more = one.send("a", rows(1_000))
    one.work()
    assert answers == [[(1_000, 1)], [(1_000, 1)]], "a batch waits before the query"
    assert one.query.claim.frees, "and nobody has to stop meanwhile"
    one.settle()
    assert more == [(2_000, 1)]
    close(one)
    one.settle()
    assert one.query.stage is Stage.CLOSED, one.query.cause
    assert same_bag(one.results(), SQL, a=pa.table(rows(0)), b=pa.table(rows(0)))
    assert one.query.load().results == 1_000


def test_a_query_whose_files_cannot_be_opened_fails_and_says_why() -> None:
    """Whoever sent rows for it is answered: nobody waits for it."""
    one = HandWorker(PLAN)
    one.shell.files.refuses = OutputError("no such folder")
    one.assign()
    answers = one.send("a", rows(0))
    one.settle()
    assert one.query.stage is Stage.FAILED
    assert "no such folder" in one.query.load().cause
    assert answers == [(1_000, 1)], "it had taken them in"
    assert one.send("a", rows(0)) == [(2_000, 0)]


def test_a_query_that_is_dropped_while_it_opens_leaves_nothing_open() -> None:
    """The sink comes too late, and is aborted."""
    one = HandWorker(PLAN)
    one.assign()
    query = one.query
    one.set(queries=())
    one.settle()
    assert query.stage is Stage.FAILED
    assert one.shell.files.sinks["q"].calls == ["abort"]


def test_closing_pushes_the_rest_then_closes_the_sink_then_the_store(tmp_path: Path) -> None:
    """What was pushed before is owed with what memory still has of it; the record comes last."""
    one = HandWorker(PLAN, spill=tmp_path)
    joined(one)
    one.say(PushPartitions(QueryName("q"), Epoch(1), 1, 1))
    one.settle()
    assert one.query.load().pushes == 1
    one.send("a", rows(1_000))
    one.settle()
    close(one)
    assert one.query.closing
    assert [len(one.lane(lane).jobs) for lane in ("spill", "results")] == [1, 0]
    one.lane("spill").do()
    pushes = SpillStore.open(str(tmp_path / "q")).pushes()
    assert len(pushes) == 2, "the rest of what was pushed before"
    assert [len(one.lane(lane).jobs) for lane in ("spill", "results")] == [0, 1]
    one.lane("results").do()
    assert one.sink.calls[-1] == "close"
    assert not SpillStore.open(str(tmp_path / "q")).closed
    assert one.query.stage is Stage.RUNNING
    one.lane("spill").do()
    assert one.query.stage is Stage.CLOSED
    closed = SpillStore.open(str(tmp_path / "q"))
    assert closed.closed
    assert closed.run_record().rows_in == (2_000, 1_000)
    assert all(lane.closed for lane in one.shell.lanes.values() if lane.name.startswith("q-"))


@pytest.mark.parametrize("lane", ["spill", "results"])
def test_a_query_that_fails_while_it_closes_keeps_what_it_found(lane: str, tmp_path: Path) -> None:
    """Whether the last push, or the sink's end was under way: results stay, nothing is half."""
    one = HandWorker(PLAN, spill=tmp_path)
    joined(one)
    one.say(PushPartitions(QueryName("q"), Epoch(1), 1, 1))
    one.settle()
    one.send("a", rows(1_000))
    one.settle()
    close(one)
    if lane == "results":
        one.lane("spill").do()
    assert one.lane(lane).jobs
    one.set(queries=())
    one.settle()
    assert "close" in one.sink.calls
    assert one.sink.calls.count("close") == 1
    assert one.lane("results").closed
    assert not SpillStore.open(str(tmp_path / "q")).closed


def test_a_sink_that_fails_ends_the_query_and_is_not_written_to_again() -> None:
    """The cause is what the sink said."""
    one = HandWorker(PLAN)
    joined(one)
    one.sink.fails = OutputError("the disk is full")
    for stream in "ab":
        one.send(stream, rows(1_000))
    one.settle()
    assert one.query.stage is Stage.FAILED
    assert one.query.cause == "the disk is full"
    assert one.sink.calls[-2:] == ["write", "abort"]
    assert one.worker.heartbeat().loads[0].stage is Stage.FAILED


def test_a_defect_of_one_query_does_not_take_the_worker_along() -> None:
    """It fails with what was raised, and the worker goes on."""
    one = HandWorker(PLAN)
    joined(one)

    def defect(now_s: float) -> None:
        raise ZeroDivisionError("a defect")

    one.query.join.step = defect  # type: ignore[method-assign]
    one.send("a", rows(1_000))
    one.settle()
    assert one.query.cause == "ZeroDivisionError: a defect"
    assert one.send("a", rows(2_000)) == [(3_000, 0)]


def test_a_failed_query_gives_back_what_it_took_of_the_queues() -> None:
    """Nothing is written, so the join waits and rows queue before it; others may queue there."""
    one = HandWorker(PLAN)
    joined(one)
    answers = []
    for n in range(60):
        for stream in "ab":
            answers.append(one.send(stream, rows(20_000 * n, 20_000)))
            one.work()
    assert answers[-1] == [], "the source waits"
    assert one.worker.queues.used_bytes > 0
    one.set(queries=())
    assert one.worker.queues.used_bytes == 0


def test_output_borrows_memory_for_state_and_gives_it_back() -> None:
    """One key meets thousands: pieces are larger than their share, and never beyond the limit."""
    one = HandWorker(PLAN, memory_bytes=4_000_000)
    one.assign()
    one.settle()
    query, share = one.query, one.query.bounds.shares.output
    hot = pa.RecordBatch.from_arrays(
        [pa.array(np.zeros(700, np.int64)), pa.array(np.arange(700.0))], schema=SCHEMA
    )
    one.send("a", hot)
    one.settle()
    one.send("b", hot)
    one.work()
    assert query.state.limit_bytes < 4_000_000 - query.bounds.fixed, "some is lent"
    assert query.claim.frees, "and comes back by itself"
    waiting = query._output[-1].first
    assert waiting is not None
    assert waiting.size_bytes > 2 * share
    while one.lane("results").jobs:
        assert query.used_bytes <= 4_000_000
        one.lane("results").do()
        one.work()
    assert query.state.limit_bytes == 4_000_000 - query.bounds.fixed, "all is back"
    close(one)
    one.settle()
    assert same_bag(one.results(), SQL, a=pa.table(hot), b=pa.table(hot))


def test_a_query_that_closes_wants_nothing_of_what_others_read_on() -> None:
    """However long its end takes: here another processor does not answer."""
    one = HandWorker(PLAN, owners=["p1", "p2"])
    joined(one)
    [mine] = one.wanted.queries
    name = QueryName("other")
    hosts = {HERE: tuple(split_id(name, i) for i in range(2))}
    known = PartitionMap.initial(name, [HERE] * PLAN.partitions)
    other = replace(mine, name=name, plan=replace(PLAN, name=name), map=known, split_hosts=hosts)
    one.set(queries=(mine, other))
    one.set(queries=(replace(mine, phase=Phase.CLOSING), other))
    one.settle()
    for n in range(3):
        one.send("a", rows(1_000 * (n + 1)))
        one.pass_time(1.0)
    assert one.query.stage is Stage.RUNNING
    assert one.query.load().rows_in == (1_000, 1_000)
    assert one.worker.queries[name].load().rows_in == (3_000, 0)


def test_an_order_to_push_waits_for_the_end_of_a_batch(tmp_path: Path) -> None:
    """It is answered when the push is done, with the bytes that it took from memory; once."""
    one = HandWorker(PLAN, spill=tmp_path)
    one.assign()
    one.settle()
    one.send("a", rows(0, 100_000))
    state = one.query.state
    while state.idle:
        assert one.worker.step(0.0)
    order = PushPartitions(QueryName("q"), Epoch(1), 1, 1)
    one.say(order)
    while not one.query.memory.pushing:
        assert not state.idle
        assert one.worker.step(0.0)
        held = state.group_bytes().tolist()
    assert state.idle
    assert held.count(0) == 1, "the group that is being pushed is out of the state"
    one.work()
    assert one.shell.said == []
    before = state.held_bytes
    one.settle()
    taken = before - state.held_bytes
    assert one.shell.said == [Pushed(QueryName("q"), Epoch(1), 1, taken)]
    one.say(order)
    one.settle()
    assert one.shell.said[1:] == one.shell.said[:1], "it is answered again and done once"
    assert one.query.load().pushes == 1
    one.say(replace(order, order=2))
    one.settle()
    one.say(order)
    one.settle()
    assert len(one.shell.said) == 3, "nobody waits for one from before the last"
    assert one.query.load().pushes == 2


def test_a_place_on_disk_that_fails_ends_the_query(tmp_path: Path) -> None:
    """It is no lack of room: nobody can say that it will be well again."""
    one = HandWorker(PLAN, spill=tmp_path)
    joined(one)
    assert one.query.pusher is not None

    def broken() -> object:
        raise SpillError("the disk is broken")

    one.query.pusher._store.begin_push = broken  # type: ignore[assignment,method-assign]
    one.say(PushPartitions(QueryName("q"), Epoch(1), 1, 1))
    one.settle()
    assert one.query.stage is Stage.FAILED
    assert one.query.cause == "the disk is broken"
    assert one.sink.calls[-1] == "close", "what was found stays"


def test_a_push_under_way_makes_room_also_when_the_policy_forbids_the_next(tmp_path: Path) -> None:
    """The join waits for its end instead of asking other queries for memory, or failing."""
    one = HandWorker(PLAN, spill=tmp_path)
    joined(one)
    one.say(PushPartitions(QueryName("q"), Epoch(1), 1, 1))
    one.work()
    memory = one.query.memory
    assert memory.pushing
    one.assign(disk=DiskSettings(allowed=False))
    memory.now(0.0)
    assert memory.short is None
    assert memory.waits
    one.settle()
    assert one.query.load().pushes == 1
    assert not memory.waits


def test_a_paused_query_takes_nothing_in_and_joins_what_it_took() -> None:
    """Its sources wait until it goes on."""
    one = HandWorker(PLAN)
    joined(one)
    one.assign(phase=Phase.PAUSED)
    answers = one.send("a", rows(1_000))
    one.settle()
    assert answers == []
    one.assign(phase=Phase.RUNNING)
    one.settle()
    assert answers == [(2_000, 1)]


TEXTS = pa.schema([("k", pa.int64()), ("v", pa.string())])
TEXT_PLAN = plan_query(SQL, dict.fromkeys("ab", TEXTS), name="q", partitions=8)


def texts(keys: np.ndarray, letter: str) -> pa.RecordBatch:
    """Long values."""
    values = pa.array([f"{letter}{k}-" * 45 for k in keys.tolist()])
    return pa.RecordBatch.from_arrays([pa.array(keys), values], schema=TEXTS)


def test_groups_that_arrive_wait_for_results_that_wait_for_the_sink(tmp_path: Path) -> None:
    """Results that are not emitted yet are read from the state: nothing may be pushed before."""
    keys = np.arange(11_000)
    hashes = canonical_keys([pa.array(keys)], TEXT_PLAN.key_types).hashes
    here = keys[partition_ids(hashes, 8) >= 4]
    elsewhere = np.arange(4)
    one = HandWorker(
        TEXT_PLAN,
        owners=["p2"] * 4 + [HERE] * 4,
        memory_bytes=5_000_000,
        spill=tmp_path,
        disk=DiskSettings(allowed=True, spill_above_ratio=1.0),
    )
    one.assign()
    one.settle()
    left, right = texts(np.tile(here[:139], 40), "a"), texts(here[:139], "b")  # in one batch
    for n in range(0, left.num_rows, 500):
        one.send("a", left.slice(n, 500))
        one.settle()
    one.send("b", right)
    one.work()
    query = one.query
    while not (query.state.idle and not query.join.idle):
        assert one.lane("results").jobs, "its results wait for the sink"
        one.lane("results").do()
        one.work()
    sender = JoinState(TEXT_PLAN, 64_000_000, chunk_rows=1_000)
    cases.begin(sender, 0, texts(keys[partition_ids(hashes, 8) < 4], "a"))
    while sender.advance() is not None:
        pass
    output = RecentOutput(sender.produced, sender.generation, 0.0)
    payload = encode(sender, sender.view(elsewhere), counters(sender, elsewhere, output, 0.0))
    query.moves._arrivals["m", 0] = decode(payload, TEXT_PLAN, elsewhere.tolist())
    query.join.later(query.moves._install("m", 0))
    one.settle()
    assert query.stage is Stage.RUNNING, query.cause
    assert query.load().pushes, "what arrived needed memory"
    assert query.settled
    assert same_bag(one.results(), SQL, a=pa.table(left), b=pa.table(right))


def test_a_query_that_fails_keeps_its_pages_until_the_push_that_reads_them_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory that is given back under a job would be read as rubbish, or end the process."""
    one = HandWorker(PLAN, spill=tmp_path)
    joined(one)
    one.say(PushPartitions(QueryName("q"), Epoch(1), 1, 1))
    one.work()
    query, lane = one.query, one.lane("spill")
    given: list[int] = []
    monkeypatch.setattr(type(query.state.slab), "give_back", lambda slab: given.append(len(given)))
    assert len(lane.jobs) == 1
    query.fail(SpillError("somebody died"))
    assert not given
    lane.do()
    assert given
