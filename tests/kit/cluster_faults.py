"""A cluster whose processes can be made to die or stop at any step of a move.

with FaultyCluster(processors=4) as local:
    local.arm("p1", "before hears SendPartitions")     # see kit.fault_points for the points
    …begin a move…
    local.await_fault("p1")                            # it is dead now
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import psutil
import pyarrow as pa

from dovetail import LocalCluster, Stream
from dovetail.local_cluster import MANAGER
from dovetail_manager.moves.steps import MoveSettings
from kit.nursery import Forked, the_nursery

WAIT_S = 180.0
"""For anything to happen, on a machine that is busy with other tests."""

DEAD_AFTER_S = 4.0
"""Short, and still forty heartbeats: a machine that is busy with other tests kills nobody."""


class FaultyCluster(LocalCluster):
    """A local cluster with short patience, quick starts and faults."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(
            **{
                "processors": 4,
                "memory_bytes": 64_000_000,
                "heartbeat_s": 0.1,
                "sample_s": 0.1,
                "dead_after_s": DEAD_AFTER_S,
                "moves": MoveSettings(resend_s=0.2, step_timeout_s=1.0),
                **settings,
            }
        )
        self.faults = self.data_dir / "faults"
        self.faults.mkdir(parents=True)
        self.namespaces: dict[str, str] = {}  # of processes that are not in ours
        self.hosts: dict[str, str] = {}  # where those listen

    def arm(self, name: str, point: str, signal_name: str = "SIGKILL") -> None:
        """Have a process send itself a signal the next time that it comes to `point`."""
        (self.faults / f"{name}.met").unlink(missing_ok=True)
        written = self.faults / f"{name}.new"
        written.write_text(f"{signal_name} {point}")
        written.rename(self.faults / name)

    def disarm(self, name: str) -> None:
        """Take a fault back."""
        (self.faults / name).unlink(missing_ok=True)

    def fault_met(self, name: str) -> bool:
        """Whether the process came to the point."""
        return (self.faults / f"{name}.met").exists()

    def await_fault(self, name: str) -> None:
        """Until the process came to the point, and is dead or stopped."""
        until(lambda: self.fault_met(name), f"{name} comes to its fault")
        pid = self.processes[name].pid
        until(lambda: not self.processes[name].running or _stopped(pid), f"{name} got its signal")

    def go_on(self, name: str) -> None:
        """Let a stopped process go on; returns when it does."""
        process = self.processes[name]

        def goes() -> bool:
            process.popen.send_signal(signal.SIGCONT)
            return not _stopped(process.pid)

        until(goes, f"{name} goes on")

    def restart_dead(self) -> None:
        """Start again whoever is not there; returns when all are members. No fault is left."""
        for name in (MANAGER, *self.names):
            self.disarm(name)
        if not self.processes[MANAGER].running:
            self.restart_manager()

        def there() -> bool:
            for name in self.names:
                if not self.processes[name].running:  # one that has left may still be ending
                    self.start_processor(name)
            return self.all_joined()

        until(there, "all are members")

    def all_joined(self) -> bool:
        """Whether every processor is a member now."""
        alive = {p.name for p in self.cluster.status().processors if p.state == "alive"}
        return alive >= set(self.names)

    def state_of(self, name: str) -> str:
        """What the manager says of a processor."""
        return next(p.state for p in self.cluster.status().processors if p.name == name)

    def leave(self, name: str) -> None:
        """Have a processor leave; returns when it has, and its process has ended."""
        self.cluster.leave(name)
        until(lambda: self.state_of(name) == "left", f"{name} has left")
        until(lambda: not self.processes[name].running, f"the process of {name} has ended")

    def incarnation(self, name: str) -> int:
        """Which one of a processor the manager knows."""
        return next(p.incarnation for p in self.cluster.status().processors if p.name == name)

    def story(self) -> str:
        """How every process is, and the end of its log: for a test that fails."""
        return "\n".join(
            f"── {name}: {psutil.Process(p.pid).status() if p.running else 'ended'}\n{p.tail()}"
            for name, p in self.processes.items()
        )

    def stream_at(self, home: str, schema: pa.Schema, taken: set[str]) -> Stream:
        """A stream that is at home at a processor: one that is not `taken`, or a new one."""
        while True:
            for status in self.cluster.streams():
                if status.home == home and status.name not in taken:
                    found = self.cluster.stream(status.name)
                    if found.schema == schema:
                        return found
            number = len(self.cluster.streams())
            self.cluster.create_stream(f"s{number}", schema)

    def _process(self, name: str, spec: dict[str, object]) -> Any:
        log = self.data_dir / "logs" / f"{name}.log"
        written = self.data_dir / "specs" / f"{name}.json"
        for folder in (log.parent, written.parent):
            folder.mkdir(parents=True, exist_ok=True)
        if name in self.hosts:
            spec = {**spec, "listen": f"{self.hosts[name]}:0"}
        written.write_text(json.dumps(spec), encoding="utf-8")
        env = {"DOVETAIL_TOKEN": self.token, "DOVETAIL_READ_TOKEN": ""}
        namespace = self.namespaces.get(name, "")
        started: Forked = the_nursery().start(
            name, written, log, faults=self.faults, env=env, namespace=namespace
        )
        return started


def _stopped(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    except psutil.NoSuchProcess:
        return False


def until(true: Callable[[], bool], what: str = "it is so", timeout_s: float = WAIT_S) -> None:
    """Look again and again until it is so."""
    end_s = time.monotonic() + timeout_s
    pause = threading.Event()
    while not true():
        assert time.monotonic() < end_s, f"waited in vain until {what}"
        pause.wait(0.02)
