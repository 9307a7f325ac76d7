"""The thread that writes to the store, one thing at a time, in the order it was asked to.

Store calls block, so nobody else makes them for the manager. What it finds out it reports: a
revision is durable, the store is away (the machine issues the same write again), a move is in the
history, another manager leads. Between writes it looks whether this one still does.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

import structlog

from dovetail_manager.effects import AppendHistory
from dovetail_manager.journal import Write
from dovetail_manager.store import Store
from dovetail_manager.store.errors import StoreUnavailable
from dovetail_proto.errors import DovetailError
from dovetail_proto.ids import Epoch, MoveId

RETRY_S = 0.5
"""Between two tries while the store is away; the store itself has waited for longer."""

LEADER_CHECK_S = 3.0
"""An idle manager finds out in this time that another one leads."""

LEADER_HISTORY = "leader/check"
"""A history that stays empty: putting nothing into it is refused when another manager leads."""

log = structlog.get_logger()


class StoreWriter:
    """Does writes and records; callbacks run on its thread and must not block."""

    def __init__(
        self,
        store: Store,
        epoch: Epoch,
        *,
        confirmed: Callable[[int], None],
        failed: Callable[[], None],
        recorded: Callable[[MoveId], None],
        lost: Callable[[DovetailError], None],
    ) -> None:
        self._store = store
        self._epoch = epoch
        self._confirmed, self._failed = confirmed, failed
        self._recorded, self._lost = recorded, lost
        # One write at a time is under way, and a record per decision or ended move.
        self._todo: queue.SimpleQueue[Write | AppendHistory | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="store", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def put(self, job: Write | AppendHistory) -> None:
        """Queue a job."""
        self._todo.put(job)

    def stop(self) -> None:
        """End after the job under way; what is queued is left to a successor."""
        self._stopping.set()
        self._todo.put(None)
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                job = self._todo.get(timeout=LEADER_CHECK_S)
            except queue.Empty:
                job = AppendHistory(LEADER_HISTORY, {}, keep=0)
            if job is None:
                return
            try:
                self._do(job)
            except StoreUnavailable as e:
                log.warning("store is away", error=str(e))
                self._stopping.wait(RETRY_S)
                if isinstance(job, Write):
                    self._failed()
                elif job.move is not None:  # else its entry would stay in the store for ever
                    self._todo.put(job)
            except DovetailError as e:
                self._lost(e)
                return

    def _do(self, job: Write | AppendHistory) -> None:
        if isinstance(job, Write):
            self._store.write(job)
            self._confirmed(job.revision)
            return
        self._store.record(self._epoch, job.history, job.records, keep=job.keep)
        if job.move is not None:
            self._recorded(job.move)
