"""`dovetail up` and `dovetail down`: a cluster of processes on this machine."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dovetail.commands.processor_options import Threads
from dovetail.quantities import format_bytes
from dovetail_proto.errors import ConfigError, Domain, DovetailError, Refusal

if TYPE_CHECKING:
    from dovetail.local_cluster import LocalCluster
    from dovetail.settings import Settings
    from dovetail.upkeep import LeftCluster

Policy = Literal["none", "disk", "distributed", "lazy-disk", "active-disk"]
DataDir = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Everything of the cluster is kept here; .dovetail by default.",
        show_default=False,
    ),
]
Root = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PLACE",
        help="Folder or URI that streams, results and spill may be in, beside the data folder; "
        "this folder by default. May be given again.",
        show_default=False,
    ),
]
Config = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Settings file.", show_default=False)
]


def up(
    *,
    processors: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="How many processors; 1.", show_default=False),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Limit of each processor; 256MB.", show_default=False),
    ] = None,
    threads: Threads = None,
    policy: Annotated[
        Policy | None,
        typer.Option(
            help="How queries adapt; disk with one processor, lazy-disk with more.",
            show_default=False,
        ),
    ] = None,
    data_dir: DataDir = None,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="The manager's gRPC; 127.0.0.1:7070. Port 0 is any.",
            show_default=False,
        ),
    ] = None,
    rest: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="The manager's REST; 127.0.0.1:7071. Port 0 is any.",
            show_default=False,
        ),
    ] = None,
    root: Root = None,
    config: Config = None,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay, and end the cluster with Ctrl-C.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Start a manager and processors on this machine; they go on when this command has ended.

    Address and token are printed once, and written to cluster.json in the data folder for its
    owner only: commands in the same folder find the cluster by it. Where a cluster runs in the
    folder already, whichever of its processes have ended are started again, as they were.

    Example: dovetail up --processors 3 --memory 256MB --policy lazy-disk
    """
    from dovetail.settings import load
    from dovetail.upkeep import left_cluster

    flags = {
        "processors": processors,
        "memory": memory,
        "threads": threads,
        "policy": policy,
        "data_dir": data_dir,
        "listen": listen,
        "rest": rest,
        "root": root or None,
    }
    settings = load(flags, config=config).settings
    left = left_cluster(settings)
    if left is not None and left.running:
        _complete(left, processors or 1, foreground=foreground, as_json=as_json)
        return
    local = _local(settings, detached=not foreground)
    local.start()
    try:
        _write(local, settings)
        _announce(local, settings, as_json=as_json, foreground=foreground)
    except BaseException:
        local.stop()
        raise
    if foreground:
        _stay(local)


