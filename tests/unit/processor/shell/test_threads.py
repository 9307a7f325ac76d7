"""A worker on one thread and its jobs on others: order, answers, and threads that end."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dovetail_manager.planner import plan_query
from dovetail_processor.jobs import Outcome
from dovetail_processor.shell.threads import ThreadLane, WorkerLoop
from dovetail_proto.errors import Refusal
from dovetail_proto.ids import ProcessorId, QueryName
from dovetail_proto.transport import Unreachable
from kit.local_workers import TIMEOUT_S, LocalWorkers

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.float64())])
PLAN = plan_query(
    "SELECT a.k, b.v FROM a JOIN b ON a.k = b.k",
    dict.fromkeys("ab", SCHEMA),
    name="q",
    partitions=8,
)


def loop() -> WorkerLoop:
    """Without a worker: its lanes are what counts."""
    return WorkerLoop(ProcessorId("p1"), lambda e: None)


def test_jobs_of_a_lane_are_done_in_order_and_their_ends_are_events() -> None:
    """Also of those that raise; no event comes before the loop handles it."""
    posted: list[str] = []
    one = loop()
    lane = one.lane("jobs")
    over = threading.Event()

    def work(n: int) -> int:
        if n == 2:
            raise ValueError("two")
        if n == 4:
            over.set()
        return n

    def done(outcome: Outcome[int]) -> None:
        posted.append(repr(outcome.error) if outcome.error else str(outcome.value))

    for n in range(5):
        lane.run(lambda n=n: work(n), done)  # type: ignore[misc]
    lane.close()
    lane.close()
    assert over.wait(TIMEOUT_S)
    for thread in list(one._lanes_threads):
        thread.join(TIMEOUT_S)
    assert posted == []
    while not one._mailbox.empty():
        event = one._mailbox.get()
        assert event is not None
        event()
    assert posted == ["0", "1", "ValueError('two')", "3", "4"]


def test_a_lane_that_is_lost_ends_its_thread() -> None:
    """Nobody can close it any more."""
    one = loop()
    lane = one.lane("lost")
    ran = threading.Event()
    lane.run(ran.set, lambda _: None)
    assert ran.wait(TIMEOUT_S)
    [thread] = one._lanes_threads
    del lane
    gc.collect()
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()


def test_a_program_that_forgets_to_close_a_lane_still_ends() -> None:
    """Whatever its job does."""
    program = f"""
import threading, weakref
from {ThreadLane.__module__} import ThreadLane
lane = ThreadLane("jobs", lambda event: None, weakref.WeakSet())
begun = threading.Event()
lane.run(lambda: (begun.set(), threading.Event().wait()), lambda _: None)
begun.wait()
"""
    done = subprocess.run([sys.executable, "-c", program], timeout=60, check=False)
    assert done.returncode == 0


def test_questions_are_answered_until_the_worker_stops(tmp_path: Path) -> None:
    """An error is the asker's; afterwards nobody waits for ever."""

    def refuse() -> None:
        raise Refusal("query", "no")

    with LocalWorkers(PLAN, ["p1"], 32_000_000, tmp_path) as one:
        p1 = one.names[0]
        assert one.ask(p1, threading.get_ident) != threading.get_ident()
        with pytest.raises(Refusal, match="no"):
            one.ask(p1, refuse)
    with pytest.raises(Unreachable, match="is stopping"):
        one.ask(p1, threading.get_ident)


def test_a_processor_that_stops_keeps_what_its_queries_found(tmp_path: Path) -> None:
    """Its last file is whole when it has stopped."""
    batch = pa.record_batch([list(range(100)), [1.0] * 100], schema=SCHEMA)
    with LocalWorkers(PLAN, ["p1"], 32_000_000, tmp_path) as one:
        one.assign()
        for stream in "ab":
            assert one.send(stream, batch).wait(TIMEOUT_S)
        worker, joined = one.workers[one.home], threading.Event()
        one.ask(one.home, lambda: worker.await_joined(QueryName("q"), lambda _: joined.set()))
        assert joined.wait(TIMEOUT_S)
    [path] = (tmp_path / "p1" / "results" / "q").rglob("*.parquet")
    assert pq.read_metadata(path).num_rows == 100
