"""A cluster on this machine: a manager and processors as processes, from start to end.

    with LocalCluster(processors=2) as local:
        query = local.cluster.submit(…)
        local.kill("p2")              # what tests do
        local.restart_manager()

Everything is below one folder, a temporary one if none is given:

    manager.db · results and spill · p1/ p2/ … · logs/ · specs/

The processes end with this one, whatever becomes of it, unless they are `detached`. Manager and
processors may also be threads of this process, and end with its last thread that is no daemon.
"""

from __future__ import annotations

import secrets
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

import structlog

from dovetail.admin_calls import AdminCalls
from dovetail.processes import ServiceProcess, wait_for
from dovetail.services import manager_spec, processor_spec
from dovetail.upkeep import MANAGER, START_TIMEOUT_S, joined
from dovetail_manager.adaptation.snapshot import AdaptationSettings
from dovetail_manager.cleanups import MASTERS_DEFAULT
from dovetail_manager.moves.steps import MoveSettings
from dovetail_manager.server import ManagerServer, ManagerSettings, check_free
from dovetail_processor.shell.processor_settings import ProcessorSettings
from dovetail_proto.errors import ConfigError, DovetailError
from dovetail_proto.ids import ProcessorId, worker_names
from dovetail_proto.roots import ANYWHERE
from dovetail_proto.transport import Security, Unreachable

if TYPE_CHECKING:
    from dovetail.cluster import Cluster

ANY_PORT = "127.0.0.1:0"

PROGRAM_CHECK_S = 0.2
"""How soon what runs here ends with a program that did not end it."""

ENDING = "dovetail ends with the program"
"""The name of the threads that see to it."""

log = structlog.get_logger()


