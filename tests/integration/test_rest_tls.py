"""REST over TLS with the certificates that `dovetail certs init` makes."""

from __future__ import annotations

import ssl
from pathlib import Path

import httpx
import pytest

from dovetail import certificates
from dovetail_manager.admin.auth import Tokens
from dovetail_manager.admin.rest import RestSettings, serve
from dovetail_proto.errors import ConfigError
from dovetail_proto.transport import Security
from kit.admin_standin import AdminStandIn
from kit.rest_server import running


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates."""
    made = tmp_path_factory.mktemp("tls") / "certs"
    certificates.init(made)
    return made


def security(folder: Path, *, mutual: bool) -> Security:
    """A server's."""
    return Security(
        authority=folder / "ca.pem",
        certificate=folder / "manager.pem",
        key=folder / "manager.key",
        mutual=mutual,
    )


def trusting(folder: Path, certificate: bool = False) -> ssl.SSLContext:
    """A client's: trusts the authority alone, and shows a certificate if asked to."""
    made = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    if certificate:
        made.load_cert_chain(folder / "client.pem", folder / "client.key")
    return made


def test_a_client_that_trusts_the_authority_is_served(folder: Path) -> None:
    """One that does not is not, and neither is plain HTTP."""
    with running(Tokens("all"), security(folder, mutual=False)) as rest:
        url = f"https://localhost:{rest.server.port}/v1/cluster"
        token = {"Authorization": "Bearer all"}
        assert httpx.get(url, verify=trusting(folder), headers=token, timeout=60).status_code == 200
        assert httpx.get(url, verify=trusting(folder), timeout=60).status_code == 401
        with pytest.raises(httpx.ConnectError):
            httpx.get(url, headers=token, timeout=60)
        with pytest.raises(httpx.TransportError):
            rest.http.get("/healthz")


def test_a_server_that_asks_for_certificates_serves_nobody_without(folder: Path) -> None:
    """And needs no token then, whatever name it is called by."""
    with running(Tokens(), security(folder, mutual=True)) as rest:
        url = f"https://127.0.0.1:{rest.server.port}/v1/cluster"
        shown = trusting(folder, certificate=True)
        assert (
            httpx.get(url, verify=shown, headers={"Host": "m.example"}, timeout=60).status_code
            == 200
        )
        with pytest.raises(httpx.TransportError):
            httpx.get(url, verify=trusting(folder), timeout=60)


def test_files_that_will_not_do_are_refused_by_name(folder: Path, tmp_path: Path) -> None:
    """At the start, not at the first call."""
    service = AdminStandIn.__new__(AdminStandIn)
    (tmp_path / "not.pem").write_text("nothing")
    for path in (tmp_path / "gone.pem", tmp_path / "not.pem", folder / "client.pem"):
        shown = Security(certificate=path, key=folder / "manager.key")
        with pytest.raises(ConfigError, match=path.name):
            serve(service, RestSettings("127.0.0.1:0"), Tokens(), shown)
