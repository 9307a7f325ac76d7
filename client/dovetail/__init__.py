"""The front door: command line, Python interface, embedded cluster.

    with dovetail.local(processors=2, memory="256MB") as cluster: …
    cluster = dovetail.connect("http://127.0.0.1:7071", token)

Names are loaded when first used, so that the command line starts at once.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dovetail.cluster import Cluster
    from dovetail.connecting import connect, local
    from dovetail.local_cluster import LocalCluster
    from dovetail.queries import Query
    from dovetail.query_results import LostResultsWarning, Results
    from dovetail.streams import Stream, UnreadWarning
    from dovetail_proto.errors import DovetailError
    from dovetail_proto.log_reader import Offset

_HOMES = {
    "Cluster": "dovetail.cluster",
    "DovetailError": "dovetail_proto.errors",
    "LocalCluster": "dovetail.local_cluster",
    "LostResultsWarning": "dovetail.query_results",
    "Offset": "dovetail_proto.log_reader",
    "Query": "dovetail.queries",
    "Results": "dovetail.query_results",
    "Stream": "dovetail.streams",
    "UnreadWarning": "dovetail.streams",
    "connect": "dovetail.connecting",
    "local": "dovetail.connecting",
}

__all__ = [
    "Cluster",
    "DovetailError",
    "LocalCluster",
    "LostResultsWarning",
    "Offset",
    "Query",
    "Results",
    "Stream",
    "UnreadWarning",
    "connect",
    "local",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'dovetail' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
