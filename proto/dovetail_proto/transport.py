"""How processes reach each other: gRPC channels and servers, with a token, TLS if it is set up.

Messages cross as bytes: `wire` makes and checks them, so a forged message meets our reader and
nothing else. A server answers a call without the right token with UNAUTHENTICATED before its
handler runs. Errors of ours cross as a status whose details are JSON (`error_details`), so that a
client raises what the server raised.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from dovetail_proto import certificate_roles, errors
from dovetail_proto.call_pool import CallPool
from dovetail_proto.errors import ConfigError, Domain, DovetailError, Refusal

MESSAGE_BYTES_MAX = 68 << 20
"""The largest batch that `wire` lets pass, and its envelope."""

KEEPALIVE_S = 5
"""A peer that does not answer for so long is taken as gone: the call fails and is made anew."""

CONNECT_S = 3
"""What making a connection may take: three round trips on a slow link, one packet lost (TCP sends
it again after a second). A refused connection is tried again after 0.1 s all the same."""

OPTIONS = [
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", KEEPALIVE_S * 1000),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_S * 1000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_S * 500),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", CONNECT_S * 1000),  # in truth: what an attempt may take
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.so_reuseport", 0),  # two servers on one port would share its calls
]


@dataclass(frozen=True, slots=True)
class Security:
    """What a process shows and asks for. Files are PEM; without them there is no TLS."""

    token: str = ""  # sent with every call; empty: none
    authority: Path | None = None  # who signs the others' certificates
    certificate: Path | None = None  # our own, for servers and for mutual TLS
    key: Path | None = None
    mutual: bool = False  # servers ask callers for a certificate

    @property
    def by_certificate(self) -> bool:
        """Whether a server knows what a caller may do by its certificate alone."""
        return self.mutual and self.shows_role

    @property
    def shows_role(self) -> bool:
        """Whether a certificate, not a token, tells others what this process may do."""
        return self.certificate is not None and not self.token


def open_channel(
    address: str,
    security: Security,
    *,
    to: str = certificate_roles.MANAGER,
    asynchronous: bool = False,
) -> Any:
    """A channel to a server; it connects when first used, and again whenever it must.

    `to` is the server's role (`certificate_roles`): by certificate, nobody else is talked to.
    `asynchronous`: one of `grpc.aio`, for the event loop that runs now.
    """
    made = grpc.aio if asynchronous else grpc
    if security.authority is None:
        return made.insecure_channel(address, options=OPTIONS)
    named = ("grpc.ssl_target_name_override", certificate_roles.host_name(to))
    options = [*OPTIONS, named] if security.shows_role else OPTIONS
    credentials = grpc.ssl_channel_credentials(
        _pem(security.authority),
        _pem(security.key) if security.key else None,
        _pem(security.certificate) if security.certificate else None,
    )
    return made.secure_channel(address, credentials, options=options)


def call_metadata(security: Security) -> list[tuple[str, str]]:
    """What a call carries to be let in."""
    return [("authorization", f"Bearer {security.token}")] if security.token else []


Check = Callable[[str, str], DovetailError | None]
"""(method, token) → why the call is refused, or None."""


def one_token(token: str) -> Check:
    """Let calls with `token` in; all, if it is empty."""

    def check(_: str, given: str) -> DovetailError | None:
        if not token or hmac.compare_digest(given.encode(), token.encode()):
            return None
        return ConfigError("the token is missing or wrong", remedy="give the cluster's token")

    return check


PeerCheck = Callable[[str, str], DovetailError | None]
"""(method, common name of the caller's certificate) → why the call is refused, or None."""


class _Gate(grpc.ServerInterceptor):  # type: ignore[misc] # grpc has no types here
    def __init__(self, check: Check, peers: PeerCheck | None) -> None:
        self._check = check
        self._peers = peers

    def intercept_service(
        self, continuation: Callable[[Any], Any], details: grpc.HandlerCallDetails
    ) -> Any:
        sent = dict(details.invocation_metadata).get("authorization", "")
        refused = self._check(details.method, sent.removeprefix("Bearer "))
        handler = continuation(details)
        if handler is None or (refused is None and self._peers is None):
            return handler
        kinds = {
            (False, False): ("unary_unary", grpc.unary_unary_rpc_method_handler),
            (False, True): ("unary_stream", grpc.unary_stream_rpc_method_handler),
            (True, False): ("stream_unary", grpc.stream_unary_rpc_method_handler),
            (True, True): ("stream_stream", grpc.stream_stream_rpc_method_handler),
        }
        kind, make = kinds[handler.request_streaming, handler.response_streaming]
        served = getattr(handler, kind)

        def guarded(request: Any, context: grpc.ServicerContext) -> Any:
            why = refused
            if why is None and self._peers is not None:
                why = self._peers(details.method, _common_name(context))
            if why is not None:
                known = isinstance(why, errors.Forbidden)
                status = grpc.StatusCode
                abort(context, why, status.PERMISSION_DENIED if known else status.UNAUTHENTICATED)
            return served(request, context)

        return make(guarded, handler.request_deserializer, handler.response_serializer)


def _common_name(context: grpc.ServicerContext) -> str:
    shown: Mapping[str, Sequence[bytes]] = context.auth_context()
    return next((n.decode("utf-8", "replace") for n in shown.get("x509_common_name", ())), "")


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that answers, and what ends it."""

    port: int
    _server: grpc.Server
    _calls: CallPool

    def stop(self, grace_s: float) -> None:
        """End, with its threads; calls under way get `grace_s`."""
        self._server.stop(grace_s).wait()
        self._calls.shutdown(wait=False)


def start_server(
    address: str,
    security: Security,
    services: Mapping[str, Mapping[str, grpc.RpcMethodHandler]],
    *,
    check: Check | None = None,
    peers: PeerCheck | None = None,
    threads: int = 64,
    others: Iterable[grpc.GenericRpcHandler] = (),
) -> RunningServer:
    """A running server of `services` (name → method → handler).

    ConfigError if the address cannot be had. A streaming call occupies one of `threads`. `peers`
    counts where certificates are all that callers show (`Security.by_certificate`).
    """
    calls = CallPool(threads, "grpc")
    server = grpc.server(
        calls,
        interceptors=[
            _Gate(check or one_token(security.token), peers if security.by_certificate else None)
        ],
        options=OPTIONS,
    )
    handlers = [grpc.method_handlers_generic_handler(n, dict(h)) for n, h in services.items()]
    server.add_generic_rpc_handlers((*handlers, *others))
    try:
        if security.certificate is None or security.key is None:
            port = server.add_insecure_port(address)
        else:
            credentials = grpc.ssl_server_credentials(
                [(_pem(security.key), _pem(security.certificate))],
                _pem(security.authority) if security.authority else None,
                security.mutual,
            )
            port = server.add_secure_port(address, credentials)
    except RuntimeError as e:
        raise ConfigError(
            f"address {address!r} cannot be listened on: {e}", remedy="choose another port"
        ) from e
    server.start()
    return RunningServer(port, server, calls)


def abort(
    context: grpc.ServicerContext,
    error: DovetailError,
    status: grpc.StatusCode = grpc.StatusCode.FAILED_PRECONDITION,
) -> None:
    """End a call with an error of ours; never returns."""
    context.set_trailing_metadata([("dovetail-error-bin", error_details(error))])
    context.abort(status, str(error))


def error_details(error: DovetailError) -> bytes:
    """An error as it crosses."""
    fields: dict[str, Any] = {
        "code": error.code,
        "message": error.message,
        "remedy": error.remedy,
        "details": error.details,
    }
    if isinstance(error, Refusal):
        fields["domain"] = error.domain
    return json.dumps(fields, default=str).encode()


def raised(error: grpc.RpcError) -> DovetailError:
    """What the server raised, or that it could not be reached."""
    trailing: Sequence[tuple[str, bytes]] = error.trailing_metadata() or ()
    for key, value in trailing:
        if key == "dovetail-error-bin":
            return error_from(json.loads(value))
    return Unreachable(
        f"no answer: {error.details()} ({error.code().name})",
        remedy="see whether the process runs and the address is right",
    )


def error_from(fields: Mapping[str, Any]) -> DovetailError:
    """The error that `error_details` (or a REST error body) tells of."""
    message, remedy = str(fields.get("message", "")), str(fields.get("remedy", ""))
    details = fields.get("details") or {}
    if "domain" in fields and fields["domain"] in set(Domain):
        return Refusal(Domain(fields["domain"]), message, remedy=remedy, **details)
    for kind in _kinds(DovetailError):
        if kind.code == fields.get("code") and kind not in (Refusal, errors.QueryError):
            return kind(message, remedy=remedy, **details)
    if fields.get("code") == errors.QueryError.code:
        return errors.QueryError(message, remedy=remedy)
    return DovetailError(message, remedy=remedy, **details)


class Unreachable(DovetailError):  # noqa: N818 - an outcome, not a fault
    """A process that does not answer."""

    code = "unreachable"
    fault = errors.Fault.ENVIRONMENT
    retry = True
    exit_code = 7


def _kinds(root: type[DovetailError]) -> list[type[DovetailError]]:
    return [root, *(k for sub in root.__subclasses__() for k in _kinds(sub))]


def _pem(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as e:
        raise ConfigError(
            f"certificate file {str(path)!r} cannot be read: {e.strerror}",
            remedy="see `dovetail certs init`",
        ) from e
