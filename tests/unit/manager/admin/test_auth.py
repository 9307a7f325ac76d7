"""Tokens and roles: who is let in, and which settings are refused."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from dovetail_manager.admin.auth import READING_CALLS, Role, Tokens, is_loopback, refuse_open_bind
from dovetail_proto.errors import ConfigError, Forbidden, Unauthenticated
from dovetail_proto.transport import Security, call_metadata, open_channel, raised, start_server
from dovetail_proto.v1 import admin_pb2

TOKENS = Tokens(admin="all", read="look")


def test_each_token_has_its_role_and_others_have_none() -> None:
    """An empty token is nobody's, also where there is no reading token."""
    assert TOKENS.role_of("all") is Role.ADMIN
    assert TOKENS.role_of("look") is Role.READ
    for wrong in ("", "al", "alll", "ALL", "lo\u00f6k", "all "):
        assert TOKENS.role_of(wrong) is None
        assert Tokens(admin="all").role_of(wrong) is None


def test_without_tokens_everyone_is_admin() -> None:
    """On this machine alone: see the open bind below."""
    assert Tokens().role_of("") is Role.ADMIN


def test_the_reading_role_may_look_and_nothing_else() -> None:
    """Over gRPC the method decides; what is not known to read takes admin."""
    assert TOKENS.check("/dovetail.v1.Admin/ListMoves", "look") is None
    assert isinstance(TOKENS.check("/dovetail.v1.Admin/Move", "look"), Forbidden)
    assert isinstance(TOKENS.check("/dovetail.v1.Control/Heartbeat", "look"), Forbidden)
    assert TOKENS.check("/dovetail.v1.Admin/Move", "all") is None


def test_calls_that_only_read_are_those_named_so() -> None:
    """A new verb of `Admin` takes admin until it is listed, and what is listed exists."""
    verbs = admin_pb2.DESCRIPTOR.services_by_name["Admin"].methods_by_name
    reading = {v for v in verbs if v.startswith(("Get", "List")) or v == "Watch"}
    assert {c.rpartition("/")[2] for c in READING_CALLS} == reading


def test_a_missing_and_a_wrong_token_are_told_apart() -> None:
    """And both say how to give one."""
    for given, said in (("", "no token"), ("x", "is wrong")):
        refused = TOKENS.check("/dovetail.v1.Admin/ListMoves", given)
        assert isinstance(refused, Unauthenticated)
        assert said in refused.message
        assert "DOVETAIL_TOKEN" in refused.remedy


def test_the_gate_of_grpc_tells_a_stranger_from_a_reader() -> None:
    """By the status, which programs of other makers look at, and by our error."""
    verbs = {
        verb: grpc.unary_unary_rpc_method_handler(lambda data, _: data)
        for verb in ("Move", "GetCluster")
    }
    server = start_server(
        "127.0.0.1:0", Security(), {"dovetail.v1.Admin": verbs}, check=TOKENS.check
    )
    try:
        for token, verb, status, kind in (
            ("look", "GetCluster", None, None),
            ("all", "Move", None, None),
            ("look", "Move", grpc.StatusCode.PERMISSION_DENIED, Forbidden),
            ("wrong", "GetCluster", grpc.StatusCode.UNAUTHENTICATED, Unauthenticated),
        ):
            security = Security(token=token)
            with open_channel(f"127.0.0.1:{server.port}", security) as channel:
                call = channel.unary_unary(f"/dovetail.v1.Admin/{verb}")
                try:
                    assert call(b"x", metadata=call_metadata(security)) == b"x"
                    found = (None, None)
                except grpc.RpcError as e:
                    found = (e.code(), type(raised(e)))
            assert found == (status, kind)
    finally:
        server.stop(0)


def test_health_needs_no_token() -> None:
    """Whoever restarts dead processes has none."""
    assert TOKENS.check("/grpc.health.v1.Health/Check", "") is None


@pytest.mark.parametrize(
    ("admin", "read", "said"),
    [
        ("", "look", "everyone without one would be admin"),
        ("same", "same", "whoever has it is admin"),
        ("with blank", "", "cannot be sent"),
        ("t\u00f6ken", "", "cannot be sent"),
        ("a" * 5000, "", "cannot be sent"),
    ],
)
def test_tokens_that_let_the_wrong_people_in_are_refused(admin: str, read: str, said: str) -> None:
    """Without quoting them."""
    with pytest.raises(ConfigError, match=said):
        Tokens(admin, read)


def test_an_address_beyond_this_machine_needs_a_token_or_certificates() -> None:
    """A certificate of the server alone lets everyone in."""
    files = {"authority": Path("a"), "certificate": Path("c"), "key": Path("k")}
    for host in ("0.0.0.0", "::", "10.0.0.1", "manager.example", ""):
        with pytest.raises(ConfigError, match="no token is set"):
            refuse_open_bind(host, Tokens(), Security(**files))
        refuse_open_bind(host, TOKENS, Security())
        refuse_open_bind(host, Tokens(), Security(**files, mutual=True))
    for host in ("127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost"):
        assert is_loopback(host)
        refuse_open_bind(host, Tokens(), Security())
