"""`dovetail cleanup`: produces, or goes on producing, what spill stores owe."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dovetail.quantities import format_count, parse_bytes
from dovetail_proto.errors import ConfigError

if TYPE_CHECKING:
    from dovetail_pipeline.cleanup import CleanupResult
    from dovetail_pipeline.cleanup.stores import RunCleanup
    from dovetail_proto.admin import CleanupStatus

On = Literal["spark", "local"]


def cleanup(
    directories: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="DIR|QUERY…",
            help="A run's --spill-dir, a folder of several, or a closed query of the cluster.",
        ),
    ] = None,
    *,
    on: Annotated[
        On | None,
        typer.Option(help="Who does it; Spark by default where it can run.", show_default=False),
    ] = None,
    master: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Spark's master, by default local[*]; a query's: the manager's."
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            metavar="DIR|URI|none",
            help="Results go to phase=cleanup/ below it; by default the run's output folder.",
        ),
    ] = None,
    query: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only stores of the query with this name.")
    ] = None,
    memory: Annotated[
        str, typer.Option(metavar="SIZE", help="Limit for all clean-up processes of a machine.")
    ] = "1GiB",
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object on standard output, nothing else.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show what would be done and why; do nothing.")
    ] = False,
    entry_point: Annotated[
        bool, typer.Option("--entry-point", help="Print the file to give to spark-submit.")
    ] = False,
) -> None:
    """Produce the results that pushed state still owes; resumes where it was stopped."""
    if entry_point:
        from dovetail_pipeline.spark.submit import entry_point as path_of

        print(path_of())
        return
    if not directories:
        raise ConfigError("no spill store given", remedy="name the --spill-dir of a run")
    memory_bytes = parse_bytes(memory, what="--memory")
    if master is not None and on == "local":
        raise ConfigError("--master is for Spark", remedy="leave it out, or give --on spark")
    if asked := _query_of_cluster(directories):
        if not explain:
            _through_the_cluster(asked, output, master or on or "", memory_bytes, as_json=as_json)
            return
        from dovetail.connecting import connect

        with connect() as cluster:
            directories = [cluster.query(asked).spill_place()]
    if explain:
        _explain(directories, query, memory_bytes, as_json=as_json)
        return
    from dovetail.cleaning import CleanupMeans, chosen_or_default, clean_up
    from dovetail.interrupts import StopOnSignal
    from dovetail.progress import watch_on_stderr
    from dovetail_pipeline.cleanup.stores import find_cleanups
    from dovetail_pipeline.spark.session import MASTER_DEFAULT

    place = chosen_or_default("spark" if master is not None else on)
    cleanups = find_cleanups(directories, query=query, output=output)
    means = CleanupMeans(place, memory_bytes, master or MASTER_DEFAULT)
    with StopOnSignal() as signals, watch_on_stderr(memory_bytes) as watcher:
        cleaned = clean_up(cleanups, means, watcher=watcher, stop=signals.asked)
    reports = [_report(c, r) for c, r in zip(cleanups, cleaned.results, strict=True)]
    if as_json:
        print(json.dumps(_whole(reports, cleaned.seconds_spark_start)))
        return
    for r in reports:
        print(_line(r))


def _query_of_cluster(given: Sequence[str]) -> str | None:
    """The query of the cluster that was named; None if folders were."""
    from pathlib import Path

    from dovetail.connecting import is_known
    from dovetail_proto.ids import NAME

    names = [g for g in given if NAME.fullmatch(g) and not Path(g).exists()]
    if not names or not is_known():
        return None
    if len(given) > 1:
        raise ConfigError(
            f"{names[0]!r} is no folder, and queries of the cluster are cleaned up one at a time",
            remedy="name one query, or only folders",
        )
    return names[0]


def _through_the_cluster(
    name: str, output: str | None, master: str, memory_bytes: int, *, as_json: bool
) -> None:
    """The manager does it; Ctrl-C cancels it, and what is finished is kept."""
    from dovetail.connecting import connect
    from dovetail.interrupts import StopOnSignal
    from dovetail.progress import watch_on_stderr

    with (
        connect() as cluster,
        StopOnSignal() as signals,
        watch_on_stderr(memory_bytes) as watcher,
    ):
        done = cluster.query(name).cleanup(
            output or "",
            master=master,
            memory=memory_bytes,
            tell=lambda status: watcher.cleaning(_Progress(status)),
            stop=signals.asked,
        )
    report = {
        "query": name,
        "master": done.master,
        "output": done.output or "none",
        "results_cleanup": done.results,
        "checksum": done.checksum,
        "owed": done.owed,
        "bins": done.bins,
        "bins_resumed": 0,
        "seconds_cleanup": done.ended_s - done.started_s,
    }
    print(json.dumps(report) if as_json else _line({**report, "spill": f"query {name}"}))


class _Progress:
    """A clean-up of the cluster as a watcher takes it."""

    def __init__(self, status: CleanupStatus) -> None:
        self.results = status.combinations
        self.owed = status.owed or None
        self.bytes_read = 0


def _line(r: dict[str, Any]) -> str:
    if r["owed"] == 0:
        return f"{r['spill']}: nothing is owed"
    resumed = f", {r['bins_resumed']} of {r['bins']} parts were finished before"
    return (
        f"{format_count(r['results_cleanup'])} results of {format_count(r['owed'])} owed "
        f"combinations in {r['seconds_cleanup']:.2f} s"
        f"{resumed if r['bins_resumed'] else ''}; checksum {r['checksum']:016x}; "
        f"output {r['output']}"
    )


def _report(cleanup: RunCleanup, result: CleanupResult) -> dict[str, Any]:
    return {
        "query": cleanup.query,
        "spill": cleanup.place,
        "output": cleanup.output or "none",
        "results_cleanup": result.rows,
        "checksum": result.checksum,
        "owed": result.owed,
        "bins": result.bins,
        "bins_resumed": result.bins_resumed,
        "seconds_cleanup": result.seconds,
    }


def _whole(reports: Sequence[dict[str, Any]], seconds_spark_start: float) -> dict[str, Any]:
    """The totals of all stores, and each store by itself."""
    return {
        "results_cleanup": sum(r["results_cleanup"] for r in reports),
        "checksum": sum(r["checksum"] for r in reports) % 2**64,
        "owed": sum(r["owed"] for r in reports),
        "seconds_cleanup": sum(r["seconds_cleanup"] for r in reports),
        "seconds_spark_start": seconds_spark_start,
        "stores": list(reports),
    }


def _explain(
    directories: Sequence[str], query: str | None, memory_bytes: int, *, as_json: bool
) -> None:
    from dovetail_pipeline.cleanup.explaining import explain
    from dovetail_pipeline.cleanup.stores import find_cleanups

    found = [
        explain(c.stores, memory_bytes=memory_bytes)
        for c in find_cleanups(directories, query=query, output="none")
    ]
    if as_json:
        print(json.dumps(found[0].to_dict() if len(found) == 1 else [f.to_dict() for f in found]))
    else:
        print("\n\n".join(f.to_text() for f in found))
