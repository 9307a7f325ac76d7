"""`dovetail certs init`: what it makes, and what it leaves alone."""

from __future__ import annotations

import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from dovetail import certificates
from dovetail_proto.errors import ConfigError, OutputError
from kit.cli import dovetail


def load(path: Path) -> x509.Certificate:
    """A certificate from its file."""
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_the_authority_signs_every_certificate(tmp_path: Path) -> None:
    """And they hold now, for years."""
    certificates.init(tmp_path)
    authority = load(tmp_path / "ca.pem")
    for name in ("ca.pem", "manager.pem", "processor.pem", "client.pem", "reader.pem"):
        made = load(tmp_path / name)
        made.verify_directly_issued_by(authority)
        assert made.not_valid_before_utc < datetime.now(UTC) < made.not_valid_after_utc


def test_a_server_is_good_for_its_hosts_and_a_client_cannot_pose_as_one(tmp_path: Path) -> None:
    """Names and addresses given with --host are added to those of this machine."""
    named = certificates.init(tmp_path, ["manager.example", "10.0.0.1", "localhost"])
    assert named == ("localhost", "127.0.0.1", "::1", "manager.example", "10.0.0.1")
    for role in ("manager", "processor"):
        server = load(tmp_path / f"{role}.pem").extensions
        hosts = server.get_extension_for_class(x509.SubjectAlternativeName).value
        known_as = ["localhost", "manager.example", f"{role}.dovetail.internal"]
        assert hosts.get_values_for_type(x509.DNSName) == known_as
        assert [str(a) for a in hosts.get_values_for_type(x509.IPAddress)][2] == "10.0.0.1"
    client = load(tmp_path / "client.pem").extensions
    uses = client.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(uses) == [ExtendedKeyUsageOID.CLIENT_AUTH]


def test_keys_are_readable_by_their_owner_alone(tmp_path: Path) -> None:
    """From the moment they exist, whatever the umask."""
    certificates.init(tmp_path)
    for key in tmp_path.glob("*.key"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    """One file that is there refuses all, before any is written."""
    (tmp_path / "client.pem").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"client\.pem' is already there"):
        certificates.init(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["client.pem"]


@pytest.mark.parametrize("host", ["a b", "", "a..b", "x" * 64, "höst", "https://a"])
def test_a_host_that_is_none_is_refused(tmp_path: Path, host: str) -> None:
    """Before anything is made."""
    with pytest.raises(ConfigError, match="neither a host name nor an address"):
        certificates.init(tmp_path / "new", [host])
    assert not (tmp_path / "new").exists()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """A folder below a file can never be made, whoever asks."""
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be written to"):
        certificates.init(tmp_path / "file" / "certs")


def test_the_command_says_what_it_made(tmp_path: Path) -> None:
    """For people and as JSON; a second time it is refused."""
    done = dovetail("certs", "init", tmp_path / "a", "--host", "m.example", "--json")
    assert done.json["hosts"][-1] == "m.example"
    assert Path(done.json["files"]["manager.key"]).exists()
    assert "m.example" not in dovetail("certs", "init", tmp_path / "b").out
    again = dovetail("certs", "init", tmp_path / "a")
    assert again.code == 2
    assert "never overwritten" in again.err
