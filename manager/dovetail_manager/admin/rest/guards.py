"""What every request passes before its path is looked at: the host, the token, the body's size.

Plain ASGI, in this order, so that no path can forget one of them:

    request ─▶ from this machine's own names? ─▶ token and role ─▶ body within its cap ─▶ the app
"""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dovetail_manager.admin.auth import Role, Tokens, is_loopback, read_or_admin_refusal
from dovetail_manager.admin.rest.refusals import answer, defect, too_large
from dovetail_proto.errors import DovetailError, Forbidden
from dovetail_proto.wire.data import BATCH_BYTES_MAX

log = structlog.get_logger(__name__)

JSON_BYTES_MAX = 8 << 20
"""Of a JSON body: as Python objects it takes some ten times that. SQL and schemas take 1 MiB."""

OPEN_PATHS = frozenset({"/healthz", "/readyz", "/openapi.json", "/docs"})
"""Need no token: whether it lives, and how it is spoken to."""

READING_VERBS = ("/wait",)
"""Ends of paths that change nothing although they are posted to."""

PEER_NAME = "dovetail-peer"
"""Where the scope's state has the common name of the caller's certificate."""

Observe = Callable[[Scope, int, float], None]
"""(scope, status, seconds) of every request."""


class Guard:
    """The ASGI middleware. `trusted`: callers are known by token or certificate.

    `by_certificate`: the certificate's common name is the role; `server` puts it into the scope.
    """

    def __init__(
        self,
        app: ASGIApp,
        tokens: Tokens,
        trusted: bool,
        by_certificate: bool,
        observe: Observe,
    ) -> None:
        self._app = app
        self._tokens = tokens
        self._trusted = trusted
        self._by_certificate = by_certificate
        self._observe = observe

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer what is refused; pass on the rest."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        status = 0  # until the answer starts

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]}
            refused = self._refusal(scope, headers)
            if refused is not None:
                await answer(refused)(scope, receive, noting)
            else:
                await self._app(scope, _capped(receive, body_bytes_max(headers)), noting)
        except Exception as error:
            if status:
                # A stream broke; the connection is cut, which is how its reader learns of it.
                log.warning("rest.cut", path=scope["path"], error=str(error.__cause__ or error))
            else:
                await answer(defect(scope["path"], error))(scope, receive, noting)
        finally:
            self._observe(scope, status, time.perf_counter() - began)

    def _refusal(self, scope: Scope, headers: dict[str, str]) -> DovetailError | None:
        path, method = scope["path"], scope["method"]
        if not self._trusted and not _from_here(headers):
            return Forbidden(
                "without a token, only programs on this machine are served, and no web page",
                remedy="set a token, and send it",
            )
        if path not in OPEN_PATHS:
            reads = method in ("GET", "HEAD") or (method == "POST" and path.endswith(READING_VERBS))
            needed = Role.READ if reads else Role.ADMIN
            scheme, _, token = headers.get("authorization", "").partition(" ")
            given = token.strip() if scheme.lower() == "bearer" else ""
            if refused := self._tokens.refusal(needed, given):
                return refused
            if self._by_certificate:
                name = scope["state"].get(PEER_NAME, "")
                if refused := read_or_admin_refusal(name, reads=reads):
                    return refused
        length = headers.get("content-length", "0")
        bytes_max = body_bytes_max(headers)
        if length.isascii() and length.isdigit() and int(length) > bytes_max:
            return too_large(bytes_max)
        return None


def body_bytes_max(headers: dict[str, str]) -> int:
    """The cap of a body: rows as Arrow may be as large as a batch, all else is JSON."""
    arrow = headers.get("content-type", "").startswith("application/vnd.apache.arrow")
    return BATCH_BYTES_MAX if arrow else JSON_BYTES_MAX


def _from_here(headers: dict[str, str]) -> bool:
    """A page in a browser shows itself by Origin, or by Host where its name was rebound to us."""
    host = headers.get("host", "localhost")
    name = host[: host.rfind("]") + 1] if host.startswith("[") else host.partition(":")[0]
    return "origin" not in headers and is_loopback(name)


def _capped(receive: Receive, bytes_max: int) -> Receive:
    taken = 0

    async def capped() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > bytes_max:
            # The framework passes its own kind on; `refusals` makes a body of ours from it.
            raise HTTPException(413, str(bytes_max))
        return message

    return capped
