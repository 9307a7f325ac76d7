"""Writing results in a thread of their own, so that the join and the writer use two cores.

The queue between them is bounded by bytes: a sink that cannot keep up makes `write` wait, which
stops the join, which stops the sources.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

import pyarrow as pa

from dovetail_processor.byte_queue import ByteQueue
from dovetail_processor.sinks.sink import Sink, SinkTotals


class BackgroundSink:
    """Writes to `sink` in the background, in order, with at most `bound_bytes` on the way.

    A batch larger than the bound waits until nothing is on the way and then passes alone. An error
    of the inner sink, which has then dropped its unfinished file, is raised by the next `write` or
    by `close`; batches written in between are lost with it. Use from one thread.
    """

    def __init__(
        self, sink: Sink, bound_bytes: int, written: Callable[[], None] | None = None
    ) -> None:
        """`written` is called in the background whenever a batch has been written."""
        self._sink = sink
        self._bound_bytes = bound_bytes
        self._queue: ByteQueue[pa.RecordBatch | threading.Event] = ByteQueue()
        self._failure: list[BaseException] = []  # at most one; filled by the thread as it ends
        # The thread must not refer to this object, or a lost sink would keep it for ever.
        self._thread = threading.Thread(
            target=_drain, args=(self._queue, sink, self._failure, written), name="sink"
        )
        weakref.finalize(self, self._queue.close)
        self._thread.start()

    @property
    def held_bytes(self) -> int:
        """Bytes on the way and in the inner sink."""
        return self._queue.held_bytes + self._sink.held_bytes

    def has_room(self, size_bytes: int) -> bool:
        """Whether `write` would not wait for a batch of this size; true also if it would raise."""
        return self._queue.ended or self._queue.held_bytes <= max(0, self._bound_bytes - size_bytes)

    def write(self, batch: pa.RecordBatch) -> None:
        """Hand over `batch`; waits for room. Raises what the inner sink raised before."""
        size_bytes = batch.nbytes
        if not self._queue.wait_for_room(max(0, self._bound_bytes - size_bytes)):
            self._raise_failure()
        self._queue.put(batch, size_bytes)

    def roll(self) -> threading.Event:
        """Have all that was written so far made durable; the event is set when it is."""
        done = threading.Event()
        self._queue.put(done, 0)
        return done

    def close(self) -> SinkTotals:
        """Write what is on the way, then close the inner sink."""
        self._queue.finish()
        self._thread.join()
        if self._failure:
            self._raise_failure()
        return self._sink.close()

    def abort(self) -> None:
        """Drop what is on the way and abort the inner sink."""
        self._queue.close()
        self._thread.join()
        self._sink.abort()

    def _raise_failure(self) -> None:
        self._thread.join()
        if self._failure:
            raise self._failure[0]
        raise ValueError("write to a sink that is closed")


def _drain(
    queue: ByteQueue[pa.RecordBatch | threading.Event],
    sink: Sink,
    failure: list[BaseException],
    written: Callable[[], None] | None,
) -> None:
    try:
        while (taken := queue.take()) is not None:
            item, size_bytes = taken
            try:
                if isinstance(item, threading.Event):
                    sink.roll()
                    item.set()
                else:
                    sink.write(item)
            finally:
                del item, taken
                queue.release(size_bytes)
            if written is not None:
                written()
    except BaseException as e:  # whatever it is, the thread that writes must see it
        failure.append(e)
        queue.close()
        if written is not None:
            written()
