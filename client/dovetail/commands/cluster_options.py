"""What the verbs of a cluster share: how it is found, and how answers are shown."""

from __future__ import annotations

import json
import math
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from dovetail.cluster import Cluster

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="The manager's REST; else DOVETAIL_URL, else the cluster that `up` started here.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON on standard output, and nothing else.")]

QueryName = Annotated[str, typer.Argument(metavar="QUERY", help="Name of a query.")]
StreamName = Annotated[str, typer.Argument(metavar="STREAM", help="Name of a stream.")]


def open_cluster(url: str | None) -> Cluster:
    """The cluster that is meant; a context manager."""
    from dovetail.connecting import connect_by

    return connect_by({"url": url})


@contextmanager
def telling_warnings() -> Iterator[None]:
    """What the client warns of, as lines on standard error."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", UserWarning)
        yield
    for warning in said:
        sys.stderr.write(f"warning: {warning.message}\n")


def as_plain(value: Any) -> Any:
    """An answer as JSON: schemas as columns, numbers that JSON has no word for as null."""
    if is_dataclass(value):
        named = {f.name: getattr(value, f.name) for f in fields(value)}
        return {name: as_plain(each) for name, each in named.items()}
    if isinstance(value, bytes):
        import pyarrow as pa

        schema = pa.ipc.read_schema(pa.py_buffer(value))
        return [{"name": f.name, "type": str(f.type), "nullable": f.nullable} for f in schema]
    if isinstance(value, tuple | list):
        return [as_plain(each) for each in value]
    if isinstance(value, dict):
        return {k: as_plain(v) for k, v in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def print_json(value: Any) -> None:
    """One line of JSON."""
    print(json.dumps(as_plain(value)))
