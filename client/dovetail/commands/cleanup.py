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
        str | None, typer.Option(metavar="URL", help="Spark's master, by default local[*].")
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
    directories = [_place(d, output, explain=explain) for d in directories]
    if explain:
        _explain(directories, query, memory_bytes, as_json=as_json)
        return
    from dovetail.cleaning import CleanupMeans, chosen_or_default, clean_up
    from dovetail.interrupts import StopOnSignal
    from dovetail.progress import watch_on_stderr
    from dovetail_pipeline.cleanup.stores import find_cleanups
    from dovetail_pipeline.spark.session import MASTER_DEFAULT

    if master is not None and on == "local":
        raise ConfigError("--master is for Spark", remedy="leave it out, or give --on spark")
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
        if r["owed"] == 0:
            print(f"{r['spill']}: nothing is owed")
            continue
        resumed = f", {r['bins_resumed']} of {r['bins']} parts were finished before"
        print(
            f"{format_count(r['results_cleanup'])} results of {format_count(r['owed'])} owed "
            f"combinations in {r['seconds_cleanup']:.2f} s"
            f"{resumed if r['bins_resumed'] else ''}; checksum {r['checksum']:016x}; "
            f"output {r['output']}"
        )


def _place(given: str, output: str | None, *, explain: bool) -> str:
    """A folder or URI as it is; for a closed query of the cluster, where its state on disk is."""
    from pathlib import Path

    from dovetail_proto.ids import NAME

    if not NAME.fullmatch(given) or Path(given).exists():
        return given
    from dovetail.connecting import connect, is_known

    if not is_known():
        return given
    with connect() as cluster:
        return cluster.query(given).spill_place(has_output=explain or output is not None)


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
