"""How queries share the memory for state of one processor: on numbers worked out by hand."""

from __future__ import annotations

from pathlib import Path
from threading import Event

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail_manager.planner import plan_query
from dovetail_processor.cluster.sharing import Claim, gives_way, left_for_another, limits, used_up
from dovetail_processor.cluster.transit import Arrived, Counters
from dovetail_proto.assignment import Phase
from dovetail_proto.cluster_memory import HELD_BATCHES, cluster_shares, smallest_limit
from dovetail_proto.errors import MemoryLimitError
from dovetail_proto.ids import GroupId, QueryName
from dovetail_proto.messages import Stage
from kit.local_workers import TIMEOUT_S, LocalWorkers

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.float64())])


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


def test_rows_held_back_leave_room_for_those_that_are_queued(tmp_path: Path) -> None:
    """Half of the groups move: the stream waits, and the join goes on until then."""
    plan = plan_query(
        "SELECT a.k, a.v, b.v AS w FROM a JOIN b ON a.k = b.k",
        dict.fromkeys("ab", SCHEMA),
        name="q",
        partitions=8,
    )
    rng = np.random.default_rng(1)

    def batch() -> pa.RecordBatch:
        keys = rng.integers(0, 1 << 40, 8192)
        return pa.RecordBatch.from_arrays([pa.array(keys), pa.array(keys * 1.0)], schema=SCHEMA)

    moving = [GroupId(g) for g in range(4)]
    with LocalWorkers(plan, ["p1"], 32_000_000, tmp_path, disk=False) as one:
        one.assign()
        worker = one.workers[one.home]
        run = worker.runs[QueryName("q")]
        splits, instance = run.splits, run.instance
        shares = instance.bounds.shares

        def arriving() -> int:
            """What the claim grows by when groups arrive."""
            before, rows = run.claim.held, pa.table(batch())
            instance.arrive("m", 0, Arrived(Counters([], [], [], [], [], []), [rows, rows]))
            after = run.claim.held
            instance.refuse("m", 0, [])
            return after - before

        assert worker.ask(arriving) == 2 * 8192 * 16
        worker.ask(lambda: splits.hold(moving))

        def over() -> bool:
            """Whether the stream waits for what is held back, and all else is joined."""
            full = splits.held_bytes >= HELD_BATCHES * shares.batch + splits.lent_bytes
            return run.stage is not Stage.RUNNING or (full and not instance.ready)

        waits = False
        for n in range(1000):
            routed = one.send("ab"[n % 2], batch())
            while not routed.wait(0.05) and not waits:
                waits = worker.ask(over)
            if waits or run.stage is not Stage.RUNNING:
                break
        assert run.stage is Stage.RUNNING, run.cause
        assert waits
        assert splits.borrowed_bytes > shares.batch
        assert instance.short is None
        assert instance.state.limit_bytes >= instance.state.held_bytes + shares.batch
        assert instance.state.limit_bytes >= instance.bounds.minimum
        assert worker.ask(lambda: run.claim).frees

        worker.ask(lambda: run.fail("enough"))
        assert routed.wait(TIMEOUT_S)


def test_a_query_that_is_being_closed_frees_its_memory_soon(tmp_path: Path) -> None:
    """Its last file takes time: meanwhile its claim says so."""
    plan = plan_query(
        "SELECT a.k, b.v FROM a JOIN b ON a.k = b.k",
        dict.fromkeys("ab", SCHEMA),
        name="q",
        partitions=8,
    )
    with LocalWorkers(plan, ["p1"], 32_000_000, tmp_path) as one:
        one.assign()
        worker = one.workers[one.home]
        run = worker.runs[QueryName("q")]
        assert not worker.ask(lambda: run.claim).frees
        begun, synced, close = Event(), Event(), run.instance.sink.close

        def slow() -> object:
            begun.set()
            synced.wait(TIMEOUT_S)
            return close()

        run.instance.sink.close = slow  # type: ignore[assignment,method-assign]
        one.assign(Phase.CLOSING)
        assert begun.wait(TIMEOUT_S)
        assert worker.ask(lambda: run.claim).frees
        synced.set()
        one.until(one.home, lambda: worker.snapshot.loads[0].stage is Stage.CLOSED)


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


@pytest.mark.parametrize(("hosted", "peers"), [(0, 1), (1, 2), (2, 1), (3, 8)])
def test_the_smallest_limit_is_the_smallest(hosted: int, peers: int) -> None:
    """It is enough, 64 KiB less is not, and the error names it."""
    on = {"inputs": 3, "partitions": 300, "hosted": hosted, "peers": peers}
    smallest = smallest_limit(**on)
    bounds = cluster_shares(smallest, **on)
    assert bounds.fixed + bounds.shares.state == smallest
    assert bounds.shares.state >= bounds.minimum
    with pytest.raises(MemoryLimitError, match=f"give at least {smallest:,} bytes"):
        cluster_shares(smallest - (64 << 10), **on)