class LocalCluster:
    """See the module. Sizes are per processor; `names` are p1, p2 and so on."""

    def __init__(
        self,
        processors: int = 2,
        *,
        memory_bytes: int = 256_000_000,
        threads: int = 1,
        data_dir: Path | None = None,
        policy: str | None = None,
        keep_results_s: float = 0.0,
        keep_results_bytes: int = 0,
        adaptation: AdaptationSettings | None = None,
        moves: MoveSettings | None = None,
        heartbeat_s: float = 1.0,
        sample_s: float = 1.0,
        dead_after_s: float = 10.0,
        store: str | None = None,
        spill: str | None = None,
        roots: Sequence[str] = (ANYWHERE,),
        spark_masters: Sequence[str] = MASTERS_DEFAULT,
        listen: str = ANY_PORT,
        rest: str = ANY_PORT,
        security: Security | None = None,
        read_token: str = "",
        here: Literal["nothing", "manager", "all"] = "nothing",
        detached: bool = False,
    ) -> None:
        """Nothing is started yet.

        threads: of each processor; they share its memory, and with several each is a member.
        data_dir: None is a temporary folder that goes in the end.
        policy: of queries that name none; None is disk for one processor, lazy-disk for more.
        sample_s: between two looks of the manager at the load.
        store: the manager's, see `open_store`; None is SQLite in data_dir.
        spill: folder or URI for state on disk; None is in data_dir.
        roots: beside these two, what callers may name lies below them; by default anywhere.
        spark_masters: where clean-ups may run, the default first.
        security: None is a new token and no TLS.
        here: what runs as threads of this process, instead of as a process of its own.
        detached: the processes outlive this one; needs a data_dir.
        """
        if detached and (data_dir is None or here != "nothing"):
            raise ConfigError("a detached cluster needs a data_dir and processes of its own")
        self.names = [f"p{i + 1}" for i in range(processors)]
        self.processes: dict[str, ServiceProcess] = {}  # by name; the manager's is "manager"
        self.security = security or Security(secrets.token_urlsafe(24))
        self._kept: list[socket.socket] = []  # keep ports of ours from others, until `stop`
        self.address = _with_port(listen, self._kept)  # of the manager's gRPC
        self._rest = _with_port(rest, self._kept)
        self._temporary = data_dir is None
        self.data_dir = Path(data_dir or tempfile.mkdtemp(prefix="dovetail-")).absolute()
        self._memory_bytes = memory_bytes
        self._threads = threads
        self._heartbeat_s = heartbeat_s
        spill = spill or str(self.data_dir / "spill")
        self._roots = (*roots, spill, str(self.data_dir))
        self._policy = policy or ("disk" if processors == 1 else "lazy-disk")
        self._here = here
        self._detached = detached
        self._manager_settings = ManagerSettings(
            store=store or f"sqlite:{self.data_dir / 'manager.db'}",
            listen=self.address,
            rest=self._rest,
            name=f"{MANAGER} in {self.data_dir}",
            security=self.security,
            read_token=read_token,
            spill_root=spill,
            roots=self._roots,
            spark_masters=tuple(spark_masters),
            keep_results_s=keep_results_s,
            keep_results_bytes=keep_results_bytes,
            adaptation=adaptation or AdaptationSettings(),
            moves=moves or MoveSettings(),
            sample_s=sample_s,
            dead_after_s=dead_after_s,
        )
        self._manager: ManagerServer | None = None  # that runs here
        self._processors: dict[str, _ProcessorHere] = {}
        self._stopped = threading.Event()
        self._admin: AdminCalls | None = None
        self._cluster: Cluster | None = None
        self._began_ns = 0

    @property
    def url(self) -> str:
        """Where the manager's REST answers."""
        return f"{'https' if self.security.certificate else 'http'}://{self._rest}"

    @property
    def token(self) -> str:
        """What lets in; may do everything."""
        return self.security.token

    @property
    def cluster(self) -> Cluster:
        """A client of it, connected; ends with the cluster."""
        if self._cluster is None:
            from dovetail.cluster import Cluster

            self._cluster = Cluster(self.url, self.security, policy=self._policy)
        return self._cluster

    def start(self) -> None:
        """Start all processes; returns when every processor has joined.

        ConfigError if somebody listens at its addresses. ClusterStartError, with nothing left
        running, if one cannot; it shows the end of a log.
        """
        self._began_ns = time.time_ns()
        self._stopped.clear()
        if self._here != "nothing":
            threading.Thread(target=self._stop_with_program, name=ENDING).start()
        try:
            for address in (self.address, self._rest):
                check_free(address)  # else it would be somebody else's manager that answers
            self.data_dir.mkdir(parents=True, exist_ok=True)
            self._admin = AdminCalls(self.url, self.security)
            if self._here == "all":
                self._start_manager()
            for name in self.names:  # processes start while the manager does
                self._start_processor(name)
            if self._here != "all":
                self._start_manager()
            self.wait_until_joined(self.names)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End everything that was started; a temporary folder goes too. Twice is no error."""
        self._stopped.set()
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None
        while self._processors:
            self._processors.popitem()[1].end()
        processors = [p for n, p in self.processes.items() if n != MANAGER]
        for process in processors:
            process.terminate()
        for process in processors:
            process.end()
        self._stop_manager()
        while self._kept:
            self._kept.pop().close()
        self.processes.clear()
        if self._admin is not None:
            self._admin.close()
            self._admin = None
        if self._temporary:
            shutil.rmtree(self.data_dir, ignore_errors=True)

    def kill(self, name: str) -> None:
        """End a processor or the manager ("manager") as a crash would."""
        self.processes[name].kill()

    def start_processor(self, name: str, *, memory_bytes: int | None = None) -> None:
        """Start a processor, again or a further one; returns when it has joined."""
        former = self.processes.get(name)
        if former is not None and former.running:
            raise ConfigError(f"processor {name!r} runs already", remedy="kill it first")
        self._began_ns = time.time_ns()
        self._start_processor(name, memory_bytes)
        self.wait_until_joined([name])

    def restart_manager(self) -> None:
        """End the manager, if it runs, and start it at the same address; the store is its memory.

        Returns when it answers. Processors attach themselves again within a second.
        """
        self._stop_manager()
        self._start_manager()

    def wait_until_joined(self, names: Iterable[str]) -> None:
        """Until the processors have joined, as they were last started."""
        wanted = list(names)
        watched = [self.processes[n] for n in (MANAGER, *wanted) if n in self.processes]
        workers = [w for n in wanted for w in worker_names(ProcessorId(n), self._threads)]
        admin = self._admin
        assert admin is not None
        wait_for(
            lambda: joined(admin, workers, self._began_ns),
            watched,
            START_TIMEOUT_S,
            "all processors joined",
        )

    def _start_manager(self) -> None:
        if self._here != "nothing":
            self._manager = ManagerServer(self._manager_settings)
            self._manager.start()
            return
        process = self._process(MANAGER, manager_spec(self._manager_settings))
        self.processes[MANAGER] = process
        wait_for(self._manager_answers, [process], START_TIMEOUT_S, "the manager answered")

    def _manager_answers(self) -> bool:
        assert self._admin is not None
        try:
            self._admin.get_cluster()
        except Unreachable:
            return False
        return True

    def _stop_manager(self) -> None:
        if self._manager is not None:
            self._manager.stop()
            self._manager = None
        if process := self.processes.get(MANAGER):
            process.terminate()
            process.end()

    def _start_processor(self, name: str, memory_bytes: int | None = None) -> None:
        from importlib.metadata import version

        settings = ProcessorSettings(
            name=name,
            manager=self.address,
            memory_bytes=memory_bytes or self._memory_bytes,
            data_dir=self.data_dir / name,
            version=version("dovetail"),
            listen=f"{self.address.rpartition(':')[0]}:0",
            security=self.security,
            heartbeat_s=self._heartbeat_s,
            roots=self._roots,
            threads=self._threads,
        )
        if self._here == "all":
            self._processors[name] = _ProcessorHere(settings)
        else:
            self.processes[name] = self._process(name, processor_spec(settings))

    def _process(self, name: str, spec: dict[str, object]) -> ServiceProcess:
        secret = {
            "DOVETAIL_TOKEN": self.token,
            "DOVETAIL_READ_TOKEN": self._manager_settings.read_token if name == MANAGER else "",
        }
        return ServiceProcess(name, spec, self.data_dir, secret, detached=self._detached)

    def _stop_with_program(self) -> None:
        """When its last thread has ended that is no daemon: nobody is left to ask for anything."""
        while not self._stopped.wait(PROGRAM_CHECK_S):
            threads = (t for t in threading.enumerate() if t.is_alive() and not t.daemon)
            if all(t.name == ENDING for t in threads):
                self.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


class _ProcessorHere:
    """A processor on threads of this process. If it fails, the manager finds it silent."""

    def __init__(self, settings: ProcessorSettings) -> None:
        from dovetail_processor.shell.process import Processor

        self._processor = Processor(settings)
        self._thread = threading.Thread(target=self._run, name=settings.name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._processor.run()
        except DovetailError as e:
            log.error("processor ends", cause=e.message, remedy=e.remedy, code=e.code)

    def end(self) -> None:
        """Now, without leaving."""
        self._processor.over()
        self._thread.join()


def _with_port(address: str, kept: list[socket.socket]) -> str:
    """The address with a free port where it names none: a restarted manager has to keep it.

    A socket in `kept` holds the port, also while no manager runs: whoever asks the system for any
    port gets another, and a manager, which says that it shares the address, gets this one.
    """
    host, _, port = address.rpartition(":")
    if port != "0":
        return address
    holder = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    kept.append(holder)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind((host.strip("[]"), 0))
    return f"{host}:{holder.getsockname()[1]}"