def down(
    *,
    data_dir: DataDir = None,
    config: Config = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also while queries run: what they hold is lost.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """End the cluster that `dovetail up` started here; its data folder stays.

    Example: dovetail close prices && dovetail down
    """
    from dovetail.connecting import CLUSTER_FILE
    from dovetail.processes import end_processes
    from dovetail.settings import load
    from dovetail.upkeep import MANAGER, known_cluster

    settings = load({"data_dir": data_dir}, config=config).settings
    left = known_cluster(settings)
    if not force:
        _refuse_if_used(left)
    processes = left.file.processes
    first = [(p.pid, p.started_s) for p in processes if p.name != MANAGER]
    last = [(p.pid, p.started_s) for p in processes if p.name == MANAGER]
    ended = end_processes(first) | end_processes(last)
    (settings.data_dir / CLUSTER_FILE).unlink(missing_ok=True)
    names = [p.name for p in processes if p.pid in ended]
    if as_json:
        print(json.dumps({"ended": names}))
    else:
        print(f"ended: {', '.join(names) or 'nothing, it had ended before'}")


def _complete(left: LeftCluster, processors: int, *, foreground: bool, as_json: bool) -> None:
    """Start what is missing of a cluster that runs, and the processors that it has too few."""
    missing = left.missing
    wanted = [f"p{i + 1}" for i in range(processors)]
    missing += [name for name in wanted if name not in left.names]
    if not missing or foreground:
        raise ConfigError(
            f"a cluster runs in {str(left.data_dir)!r} already: {', '.join(left.running)} at "
            f"{left.file.url}",
            remedy="end it with `dovetail down`, or name another --data-dir",
        )
    left.start(missing)
    if as_json:
        print(json.dumps({"url": left.file.url, "started": missing}))
    else:
        print(f"started: {', '.join(missing)}; at {left.file.url} as before")


def _refuse_if_used(left: LeftCluster) -> None:
    """A query that is not closed would lose what is in memory.

    Whoever answers at the address is asked. If nobody does, processors may hold whatever they do.
    """
    from dovetail.upkeep import MANAGER

    holders = [name for name in left.running if name != MANAGER]
    try:
        with left.admin() as admin:
            going = [q.name for q in admin.list_queries().queries if not q.ended_s]
    except DovetailError as e:
        if not holders:
            return
        raise Refusal(
            Domain.QUERY,
            f"whether queries run on {', '.join(holders)} is not known: {e.message}",
            remedy="`dovetail restart manager` first, or give --force to end the cluster all the "
            "same: what queries hold is lost",
            reason="state",
        ) from e
    if going:
        raise Refusal(
            Domain.QUERY,
            f"{', '.join(going)} would lose what is in memory",
            remedy=f"`dovetail close {going[0]}` first, or give --force",
            reason="state",
        )


def _local(settings: Settings, *, detached: bool) -> LocalCluster:
    from dataclasses import replace

    from dovetail.local_cluster import LocalCluster
    from dovetail_proto.cluster_memory import threads_by_default

    security = settings.security()
    if not security.token:
        import secrets

        security = replace(security, token=secrets.token_urlsafe(24))
    return LocalCluster(
        settings.processors,
        memory_bytes=settings.memory,
        threads=settings.threads or threads_by_default(settings.memory, settings.processors),
        data_dir=settings.data_dir,
        policy=settings.policy,
        keep_results_s=settings.keep_results_s,
        keep_results_bytes=settings.keep_results_bytes,
        adaptation=settings.adaptation(),
        store=settings.store,
        spill=settings.spill,
        roots=settings.root or (os.getcwd(),),
        spark_masters=settings.masters(),
        listen=settings.listen,
        rest=settings.rest,
        security=security,
        read_token=settings.reading_token(),
        heartbeat_s=settings.heartbeat_s,
        dead_after_s=settings.dead_after_s,
        detached=detached,
    )


def _write(local: LocalCluster, settings: Settings) -> None:
    from dovetail.connecting import ClusterFile, Started
    from dovetail.processes import started_at

    processes = tuple(
        Started(name, p.pid, started_at(p.pid)) for name, p in local.processes.items()
    )
    left = ClusterFile(local.url, local.token, local.address, settings.policy, processes)
    left.write(settings.data_dir)


def _announce(local: LocalCluster, settings: Settings, *, as_json: bool, foreground: bool) -> None:
    facts: dict[str, Any] = {
        "url": local.url,
        "token": local.token,
        "address": local.address,
        "processors": local.names,
        "data_dir": str(local.data_dir),
        "pids": {name: p.pid for name, p in local.processes.items()},
    }
    if as_json:
        print(json.dumps(facts), flush=True)
        return
    count = len(local.names)
    print(f"{count} processor{'s' if count > 1 else ''} of {format_bytes(settings.memory)}")
    print(f"address   {local.url}")
    print(f"token     {local.token}")
    print(f"logs      {local.data_dir / 'logs'}")
    print(
        "Ctrl-C ends the cluster"
        if foreground
        else "commands in this folder find it; elsewhere set DOVETAIL_URL and DOVETAIL_TOKEN; "
        "`dovetail down` ends it",
        flush=True,
    )


def _stay(local: LocalCluster) -> None:
    """Until a signal, or until a process ends by itself."""
    import signal
    import threading

    from dovetail.connecting import CLUSTER_FILE
    from dovetail.processes import ClusterStartError

    asked = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: asked.set())
    try:
        while not asked.wait(0.2):
            for process in local.processes.values():
                if not process.running:
                    raise ClusterStartError(
                        f"{process.name} has ended; its log ends with:\n{process.tail()}",
                        remedy=f"see {process.log}",
                    )
    finally:
        (local.data_dir / CLUSTER_FILE).unlink(missing_ok=True)
        local.stop()
