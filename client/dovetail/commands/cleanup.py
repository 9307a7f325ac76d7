"""`dovetail cleanup`: produces, or goes on producing, what a spill store owes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from dovetail.quantities import format_count, parse_bytes


def cleanup(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="A run's --spill-dir.")],
    *,
    output: Annotated[
        str,
        typer.Option(
            metavar="DIR|none",
            help="The run's output folder; results go to phase=cleanup/ below it.",
        ),
    ],
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
    with StopOnSignal() as signals, watch_on_stderr(memory_bytes) as watcher:
        report = clean_up_store(
            directory,
            None if output == "none" else Path(output),
            memory_bytes=memory_bytes,
            watcher=watcher,
            stop=signals.asked,
        )
    if as_json:
        print(json.dumps(report.to_dict()))
        return
    print(
        f"{format_count(report.results_cleanup)} results by the clean-up "
        f"in {report.seconds_cleanup:.2f} s, checksum {report.checksum:016x}, in {report.output}"
    )
