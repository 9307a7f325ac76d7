"""Results into a sink: in order, within a bound, and what becomes of them if it fails or ends."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dovetail_processor.graph.arc import Arc
from dovetail_processor.jobs import Outcome
from dovetail_processor.operators.deliver import TRIM_S, Deliver
from dovetail_processor.operators.evaluate import Results
from dovetail_processor.sinks import SinkTotals
from dovetail_proto.errors import OutputError
from kit.hand_shell import HandLane, KeptSink

ROW_BYTES = 8
ROLL_S = 10.0


class Case:
    """A sink that keeps, behind a bound of ten rows."""

    def __init__(self, *, trims: bool = False) -> None:
        self.sink = KeptSink()
        self.lane = HandLane()
        self.arc: Arc[Results] = Arc(1 << 20)
        self.failures: list[Exception] = []
        self.ends: list[Outcome[SinkTotals]] = []
        self.rows = 0
        self.node = Deliver(
            "q",
            0,
            source=self.arc,
            sink=self.sink,
            lane=self.lane,
            bound_bytes=10 * ROW_BYTES,
            failed=self.failures.append,
            roll_s=ROLL_S,
            trims=trims,
        )

    def offer(self, rows: int) -> None:
        """A batch whose rows count up."""
        batch = pa.record_batch({"n": pa.array(range(self.rows, self.rows + rows), pa.int64())})
        self.rows += rows
        self.arc.offer(Results(batch, batch.nbytes), 0.0)

    def step(self) -> int:
        """Hand over what there is room for; how many batches."""
        count = 0
        while self.node.ready:
            self.node.step(0.0)
            count += 1
        return count

    def do_all(self) -> None:
        """All jobs."""
        while self.lane.jobs:
            self.lane.do()


def test_batches_arrive_in_order_and_the_end_comes_behind_them() -> None:
    """Nothing is lost on the way; the totals are of everything."""
    case = Case()
    for rows in (3, 4, 3):
        case.offer(rows)
    assert case.step() == 3
    case.node.close(case.ends.append)
    assert case.sink.calls == [], "no step waits for a sink"
    case.do_all()
    assert pa.Table.from_batches(case.sink.batches)["n"].to_pylist() == list(range(10))
    assert [end.result().rows for end in case.ends] == [10]
    assert case.node.rows == 10
    assert case.lane.closed


def test_no_more_than_the_bound_is_on_its_way() -> None:
    """Also what is being written counts, until the worker has heard that it is."""
    case = Case()
    for _ in range(3):
        case.offer(5)
    assert case.step() == 2
    assert case.node.held_bytes == 10 * ROW_BYTES
    heard = case.lane.work()
    assert not case.node.ready
    heard()
    assert case.step() == 1
    case.do_all()
    case.sink.held_bytes = 77
    assert case.node.held_bytes == 77, "what the sink keeps counts as well"


def test_a_batch_over_the_bound_passes_alone() -> None:
    """It waits until nothing else is on its way, and nothing else until it is written."""
    case = Case()
    case.offer(1)
    case.offer(100)
    case.offer(1)
    assert [case.step(), len(case.lane.jobs)] == [1, 1]
    case.lane.do()
    assert case.step() == 1
    assert not case.node.ready
    case.lane.do()
    assert case.step() == 1


def test_after_an_error_nothing_but_abort_is_called() -> None:
    """Neither what waits on the lane is written, nor is the sink closed; the cause comes first."""
    case = Case()
    for _ in range(3):
        case.offer(1)
    case.step()
    case.sink.fails = OutputError("the disk is full")
    ends = [case.lane.work() for _ in range(3)]  # before the worker hears of the first one
    case.node.roll()
    case.node.close(case.ends.append)
    for end in ends:
        end()
    case.do_all()
    assert case.sink.calls == ["write", "abort"]
    assert str(case.failures[0]) == "the disk is full"
    with pytest.raises(OutputError, match="came before could not be written"):
        case.ends[0].result()


def test_an_end_that_fails_leaves_nothing_half_written() -> None:
    """And is told."""
    case = Case()
    case.sink.fails = OutputError("the disk is full")
    case.node.close(case.ends.append)
    case.do_all()
    assert case.sink.calls == ["close", "abort"]
    assert str(case.ends[0].error) == "the disk is full"


def test_a_roll_waits_for_what_was_handed_over_before_it() -> None:
    """And for nothing that comes later; what is shown later is behind the cut."""
    case = Case()
    case.offer(2)
    case.step()
    case.node.roll()
    case.offer(2)
    case.step()
    assert (case.sink.cuts, len(case.sink.shown)) == ([1], 2)
    case.do_all()
    assert case.sink.calls == ["write", "roll", "write"]


def test_results_are_shown_before_they_are_written() -> None:
    """Nobody waits for a disk to see them."""
    case = Case()
    case.offer(2)
    case.step()
    assert [b.num_rows for b in case.sink.shown] == [2]
    assert case.sink.calls == []


def test_what_is_handed_over_is_rolled_when_it_is_old_or_the_sink_is_full() -> None:
    """By the age of the oldest row that is in no finished file; without rows, never."""
    case = Case()
    case.node.tick(1000.0)
    assert not case.lane.jobs
    assert case.node.roll_at_s == float("inf")
    for now_s in (3.0, 12.9):
        case.offer(1)
        case.node.step(now_s)
    assert case.node.roll_at_s == 3.0 + ROLL_S
    case.node.tick(12.9)
    case.do_all()
    assert case.sink.calls == ["write", "write"]
    case.node.tick(13.0)
    case.node.tick(13.1)
    case.do_all()
    assert case.sink.calls == ["write", "write", "roll"]
    case.sink.full = True
    case.offer(1)
    case.step()
    case.do_all()
    assert case.sink.calls[3:] == ["write", "roll"]
    assert case.sink.cuts == [2, 3]
    case.node.close(case.ends.append)
    case.node.tick(1000.0)
    case.do_all()
    assert case.sink.calls[5:] == ["close"], "nothing is rolled behind the end"


def test_old_results_are_looked_for_now_and_then_until_the_end() -> None:
    """Also while nothing comes; and never where everything is kept."""
    case = Case(trims=True)
    for now_s in (1.0, 1.0 + TRIM_S / 2, 1.0 + TRIM_S):
        case.node.tick(now_s)
    case.do_all()
    assert case.sink.calls == ["trim", "trim"]
    case.node.close(case.ends.append)
    case.node.tick(1000.0)
    case.do_all()
    assert case.sink.calls == ["trim", "trim", "close"]
    keeps = Case()
    keeps.node.tick(1000.0)
    assert not keeps.lane.jobs


def test_stopping_keeps_what_was_handed_over_and_drops_what_waits() -> None:
    """What was found is right, and stays; `ended` tells when nothing is written any more."""
    case = Case()
    case.offer(10)
    case.step()
    case.offer(10)
    case.node.stop()
    assert len(case.arc) == 0
    assert not case.node.ended
    case.do_all()
    assert case.sink.calls == ["write", "close"]
    assert case.node.ended


def test_stopping_a_sink_that_is_being_closed_changes_nothing() -> None:
    """Its end is on the lane."""
    case = Case()
    case.node.close(case.ends.append)
    case.node.stop()
    case.do_all()
    assert case.sink.calls == ["close"]
    assert len(case.ends) == 1
