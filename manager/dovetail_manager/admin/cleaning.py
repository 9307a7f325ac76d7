"""The verbs of clean-ups: asked for, recorded, given to a child process, followed to the end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

from dovetail_manager import queries
from dovetail_manager.admin import status
from dovetail_manager.admin.requests import place
from dovetail_manager.cleanups import END_S_MAX, Cleaner, Job, chosen_master
from dovetail_manager.loop import ControllerLoop
from dovetail_manager.query import CleanupProgress
from dovetail_manager.records import CleanupRecord, CleanupState, QueryRecord
from dovetail_manager.refusals import busy
from dovetail_manager.state import State
from dovetail_proto import admin as a
from dovetail_proto.errors import DovetailError
from dovetail_proto.ids import QueryName
from dovetail_proto.roots import Roots

CANCEL_S_MAX = 2 * END_S_MAX
CANCEL_POLL_S = 0.05

COUNTING = "none"
"""As an output: results are only counted."""


class Cleanups:
    """The clean-ups of one manager. Methods may be called by any thread."""

    def __init__(self, loop: ControllerLoop, masters: Sequence[str], roots: Roots) -> None:
        self._loop = loop
        self._masters = tuple(masters)
        self._roots = roots  # an output lies below one of these
        self._started: dict[str, float] = {}  # when the one at work was started, by query
        self._cleaner = Cleaner(self._progressed, self._ended)

    def start(self, request: a.StartCleanup) -> a.CleanupStatus:
        """Record it and begin; ConfigError or Refusal if it cannot be."""
        name = QueryName(request.query)
        master = chosen_master(request.master, self._masters)
        counting = request.output == COUNTING
        output = COUNTING if counting else place("output", request.output, self._roots) or ""

        def begin(state: State) -> tuple[a.CleanupStatus, QueryRecord]:
            query = state.query(name)
            pushes = sum(r.load.pushes for r in queries.reports(state, query))
            record = CleanupRecord(
                master=master,
                output=output or query.record.results or "",
                memory_bytes=request.memory_bytes,
                started_s=state.now_s,
                state=CleanupState.RUNNING if pushes else CleanupState.DONE,
                ended_s=0.0 if pushes else state.now_s,
            )
            queries.start_cleanup(state, name, record)
            return status.cleanup_status(state, name), query.record

        begun, submitted = self._loop.call(begin)
        if submitted.cleaning:
            self._begin(submitted)
        return begun

    def cancel(self, ref: a.QueryRef) -> a.CleanupStatus:
        """Stop it and wait until it has stopped; Refusal of domain `busy` if it does not."""
        until_s = time.monotonic() + CANCEL_S_MAX
        cancelled = False
        while True:
            cancelled = cancelled or self._cleaner.cancel(ref.name)  # its process may come later
            found = self._loop.look(lambda state: status.cleanup_status(state, ref.name))
            if found.state != CleanupState.RUNNING:
                return found
            if time.monotonic() > until_s:
                raise busy(f"the clean-up of query {ref.name!r} has not stopped yet")
            self._loop.ended.wait(CANCEL_POLL_S)

    def resume(self) -> None:
        """Go on with what a former manager had begun."""
        for record in self._loop.look(lambda s: [q.record for q in s.queries.values()]):
            if record.cleaning:
                self._begin(record)

    def abandon(self) -> None:
        """The manager ends: stop the work, and leave it to the next one."""
        self._cleaner.abandon()

    def stop(self) -> None:
        """As `abandon`; returns when nothing runs any more."""
        self._cleaner.stop()

    def _begin(self, record: QueryRecord) -> None:
        assert record.cleanup is not None
        self._started[record.name] = record.cleanup.started_s
        job: Job = {
            "spill": record.spill,
            "query": record.name,
            "run": record.run,
            "output": record.cleanup.output or None,
            "master": record.cleanup.master,
            "memory_bytes": record.cleanup.memory_bytes,
        }
        self._cleaner.start(record.name, job)

    def _progressed(self, query: str, progress: CleanupProgress) -> None:
        def note(state: State) -> None:
            state.query(query).cleanup_progress = progress

        self._quietly(lambda: self._loop.look(note))

    def _ended(self, query: str, change: dict[str, Any]) -> None:
        name, started_s = QueryName(query), self._started.pop(query)

        def end(state: State) -> None:
            queries.end_cleanup(state, name, started_s, change)

        self._quietly(lambda: self._loop.call(end))

    def _quietly(self, call: Callable[[], object]) -> None:
        with contextlib.suppress(DovetailError):  # the manager has ended: the next one goes on
            call()
