"""Who may do what: two tokens, two roles, one rule for REST and gRPC.

`admin` may do everything, `read` may look. Where no token is set, everyone who reaches the
address is admin or, where servers ask for certificates, what the certificate's common name says; so
an address beyond this machine is refused without a token or certificates.
"""

from __future__ import annotations

import hmac
import ipaddress
from dataclasses import dataclass
from enum import StrEnum

from dovetail_proto import certificate_roles
from dovetail_proto.errors import ConfigError, DovetailError, Forbidden, Unauthenticated
from dovetail_proto.transport import Security
from dovetail_proto.wire.methods import ADMIN, CONTROL, path

TOKEN_CHARS_MAX = 4096
"""What a header may hold; tokens are some forty characters."""


class Role(StrEnum):
    """What a caller may do."""

    READ = "read"
    ADMIN = "admin"


READING_CALLS = frozenset(
    path(ADMIN, verb)
    for verb in (
        "GetQuery",
        "GetCleanup",
        "GetCluster",
        "GetStream",
        "ListStreams",
        "ListQueries",
        "ListPartitions",
        "ListMoves",
        "ListAdaptations",
        "Watch",
    )
)
"""gRPC calls that change nothing."""

HEALTH = "/grpc.health.v1.Health/"
"""The standard health service: whoever watches processes has no token."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """The cluster's tokens; empty: none. ConfigError if they would let the wrong people in."""

    admin: str = ""
    read: str = ""

    def __post_init__(self) -> None:
        for token in (self.admin, self.read):
            # Others could not be sent in a header.
            if not all("!" <= c <= "~" for c in token) or len(token) > TOKEN_CHARS_MAX:
                raise ConfigError(
                    "a token has characters that cannot be sent",
                    remedy=f"use at most {TOKEN_CHARS_MAX} printable ASCII characters, no blanks",
                )
        if self.read and not self.admin:
            raise ConfigError(
                "a reading token is set but no token: everyone without one would be admin",
                remedy="set token (DOVETAIL_TOKEN) as well",
            )
        if self.read and self.read == self.admin:
            raise ConfigError(
                "the reading token is the token: whoever has it is admin",
                remedy="make read_token another one",
            )

    def role_of(self, given: str) -> Role | None:
        """What the holder of `given` may do; compares in constant time."""
        if not self.admin:
            return Role.ADMIN
        sent = given.encode()
        # Both are compared every time: how long it takes says nothing about either.
        is_admin = hmac.compare_digest(sent, self.admin.encode())
        is_read = hmac.compare_digest(sent, self.read.encode()) and bool(self.read)
        return Role.ADMIN if is_admin else Role.READ if is_read else None

    def refusal(self, needed: Role, given: str) -> DovetailError | None:
        """Why the holder of `given` may not do what takes the role `needed`; None if they may."""
        role = self.role_of(given)
        if role is None:
            return Unauthenticated(
                "the token is wrong" if given else "no token was given",
                remedy="send the cluster's token as 'Authorization: Bearer …'; "
                "the command line takes DOVETAIL_TOKEN",
            )
        if needed is Role.ADMIN and role is Role.READ:
            return Forbidden(
                "the reading token may only look", remedy="use the token of the role admin"
            )
        return None

    def check(self, method: str, given: str) -> DovetailError | None:
        """The gate of gRPC (`transport.Check`): every call but reading ones takes admin."""
        if method.startswith(HEALTH):
            return None
        return self.refusal(Role.READ if method in READING_CALLS else Role.ADMIN, given)


def peer_refusal(method: str, name: str) -> DovetailError | None:
    """The gate of gRPC where a certificate's common name is the role (`transport.PeerCheck`)."""
    if method.startswith(HEALTH):
        return None
    if method.startswith(f"/{CONTROL}/"):  # what processors call; nobody else may
        return certificate_roles.refusal(name, certificate_roles.PROCESSOR)
    return read_or_admin_refusal(name, reads=method in READING_CALLS)


def read_or_admin_refusal(name: str, *, reads: bool) -> DovetailError | None:
    """Why the holder of a certificate may not call a verb; None if they may."""
    reader = (certificate_roles.READER,) if reads else ()
    return certificate_roles.refusal(name, certificate_roles.CLIENT, *reader)


def is_loopback(host: str) -> bool:
    """Whether an address or `localhost` stays on this machine."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def refuse_open_bind(host: str, tokens: Tokens, security: Security) -> None:
    """ConfigError if whoever reaches `host` from another machine would be admin."""
    mutual = security.mutual and security.certificate is not None
    if not is_loopback(host) and not tokens.admin and not mutual:
        raise ConfigError(
            f"address {host!r} is open to other machines, and no token is set",
            remedy="set DOVETAIL_TOKEN, or tls_mutual with certificates, or listen on 127.0.0.1",
        )
