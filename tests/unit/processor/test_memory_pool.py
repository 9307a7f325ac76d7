"""How queries share the memory for state of one processor: on numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from dovetail_manager.planner import plan_query
from dovetail_processor.memory_pool import (
    Claim,
    beside_queues,
    gives_way,
    left_for_another,
    limits,
    used_up,
)
from dovetail_proto.assignment import DiskSettings, Phase
from dovetail_proto.cluster_memory import HELD_BATCHES, smallest_limit
from dovetail_proto.ids import GroupId, QueryName, split_id
from dovetail_proto.messages import Stage
from dovetail_proto.partition_map import PartitionMap
from kit.hand_shell import HERE, HandWorker

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.float64())])
PLAN = plan_query(
    "SELECT a.k, a.v, b.v AS w FROM a JOIN b ON a.k = b.k",
    dict.fromkeys("ab", SCHEMA),
    name="q",
    partitions=8,
)
LATER = QueryName("later")


def claim(held: int, *, spills: bool = False, short: bool = False, frees: bool = False) -> Claim:
    """Of a query that is sure of 5."""
    return Claim(held, 5, spills, short, frees)


def test_each_may_take_what_the_others_leave_and_is_sure_of_its_minimum() -> None:
    """Of 100: 60 and 10 leave 90 and 40; one that holds nothing has 5 all the same."""
    assert limits(100, [claim(60)]) == [100]
    assert limits(100, [claim(60), claim(10)]) == [90, 40]
    assert limits(100, [claim(60), claim(0)]) == [95, 40]


def test_who_is_short_makes_others_push_before_anyone_stops() -> None:
    """Whoever may use the disk gives an eighth of all, down to its minimum; then the last stops."""
    short = claim(12, short=True)
    assert limits(100, [claim(88, spills=True), short]) == [88 - 12, 12]
    assert limits(100, [claim(8, spills=True), short])[0] == 5
    assert gives_way([claim(88, spills=True), short]) is None
    assert gives_way([claim(5, spills=True), claim(95, short=True)]) == 1
    assert gives_way([claim(80, short=True), claim(20)]) == 1, "who came first goes on"
    assert gives_way([claim(80), claim(20)]) is None
    assert gives_way([claim(100, short=True)]) == 0


def test_nobody_stops_while_memory_is_about_to_come_free() -> None:
    """One closes, or holds rows back for a move: neither it nor who is short has to stop."""
    assert gives_way([claim(80, short=True), claim(20, frees=True)]) is None
    assert gives_way([claim(80, frees=True), claim(20, short=True)]) is None
    assert gives_way([claim(100, short=True, frees=True)]) is None


def test_who_stops_is_told_of_the_disk_only_if_it_does_not_use_it() -> None:
    """Alone or beside others."""
    for others in ([], [claim(80)]):
        assert "--policy disk" in str(used_up(100, [*others, claim(20)]))
        message = str(used_up(100, [*others, claim(5, spills=True)]))
        assert "disk" not in message
        assert "raise --memory" in message


def test_rows_held_back_leave_room_for_those_that_are_queued() -> None:
    """Half of the groups move: the stream waits, and the join goes on until then."""
    one = HandWorker(PLAN, memory_bytes=32_000_000)
    one.assign()
    one.settle()
    query = one.query
    links, shares = query.links, query.bounds.shares
    links.hold([GroupId(g) for g in range(4)], 0.0)
    rng = np.random.default_rng(1)
    for n in range(1000):
        keys = rng.integers(0, 1 << 40, 8192)
        batch = pa.RecordBatch.from_arrays([pa.array(keys), pa.array(keys * 1.0)], schema=SCHEMA)
        routed = one.send("ab"[n % 2], batch)
        one.settle()
        if not routed or query.stage is not Stage.RUNNING:
            break
    assert query.stage is Stage.RUNNING, query.cause
    assert not routed, "the stream waits"
    assert links.held_bytes >= HELD_BATCHES * shares.batch + links.lent_bytes
    assert links.borrowed_bytes > shares.batch
    assert not query.join.ready
    assert query.memory.short is None
    assert query.state.limit_bytes >= query.state.held_bytes + shares.batch
    assert query.state.limit_bytes >= query.bounds.minimum
    assert query.claim.frees


def test_a_query_that_is_being_closed_frees_its_memory_soon() -> None:
    """Its last file takes time: meanwhile its claim says so."""
    one = HandWorker(PLAN)
    one.assign()
    one.settle()
    assert not one.query.claim.frees
    one.assign(phase=Phase.CLOSING)
    for _ in range(3):
        one.now_s += 1.0
        one.work()
    assert one.lane("results").jobs
    assert one.query.claim.frees
    one.settle()
    assert one.query.stage is Stage.CLOSED


def two(memory_bytes: int, disk: DiskSettings, spill: Path | None = None) -> HandWorker:
    """Query q, and `later`, which came after it and reads the same streams."""
    one = HandWorker(PLAN, memory_bytes=memory_bytes, spill=spill, disk=disk)
    one.assign()
    one.settle()
    [mine] = one.wanted.queries
    hosts = {HERE: tuple(split_id(LATER, i) for i in range(2))}
    known = PartitionMap.initial(LATER, [HERE] * PLAN.partitions)
    plan = replace(PLAN, name=LATER)
    later = replace(mine, name=LATER, plan=plan, map=known, split_hosts=hosts)
    one.set(queries=(mine, later))
    one.settle()
    return one


def fill(one: HandWorker) -> None:
    """Rows that match nothing, until a query has stopped or has pushed, or the source waits."""
    loads = one.worker.heartbeat().loads
    for n in range(1000):
        keys = np.arange(20_000 * n, 20_000 * (n + 1))
        batch = pa.RecordBatch.from_arrays([pa.array(keys), pa.array(keys * 1.0)], schema=SCHEMA)
        routed = one.send("a", batch)
        one.settle()
        loads = one.worker.heartbeat().loads
        if not routed or any(q.stage is not Stage.RUNNING or q.pushes > 3 for q in loads):
            return
    raise AssertionError(f"memory never ends: {loads}")


def test_when_memory_is_used_up_who_came_last_stops_and_the_other_goes_on() -> None:
    """It is told what helps, and what it held is the other's."""
    one = two(24_000_000, DiskSettings(allowed=False))
    fill(one)
    first, later = one.worker.queries.values()
    assert (first.stage, later.stage) == (Stage.RUNNING, Stage.FAILED)
    assert "is used up" in later.cause
    assert "--policy disk" in later.cause
    held = first.state.held_bytes
    one.send("a", pa.record_batch([[1], [1.0]], schema=SCHEMA))
    one.settle()
    assert first.state.limit_bytes > held


