"""A small certificate authority for one cluster: made once, in one folder, for years.

    DIR/ca.pem      who signs; every process and client gets it
    DIR/ca.key      signs further certificates; keep it away from the cluster
    DIR/manager.pem, manager.key        for the manager
    DIR/processor.pem, processor.key    for the processors
    DIR/client.pem, client.key    for people and programs, where servers ask for one
    DIR/reader.pem, reader.key    likewise, for those who may only look

Keys are elliptic (P-256), unencrypted, and readable by their owner alone. Servers dial each other
and are dialled, so their certificates serve both ways; a client's cannot pose as a server.
The common name is the role where no token is set (`dovetail_proto.certificate_roles`).
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dovetail_proto import certificate_roles
from dovetail_proto.errors import ConfigError, OutputError

DEFAULT_HOSTS = ("localhost", "127.0.0.1", "::1")
"""In every server certificate: the cluster of one machine."""

DAYS = 825
"""The longest that common verifiers accept; `init` in a new folder renews."""

BACKDATED = datetime.timedelta(minutes=5)
"""Machines' clocks differ: a certificate made just now must hold on the next one."""

SERVERS = {"manager": certificate_roles.MANAGER, "processor": certificate_roles.PROCESSOR}
CALLERS = {"client": certificate_roles.CLIENT, "reader": certificate_roles.READER}

FILES = tuple(f"{n}.{e}" for n in ("ca", *SERVERS, *CALLERS) for e in ("pem", "key"))


@dataclass(frozen=True, slots=True)
class _Signer:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def init(folder: Path, hosts: Sequence[str] = ()) -> tuple[str, ...]:
    """Make an authority and its certificates in `folder`; the hosts that servers' are good for.

    ConfigError if a host is none or if a file is already there: nothing is written then.
    """
    names = tuple(dict.fromkeys((*DEFAULT_HOSTS, *hosts)))
    subjects = [_host(name) for name in names]
    there = [name for name in FILES if os.path.lexists(folder / name)]
    if there:
        raise ConfigError(
            f"{str(folder / there[0])!r} is already there",
            remedy="name a new folder; certificates are never overwritten",
        )
    authority = _authority()
    both = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)
    made = {"ca": authority}
    for name, role in SERVERS.items():
        known_as = [*subjects, x509.DNSName(certificate_roles.host_name(role))]
        made[name] = _signed(authority, role, both, known_as)
    for name, role in CALLERS.items():
        made[name] = _signed(authority, role, (ExtendedKeyUsageOID.CLIENT_AUTH,), [])
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name, signer in made.items():
            _write(folder / f"{name}.key", _key_pem(signer.key), 0o600)
            _write(folder / f"{name}.pem", _certificate_pem(signer.certificate), 0o644)
    except OSError as e:
        raise OutputError(
            f"certificates cannot be written to {str(folder)!r}: {e.strerror}",
            remedy="name a folder that can be written",
        ) from e
    return names


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    labels = name.split(".")
    plain = all(part and len(part) < 64 and part.replace("-", "").isalnum() for part in labels)
    if not plain or not name.isascii() or len(name) > 253:
        raise ConfigError(
            f"--host {name!r} is neither a host name nor an address",
            remedy="write for example --host manager.example or --host 10.0.0.1",
        )
    return x509.DNSName(name)


def _authority() -> _Signer:
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("dovetail authority")
    builder = (
        _builder(name, name, key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
    )
    return _Signer(builder.sign(key, hashes.SHA256()), key)


def _signed(
    authority: _Signer,
    subject: str,
    uses: Sequence[x509.ObjectIdentifier],
    hosts: Sequence[x509.GeneralName],
) -> _Signer:
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    builder = (
        _builder(_name(subject), authority.certificate.subject, key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(issuer, critical=False)
    )
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
    return _Signer(builder.sign(authority.key, hashes.SHA256()), key)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + datetime.timedelta(days=DAYS))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _certificate_pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _write(path: Path, data: bytes, mode: int) -> None:
    # O_EXCL: never over a file, nor through a link that someone put there.
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
