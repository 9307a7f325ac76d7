"""The verbs of clean-ups: asked for, recorded, given to a child process, followed to the end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

from dovetail_manager.admin import status
from dovetail_manager.admin.requests import place
from dovetail_manager.catalog import Spec
from dovetail_manager.cleanups import (
    END_S_MAX,
    Cleaner,
    CleanupProgress,
    CleanupRecord,
    CleanupState,
    Job,
    chosen_master,
)
from dovetail_manager.cluster import Cluster
from dovetail_manager.governor import Governor
from dovetail_manager.steering import Output
from dovetail_proto import admin as a
from dovetail_proto.errors import Domain, DovetailError, Refusal
from dovetail_proto.ids import QueryName
from dovetail_proto.roots import Roots

CANCEL_S_MAX = 2 * END_S_MAX
CANCEL_POLL_S = 0.05

COUNTING = "none"
"""As an output: results are only counted."""


class Cleanups:
    """The clean-ups of one manager. Methods may be called by any thread."""

    def __init__(self, cluster: Cluster, masters: Sequence[str], roots: Roots) -> None:
        self._cluster = cluster
        self._masters = tuple(masters)
        self._roots = roots  # an output lies below one of these
        self._started: dict[str, float] = {}  # when the one at work was started, by query
        self._cleaner = Cleaner(self._told, self._ended)

    def start(self, request: a.StartCleanup) -> a.CleanupStatus:
        """Record it and begin; ConfigError or Refusal if it cannot be."""
        name = QueryName(request.query)
        master = chosen_master(request.master, self._masters)
        counting = request.output == COUNTING
        output = COUNTING if counting else place("output", request.output, self._roots) or ""

        def begin(g: Governor, now_s: float) -> tuple[tuple[a.CleanupStatus, Spec], list[Output]]:
            pushes = sum(i.load.pushes for i in g.instances(name))
            record = CleanupRecord(
                master=master,
                output=output or g.catalog.spec(name).results or "",
                memory_bytes=request.memory_bytes,
                started_s=now_s,
                state=CleanupState.RUNNING if pushes else CleanupState.DONE,
                ended_s=0.0 if pushes else now_s,
            )
            out = g.start_cleanup(name, record, now_s=now_s)
            return (status.cleanup_status(g, name), g.catalog.spec(name)), out

        begun, spec = self._cluster.call(begin)
        if spec.cleaning:
            self._begin(spec)
        return begun

    def cancel(self, ref: a.QueryRef) -> a.CleanupStatus:
        """Stop it and wait until it has stopped; Refusal of domain `busy` if it does not."""
        until_s = time.monotonic() + CANCEL_S_MAX
        cancelled = False
        while True:
            cancelled = cancelled or self._cleaner.cancel(ref.name)  # its process may come later
            found = self._cluster.look(lambda g: status.cleanup_status(g, ref.name))
            if found.state != CleanupState.RUNNING:
                return found
            if time.monotonic() > until_s:
                raise Refusal(
                    Domain.BUSY,
                    f"the clean-up of query {ref.name!r} has not stopped yet",
                    remedy="try again in a second",
                    reason="busy",
                )
            self._cluster.ended.wait(CANCEL_POLL_S)

    def resume(self) -> None:
        """Go on with what a former manager had begun."""
        for spec in self._cluster.look(lambda g: list(g.catalog.specs.wanted.values())):
            if spec.cleaning:
                self._begin(spec)

    def abandon(self) -> None:
        """The manager ends: stop the work, and leave it to the next one."""
        self._cleaner.abandon()

    def stop(self) -> None:
        """As `abandon`; returns when nothing runs any more."""
        self._cleaner.stop()

    def _begin(self, spec: Spec) -> None:
        assert spec.cleanup is not None
        self._started[spec.name] = spec.cleanup.started_s
        job: Job = {
            "spill": spec.spill,
            "query": spec.name,
            "run": spec.run,
            "output": spec.cleanup.output or None,
            "master": spec.cleanup.master,
            "memory_bytes": spec.cleanup.memory_bytes,
        }
        self._cleaner.start(spec.name, job)

    def _told(self, query: str, progress: CleanupProgress) -> None:
        def note(g: Governor) -> None:
            g.cleanup_progress[QueryName(query)] = progress

        self._quietly(lambda: self._cluster.look(note))

    def _ended(self, query: str, change: dict[str, Any]) -> None:
        name, started_s = QueryName(query), self._started.pop(query)

        def end(g: Governor, now_s: float) -> tuple[None, list[Output]]:
            return None, g.end_cleanup(name, started_s, change, now_s=now_s)

        self._quietly(lambda: self._cluster.call(end))

    def _quietly(self, call: Callable[[], object]) -> None:
        with contextlib.suppress(DovetailError):  # the manager has ended: the next one goes on
            call()