def test_queries_that_may_use_the_disk_push_and_none_stops(tmp_path: Path) -> None:
    """All together they stay within the limit."""
    one = two(24_000_000, DiskSettings(allowed=True), tmp_path)
    fill(one)
    loads = one.worker.heartbeat().loads
    assert [q.stage for q in loads] == [Stage.RUNNING, Stage.RUNNING], [q.cause for q in loads]
    assert sum(q.held_bytes for q in loads) < 24_000_000


def test_a_query_for_which_no_memory_is_left_is_not_begun() -> None:
    """It is told, and those that run go on."""
    one = HandWorker(PLAN, memory_bytes=smallest_limit(inputs=2, partitions=8, hosted=2, peers=1))
    one.assign()
    one.settle()
    [mine] = one.wanted.queries
    later = replace(mine, name=LATER, plan=replace(PLAN, name=LATER))
    one.set(queries=(mine, later))
    one.settle()
    first, refused = one.worker.heartbeat().loads
    assert (first.stage, refused.stage) == (Stage.RUNNING, Stage.FAILED)
    assert "is too small" in refused.cause


def test_a_further_query_gets_what_is_free_or_can_be_pushed() -> None:
    """All but 60 that cannot be pushed; all but the minimum of what can."""
    assert left_for_another(100, []) == 100
    assert left_for_another(100, [claim(60)]) == 40
    assert left_for_another(100, [claim(60, spills=True)]) == 95
    assert left_for_another(100, [claim(0)]) == 95


@given(st.lists(st.tuples(st.integers(0, 40), st.booleans(), st.booleans()), max_size=6))
def test_whoever_grows_to_its_limit_all_together_stay_within_the_pool(
    held: list[tuple[int, bool, bool]],
) -> None:
    """One query takes a step at a time, so that is enough."""
    claims = [claim(h, spills=s, short=x) for h, s, x in held]
    pool = sum(c.sure for c in claims) + 7
    for i, limit in enumerate(limits(pool, claims)):
        assert limit >= min(claims[i].minimum, limit + 1)
        assert limit + sum(c.sure for j, c in enumerate(claims) if j != i) <= pool


def test_what_is_queued_takes_what_is_free_and_nobodys_own() -> None:
    """Of 100: 30 queued leave 70, but 65 are held or sure; what is lent can be pushed."""
    claims = [claim(60), claim(0)]
    assert beside_queues(100, 0, claims) == 100
    assert beside_queues(100, 30, claims) == 70
    assert beside_queues(100, 90, claims) == 65
    assert beside_queues(100, 90, [claim(60, spills=True), claim(0)]) == 10
    assert beside_queues(60, 10, claims) == 60, "there is no more than there is"


def test_no_query_stops_because_batches_are_queued(tmp_path: Path) -> None:
    """Little more than two queries are sure of, and every split gets a batch that is larger."""
    least = smallest_limit(inputs=2, partitions=8, hosted=2, peers=1)
    one = two(2 * least + (128 << 10), DiskSettings(allowed=True), tmp_path)
    queries = list(one.worker.queries.values())
    own = sum(q.bounds.fixed + q.bounds.minimum for q in queries)
    assert one.worker.memory_bytes - own < queries[0].bounds.shares.batch
    for n in range(20):
        keys = np.arange(1000 * n, 1000 * (n + 1))  # as many bytes as a batch may have, about
        batch = pa.RecordBatch.from_arrays([pa.array(keys), pa.array(keys * 1.0)], schema=SCHEMA)
        routed = [one.send(stream, batch) for stream in "ab"]
        one.settle()
        assert all(routed), "all is taken in"
    assert [q.stage for q in queries] == [Stage.RUNNING] * 2, [q.cause for q in queries]
    assert all(q.pusher is not None and q.pusher.pushes for q in queries)


def test_memory_that_a_push_still_reads_is_not_given_back_when_its_query_fails(
    tmp_path: Path,
) -> None:
    """The job is given up, but runs: what it reads has to be what was detached."""
    one = HandWorker(PLAN, spill=tmp_path, disk=DiskSettings(allowed=True))
    one.assign()
    one.settle()
    one.send("a", pa.record_batch([[1, 2, 3], [1.0, 2.0, 3.0]], schema=SCHEMA))
    one.settle()
    query = one.query
    assert query.memory.push(1 << 20, one.now_s)
    assert query.state.slab.raw.any()
    query.stop("it fails")
    assert one.lane("spill").jobs
    assert query.state.slab.raw.any(), "the job has not read it yet"
