"""Decoding the next batches while the consumer works on this one.

One thread pulls from the source; pyarrow releases the interpreter lock while it reads and decodes,
so that source and join use two cores. The thread reads on while less than `depth_bytes` are held:
at most `depth_bytes` plus one batch wait here, and `held_bytes` says how much it is.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from types import TracebackType

import pyarrow as pa

from dovetail_processor.byte_queue import ByteQueue


class ReadAhead(Iterator[pa.RecordBatch]):
    """The batches of an iterator, in order, read in the background.

    An error of the iterator is raised where its batch would have been. `close` ends the thread,
    waiting for at most the batch that is being decoded, and closes the iterator; the end of the
    batches, an error and the loss of the last reference close as well.
    """

    def __init__(self, batches: Iterator[pa.RecordBatch], depth_bytes: int) -> None:
        self._queue: ByteQueue[pa.RecordBatch] = ByteQueue()
        # The thread must not refer to this object, or it could never be lost.
        self._thread = threading.Thread(
            target=_pump, args=(batches, self._queue, depth_bytes), name="read-ahead"
        )
        weakref.finalize(self, self._queue.close)
        self._thread.start()

    @property
    def held_bytes(self) -> int:
        """Bytes of the batches that are read and not yet handed out."""
        return self._queue.held_bytes

    @property
    def ready(self) -> bool:
        """Whether the next batch, the end or an error is at hand, without waiting."""
        return self._queue.ready

    def __next__(self) -> pa.RecordBatch:
        try:
            taken = self._queue.take()
        except BaseException:
            self.close()
            raise
        if taken is None:
            self.close()
            raise StopIteration
        batch, size_bytes = taken
        self._queue.release(size_bytes)
        return batch

    def close(self) -> None:
        """Stop reading and drop what is held. May be called again, and at any time."""
        self._queue.close()
        self._thread.join()

    def __enter__(self) -> ReadAhead:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _pump(
    batches: Iterator[pa.RecordBatch], queue: ByteQueue[pa.RecordBatch], depth_bytes: int
) -> None:
    try:
        while queue.wait_for_room(depth_bytes - 1):
            batch = next(batches, None)
            if batch is None:
                queue.finish()
                break
            queue.put(batch, batch.nbytes)
            del batch  # while this thread waits, only the queue may hold it
    except BaseException as e:  # also KeyboardInterrupt and the like: the consumer must see it
        queue.fail(e)
    finally:
        close = getattr(batches, "close", None)
        if close is not None:
            close()
