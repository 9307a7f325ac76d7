"""A whole manager: store, machine, control and admin over gRPC, REST beside it.

    with ManagerServer(ManagerSettings(store="sqlite:/tmp/manager.db")) as manager:
        manager.address        # processors and clients dial it
        manager.admin          # the verbs, for programs in this process

Whoever claims the lead fences the manager before it; so everything that can be refused (address,
tokens, certificates, the store's settings) is looked at before that.
"""

from __future__ import annotations

import errno
import os
import socket
from dataclasses import dataclass, field
from importlib.metadata import version
from types import TracebackType
from typing import TYPE_CHECKING, Self

import structlog
from grpc_health.v1 import health

from dovetail_manager.adaptation.snapshot import AdaptationSettings
from dovetail_manager.admin.auth import Tokens, peer_refusal, refuse_open_bind
from dovetail_manager.admin.grpc_face import HEALTH_SERVICE, AdminFace, health_handlers
from dovetail_manager.admin.service import AdminService
from dovetail_manager.cleanups import MASTERS_DEFAULT
from dovetail_manager.control_server import ControlServer
from dovetail_manager.loop import ControllerLoop
from dovetail_manager.moves.steps import MoveSettings
from dovetail_manager.state import ControllerSettings
from dovetail_manager.store import Store, open_store
from dovetail_proto import certificate_roles
from dovetail_proto.errors import ConfigError, DovetailError
from dovetail_proto.roots import Roots
from dovetail_proto.transport import RunningServer, Security, start_server
from dovetail_proto.wire.methods import ADMIN, CONTROL

if TYPE_CHECKING:
    from dovetail_manager.admin.rest import RestServer

THREADS = 1024
"""A control stream or a watcher of events takes one for as long as it lasts."""

STOP_GRACE_S = 1.0
"""What calls under way get when the server ends."""

log = structlog.get_logger()


def _own_name() -> str:
    return f"{socket.gethostname()[:100]}:{os.getpid()}"


@dataclass(frozen=True, slots=True)
class ManagerSettings:
    """Everything that a manager is started with."""

    store: str  # see `open_store`
    listen: str = "127.0.0.1:0"  # host:port of gRPC; port 0: any free one
    rest: str | None = None  # host:port of REST; None: no REST
    name: str = field(default_factory=_own_name)  # who leads, for people
    security: Security = field(default_factory=Security)  # its token is the admin's
    read_token: str = ""  # lets look, not steer; empty: none
    spark_masters: tuple[str, ...] = MASTERS_DEFAULT  # where clean-ups may run, the default first
    spill_root: str | None = None  # folder or URI for spill that no submission gives a place
    roots: tuple[str, ...] = ()  # what callers may name lies below these; see `Roots`
    keep_results_s: float = 0.0  # of queries that do not say; 0: for ever
    keep_results_bytes: int = 0  # likewise, of each log; 0: all
    adaptation: AdaptationSettings = field(default_factory=AdaptationSettings)
    moves: MoveSettings = field(default_factory=MoveSettings)
    sample_s: float = 1.0  # between two looks at the load
    dead_after_s: float = 10.0  # a silent processor is declared dead
    version: str = field(default_factory=lambda: version("dovetail"))

    def controller(self) -> ControllerSettings:
        """What the machine needs of them."""
        return ControllerSettings(
            version=self.version,
            adaptation=self.adaptation,
            moves=self.moves,
            sample_s=self.sample_s,
            dead_after_s=self.dead_after_s,
        )


class ManagerServer:
    """One manager, from `start` to `stop`. May be used as a context."""

    def __init__(self, settings: ManagerSettings) -> None:
        self.settings = settings
        self.admin: AdminService  # from `start` on
        self._store: Store
        self._loop: ControllerLoop
        self._server: RunningServer | None = None
        self._health: health.HealthServicer
        self._rest: RestServer | None = None

    @property
    def address(self) -> str:
        """Where processors and clients reach it over gRPC; port 0 before it listens."""
        port = self._server.port if self._server is not None else 0
        return f"{_host(self.settings.listen)}:{port}"

    @property
    def rest_address(self) -> str | None:
        """Where REST answers; None if it does not."""
        if self._rest is None or self.settings.rest is None:
            return None
        return f"{_host(self.settings.rest)}:{self._rest.port}"

    @property
    def cause(self) -> DovetailError | None:
        """Why the manager ended by itself: another one leads, or a defect."""
        return self._loop.cause

    def start(self) -> None:
        """Claim the lead and answer; ConfigError if an address or a setting cannot be used."""
        s = self.settings
        tokens = Tokens(s.security.token, s.read_token)
        refuse_open_bind(_host(s.listen), tokens, s.security)
        if s.security.by_certificate and s.security.certificate is not None:
            certificate_roles.check_own(s.security.certificate, certificate_roles.MANAGER)
        for address in filter(None, (s.listen, s.rest)):
            check_free(address)
        self._store = open_store(s.store)
        try:
            leadership = self._store.claim(s.name)
            self._loop = ControllerLoop(self._store, leadership, s.controller())
            self.admin = AdminService(
                self._loop,
                name=s.name,
                spill_root=s.spill_root,
                roots=Roots(s.roots),
                spark_masters=s.spark_masters,
                keep_results=(s.keep_results_s, s.keep_results_bytes),
            )
            self._loop.start()
        except BaseException:
            self._store.close()
            raise
        try:
            self._health, health_calls = health_handlers()
            self._loop.on_end = self._on_end
            self.admin.cleanups.resume()
            self._server = start_server(
                s.listen,
                s.security,
                {
                    CONTROL: ControlServer(self._loop).handlers(),
                    ADMIN: AdminFace(self.admin).handlers(),
                    HEALTH_SERVICE: health_calls,
                },
                check=tokens.check,
                peers=peer_refusal,
                threads=THREADS,
            )
            if s.rest is not None:
                self._start_rest(s.rest, tokens)
        except BaseException:
            self.stop()
            raise
        log.info(
            "manager listens",
            address=self.address,
            rest=self.rest_address,
            name=s.name,
            epoch=leadership.epoch,
        )

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the manager has ended by itself; whether it has."""
        return self._loop.ended.wait(timeout_s)

    def stop(self) -> None:
        """End. Processors go on, and the next manager goes on from the store; twice is no error."""
        if self._rest is not None:
            self._rest.stop()
        self.admin.cleanups.stop()
        self._loop.stop()
        if self._server is not None:
            self._server.stop(STOP_GRACE_S)
        self._store.close()

    def _on_end(self) -> None:
        self._health.enter_graceful_shutdown()
        self.admin.cleanups.abandon()

    def _start_rest(self, address: str, tokens: Tokens) -> None:
        from dovetail_manager.admin.rest import RestSettings, serve

        self._rest = serve(self.admin, RestSettings(address), tokens, self.settings.security)
        self._rest.start()

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


def _host(address: str) -> str:
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit():
        raise ConfigError(f"address {address!r} is not host:port", remedy="write 127.0.0.1:7070")
    return host


def check_free(address: str) -> None:
    """ConfigError if somebody listens there: a slip must not fence the manager that does."""
    host, port = _host(address).strip("[]"), int(address.rpartition(":")[2])
    try:
        family, kind, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except (OSError, OverflowError) as e:
        taken = isinstance(e, OSError) and e.errno == errno.EADDRINUSE
        why = "another program listens there" if taken else str(e)
        raise ConfigError(
            f"address {address!r} cannot be listened on: {why}",
            remedy="end the program that listens there, or choose another port; 0 is any"
            if taken
            else "choose another address",
        ) from e
