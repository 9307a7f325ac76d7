"""What a caller may do where servers ask for certificates and no token is set: by common name.

    dovetail server   a manager or processor: joins, links, and nothing that people ask for
    dovetail client   a person or program: everything that people ask for
    dovetail reader   may look

`dovetail certs init` makes one of each. Where a token is set, it decides the role instead.
"""

from __future__ import annotations

from dovetail_proto.errors import DovetailError, Forbidden

SERVER = "dovetail server"
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
