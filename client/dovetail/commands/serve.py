"""`dovetail manager` and `dovetail processor`: one process of a cluster, in the foreground.

What a container or a unit of systemd runs. Everything else comes from the settings: a file, or
DOVETAIL_… in the environment.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dovetail.commands.processor_options import Threads

if TYPE_CHECKING:
    from dovetail.settings import Settings

Config = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Settings file.", show_default=False)
]
Tethered = Annotated[
    bool,
    typer.Option(
        "--tethered",
        help="End when standard input does, or the program that started it: for programs that keep "
        "a pipe to it.",
    ),
]


Root = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PLACE",
        help="Folder or URI that streams, results and spill may be in, beside the data folder and "
        "DOVETAIL_SPILL. May be given again.",
        show_default=False,
    ),
]


def manager(*, root: Root = None, config: Config = None, tethered: Tethered = False) -> None:
    """Run a manager until SIGTERM or Ctrl-C; the next one goes on from its store.

    Example: DOVETAIL_TOKEN=… DOVETAIL_LISTEN=0.0.0.0:7070 DOVETAIL_REST=0.0.0.0:7071 dovetail
    manager
    """
    from dovetail.services import end_process, run_manager
    from dovetail_manager.server import ManagerSettings

    settings = _settings(config, root, tethered=tethered)
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    run_manager(
        ManagerSettings(
            store=settings.store or f"sqlite:{settings.data_dir.absolute() / 'manager.db'}",
            listen=settings.listen,
            rest=settings.rest,
            security=settings.security(),
            read_token=settings.reading_token(),
            spark_masters=settings.masters(),
            spill_root=settings.spill,
            roots=settings.roots(),
            keep_results_s=settings.keep_results_s,
            keep_results_bytes=settings.keep_results_bytes,
            adaptation=settings.adaptation(),
            dead_after_s=settings.dead_after_s,
        )
    )
    end_process()


def processor(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name in the cluster.")],
    *,
    manager_address: Annotated[
        str, typer.Option("--manager", metavar="HOST:PORT", help="The manager's gRPC.")
    ] = "127.0.0.1:7070",
    listen: Annotated[
        str,
        typer.Option("--listen", metavar="HOST:PORT", help="Where others reach it; port 0 is any."),
    ] = "127.0.0.1:0",
    advertise: Annotated[
        str | None,
        typer.Option(
            metavar="HOST",
            help="The host that others dial, if it is not the one listened on.",
            show_default=False,
        ),
    ] = None,
    threads: Threads = None,
    root: Root = None,
    config: Config = None,
    tethered: Tethered = False,
) -> None:
    """Run a processor until it has left; memory is a setting.

    With several threads its workers are members of the cluster: p1.0, p1.1 and so on, which listen
    at as many ports, from the given one on.

    SIGTERM and Ctrl-C have it leave: its groups and streams go to others, and the last processor
    closes the queries that it runs, so that nothing is lost. A second one ends it at once, and what
    it holds in memory is lost.

    Example: DOVETAIL_TOKEN=… DOVETAIL_MEMORY=4GB dovetail processor p1 --manager manager:7070
    --listen 0.0.0.0:7072 --advertise p1
    """
    from importlib.metadata import version

    from dovetail.services import end_process, run_processor
    from dovetail_manager.admin.auth import Tokens, refuse_open_bind
    from dovetail_processor.shell.processor_settings import ProcessorSettings
    from dovetail_proto.cluster_memory import threads_by_default

    settings = _settings(config, root, tethered=tethered, threads=threads)
    security = settings.security()
    refuse_open_bind(listen.rpartition(":")[0], Tokens(security.token), security)
    run_processor(
        ProcessorSettings(
            name=name,
            manager=manager_address,
            memory_bytes=settings.memory,
            data_dir=settings.data_dir.absolute(),
            version=version("dovetail"),
            listen=listen,
            advertise=advertise,
            security=security,
            heartbeat_s=settings.heartbeat_s,
            roots=settings.roots(),
            threads=settings.threads or threads_by_default(settings.memory),
        )
    )
    end_process()


def _settings(
    config: Path | None, root: list[str] | None, *, tethered: bool, threads: int | None = None
) -> Settings:
    from dovetail.garbage import collect_as_usual
    from dovetail.logs import set_up_logs
    from dovetail.services import tether
    from dovetail.settings import load

    if tethered:
        tether()
    settings = load({"root": root or None, "threads": threads}, config=config).settings
    set_up_logs(settings.log_level, settings.log_format)
    collect_as_usual()
    return settings
