"""The cluster that `dovetail up` left in a data folder, as later commands find it.

`cluster.json` says which processes there were, `specs/` how each was started. So whichever has
ended can be started as it was, at the same address and with the same token; `cluster.json` then
names the new process. A manager that somebody started by hand at that address is asked like ours:
what counts is who answers, not whom the file names.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dovetail.admin_calls import AdminCalls
from dovetail.connecting import ClusterFile, Started, read_cluster_file
from dovetail.processes import ServiceProcess, same_process, started_at, wait_for
from dovetail_proto.errors import ConfigError
from dovetail_proto.ids import ProcessorId, worker_names
from dovetail_proto.transport import Unreachable

if TYPE_CHECKING:
    from dovetail.settings import Settings

MANAGER = "manager"

START_TIMEOUT_S = 120.0
"""A process is ready within seconds; on a machine that compiles kernels first, within a minute."""


class LeftCluster:
    """See the module; `file` is what cluster.json says now."""

    def __init__(self, settings: Settings, file: ClusterFile) -> None:
        self.file = file
        self.data_dir = settings.data_dir.absolute()
        self._read_token = settings.reading_token()
        self._security = replace(settings.security(), token=file.token)

    @property
    def names(self) -> list[str]:
        """All of its processes, running or not."""
        return [p.name for p in self.file.processes]

    @property
    def running(self) -> list[str]:
        """Those that have not ended."""
        return [p.name for p in self.file.processes if same_process(p.pid, p.started_s)]

    @property
    def missing(self) -> list[str]:
        """Those that have ended."""
        running = self.running
        return [name for name in self.names if name not in running]

    def process(self, name: str) -> Started:
        """One of its processes; ConfigError if there is no such."""
        for process in self.file.processes:
            if process.name == name:
                return process
        raise ConfigError(
            f"{name!r} is no process of the cluster in {str(self.data_dir)!r}",
            remedy=f"it has {', '.join(self.names)}",
        )

    def admin(self) -> closing[AdminCalls]:
        """Calls of whichever manager answers at the cluster's address."""
        return closing(AdminCalls(self.file.url, self._security))

    def start(self, names: Iterable[str]) -> None:
        """Start processes as they were; returns when they are ready.

        A name that is new is a further processor, like the first. ClusterStartError, with none of
        them left running, if one cannot be started; it shows the end of a log.
        """
        wanted, began_ns = list(names), time.time_ns()
        specs = {name: self._spec(name) for name in wanted}
        made: dict[str, ServiceProcess] = {}
        try:
            for name in wanted:
                made[name] = self._process(name, specs[name])
            with self.admin() as admin:
                workers = [
                    w
                    for name, spec in specs.items()
                    if name != MANAGER
                    for w in worker_names(ProcessorId(name), spec["threads"])
                ]
                wait_for(
                    lambda: joined(admin, workers, began_ns),
                    made.values(),
                    START_TIMEOUT_S,
                    f"{' and '.join(wanted)} answered",
                )
        except BaseException:
            for process in made.values():
                process.kill()
            raise
        self._write(made)

    def _spec(self, name: str) -> dict[str, Any]:
        like = name if name in self.names else next(n for n in self.names if n != MANAGER)
        path = self.data_dir / "specs" / f"{like}.json"
        try:
            spec: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as e:
            raise ConfigError(
                f"how {like} was started cannot be read from {str(path)!r}: {e}",
                remedy="end the cluster with `dovetail down` and start it with `dovetail up`",
            ) from e
        if like != name:
            spec |= {"name": name, "data_dir": str(self.data_dir / name)}
        if name == MANAGER:
            _check_manager_may_listen(spec)
        return spec

    def _process(self, name: str, spec: dict[str, Any]) -> ServiceProcess:
        secret = {
            "DOVETAIL_TOKEN": self.file.token,
            "DOVETAIL_READ_TOKEN": self._read_token if name == MANAGER else "",
        }
        return ServiceProcess(name, spec, self.data_dir, secret, detached=True)

    def _write(self, made: dict[str, ServiceProcess]) -> None:
        known = {p.name: p for p in self.file.processes}
        for name, process in made.items():
            known[name] = Started(name, process.pid, started_at(process.pid))
        last = known.pop(MANAGER)
        self.file = replace(self.file, processes=(*known.values(), last))
        self.file.write(self.data_dir)


def left_cluster(settings: Settings) -> LeftCluster | None:
    """The cluster that `up` left in the data folder, if one is there."""
    file = read_cluster_file(settings.data_dir)
    return None if file is None else LeftCluster(settings, file)


def known_cluster(settings: Settings) -> LeftCluster:
    """As `left_cluster`; ConfigError if none is there."""
    left = left_cluster(settings)
    if left is None:
        raise ConfigError(
            f"no cluster was started in {str(settings.data_dir)!r}",
            remedy="name its folder with --data-dir, or start one with `dovetail up`",
        )
    return left


def joined(admin: AdminCalls, workers: Iterable[str], began_ns: int) -> bool:
    """Whether the manager answers and these workers have joined since."""
    try:
        members = admin.get_cluster().processors
    except Unreachable:
        return False
    # The store may know them from a former time.
    there = {m.name for m in members if m.state == "alive" and m.incarnation >= began_ns}
    return set(workers) <= there


def _check_manager_may_listen(spec: dict[str, Any]) -> None:
    from dovetail_manager.server import check_free

    for address in (spec["listen"], spec["rest"]):
        check_free(address)
