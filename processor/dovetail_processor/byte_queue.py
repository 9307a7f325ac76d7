"""A hand-off between two threads that is bounded by bytes, and that either side may end.

    producer:  wait_for_room(limit) ─▶ put(item, size) … finish()     fail(error) ends it too
    consumer:  take() ─▶ (item, size) ─▶ release(size) … None at the end
    either:    close() drops what is queued and wakes both sides

`held_bytes` counts an item from `put` to `release`, so an item that the consumer is still working
on is held. One producer and one consumer; `held_bytes` may be read from anywhere.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")

_EXIT_CHECK_S = 1.0
"""How soon a waiting thread sees that the interpreter is ending: it would otherwise wait for ever
for an owner that went away without closing, and the process with it."""


class ByteQueue(Generic[T]):
    """See the module. Nothing here blocks for ever once the other side has called `close`."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._items: deque[tuple[T, int]] = deque()
        self._held_bytes = 0  # sizes put and not released
        self._error: BaseException | None = None  # set by `fail`; every later `take` raises it
        self._finished = False  # nothing will be put any more
        self._closed = False  # nothing will be taken any more

    @property
    def held_bytes(self) -> int:
        """Bytes put and not yet released."""
        return self._held_bytes

    @property
    def ended(self) -> bool:
        """Whether the queue is closed: nobody waits any more."""
        return self._closed

    @property
    def ready(self) -> bool:
        """Whether `take` would return, or raise, at once."""
        return bool(self._items) or self._finished or self._closed

    def wait_for_room(self, limit_bytes: int) -> bool:
        """Wait until at most `limit_bytes` are held; False once the queue is closed."""
        with self._changed:
            while not self._closed and self._held_bytes > limit_bytes:
                self._wait()
            return not self._closed

    def put(self, item: T, size_bytes: int) -> None:
        """Queue `item`; dropped if the queue is closed."""
        with self._changed:
            if not self._closed:
                self._items.append((item, size_bytes))
                self._held_bytes += size_bytes
                self._changed.notify_all()

    def finish(self) -> None:
        """Nothing more will be put; what is queued can still be taken."""
        with self._changed:
            self._finished = True
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Finish with an error, which `take` raises after what was put before it."""
        with self._changed:
            self._error = error
            self._finished = True
            self._changed.notify_all()

    def take(self) -> tuple[T, int] | None:
        """The next item and its size, to be released; None at the end or once closed."""
        with self._changed:
            while not self._items and not self._finished and not self._closed:
                self._wait()
            if self._items:
                return self._items.popleft()
            if self._error is not None and not self._closed:
                raise self._error
            return None

    def release(self, size_bytes: int) -> None:
        """The consumer is done with an item of this size."""
        with self._changed:
            self._held_bytes -= size_bytes
            self._changed.notify_all()

    def close(self) -> None:
        """Drop what is queued and let nobody wait any more. May be called again."""
        with self._changed:
            self._held_bytes -= sum(size for _, size in self._items)
            self._items.clear()
            self._closed = True
            self._changed.notify_all()

    def _wait(self) -> None:
        if not self._changed.wait(_EXIT_CHECK_S) and not threading.main_thread().is_alive():
            self._closed = True
