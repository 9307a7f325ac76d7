"""Mutual TLS without a token: what a caller may do is what its certificate says it is."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import grpc
import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from dovetail import certificates
from dovetail.admin_calls import AdminCalls
from dovetail_manager.server import ManagerServer, ManagerSettings
from dovetail_processor.shell.processor_settings import ProcessorSettings
from dovetail_processor.shell.server import ProcessorServer
from dovetail_proto.certificate_roles import MANAGER, PROCESSOR
from dovetail_proto.errors import ConfigError, Forbidden
from dovetail_proto.transport import Security, Unreachable, open_channel, raised

KINDS = ("manager", "processor", "client", "reader")
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
        security=shows(folder, "manager"),
    )
    with ManagerServer(settings) as started:
        yield started


def outcome(
    address: str, security: Security, method: str, *, streams: bool, to: str = MANAGER
) -> grpc.StatusCode:
    """How a call without content ends."""
    with open_channel(address, security, to=to) as channel:
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


def test_only_a_processor_may_join_and_only_people_may_call_verbs(
    manager: ManagerServer, folder: Path
) -> None:
    """Over gRPC; a refused call says so, an allowed one is answered."""
    for method, streams, allowed in (
        ("Control/Attach", True, {"processor"}),
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
    """A reader looks, a client declares, a server's certificate does neither."""
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
    servers = {"manager": (403, 403), "processor": (403, 403)}
    assert found == {**servers, "client": (200, 422), "reader": (200, 403)}


def test_only_a_processor_may_link_to_a_processor(folder: Path, tmp_path: Path) -> None:
    """Clients and the manager for them send and read there; a reader asks the manager."""
    settings = ProcessorSettings(
        name="p1",
        manager="127.0.0.1:1",  # nobody: the data plane answers all the same
        memory_bytes=64_000_000,
        data_dir=tmp_path,
        version="0",
        security=shows(folder, "processor"),
    )
    processor = ProcessorServer(settings)
    processor.start()
    try:
        for method, streams, allowed in (
            ("Feed", True, {"processor"}),
            ("Ingest", True, {"manager", "client"}),
            ("AwaitJoined", False, {"manager", "client"}),
            ("KeepResults", False, {"processor"}),
        ):
            path = f"/dovetail.v1.DataPlane/{method}"
            ends = {
                k: outcome(processor.address, shows(folder, k), path, streams=streams, to=PROCESSOR)
                for k in KINDS
            }
            assert {k for k, end in ends.items() if end is not DENIED} == allowed, (method, ends)
            assert grpc.StatusCode.UNAVAILABLE not in ends.values()
    finally:
        processor.stop()


@pytest.mark.parametrize("kind", ["manager", "processor"])
def test_a_server_with_a_certificate_of_another_role_does_not_start(
    folder: Path, tmp_path: Path, kind: str
) -> None:
    """Neither the other server's nor one for all servers, as they were made once."""
    name, key = _of_all_servers(folder, tmp_path), folder / "manager.key"
    other = {"manager": "processor", "processor": "manager"}[kind]
    old = Security("", folder / "ca.pem", name, key, mutual=True)
    for shown in (shows(folder, other), shows(folder, "reader"), old):
        assert shown.certificate is not None
        data_dir = tmp_path / "data"
        processor = ProcessorSettings("p1", "127.0.0.1:1", 1 << 20, data_dir, "0", security=shown)
        starting = (
            ManagerServer(ManagerSettings(store=str(data_dir), security=shown))
            if kind == "manager"
            else ProcessorServer(processor)
        )
        with pytest.raises(ConfigError, match=f"has to be of 'dovetail {kind}'") as refused:
            starting.start()
        assert shown.certificate.name in str(refused.value)
        assert "dovetail certs init" in refused.value.remedy
        assert not data_dir.exists()


def _of_all_servers(folder: Path, tmp_path: Path) -> Path:
    """A certificate of `dovetail server`, with the manager's key."""
    load = x509.load_pem_x509_certificate
    key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    like = load((folder / "manager.pem").read_bytes())
    builder = x509.CertificateBuilder(
        like.issuer,
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "dovetail server")]),
        like.public_key(),
        like.serial_number,
        like.not_valid_before_utc,
        like.not_valid_after_utc,
    ).add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
    path = tmp_path / "server.pem"
    path.write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    return path


def test_a_processors_key_poses_as_no_manager(folder: Path, tmp_path: Path) -> None:
    """Whoever stole it and answers at the manager's address is talked to by nobody."""
    stolen = replace(shows(folder, "processor"), mutual=False)
    thief = ManagerServer(
        ManagerSettings(store=str(tmp_path / "manager.db"), rest="127.0.0.1:0", security=stolen)
    )  # asks nobody for a certificate, so it does not look at its own either
    with thief:
        for kind in ("client", "processor"):
            ends = outcome(
                thief.address,
                shows(folder, kind),
                "/dovetail.v1.Admin/ListQueries",
                streams=False,
            )
            assert ends is grpc.StatusCode.UNAVAILABLE
        rest = f"https://{thief.rest_address}"
        with (
            closing(AdminCalls(rest, shows(folder, "client"))) as calls,
            pytest.raises(Unreachable, match="a certificate of 'dovetail processor' answers"),
        ):
            calls.list_queries()
        with closing(AdminCalls(rest, Security("t", folder / "ca.pem"))) as calls:
            calls.list_queries()  # the host is right, and a token asks for no role


def test_a_managers_key_poses_as_no_processor(manager: ManagerServer, folder: Path) -> None:
    """Clients that send and other processors do not talk to it."""
    for kind in ("client", "processor", "manager"):
        found = outcome(
            manager.address,
            shows(folder, kind),
            "/dovetail.v1.DataPlane/Ingest",
            streams=True,
            to=PROCESSOR,
        )
        assert found is grpc.StatusCode.UNAVAILABLE
