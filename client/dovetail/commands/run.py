"""`dovetail run`: SQL in, the exact join out."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dovetail.commands.processor_options import Threads
from dovetail.quantities import format_bytes, format_count, parse_bytes, parse_share
from dovetail_proto.errors import ConfigError, InputError

if TYPE_CHECKING:
    from dovetail.embedded import RunReport
    from dovetail.preparing import Prepared, RunRequest
    from dovetail_proto.query import QueryPlan

Policy = Literal["none", "disk", "distributed", "lazy-disk", "active-disk"]
Victims = Literal["least-productive", "most-productive", "least-recent", "random"]
Cleanup = Literal["spark", "local", "none"]
Read = Literal["smallest-first", "interleaved"]

QUERY_HELP = "File with the query, the SQL itself, or - to read it."

SQL_BEGINS = re.compile(
    r"\s*(\(|--|/\*|(select|with|from|values|explain|describe|create|insert|update|delete)\s)",
    re.IGNORECASE,
)
"""How SQL begins, also SQL that is refused; anything else is taken for the name of a file."""


def run(
    query: Annotated[str, typer.Argument(metavar="QUERY", help=QUERY_HELP)],
    *,
    inputs: Annotated[
        list[str],
        typer.Option(
            "--input",
            metavar="NAME=PATH",
            help="Declare a stream: a Parquet, CSV, JSON lines or Arrow file, or a folder of one.",
        ),
    ],
    output: Annotated[
        str | None,
        typer.Option(
            metavar="DIR|none", help="New or empty folder for the results; none only counts them."
        ),
    ] = None,
    memory: Annotated[
        str, typer.Option(metavar="SIZE", help="Limit on state, queues and output together.")
    ] = "1GiB",
    threads: Threads = None,
    processors: Annotated[
        int,
        typer.Option(
            min=1,
            max=64,
            metavar="N",
            help="Query processors; more than one are processes of their own, --memory each.",
        ),
    ] = 1,
    policy: Annotated[
        Policy | None,
        typer.Option(
            help="How state adapts to memory: to disk, to another processor, or not at all; disk "
            "for one processor and lazy-disk for more by default.",
            show_default=False,
        ),
    ] = None,
    victims: Annotated[
        Victims, typer.Option(help="Which groups go to disk first.")
    ] = "least-productive",
    push_fraction: Annotated[
        str, typer.Option(metavar="SHARE", help="Share of the state per push.")
    ] = "30%",
    productivity_half_life_s: Annotated[
        float,
        typer.Option(
            min=0, metavar="SECONDS", help="A result counts half after so long; 0: never."
        ),
    ] = 0.0,
    read: Annotated[
        Read,
        typer.Option(
            help="One file after the other, so that the largest is joined without being kept; or "
            "all at once, for early results. Several processors read all at once."
        ),
    ] = "smallest-first",
    partitions: Annotated[
        int, typer.Option(min=1, metavar="P", help="Partition groups: units to push.")
    ] = 300,
    cleanup: Annotated[
        Cleanup | None,
        typer.Option(
            help="Who produces what pushed state still owes; Spark by default, and started only "
            "if something is owed.",
            show_default=False,
        ),
    ] = None,
    spill_dir: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Keep pushed state here instead of a temporary place."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object on standard output, nothing else.")
    ] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Show the plan; run nothing.")] = False,
) -> None:
    """Join the inputs as the query says, within the memory given, and miss no result.

    Example: dovetail run "SELECT t.price, q.bid FROM trades t JOIN quotes q USING (symbol)" --input
    trades=trades.parquet --input quotes=quotes.csv --output results/
    """
    from dovetail.preparing import RunRequest, prepare

    if output is None and not explain:
        raise ConfigError(
            "no --output given", remedy="name a folder for the results, or --output none"
        )
    request = RunRequest(
        sql=read_query(query),
        name=query_name(query),
        inputs=_declared(inputs),
        output=None if output in (None, "none") else Path(str(output)),
        memory_bytes=parse_bytes(memory, what="--memory"),
        processors=processors,
        threads=threads,
        policy=policy,
        victims=victims,
        push_fraction=parse_share(push_fraction, what="--push-fraction"),
        productivity_half_life_s=productivity_half_life_s,
        partitions=partitions,
        cleanup="none",
        spill_dir=spill_dir,
        read=read,
    )
    prepared = prepare(request)
    if explain:
        _explain(prepared.plan, as_json=as_json)
        return
    if cleanup != "none":
        from dovetail.cleaning import chosen_or_default

        request = replace(request, cleanup=chosen_or_default(cleanup))
    report = _run_watched(request, prepared)
    if as_json:
        print(json.dumps(report.to_dict()))
    else:
        _print_summary(report)


def _run_watched(request: RunRequest, prepared: Prepared) -> RunReport:
    from dovetail.embedded import run_query
    from dovetail.garbage import collect_as_usual
    from dovetail.interrupts import StopOnSignal
    from dovetail.logs import set_up_logs
    from dovetail.progress import watch_on_stderr

    set_up_logs("error", "console")
    collect_as_usual()
    with StopOnSignal() as signals, watch_on_stderr(request.memory_bytes) as watcher:
        return run_query(request, prepared=prepared, watcher=watcher, stop=signals.asked)


def read_query(query: str) -> str:
    """The SQL in a file, on standard input if it is `-`, or as it stands; InputError if none is."""
    try:
        if query == "-":
            return sys.stdin.buffer.read().decode()
        if _is_sql(query):
            return query
        return Path(query).read_text(encoding="utf-8")
    except FileNotFoundError as e:
        raise InputError(
            f"query file {query!r} does not exist",
            remedy=f'{_similar_file(query)}give a file with SQL, the SQL itself as in "SELECT …", '
            "or - to read it",
        ) from e
    except (OSError, UnicodeDecodeError, ValueError) as e:
        raise InputError(
            f"query file {query!r} cannot be read: {e}", remedy="give a text file in UTF-8"
        ) from e


def query_name(query: str) -> str:
    """A name for the query from its file, in the characters that names may have."""
    if query == "-" or _is_sql(query):
        return "query"
    stem = Path(query).stem.lower()
    name = "".join(c if c.isascii() and (c.isalnum() or c in "_-") else "_" for c in stem)[:64]
    return name or "query"


def _is_sql(query: str) -> bool:
    """Whether it begins as SQL does; a file that has such a name is a file all the same."""
    return SQL_BEGINS.match(query) is not None and not os.path.exists(query)


def _similar_file(query: str) -> str:
    """A guess of the slip in the name of a file."""
    from difflib import get_close_matches

    path = Path(query)
    try:
        there = [p.name for p in path.parent.iterdir() if p.suffix == ".sql"]
    except OSError:
        return ""
    close = get_close_matches(path.name, there, n=1)
    return f"did you mean {str(path.parent / close[0])!r}? " if close else ""


def _declared(inputs: Sequence[str]) -> dict[str, str]:
    declared: dict[str, str] = {}
    for text in inputs:
        name, equals, path = text.partition("=")
        if not equals or not name or not path:
            raise ConfigError(
                f"--input {text!r} is not NAME=PATH",
                remedy="write for example --input trades=trades.parquet",
            )
        if name.lower() in (n.lower() for n in declared):
            raise ConfigError(
                f"--input {name} is given twice",
                remedy="declare each stream once; a folder may hold several files",
            )
        declared[name] = path
    return declared


def _explain(plan: QueryPlan, *, as_json: bool) -> None:
    from dovetail_manager.planner import explain, explain_dict

    if as_json:
        print(json.dumps(explain_dict(plan)))
    else:
        print(explain(plan))


def _print_summary(report: RunReport) -> None:
    results = report.results_run + report.results_cleanup
    started = report.seconds_spark_start > 0
    lines = {
        "rows in": ", ".join(f"{name} {format_count(n)}" for name, n in report.rows_in.items()),
        "results": f"{format_count(results)} ({format_count(report.results_run)} in the run, "
        f"{format_count(report.results_cleanup)} by the clean-up)",
        "checksum": f"{report.checksum:016x}",
        "pushed to disk": f"{format_bytes(report.spilled_bytes)} of "
        f"{format_count(report.spilled_groups)} groups in {format_count(report.pushes)} pushes",
        "memory": f"peak state {format_bytes(max(report.peak_state_bytes))} of "
        f"{format_bytes(max(report.memory_limit_bytes))}; "
        f"whole process {format_bytes(max(report.peak_rss_bytes))}",
        "time": f"run {report.seconds_run:.2f} s, clean-up {report.seconds_cleanup:.2f} s"
        + (f" (Spark's start {report.seconds_spark_start:.2f} s)" if started else ""),
        "output": report.output,
    }
    if report.spill_dir is not None:
        lines["spill store"] = report.spill_dir
        if report.cleanup == "none" and report.pushes:
            lines["to go on"] = report.next_step
    for title, text in lines.items():
        print(f"{title:<16}{text}")
