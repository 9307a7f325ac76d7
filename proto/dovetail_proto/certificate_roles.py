"""Who a caller is and what answers, where there are certificates and no token: by common name.

    dovetail manager     answers people and processors; hands rows and results on for people
    dovetail processor   joins and links, and nothing that people ask for
    dovetail client      a person or program: everything that people ask for
    dovetail reader      may look

`dovetail certs init` makes one of each. Servers look at what a caller shows (`refusal`), and
callers at what answers: a processor's certificate is no manager's, at whatever host. Where a token
is set, it decides the role instead, and callers look at the host alone.
"""

from __future__ import annotations

from pathlib import Path

from dovetail_proto.errors import ConfigError, DovetailError, Forbidden

MANAGER = "dovetail manager"
PROCESSOR = "dovetail processor"
CLIENT = "dovetail client"
READER = "dovetail reader"


def refusal(name: str, *allowed: str) -> DovetailError | None:
    """Why a certificate of this common name may not do what `allowed` ones may; None if it may."""
    if name in allowed:
        return None
    return Forbidden(
        f"a certificate of {name!r} may not do this",
        remedy=f"show one of {' or '.join(map(repr, allowed))}: `dovetail certs init` makes them; "
        "or set a token, which decides the role then",
    )


def host_name(role: str) -> str:
    """The name for which a server of this role is good, beside those of its hosts.

    gRPC looks at hosts' names and at nothing else, so it is asked for this one. No machine is
    called so: `internal` is for private use.
    """
    return f"{role.removeprefix('dovetail ')}.dovetail.internal"


def check_own(certificate: Path, role: str) -> None:
    """ConfigError if the certificate that a server of `role` shows is another's."""
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    try:
        shown = x509.load_pem_x509_certificate(certificate.read_bytes())
        names = [str(n.value) for n in shown.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        hosts = shown.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        good = host_name(role) in hosts.get_values_for_type(x509.DNSName)
    except x509.ExtensionNotFound:
        good = False  # it is good for no host
    except (OSError, ValueError) as e:
        raise ConfigError(
            f"certificate {str(certificate)!r} cannot be read: {e}",
            remedy="see `dovetail certs init`",
        ) from e
    if names != [role] or not good:
        raise ConfigError(
            f"certificate {str(certificate)!r} is of {' '.join(names)!r}, and here it has to be of "
            f"{role!r} and good for {host_name(role)!r}",
            remedy="`dovetail certs init` makes one for each role, in a new folder; or set a "
            "token, which decides the role then",
        )
