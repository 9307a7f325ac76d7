"""Which cluster is meant, and clients of it: what is given, then settings, then what `up` wrote.

`dovetail up` writes `cluster.json` into its data folder, readable by its owner only: address,
token and processes. Commands and `connect` in the same working folder find the cluster by it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dovetail.cluster import Cluster
from dovetail.quantities import parse_bytes
from dovetail_proto.errors import ConfigError

CLUSTER_FILE = "cluster.json"


@dataclass(frozen=True, slots=True)
class Started:
    """One process of a cluster that `up` started."""

    name: str
    pid: int
    started_s: float  # tells it from a later process with the same id


@dataclass(frozen=True, slots=True)
class ClusterFile:
    """What `up` leaves for later commands."""

    url: str
    token: str
    address: str  # of the manager's gRPC
    policy: str | None  # of queries that name none
    processes: tuple[Started, ...]

    def write(self, data_dir: Path) -> Path:
        """Into the data folder, for its owner only."""
        path = data_dir / CLUSTER_FILE
        fresh = path.with_suffix(".new")
        handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(asdict(self), file)
        fresh.replace(path)
        return path


def read_cluster_file(data_dir: Path) -> ClusterFile | None:
    """What `up` left in a data folder; None if nothing. ConfigError if it cannot be read."""
    path = data_dir / CLUSTER_FILE
    try:
        fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        processes = tuple(Started(**p) for p in fields.pop("processes"))
        return ClusterFile(**fields, processes=processes)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as e:
        raise ConfigError(
            f"{str(path)!r} cannot be read: {e}", remedy="remove it, and give url and token"
        ) from e


def connect(url: str | None = None, token: str | None = None) -> Cluster:
    """A client of a running cluster.

    What is not given comes from the settings (`DOVETAIL_URL`, `DOVETAIL_TOKEN`, dovetail.toml), or
    is the cluster that `dovetail up` started in this folder. Nothing is sent yet: a wrong address
    shows with the first call.
    """
    return connect_by({"url": url, "token": token})


def is_known() -> bool:
    """Whether settings, or a cluster that `dovetail up` started in this folder, say which one."""
    from dovetail.settings import load

    loaded = load()
    named = loaded.origins["url"] != "default"
    return named or read_cluster_file(loaded.settings.data_dir) is not None


def connect_by(flags: Mapping[str, Any]) -> Cluster:
    """A client by flags (None: not given) and settings."""
    from dovetail.settings import load

    loaded = load(flags)
    s = loaded.settings
    url, security = s.url, s.security()
    named = loaded.origins["url"] != "default"
    left = None if named else read_cluster_file(s.data_dir)
    policy: str | None = s.policy
    if left is not None:
        url = left.url
        security = replace(security, token=security.token or left.token)
        policy = policy or left.policy
    return Cluster(url, security, policy=policy)


def local(
    processors: int = 2,
    *,
    memory: int | str = "256MB",
    threads: int | None = None,
    data_dir: str | Path | None = None,
    policy: str | None = None,
) -> Cluster:
    """A cluster on this machine, from now until it is closed.

    Several processors are processes, beside one of the manager. A single one and its manager are
    threads of this process, and its memory is this process's.

    `memory` is the limit of each processor, shared by its `threads`; without a number, the cores
    are dealt among the processors. Everything is kept below `data_dir`; without one, in a
    temporary folder that goes with the cluster. `policy` is for queries that name none: `disk`
    with one processor, `lazy-disk` with more. For more choices see `LocalCluster`.
    """
    import structlog

    from dovetail.local_cluster import LocalCluster
    from dovetail.logs import set_up_logs
    from dovetail_proto.cluster_memory import threads_by_default

    if processors == 1 and not structlog.is_configured():
        set_up_logs("warning", "console")  # they go to this program's standard error
    size = memory if isinstance(memory, int) else parse_bytes(memory, what="memory")
    made = LocalCluster(
        processors,
        memory_bytes=size,
        threads=threads or threads_by_default(size, processors),
        data_dir=None if data_dir is None else Path(data_dir),
        policy=policy,
        here="all" if processors == 1 else "nothing",
    )
    made.start()
    cluster = made.cluster
    cluster.ends_with(made.stop)
    return cluster
