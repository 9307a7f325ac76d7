"""A worker on one thread, its jobs on others: the loop that a process and a local run share.

    other threads ── post, ask ─▶ mailbox ─▶ worker's thread: all events, then one step, and so on
    lanes' threads ── the end of a job ─┘

All of the worker's state is its thread's. Nothing else here touches it.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar
from weakref import WeakSet

import structlog

from dovetail_processor.jobs import Outcome, outcome_of
from dovetail_processor.worker import Worker
from dovetail_proto.errors import DovetailError
from dovetail_proto.ids import ProcessorId
from dovetail_proto.messages import Heartbeat

JOBS_TIMEOUT_S = 30.0
"""For jobs when the worker ends: a disk may need seconds for a last file; a source that never
answers must not keep the process."""

WAIT_S_MIN = 1e-4
"""Less than this is not waited for."""

SNAPSHOT_S = 0.1
"""How old the snapshot for other threads may be where something changes: a tenth of the time
between two heartbeats."""

SNAPSHOT_S_MAX = 1.0
"""The same where nothing does: it also tells how long others have been silent."""

T = TypeVar("T")
log = structlog.get_logger("processor")


class ThreadLane:
    """See Lane: a thread that lives from the first job to `close`."""

    def __init__(
        self,
        name: str,
        post: Callable[[Callable[[], None]], None],
        threads: WeakSet[threading.Thread],
    ) -> None:
        self._name = name
        self._post = post
        self._threads = threads
        self._jobs: queue.SimpleQueue[tuple[Any, Any] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False

    def run(self, work: Callable[[], T], done: Callable[[Outcome[T]], None]) -> None:
        """See Lane."""
        self._jobs.put((work, done))
        if self._thread is None:
            # The thread must not refer to this object, or it could never be lost.
            self._thread = threading.Thread(
                target=_do_jobs, args=(self._jobs, self._post), name=self._name, daemon=True
            )
            self._threads.add(self._thread)
            self._thread.start()

    def close(self) -> None:
        """See Lane."""
        if not self._closed:
            self._closed = True
            self._jobs.put(None)

    def __del__(self) -> None:
        self._jobs.put(None)


def _do_jobs(
    jobs: queue.SimpleQueue[tuple[Any, Any] | None], post: Callable[[Callable[[], None]], None]
) -> None:
    while (job := jobs.get()) is not None:
        work, done = job
        outcome = outcome_of(work)
        post(_end_of(done, outcome))
        del job, work, done, outcome  # while this thread waits, it keeps nothing alive


def _nothing() -> None: ...


def _end_of(done: Callable[[Outcome[Any]], None], outcome: Outcome[Any]) -> Callable[[], None]:
    return lambda: done(outcome)


class WorkerLoop:
    """Runs `worker`, which is set before `run`; `failed` hears of a defect that ended it."""

    worker: Worker

    def __init__(
        self,
        here: ProcessorId,
        failed: Callable[[DovetailError], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._here = here
        self._failed = failed
        self._clock = clock
        self._mailbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()
        self._snapshot: Heartbeat | None = None
        self._snapshot_s = float("-inf")  # when it was made
        self._changed = True  # something was done since then
        self._lanes: WeakSet[ThreadLane] = WeakSet()
        self._lanes_threads: WeakSet[threading.Thread] = WeakSet()

    # For other threads ----------------------------------------------------------------------------

    def start(self) -> None:
        """Run on a thread of its own."""
        self._thread = threading.Thread(target=self.run, name="worker", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End, dropping all queries; results that were found stay."""
        self._mailbox.put(None)
        if self._thread is not None:
            self._thread.join()

    def post(self, event: Callable[[], None]) -> None:
        """Have `event` handled by the worker, soon."""
        self._mailbox.put(event)

    def wake(self) -> None:
        """Have the worker take a step, soon."""
        self.post(_nothing)

    def ask(self, question: Callable[[], T]) -> T:
        """Have `question` answered in the worker's thread; raises what it raises."""
        answer: Future[T] = Future()

        def put() -> None:
            try:
                answer.set_result(question())
            except BaseException as e:
                answer.set_exception(e)

        self.post(put)
        while not self._stopped.is_set():
            try:
                return answer.result(timeout=1.0)
            except TimeoutError:
                continue
        from dovetail_proto.transport import Unreachable  # a run of its own needs no gRPC

        raise Unreachable(f"processor {self._here!r} is stopping", remedy="try again elsewhere")

    def lane(self, name: str) -> ThreadLane:
        """See Lanes."""
        lane = ThreadLane(name, self.post, self._lanes_threads)
        self._lanes.add(lane)
        return lane

    @property
    def snapshot(self) -> Heartbeat:
        """How it goes, a moment ago."""
        return self._snapshot or self.worker.heartbeat()

    # The worker's thread --------------------------------------------------------------------------

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Work until it is stopped, or `until` says so; it is asked after every step."""
        try:
            worked = True
            while self._handle_events(wait=not worked):
                worked = self.worker.step(self._clock())
                self._changed |= worked
                old_s = SNAPSHOT_S if self._changed else SNAPSHOT_S_MAX
                if self._clock() >= self._snapshot_s + old_s:
                    self.take_snapshot()
                if until():
                    return
        except Exception as e:  # what is half done cannot be gone on with: better dead than wrong
            log.exception("defect", processor=self._here)
            self._failed(DovetailError(f"defect: {type(e).__name__}: {e}"))
        finally:
            self._stopped.set()
            self.worker.stop("the processor stops")
            self._finish_jobs()

    def take_snapshot(self) -> None:
        """Have `snapshot` show how it goes now; in the worker's thread."""
        self._snapshot = self.worker.heartbeat()
        self._snapshot_s = self._clock()
        self._changed = False

    def _finish_jobs(self) -> None:
        """Wait for the last jobs: among them are the sinks' ends."""
        for lane in list(self._lanes):
            lane.close()
        deadline_s = time.monotonic() + JOBS_TIMEOUT_S
        for thread in list(self._lanes_threads):
            thread.join(max(0.0, deadline_s - time.monotonic()))

    def _handle_events(self, *, wait: bool) -> bool:
        """All that is in the mailbox; `wait` for something if it is empty. False to end."""
        wait_s = max(WAIT_S_MIN, self.worker.next_s - self._clock()) if wait else 0.0
        while True:
            try:
                event = self._mailbox.get(timeout=wait_s) if wait_s else self._mailbox.get_nowait()
            except queue.Empty:
                return True
            if event is None:
                return False
            self.worker.handle(event, self._clock())
            self._changed = True
            wait_s = 0.0
