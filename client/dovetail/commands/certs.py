"""`dovetail certs`: the certificates of a cluster that speaks TLS."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

certs = typer.Typer(help="Certificates for TLS between processes.", no_args_is_help=True)


@certs.command("init")
def init(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="New folder for the files.")],
    *,
    hosts: Annotated[
        list[str] | None,
        typer.Option(
            "--host",
            metavar="NAME",
            help="A name or address that servers are reached by, besides localhost; repeatable.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Make a small authority and a certificate for each role; overwrites nothing."""
    from dovetail import certificates

    named = certificates.init(directory, hosts or ())
    files = {name: str(directory / name) for name in certificates.FILES}
    if as_json:
        print(json.dumps({"files": files, "hosts": named}))
        return
    print(f"made in {directory}: {', '.join(certificates.FILES)}")
    print(f"servers may be reached as: {', '.join(named)}")
    print(f'everyone:   tls_authority = "{files["ca.pem"]}"')
    for name in certificates.SERVERS:
        label = f"{name}:".ljust(11)
        print(f'{label} tls_certificate = "{files[f"{name}.pem"]}"')
        print(f'{" " * 11} tls_key = "{files[f"{name}.key"]}"')
    print("clients:    client.pem and client.key, or reader's, where servers have tls_mutual")
