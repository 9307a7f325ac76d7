"""Writing in the background: order, back-pressure, errors and threads that end."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading

import pyarrow as pa
import pytest

from dovetail_processor.sinks import BackgroundSink, SinkTotals
from dovetail_proto.errors import OutputError
from kit.cluster_faults import until

SCHEMA = pa.schema([("n", pa.int64())])
ROW_BYTES = 8


def rows(count: int, start: int = 0) -> pa.RecordBatch:
    """A batch of `count` eight-byte rows."""
    return pa.record_batch([pa.array(range(start, start + count), pa.int64())], schema=SCHEMA)


class GatedSink:
    """A sink whose writes wait until the test lets them pass."""

    def __init__(self, *, open_gate: bool = False, fail_at: int | None = None) -> None:
        self.gate = threading.Semaphore(10**6 if open_gate else 0)
        self.entered = threading.Semaphore(0)  # released at the start of each write
        self.written: list[pa.RecordBatch] = []
        self.fail_at = fail_at
        self.aborted = False
        self.rolled_at = -1  # batches written when it was last asked to roll
        self.held_bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Wait for the gate, then keep the batch or fail."""
        self.entered.release()
        self.gate.acquire()
        if self.fail_at == len(self.written):
            raise OutputError("the disk is full")
        self.written.append(batch)

    def roll(self) -> None:
        """Remember how much was written."""
        self.rolled_at = len(self.written)

    def close(self) -> SinkTotals:
        """Count."""
        return SinkTotals(sum(b.num_rows for b in self.written), 0, 0, ())

    def abort(self) -> None:
        """Remember."""
        self.aborted = True


def sink_threads() -> list[threading.Thread]:
    """Threads of sinks that are alive."""
    return [t for t in threading.enumerate() if t.name == "sink"]


def test_batches_arrive_in_order_and_close_waits_for_all() -> None:
    """Nothing is lost on the way."""
    inner = GatedSink(open_gate=True)
    sink = BackgroundSink(inner, bound_bytes=100)
    for i in range(50):
        sink.write(rows(5, start=5 * i))
    assert sink.close().rows == 250
    assert pa.Table.from_batches(inner.written).column(0).to_pylist() == list(range(250))
    assert sink.held_bytes == 0
    assert sink_threads() == []


def test_a_slow_sink_makes_write_wait_for_room() -> None:
    """No more than the bound is on the way, counting the batch that is being written."""
    inner = GatedSink()
    sink = BackgroundSink(inner, bound_bytes=10 * ROW_BYTES)
    sink.write(rows(5))
    inner.entered.acquire()  # the first batch is being written, and still counts
    sink.write(rows(5))
    assert sink.held_bytes == 10 * ROW_BYTES
    third = threading.Thread(target=sink.write, args=(rows(5),))
    third.start()
    assert not inner.entered.acquire(timeout=0.05)
    assert sink.held_bytes == 10 * ROW_BYTES
    for _ in range(3):
        inner.gate.release()
    third.join()
    assert sink.close().rows == 15


def test_a_batch_over_the_bound_passes_alone() -> None:
    """It waits until nothing else is on the way."""
    inner = GatedSink(open_gate=True)
    sink = BackgroundSink(inner, bound_bytes=ROW_BYTES)
    for _ in range(3):
        sink.write(rows(100))
    assert sink.close().rows == 300


def test_an_error_is_raised_by_a_later_write() -> None:
    """And the thread has ended by then."""
    inner = GatedSink(open_gate=True, fail_at=2)
    sink = BackgroundSink(inner, bound_bytes=ROW_BYTES)

    def write_on() -> None:
        for _ in range(100):
            sink.write(rows(10))

    with pytest.raises(OutputError, match="disk is full"):
        write_on()
    assert sink_threads() == []
    sink.abort()
    assert inner.aborted
    assert sink.held_bytes == 0


def test_an_error_is_raised_by_close_at_the_latest() -> None:
    """Rows that were lost are never passed over."""
    sink = BackgroundSink(GatedSink(open_gate=True, fail_at=0), bound_bytes=10**6)
    sink.write(rows(10))
    with pytest.raises(OutputError, match="disk is full"):
        sink.close()


def test_abort_drops_what_is_on_the_way() -> None:
    """It waits for the batch that is being written only."""
    inner = GatedSink()
    sink = BackgroundSink(inner, bound_bytes=10**6)
    for _ in range(5):
        sink.write(rows(10))
    inner.entered.acquire()
    aborting = threading.Thread(target=sink.abort)
    aborting.start()
    until(lambda: sink.held_bytes == 10 * ROW_BYTES, "all but the first is dropped")
    inner.gate.release()
    aborting.join()
    assert len(inner.written) == 1
    assert inner.aborted
    assert sink_threads() == []


def test_bytes_of_the_inner_sink_count_as_held() -> None:
    """Memory is counted to the byte."""
    inner = GatedSink(open_gate=True)
    sink = BackgroundSink(inner, bound_bytes=100)
    inner.held_bytes = 77
    assert sink.held_bytes == 77
    sink.close()


def test_a_sink_that_is_lost_ends_its_thread() -> None:
    """Nobody can close it any more."""
    sink = BackgroundSink(GatedSink(open_gate=True), bound_bytes=100)
    [thread] = sink_threads()
    del sink
    gc.collect()
    thread.join(timeout=30)
    assert not thread.is_alive()


def test_a_program_that_forgets_to_close_still_ends() -> None:
    """The thread is no daemon, and yet the interpreter does not wait for ever."""
    program = """
import pyarrow as pa
from dovetail_processor.sinks import BackgroundSink, CountingSink
sink = BackgroundSink(CountingSink(pa.schema([("n", pa.int64())])), 100)
"""
    done = subprocess.run([sys.executable, "-c", program], timeout=60, check=False)
    assert done.returncode == 0


def test_rolling_waits_for_what_was_written_before_it() -> None:
    """And for nothing else: the event is set by the thread that writes."""
    inner = GatedSink(open_gate=True)
    sink = BackgroundSink(inner, 1 << 20)
    for k in range(5):
        sink.write(rows(10, k * 10))
    assert sink.roll().wait(60)
    assert inner.rolled_at == 5
    sink.close()
