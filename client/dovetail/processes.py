"""Processes of a local cluster: started with a log of their own, ended for sure.

Each runs in a session of its own, so that Ctrl-C in a terminal reaches the parent alone, which then
ends its children in order. See `services` for how they end with their parent.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import psutil

from dovetail.services import END_NOW, TOKEN_VARIABLES
from dovetail_proto.errors import DovetailError, Fault

TERM_GRACE_S = 15.0
"""What a process gets to end by itself: a processor may be writing a segment of results."""

LOG_TAIL_LINES = 12

POLL_S = 0.02


class ClusterStartError(DovetailError):
    """A process of a local cluster that ended early or did not get ready in time."""

    code = "start"
    fault = Fault.ENVIRONMENT
    exit_code = 7


class ServiceProcess:
    """One child; `popen` is there for whoever wants to kill, stop or watch it."""

    def __init__(
        self,
        name: str,
        spec: Mapping[str, Any],
        folder: Path,
        environment: Mapping[str, str],
        *,
        detached: bool,
    ) -> None:
        """Start it. Its spec and log are `<name>.json` and `<name>.log` in folders of `folder`."""
        self.name = name
        self.log = folder / "logs" / f"{name}.log"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        written = folder / "specs" / f"{name}.json"
        written.parent.mkdir(parents=True, exist_ok=True)
        written.write_text(json.dumps(spec), encoding="utf-8")
        words = [sys.executable, "-m", "dovetail.services", str(written)]
        with self.log.open("ab") as log:
            self.popen = subprocess.Popen(
                words if detached else [*words, "--tethered"],
                stdin=subprocess.DEVNULL if detached else subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=_environment(environment),
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.popen.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self.popen.poll() is None

    def tail(self) -> str:
        """The last lines of its log."""
        return tail_of(self.log)

    def terminate(self) -> None:
        """Ask it to end, with the cluster: a processor does not leave first."""
        if self.running:
            self.popen.send_signal(signal.SIGCONT)  # a stopped one could not hear
            self.popen.send_signal(END_NOW)

    def end(self, grace_s: float = TERM_GRACE_S) -> None:
        """Wait until it has ended, `grace_s` at most, then make it."""
        try:
            self.popen.wait(grace_s)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
        if self.popen.stdin is not None:
            self.popen.stdin.close()

    def kill(self) -> None:
        """End it at once, as a crash would."""
        self.popen.kill()
        self.end()


def tail_of(log: Path) -> str:
    """The last lines of a log; empty if there is none."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(lines[-LOG_TAIL_LINES:])


def wait_for(
    ready: Callable[[], bool],
    processes: Iterable[ServiceProcess],
    timeout_s: float,
    what: str,
) -> None:
    """Until `ready`; ClusterStartError, with the end of a log, if a process ends or time is up."""
    watched = list(processes)
    until_s = time.monotonic() + timeout_s
    while not ready():
        for process in watched:
            if not process.running:
                raise ClusterStartError(
                    f"{process.name} ended with code {process.popen.returncode} before {what}; "
                    f"its log {str(process.log)!r} ends with:\n{process.tail()}",
                    remedy="see the log",
                )
        if time.monotonic() > until_s:
            tails = "\n".join(f"{p.name}: {p.tail()}" for p in watched)
            raise ClusterStartError(
                f"waited {timeout_s:.0f} s in vain until {what}; the logs end with:\n{tails}",
                remedy="see the logs; give it more time on a busy machine",
            )
        time.sleep(POLL_S)


def started_at(pid: int) -> float:
    """When a process started, which tells it from a later one with the same id."""
    return float(psutil.Process(pid).create_time())


def same_process(pid: int, started_s: float) -> psutil.Process | None:
    """The process with this id, if it is still the one that started then and has not ended."""
    try:
        found = psutil.Process(pid)
        same = abs(found.create_time() - started_s) < 1
        return found if same and found.status() != psutil.STATUS_ZOMBIE else None
    except psutil.NoSuchProcess:
        return None


def end_processes(started: Iterable[tuple[int, float]]) -> set[int]:
    """End processes, given by id and start, that are no children of this one; those it ended."""
    left = {(pid, at): p for pid, at in started if (p := same_process(pid, at))}
    ended = {pid for pid, _ in left}
    for number, grace_s in ((END_NOW, TERM_GRACE_S), (signal.SIGKILL, TERM_GRACE_S)):
        for process in left.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)  # a stopped one could not hear
                process.send_signal(number)
        until_s = time.monotonic() + grace_s
        while left and time.monotonic() < until_s:
            time.sleep(POLL_S)
            left = {key: p for key, p in left.items() if same_process(*key)}
    return ended


def _environment(ours: Mapping[str, str]) -> dict[str, str]:
    """The parent's, without its own settings of Dovetail, which are not the child's."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("DOVETAIL_")}
    if sys.platform == "linux":
        # Before Arrow is loaded: see `dovetail_processor.allocators`.
        kept.setdefault("ARROW_DEFAULT_MEMORY_POOL", "jemalloc")
    return {**kept, **{k: v for k, v in ours.items() if k in TOKEN_VARIABLES and v}}
