"""Starts the processes of test clusters by forking one that has everything imported already.

A process of a cluster takes seconds to import what it needs; a test that kills dozens of them
forks them from here instead, in a fraction of a second. They are the real programs in processes
of their own (`dovetail.services`), with the faults of `kit.fault_points` put in.

    test process ── a line of JSON ─▶ nursery ── fork ─▶ process (its pid is the answer)

Nothing outlives the test process: the nursery ends with its standard input, and whatever it
started ends with the nursery, which holds the other end of their standard inputs.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from dovetail.services import END_NOW

CLONE_NEWNET = 0x40000000
"""Of setns(2): the kind of namespace."""

END_GRACE_S = 60.0


class Forked:
    """One process, with the face of `dovetail.processes.ServiceProcess`."""

    def __init__(self, name: str, log: Path, pid: int) -> None:
        self.name = name
        self.log = log
        self.pid = pid
        self._pidfd = os.pidfd_open(pid)
        self.popen = self  # what reads `returncode` finds it here
        self.returncode = None  # not ours to know: the nursery is the parent

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return not self._ended_within(0)

    def tail(self) -> str:
        """The end of its log."""
        return self.log.read_text(encoding="utf-8", errors="replace")[-4000:]

    def send_signal(self, number: int) -> None:
        """A signal; none if it has ended."""
        if self.running:
            signal.pidfd_send_signal(self._pidfd, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGCONT)
        self.send_signal(END_NOW)

    def end(self, grace_s: float = END_GRACE_S) -> None:
        """Wait until it has ended, `grace_s` at most, then make it."""
        if not self._ended_within(grace_s):
            self.kill()

    def kill(self) -> None:
        """End it at once, as a crash would."""
        self.send_signal(signal.SIGKILL)
        assert self._ended_within(END_GRACE_S), f"{self.name} outlives SIGKILL"

    def _ended_within(self, seconds: float) -> bool:
        return bool(select.select([self._pidfd], [], [], seconds)[0])


class Nursery:
    """See the module. One per test process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        )

    def start(self, name: str, spec: Path, log: Path, *, faults: Path, **more: Any) -> Forked:
        """Start the process of a spec; `more` are the environment `env` and the namespace."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        asked = {"name": name, "spec": str(spec), "log": str(log), "faults": str(faults), **more}
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return Forked(name, log, int(self._process.stdout.readline()))


_nursery: list[Nursery] = []


def the_nursery() -> Nursery:
    """This test process's one."""
    if not _nursery:
        _nursery.append(Nursery())
    return _nursery[0]


def main() -> None:
    """The nursery itself: one process per line of standard input."""
    from kit import fault_points  # imports everything

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    tether, held = os.pipe()
    while line := sys.stdin.readline():
        asked = json.loads(line)
        pid = os.fork()
        if pid == 0:
            os.close(held)
            _become(asked, tether)
            code = 1
            try:
                fault_points.put_in(asked["name"], Path(asked["faults"]))
                from dovetail.services import main as run

                sys.argv = ["dovetail.services", asked["spec"], "--tethered"]
                code = run()
            finally:
                sys.stderr.flush()
                os._exit(code)
        print(pid, flush=True)


def _become(asked: dict[str, Any], tether: int) -> None:
    """What a fresh process would be: its own session, log, signals, environment and network."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(asked["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for fd, onto in ((tether, 0), (log, 1), (log, 2)):
        os.dup2(fd, onto)
    os.close(tether)
    os.environ.update(asked["env"])
    if namespace := asked.get("namespace"):
        fd = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
        if ctypes.CDLL(None, use_errno=True).setns(fd, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns {namespace}")
        os.close(fd)


if __name__ == "__main__":
    main()
