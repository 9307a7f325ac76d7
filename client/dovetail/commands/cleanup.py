"""`dovetail cleanup`: produces, or goes on producing, what a spill store owes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from dovetail.quantities import format_count, parse_bytes
from dovetail_proto.errors import ConfigError


def cleanup(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="A run's --spill-dir.")],
    *,
    output: Annotated[
        str | None,
        typer.Option(
            metavar="DIR|none",
            help="Results go to phase=cleanup/ below it; by default the run's output folder.",
        ),
    ] = None,
    memory: Annotated[
        str, typer.Option(metavar="SIZE", help="Limit for all clean-up processes together.")
    ] = "1GiB",
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object on standard output, nothing else.")
    ] = False,
) -> None:
    """Produce the results that pushed state still owes; resumes where it was stopped."""
    from dovetail.embedded import clean_up_store
    from dovetail.interrupts import StopOnSignal
    from dovetail.progress import watch_on_stderr

    memory_bytes = parse_bytes(memory, what="--memory")
    place = _output_of(directory) if output is None else output
    with StopOnSignal() as signals, watch_on_stderr(memory_bytes) as watcher:
        result = clean_up_store(
            directory,
            None if place == "none" else Path(place),
            memory_bytes=memory_bytes,
            watcher=watcher,
            stop=signals.asked,
        )
    if as_json:
        report = {
            "results_cleanup": result.rows,
            "checksum": result.checksum,
            "owed": result.owed,
            "seconds_cleanup": result.seconds,
            "output": place,
        }
        print(json.dumps(report))
        return
    print(
        f"{format_count(result.rows)} results of {format_count(result.owed)} owed combinations "
        f"in {result.seconds:.2f} s; checksum {result.checksum:016x}; output {place}"
    )


def _output_of(directory: str) -> str:
    """Where the run that left this store wrote its results."""
    from dovetail_proto.spill_format import SpillStore

    recorded = SpillStore.open(directory).run_record().output
    if recorded is None:
        raise ConfigError(
            f"the run of {directory!r} only counted its results",
            remedy="name a folder for the owed ones with --output, or --output none",
        )
    return recorded
