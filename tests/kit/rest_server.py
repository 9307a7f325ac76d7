"""A REST server on loopback in front of the manager in memory, and a client of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx

from dovetail_manager.admin.auth import Tokens
from dovetail_manager.admin.rest import RestServer, RestSettings, serve
from dovetail_proto.transport import Security
from kit.admin_standin import AdminStandIn, DataPlaneStandIn

ERROR_FIELDS = {"code", "message", "details", "remedy"}


@dataclass(frozen=True, slots=True)
class Running:
    """What a test talks to."""

    server: RestServer
    service: AdminStandIn
    plane: DataPlaneStandIn
    http: httpx.Client  # shows the admin's token, if there is one

    def refused(self, answer: httpx.Response, status: int, said: str) -> dict[str, object]:
        """The body of an error, which has our shape."""
        body: dict[str, object] = answer.json()
        assert answer.status_code == status, body
        assert ERROR_FIELDS <= body.keys() <= ERROR_FIELDS | {"domain"}
        assert said in str(body["message"])
        return body


@contextmanager
def running(tokens: Tokens = Tokens(), security: Security = Security()) -> Iterator[Running]:  # noqa: B008 - both are frozen
    """A server that answers, until the end."""
    plane = DataPlaneStandIn(Security(token=security.token))
    service = AdminStandIn(plane)
    server = serve(service, RestSettings("127.0.0.1:0"), tokens, security)
    server.start()
    headers = {"Authorization": f"Bearer {tokens.admin}"} if tokens.admin else {}
    base = f"http://127.0.0.1:{server.port}"
    try:
        with httpx.Client(base_url=base, headers=headers, timeout=60) as http:
            yield Running(server, service, plane, http)
    finally:
        server.stop()
        plane.stop()
