"""Clean-ups through the cluster: the process that does one.

    start ─▶ record "running", durable ─▶ child process ─▶ progress … ─▶ record "done" or "failed"
    cancel ─▶ the child's input ends ─▶ it stops, keeps what is finished ─▶ record "cancelled"
    the manager ends ─▶ so do its children; the record stays "running", and the next manager goes on

The child is the pipeline's own program (`CHILD`); nothing of the pipeline is imported here. It ends
when its standard input does, so none is left whatever becomes of the manager.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import structlog

from dovetail_manager.query import CleanupProgress
from dovetail_manager.records import CleanupState
from dovetail_proto.errors import ConfigError

CHILD = ("-m", "dovetail_pipeline.service")

LOCAL = "local"
"""In place of a Spark master: processes on the manager's machine."""

SPARK = "spark"
"""In place of a Spark master: the first one that the operator names."""

MASTERS_DEFAULT = (LOCAL, "local[*]")
"""Without an operator's list: this machine, by ours or by Spark's processes."""

END_S_MAX = 15.0
"""For a child to end by itself: its own grace is 10 s."""

log = structlog.get_logger()


Job = dict[str, Any]
"""What the child reads."""


def chosen_master(asked: str, allowed: Sequence[str]) -> str:
    """The master for a clean-up; ConfigError unless it is local or one of the operator's."""
    if not asked:
        return allowed[0] if allowed else LOCAL
    sparks = [m for m in allowed if m != LOCAL]
    if asked == SPARK and sparks:
        return sparks[0]
    if asked == LOCAL or asked in allowed:
        return asked
    raise ConfigError(
        f"Spark master {asked!r} is not one that this cluster allows",
        remedy=f"use one of {', '.join([*sparks, LOCAL])}, or add it to `spark_masters` in the "
        "manager's settings",
    )


class Cleaner:
    """The children of one manager, one per query at most. Methods may be called by any thread.

    `progressed(query, progress)` hears how far one is, `ended(query, change)` what has become of
    it, whatever that is; both are called on a thread of the child's, or by `start` if there is
    none.
    """

    def __init__(
        self,
        progressed: Callable[[str, CleanupProgress], None],
        ended: Callable[[str, dict[str, Any]], None],
    ) -> None:
        self._progressed = progressed
        self._ended = ended
        self._children: dict[str, _Child] = {}
        self._lock = threading.Lock()
        self._stopping = False

    def start(self, query: str, job: Job) -> None:
        """Begin; nothing happens if the manager is ending."""
        try:
            with self._lock:
                if self._stopping:
                    return
                child = self._children[query] = _Child(job)
        except OSError as e:
            log.warning("clean-up cannot start", query=query, cause=str(e))
            self._ended(query, _failed(_not_started(e)))
            return
        threading.Thread(
            target=self._follow, args=(query, child), name=f"clean-up {query}", daemon=True
        ).start()

    def cancel(self, query: str) -> bool:
        """Stop it, and `ended` hears of it when it has; False if there is none at work."""
        with self._lock:
            child = self._children.get(query)
        if child is None:
            return False
        child.cancelled = True
        child.let_go()
        return True

    def abandon(self) -> None:
        """Stop all and tell nobody: the next manager goes on with them."""
        with self._lock:
            self._stopping = True
            children = list(self._children.values())
        for child in children:
            child.let_go()

    def stop(self) -> None:
        """As `abandon`; returns when the children have ended."""
        self.abandon()
        with self._lock:
            children = list(self._children.values())
        for child in children:
            child.end()

    def _follow(self, query: str, child: _Child) -> None:
        last: dict[str, Any] = {}
        try:
            for event in child.events():
                if "progress" not in event:
                    last = event
                    continue
                p = event["progress"]
                self._progressed(
                    query,
                    CleanupProgress(
                        p["stage"], p["bins_done"], p["bins"], p["results"], p["owed"] or 0
                    ),
                )
        finally:
            child.let_go()
            self._finish(query, child, last)

    def _finish(self, query: str, child: _Child, last: dict[str, Any]) -> None:
        code = child.end()
        with self._lock:
            if self._children.get(query) is child:
                del self._children[query]
            if self._stopping:
                return
        change = _outcome(last, code, cancelled=child.cancelled)
        log.info("clean-up ended", query=query, **change)
        self._ended(query, change)


class _Child:
    """One process."""

    def __init__(self, job: Job) -> None:
        self.cancelled = False
        # The manager's own settings, tokens among them, are none of the child's business.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("DOVETAIL_")}
        self._process = subprocess.Popen(
            [sys.executable, *CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # Ctrl-C in a terminal is for the manager
        )
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended already: its exit code says so
            self._process.stdin.write(json.dumps(job).encode() + b"\n")
            self._process.stdin.flush()

    def events(self) -> Iterator[dict[str, Any]]:
        """What it says, until it ends; one that is killed may end in the middle of a line."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                yield json.loads(line)
            except ValueError:
                return

    def let_go(self) -> None:
        """Have it stop."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def end(self) -> int:
        """Wait until it has ended, then make it; its exit code."""
        try:
            return self._process.wait(END_S_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


def _outcome(last: dict[str, Any], code: int, *, cancelled: bool) -> dict[str, Any]:
    """How the record changes."""
    if done := last.get("done"):
        return {
            "state": CleanupState.DONE,
            "output": done["output"] or "none",
            "results": done["rows"],
            "checksum": done["checksum"],
            "owed": done["owed"],
            "bins": done["bins"],
        }
    if cancelled:
        return {"state": CleanupState.CANCELLED}
    error = last.get("error") or {
        "code": "spill",
        "message": f"the clean-up's process ended by itself (exit code {code})",
        "remedy": "see the manager's log; start it again: what is finished is kept",
    }
    return _failed(error)


def _not_started(e: OSError) -> dict[str, str]:
    return {
        "code": "spill",
        "message": f"the clean-up's process cannot be started: {e}",
        "remedy": "free memory or processes on the manager's machine, then start it again",
    }


def _failed(error: dict[str, str]) -> dict[str, Any]:
    return {
        "state": CleanupState.FAILED,
        "code": error["code"],
        "cause": error["message"],
        "remedy": error["remedy"],
    }
