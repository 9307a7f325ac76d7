"""A clean-up's child process: whatever becomes of it, its end is told."""

from __future__ import annotations

import subprocess
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from dovetail_manager import cleanups
from dovetail_manager.admin.cleaning import Cleanups
from dovetail_manager.cleanups import Cleaner, CleanupState
from dovetail_proto import admin as a
from dovetail_proto.roots import Roots

WAIT_S = 60.0


def cleaner() -> tuple[Cleaner, SimpleQueue[dict[str, Any]]]:
    """One, and the ends that it tells."""
    ends: SimpleQueue[dict[str, Any]] = SimpleQueue()
    return Cleaner(lambda *_: None, lambda _, change: ends.put(change)), ends


def test_a_child_that_is_killed_in_the_middle_of_a_line_has_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And the query may be cleaned up again."""
    dies = 'import os; os.write(1, b\'{"progress": {"sta\'); os.kill(os.getpid(), 9)'
    monkeypatch.setattr(cleanups, "CHILD", ("-c", dies))
    one, ends = cleaner()
    one.start("q", {})
    end = ends.get(timeout=WAIT_S)
    assert (end["state"], "exit code -9" in end["cause"]) == (CleanupState.FAILED, True)
    assert not one.cancel("q")


def test_a_child_that_cannot_be_started_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the cause; who starts it, as a manager does for those of a former one, goes on."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    one, ends = cleaner()
    one.start("q", {})
    end = ends.get(timeout=WAIT_S)
    assert (end["state"], "Cannot allocate memory" in end["cause"]) == (CleanupState.FAILED, True)


def test_a_cancel_that_comes_before_the_child_stops_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The record says "running" a moment before there is a process to stop."""
    waits = "import sys; sys.stdin.readline(); sys.stdin.read()"
    monkeypatch.setattr(cleanups, "CHILD", ("-c", waits))
    one, ends = cleaner()
    looks = 0

    def look(_: object) -> a.CleanupStatus:
        nonlocal looks
        looks += 1
        if looks == 1:
            one.start("q", {})
            return SimpleNamespace(state=CleanupState.RUNNING)  # type: ignore[return-value]
        state = CleanupState.RUNNING if ends.empty() else ends.get()["state"]
        return SimpleNamespace(state=state)  # type: ignore[return-value]

    ended = SimpleNamespace(wait=lambda _: None)
    verbs = Cleanups(SimpleNamespace(look=look, ended=ended), (), Roots())  # type: ignore[arg-type]
    monkeypatch.setattr(verbs, "_cleaner", one)
    assert verbs.cancel(a.QueryRef("q")).state == CleanupState.CANCELLED
