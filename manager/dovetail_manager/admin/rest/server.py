"""Serves the application on a thread of this process, beside the manager."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from dataclasses import dataclass

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from dovetail_manager.admin.auth import Tokens, refuse_open_bind
from dovetail_manager.admin.rest.app import make_app, make_context
from dovetail_manager.admin.rest.context import Context
from dovetail_manager.admin.rest.guards import PEER_NAME
from dovetail_manager.admin.service import AdminService
from dovetail_proto.errors import ConfigError
from dovetail_proto.transport import Security

START_TIMEOUT_S = 30.0
"""A socket that is bound already is served within milliseconds; more is a machine in trouble."""

STOP_GRACE_S = 2
"""What answers that are under way get at the end; streams of events and results are cut then."""


@dataclass(frozen=True, slots=True)
class RestSettings:
    """Where to listen: `host:port`, port 0 for any free one."""

    address: str = "127.0.0.1:7071"

    def host_and_port(self) -> tuple[str, int]:
        """Its parts; ConfigError if it has none."""
        host, colon, port = self.address.rpartition(":")
        if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
            raise ConfigError(
                f"address {self.address!r} is not host:port", remedy="write 127.0.0.1:7071"
            )
        return host.strip("[]"), int(port)


class RestServer:
    """A running server. `port` is the one it got."""

    def __init__(self, server: uvicorn.Server, listening: socket.socket, context: Context) -> None:
        self._server = server
        self._socket = listening
        self.context = context
        self._thread = threading.Thread(
            target=server.run, args=([listening],), name="rest", daemon=True
        )
        self.port: int = listening.getsockname()[1]

    def start(self) -> None:
        """Begin to answer; returns when it does."""
        self._thread.start()
        waiting = threading.Event()
        for _ in range(int(START_TIMEOUT_S * 100)):
            if self._server.started:
                return
            if not self._thread.is_alive():
                break
            waiting.wait(0.01)
        raise ConfigError(f"REST does not start on port {self.port}", remedy="see the log")

    def stop(self) -> None:
        """Answer what is under way, for a moment, then end; may be called twice."""
        self.context.hub.stop()
        self._server.should_exit = True
        self._thread.join(STOP_GRACE_S + 5)
        self.context.plane.close()
        self._socket.close()


def serve(
    service: AdminService, settings: RestSettings, tokens: Tokens, security: Security
) -> RestServer:
    """A server of `service`, bound but not started.

    ConfigError if the address cannot be had, is open to others without a token or certificates,
    or if a file of TLS cannot be used. `security` is also what it shows to processors.
    """
    host, port = settings.host_and_port()
    refuse_open_bind(host, tokens, security)
    context = make_context(service, security)
    config = uvicorn.Config(
        make_app(context, tokens, mutual=security.mutual),
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        http=_KnowsPeer,
        timeout_graceful_shutdown=STOP_GRACE_S,
    )
    if security.certificate is not None and security.key is not None:
        config.ssl_certfile = str(security.certificate)
        config.ssl_keyfile = str(security.key)
        if security.mutual:
            config.ssl_ca_certs = str(security.authority)
            config.ssl_cert_reqs = ssl.CERT_REQUIRED
        try:
            config.load()
        except (OSError, ssl.SSLError) as e:
            raise ConfigError(
                f"TLS cannot be set up with {config.ssl_certfile!r}: {e}",
                remedy="see `dovetail certs init`",
            ) from e
    return RestServer(uvicorn.Server(config), _listen(host, port), context)


class _KnowsPeer(H11Protocol):
    """Tells the application the common name of the certificate that its caller has shown."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """As it opens, once for all its requests."""
        super().connection_made(transport)
        shown = transport.get_extra_info("peercert") or {}
        names = [v for part in shown.get("subject", ()) for k, v in part if k == "commonName"]
        self.app_state = {**self.app_state, PEER_NAME: names[0] if names else ""}


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # With the protocol named: asyncio sets TCP_NODELAY on accepted sockets of TCP only, and
        # a socket of protocol 0 hands the 0 on, so that each answer would wait for an
        # acknowledgement that the other side delays by 40 ms.
        made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
    except OSError as e:
        raise ConfigError(
            f"address {host}:{port} cannot be listened on: {e.strerror}",
            remedy="choose another port",
        ) from e
    return made
