"""Threads that answer the calls of a server: made as they are needed, and daemons.

Those of `ThreadPoolExecutor` keep a program from ending: the interpreter waits for them before
anybody hears of its end, and takes no work for them meanwhile, which ends a server's own thread. A
server of a user's program has to go on until it is told to stop.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_Work = tuple[Future[Any], Callable[[], Any]]


class CallPool(Executor):
    """Up to so many threads; each waits for work until the pool is shut down."""

    def __init__(self, threads: int, name: str) -> None:
        self._most = threads
        self._name = name
        self._work: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)  # threads that wait
        self._threads = 0
        self._lock = threading.Lock()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """See Executor."""
        future: Future[T] = Future()
        self._work.put((future, lambda: fn(*args, **kwargs)))
        if not self._idle.acquire(blocking=False):
            with self._lock:
                if self._threads < self._most:
                    self._threads += 1
                    threading.Thread(target=self._run, name=self._name, daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the threads, each after the work that it has; nothing is waited for."""
        with self._lock:
            for _ in range(self._threads):
                self._work.put(None)

    def _run(self) -> None:
        while (found := self._work.get()) is not None:
            future, call = found
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as e:  # whoever waits for it gets it
                    future.set_exception(e)
            del found, future, call  # what they hold goes now, not with the next call
            self._idle.release()
