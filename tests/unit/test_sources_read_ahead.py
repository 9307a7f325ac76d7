"""Reading in the background: order, bounds, errors and threads that end."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dovetail_processor.byte_queue import ByteQueue
from dovetail_processor.sources import ReadAhead, open_source
from dovetail_proto.errors import InputError
from kit.cluster_faults import until

ROW_BYTES = 8


def batches(count: int, rows: int = 10) -> Iterator[pa.RecordBatch]:
    """`count` batches whose rows count up."""
    for i in range(count):
        yield pa.record_batch([pa.array(range(i * rows, (i + 1) * rows), pa.int64())], ["n"])


class Watched(Iterator[pa.RecordBatch]):
    """Counts what was asked for, and tells when it is closed."""

    def __init__(self, inner: Iterator[pa.RecordBatch]) -> None:
        self.inner = inner
        self.asked = threading.Semaphore(0)
        self.count = 0
        self.closed = False

    def __next__(self) -> pa.RecordBatch:
        self.count += 1
        self.asked.release()
        return next(self.inner)

    def close(self) -> None:
        """Called in the reading thread."""
        self.closed = True


def reading_threads() -> list[threading.Thread]:
    """Threads of read-aheads that are alive."""
    return [t for t in threading.enumerate() if t.name == "read-ahead"]


def test_batches_come_in_order_and_the_thread_ends_with_them() -> None:
    """And the iterator is closed."""
    source = Watched(batches(20))
    ahead = ReadAhead(source, depth_bytes=200)
    values = [v.as_py() for batch in ahead for v in batch.column(0)]
    assert values == list(range(200))
    assert source.closed
    assert reading_threads() == []
    assert next(ahead, None) is None


def test_no_more_than_the_depth_and_one_batch_is_held() -> None:
    """Reading stops where the depth is reached, and goes on when a batch is taken."""
    source = Watched(batches(50))
    with ReadAhead(source, depth_bytes=25 * ROW_BYTES) as ahead:
        for _ in range(3):
            source.asked.acquire()
        until(lambda: ahead.held_bytes == 30 * ROW_BYTES, "the third batch is held")
        assert not source.asked.acquire(timeout=0.05)
        next(ahead)
        source.asked.acquire()
        assert source.count == 4


def test_an_error_is_raised_in_its_place() -> None:
    """After the batches before it."""

    def broken() -> Iterator[pa.RecordBatch]:
        yield from batches(2)
        raise InputError("row 21 is broken")

    ahead = ReadAhead(broken(), depth_bytes=10**6)
    assert [next(ahead).num_rows, next(ahead).num_rows] == [10, 10]
    with pytest.raises(InputError, match="row 21"):
        next(ahead)
    assert reading_threads() == []
    assert next(ahead, None) is None


@pytest.mark.parametrize("taken", [0, 1, 5])
def test_close_at_any_time_ends_the_thread(taken: int) -> None:
    """Also again, and with the queue full."""
    source = Watched(batches(1000))
    ahead = ReadAhead(source, depth_bytes=100)
    for _ in range(taken):
        next(ahead)
    ahead.close()
    ahead.close()
    assert source.closed
    assert ahead.held_bytes == 0
    assert reading_threads() == []
    assert next(ahead, None) is None


def test_a_reader_that_is_lost_ends_its_thread() -> None:
    """Nobody can close it any more."""
    source = Watched(batches(1000))
    ahead = ReadAhead(source, depth_bytes=100)
    [thread] = reading_threads()
    del ahead
    gc.collect()
    thread.join(timeout=30)
    assert not thread.is_alive()
    assert source.closed


def test_a_program_that_forgets_to_close_still_ends(tmp_path: Path) -> None:
    """The thread is no daemon, and yet the interpreter does not wait for ever."""
    path = tmp_path / "t.csv"
    path.write_text("n\n" + "1\n" * 200_000)
    program = f"""
from dovetail_processor.sources import ReadAhead, open_source
ahead = ReadAhead(open_source({str(path)!r}).batches(["n"], batch_rows=100, batch_bytes=1000), 2000)
next(ahead)
"""
    done = subprocess.run([sys.executable, "-c", program], timeout=60, check=False)
    assert done.returncode == 0


@pytest.mark.parametrize("name", ["t.parquet", "t.csv", "t.jsonl", "t.arrow"])
def test_a_file_that_is_half_read_can_be_left(name: str, tmp_path: Path) -> None:
    """No thread and no open file stays behind."""
    table = pa.table({"n": range(100_000)})
    path = tmp_path / name
    if name == "t.parquet":
        pq.write_table(table, path)
    elif name == "t.csv":
        path.write_text("n\n" + "".join(f"{i}\n" for i in range(100_000)))
    elif name == "t.jsonl":
        path.write_text("".join(f'{{"n": {i}}}\n' for i in range(100_000)))
    else:
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
    source = open_source(path)
    with ReadAhead(source.batches(["n"], batch_rows=100, batch_bytes=10_000), 1) as ahead:
        first = next(ahead).column(0)[0].as_py()
    assert first == 0
    del ahead
    gc.collect()
    assert reading_threads() == []
    assert [f.path for f in psutil.Process().open_files() if f.path == str(path)] == []


def test_a_closed_queue_drops_and_never_waits() -> None:
    """Either side may end it."""
    queue: ByteQueue[str] = ByteQueue()
    queue.put("a", 5)
    queue.put("b", 7)
    assert queue.take() == ("a", 5)
    assert queue.held_bytes == 12  # until it is released
    queue.close()
    assert queue.held_bytes == 5
    queue.release(5)
    queue.put("c", 1)
    assert (queue.take(), queue.held_bytes, queue.wait_for_room(0)) == (None, 0, False)


def test_a_finished_queue_gives_what_it_has() -> None:
    """Then None; an error comes after the items, each time."""
    queue: ByteQueue[str] = ByteQueue()
    queue.put("a", 1)
    queue.fail(OSError("gone"))
    assert queue.take() == ("a", 1)
    for _ in range(2):
        with pytest.raises(OSError, match="gone"):
            queue.take()
