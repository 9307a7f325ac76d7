"""A worker: what it is told, whom it answers, and what it says of itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from dovetail_manager.planner import plan_query
from dovetail_processor.worker import QUIET_TICK_S, TICK_S
from dovetail_proto.assignment import Assignment, DroppedRun, Peer, Phase
from dovetail_proto.cluster_memory import smallest_limit
from dovetail_proto.errors import DovetailError, InputError, Refusal
from dovetail_proto.feeds import EndOfInput
from dovetail_proto.handover import handover_from_json
from dovetail_proto.ids import Epoch, ProcessorId, QueryName, SplitId, StreamName
from dovetail_proto.messages import Assign, Heard, QueryStopped, Stage, StopQuery
from kit.hand_shell import HERE, HandWorker

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.float64())])
SQL = "SELECT a.k, a.v, b.v AS w FROM a JOIN b ON a.k = b.k"
PLAN = plan_query(SQL, dict.fromkeys("ab", SCHEMA), name="q", partitions=8)
Q = QueryName("q")


def rows(first: int = 0, count: int = 100) -> pa.RecordBatch:
    """Keys that occur once."""
    keys = np.arange(first, first + count)
    return pa.RecordBatch.from_arrays([pa.array(keys), pa.array(keys * 1.0)], schema=SCHEMA)


def running(**options: object) -> HandWorker:
    """A query that runs."""
    one = HandWorker(PLAN, **options)  # type: ignore[arg-type]
    one.assign()
    one.settle()
    return one


def told(one: HandWorker, wanted: Assignment) -> None:
    """An assignment, as the manager sends it."""
    one.say(Assign(wanted.epoch, wanted.version, wanted.to_json()))


def test_only_a_newer_assignment_is_carried_out() -> None:
    """One that comes late, or of a manager that has been replaced, changes nothing."""
    one = running()
    newer = replace(one.wanted, epoch=Epoch(2), version=1)
    told(one, newer)
    assert one.worker.heartbeat().assigned == 1
    told(one, replace(one.wanted, version=99, queries=()))
    told(one, replace(newer, queries=()))
    assert Q in one.worker.queries
    one.say(StopQuery(Q, Epoch(1), "by nobody"))
    assert one.query.stage is Stage.RUNNING
    one.say(Heard(Epoch(3), HERE, 1, True))
    assert one.worker.heartbeat().assigned == 0, "not by the manager that is there now"


def test_a_processor_that_was_started_again_gets_the_end_again() -> None:
    """Its former process had it; one assignment may tell of the death and the new start."""
    one = running()
    there = ProcessorId("p2")

    def ends() -> list[tuple[int, object]]:
        frames, one.shell.frames = one.shell.frames, []
        return [(n, i) for to, _, n, i in frames if to == there and isinstance(i, EndOfInput)]

    one.set(
        peers={HERE: Peer(), there: Peer("there:1", 1)},
        streams=tuple(replace(s, ended=True) for s in one.wanted.streams),
    )
    one.settle()
    first = ends()
    assert [n for n, _ in first] == [1, 1]
    for split in one.splits:
        one.handle(lambda s=split: one.worker.acknowledged(there, s, 1, 1 << 20, 1))
    one.set(peers={HERE: Peer(), there: Peer("there:1", 1)})
    one.settle()
    assert ends() == [], "it is the same process"
    one.set(peers={HERE: Peer(), there: Peer("there:1", 2)})
    one.settle()
    assert ends() == first


def test_a_query_that_is_stopped_says_so_once_more_when_asked_again() -> None:
    """The manager may not have heard it; the cause stays the first one."""
    one = running()
    for cause in ("wanted", "again"):
        one.say(StopQuery(Q, Epoch(1), cause))
    assert one.shell.said == [QueryStopped(Q, Epoch(1))] * 2
    [load] = one.worker.heartbeat().loads
    assert (load.stage, load.cause) == (Stage.FAILED, "wanted")
    one.say(StopQuery(QueryName("unknown"), Epoch(1), ""))
    assert one.shell.said[-1] == QueryStopped(QueryName("unknown"), Epoch(1))


def test_what_a_dropped_query_wrote_goes_before_one_of_its_name_begins() -> None:
    """They come in one assignment."""
    one = running()
    gone = DroppedRun(Q, "r1", None)
    former = one.query
    one.set(queries=())
    assert former.stage is Stage.FAILED
    removed: list[bool] = []
    one.shell.files.remove = lambda dropped: removed.append(Q in one.worker.queries)  # type: ignore[method-assign]
    one.set(queries=(replace(former.task, run="r2"),), dropped=(gone,))
    assert removed == [False]
    assert one.query is not former


def test_a_query_that_cannot_be_made_fails_alone() -> None:
    """And is not tried again, but one of the same name is after it was dropped."""
    smallest = smallest_limit(inputs=2, partitions=8, hosted=2, peers=1)
    one = HandWorker(PLAN, memory_bytes=smallest - (64 << 10))
    one.assign()
    [load] = one.worker.heartbeat().loads
    assert load.stage is Stage.FAILED
    assert "is too small" in load.cause
    assert one.worker.finds_nothing_more
    one.worker.memory.limit_bytes = one.worker.pool.memory_bytes = 64_000_000
    one.assign()
    assert one.worker.heartbeat().loads == (load,)
    again = one.wanted.queries
    one.set(queries=())
    one.set(queries=again)
    assert one.worker.heartbeat().loads[0].stage is Stage.RUNNING


def test_who_waits_hears_when_all_that_had_come_is_joined() -> None:
    """Also what waited at home; what comes later does not keep them waiting."""
    one = running()
    one.send("a", rows())
    one.work()
    one.assign(phase=Phase.PAUSED)
    one.send("a", rows(100))
    heard: list[int | DovetailError] = []
    one.handle(lambda: one.worker.await_joined(Q, heard.append))
    one.settle()
    assert heard == []
    one.assign(phase=Phase.RUNNING)
    one.settle()
    assert heard == [200]
    one.handle(lambda: one.worker.await_joined(Q, heard.append))
    one.work()
    assert heard == [200, 200]


def test_who_waits_hears_of_what_will_never_be() -> None:
    """A query that fails or is dropped, or is not there."""
    one = running(owners=["p1", "p2"])  # p2 never answers
    one.send("a", rows())
    one.settle()
    heard: list[int | DovetailError] = []
    one.handle(lambda: one.worker.await_joined(Q, heard.append))
    one.work()
    assert heard == []
    one.say(StopQuery(Q, Epoch(1), "enough"))
    one.work()
    assert "has failed: enough" in str(heard[0])
    one.handle(lambda: one.worker.await_joined(Q, heard.append))
    one.set(queries=())
    one.work()
    assert "it was dropped" in str(heard[1])
    with pytest.raises(Refusal, match="does not run at 'p1'"):
        one.worker.await_joined(Q, heard.append)


def test_frames_and_answers_of_queries_that_are_not_here_are_passed_over() -> None:
    """They are late, or early; they come again."""
    one = running()
    split = SplitId("other/0")
    one.handle(lambda: one.worker.frame(split, 1, None, 0))
    one.handle(lambda: one.worker.acknowledged(ProcessorId("p2"), split, 1, 1, 1))
    one.handle(lambda: one.worker.acknowledged(ProcessorId("p2"), one.splits[0], 1, 1, 1))
    one.settle()
    assert one.query.stage is Stage.RUNNING


def test_a_stream_that_is_not_hosted_here_is_refused_by_name() -> None:
    """With where to ask."""
    one = running()
    with pytest.raises(Refusal, match="stream 'c' is not hosted here") as refused:
        one.worker.streams.home(StreamName("c"))
    assert refused.value.details["reason"] == "home"


def test_a_stream_that_leaves_is_handed_over_when_all_of_it_is_joined() -> None:
    """Not before: what came is joined first."""
    one = running(owners=["p1", "p2"])
    one.send("a", rows())
    one.settle()
    streams = tuple(replace(s, leaves=True) for s in one.wanted.streams)
    one.set(streams=streams)
    one.settle()
    loads = {s.stream: s for s in one.worker.heartbeat().streams}
    assert loads[StreamName("a")].handover == "", "p2 has not joined its part"
    assert handover_from_json(loads[StreamName("b")].handover).rows == 0
    one.set(queries=())
    one.settle()
    load = next(s for s in one.worker.heartbeat().streams if s.stream == "a")
    assert handover_from_json(load.handover).marks == {"test": 1}


def test_a_file_that_cannot_be_read_fails_the_queries_that_read_it() -> None:
    """With what the file says."""

    class Broken:
        """Of a file."""

        schema, rows_total = SCHEMA, None

        def parts(self, *_: object, **__: object) -> object:
            """Raises at once."""
            raise InputError("row 1 is broken")

    one = HandWorker(PLAN, paths={"a": "a.csv"})
    one.shell.files.sources["a"] = Broken()  # type: ignore[assignment]
    one.assign()
    one.settle()
    assert (one.query.stage, one.query.cause) == (Stage.FAILED, "row 1 is broken")


def test_a_worker_that_is_let_go_starts_anew_with_nothing() -> None:
    """Whatever it ran."""
    one = running()
    query = one.query
    one.handle(one.worker.drop_all)
    one.settle()
    assert query.stage is Stage.FAILED
    beat = one.worker.heartbeat()
    assert (beat.loads, beat.streams, beat.assigned, one.worker.joined) == ((), (), 0, False)
    one.wanted = replace(one.wanted, version=0)
    one.assign()
    one.settle()
    assert one.query is not query
    assert one.query.stage is Stage.RUNNING


def test_news_are_told_at_once_and_nothing_else_is() -> None:
    """An assignment, a query's stage, a stream's end: others wait for these."""
    one = running()
    before = one.shell.beats
    one.send("a", rows())
    one.settle()
    assert one.shell.beats == before
    one.say(StopQuery(Q, Epoch(1), "enough"))
    one.settle()
    assert one.shell.beats == before + 1


def test_an_event_that_is_refused_changes_nothing_and_time_never_goes_back() -> None:
    """The next step is due some time after the last look."""
    one = running()

    def refuse() -> None:
        raise Refusal("query", "no")

    one.worker.handle(refuse, 5.0)
    one.worker.handle(lambda: None, 3.0)
    assert one.worker.now_s == 5.0
    one.worker.step(6.0)
    assert one.worker.next_s == 6.0 + QUIET_TICK_S


def test_a_worker_looks_up_seldom_while_nothing_waits() -> None:
    """Any event brings the next look forward; what is not joined yet keeps it looking often."""
    one = running()
    one.worker.step(1.0)
    assert one.worker.next_s == 1.0 + QUIET_TICK_S
    one.worker.handle(lambda: None, 1.3)
    assert one.worker.next_s == 1.3 + TICK_S
    one.worker.step(1.3 + TICK_S)
    assert one.worker.next_s == 1.3 + TICK_S + QUIET_TICK_S
    two = running(owners=["p1", "p2"])
    two.send("a", rows())
    while two.worker.step(2.0):
        pass
    two.worker.step(2.0 + TICK_S)
    assert two.worker.next_s == 2.0 + 2 * TICK_S, "p2 has not answered"
    two.set(queries=(replace(two.query.task, phase=Phase.CLOSING),))
    two.worker.step(9.0)
    assert two.worker.next_s == 9.0 + TICK_S, "it is being closed"
