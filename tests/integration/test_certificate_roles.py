"""Mutual TLS without a token: what a caller may do is what its certificate says it is."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import grpc
import httpx
import pytest

from dovetail import certificates
from dovetail_manager.server import ManagerServer, ManagerSettings
from dovetail_processor.cluster.server import ProcessorServer, ProcessorSettings
from dovetail_proto.errors import Forbidden
from dovetail_proto.transport import Security, open_channel, raised

KINDS = ("server", "client", "reader")
DENIED = grpc.StatusCode.PERMISSION_DENIED


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of each kind."""
    made = tmp_path_factory.mktemp("roles") / "certs"
    certificates.init(made)
    return made


def shows(folder: Path, kind: str) -> Security:
    """Who has the certificate of this kind, and asks others for theirs."""
    key = folder / f"{kind}.key"
    return Security("", folder / "ca.pem", folder / f"{kind}.pem", key, mutual=True)


@pytest.fixture(scope="module")
def manager(folder: Path) -> Iterator[ManagerServer]:
    """With REST."""
    settings = ManagerSettings(
        store=str(folder.parent / "manager.db"),
        rest="127.0.0.1:0",
        security=shows(folder, "server"),
    )
    with ManagerServer(settings) as started:
        yield started


def outcome(address: str, security: Security, method: str, *, streams: bool) -> grpc.StatusCode:
    """How a call without content ends."""
    with open_channel(address, security) as channel:
        try:
            if streams:
                list(channel.stream_stream(method)(iter(()), timeout=60))
            else:
                channel.unary_unary(method)(b"", timeout=60)
        except grpc.RpcError as e:
            if e.code() is DENIED:
                assert isinstance(raised(e), Forbidden)  # noqa: PT017 - one of two outcomes
            return e.code()
        return grpc.StatusCode.OK


def test_only_a_server_may_join_and_only_others_may_call_verbs(
    manager: ManagerServer, folder: Path
) -> None:
    """Over gRPC; a refused call says so, an allowed one is answered."""
    for method, streams, allowed in (
        ("Control/Attach", True, {"server"}),
        ("Admin/ListQueries", False, {"client", "reader"}),
        ("Admin/Submit", False, {"client"}),
    ):
        ends = {
            k: outcome(manager.address, shows(folder, k), f"/dovetail.v1.{method}", streams=streams)
            for k in KINDS
        }
        assert {k for k, end in ends.items() if end is not DENIED} == allowed, (method, ends)
        assert grpc.StatusCode.UNAVAILABLE not in ends.values()


def test_rest_knows_the_same_roles(manager: ManagerServer, folder: Path) -> None:
    """A reader looks, a client declares, a processor's certificate does neither."""
    found = {}
    for kind in KINDS:
        context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
        context.load_cert_chain(folder / f"{kind}.pem", folder / f"{kind}.key")
        with httpx.Client(
            base_url=f"https://{manager.rest_address}", verify=context, timeout=60
        ) as http:
            looked = http.get("/v1/queries").status_code
            stream = {"name": "t", "schema": [{"name": "k", "type": "nonsense"}]}
            found[kind] = (looked, http.post("/v1/streams", json=stream).status_code)
            assert http.get("/healthz").status_code == 200
    assert found == {"server": (403, 403), "client": (200, 422), "reader": (200, 403)}


def test_only_a_server_may_link_to_a_processor(folder: Path, tmp_path: Path) -> None:
    """Clients send and read there; a reader asks the manager."""
    settings = ProcessorSettings(
        name="p1",
        manager="127.0.0.1:1",  # nobody: the data plane answers all the same
        memory_bytes=64_000_000,
        data_dir=tmp_path,
        version="0",
        security=shows(folder, "server"),
    )
    processor = ProcessorServer(settings)
    processor.start()
    try:
        for method, streams, allowed in (
            ("Feed", True, {"server"}),
            ("Ingest", True, {"server", "client"}),
            ("AwaitJoined", False, {"server", "client"}),
            ("KeepResults", False, {"server"}),
        ):
            path = f"/dovetail.v1.DataPlane/{method}"
            ends = {
                k: outcome(processor.address, shows(folder, k), path, streams=streams)
                for k in KINDS
            }
            assert {k for k, end in ends.items() if end is not DENIED} == allowed, (method, ends)
            assert grpc.StatusCode.UNAVAILABLE not in ends.values()
    finally:
        processor.stop()
