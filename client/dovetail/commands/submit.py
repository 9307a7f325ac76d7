"""`dovetail submit`, `wait`, `close` and `drop`: the life of a query on a cluster."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from dovetail.commands.cluster_options import AsJson, QueryName, Url, open_cluster, print_json
from dovetail.commands.run import QUERY_HELP, Victims, query_name, read_query
from dovetail.commands.up import Policy
from dovetail.quantities import format_bytes, format_count, parse_share
from dovetail_proto.errors import ConfigError

if TYPE_CHECKING:
    from dovetail_proto.admin import QueryStatus

OWN = "else as the cluster does"


def submit(
    query: Annotated[str, typer.Argument(metavar="QUERY", help=QUERY_HELP)],
    *,
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Its name; by default the file's.", show_default=False),
    ] = None,
    partitions: Annotated[
        int, typer.Option(min=1, metavar="P", help="Partition groups: units to move and push.")
    ] = 300,
    weights: Annotated[
        str | None,
        typer.Option(
            metavar="W,W…",
            help="Share of the groups per processor, by name; memory limits by default.",
            show_default=False,
        ),
    ] = None,
    policy: Annotated[
        Policy | None, typer.Option(help="How it adapts; else as the cluster does.")
    ] = None,
    results: Annotated[
        str | None,
        typer.Option(
            metavar="DIR|none",
            help="Write Parquet files here, or only count; by default kept for `results`.",
            show_default=False,
        ),
    ] = None,
    spill: Annotated[
        str | None,
        typer.Option(
            metavar="DIR|URI",
            help="Folder of its own for state on disk; else as the cluster does.",
            show_default=False,
        ),
    ] = None,
    victims: Annotated[
        Victims, typer.Option(help="Which groups go to disk first.")
    ] = "least-productive",
    push_fraction: Annotated[
        str | None,
        typer.Option(metavar="SHARE", help=f"Share of the state per push; {OWN}."),
    ] = None,
    spill_above_ratio: Annotated[
        str | None,
        typer.Option(metavar="SHARE", help=f"Push when state takes more of its memory; {OWN}."),
    ] = None,
    inactive_after_s: Annotated[
        float | None,
        typer.Option(
            min=0, metavar="SECONDS", help=f"Push first what got no row for so long; {OWN}."
        ),
    ] = None,
    productivity_half_life_s: Annotated[
        float | None,
        typer.Option(
            min=0, metavar="SECONDS", help=f"A result counts half after so long; 0: never; {OWN}."
        ),
    ] = None,
    expected_state: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="State to come in all, for active-disk.", show_default=False
        ),
    ] = None,
    keep_results_s: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="Keep results for so long; 0: for ever.",
            show_default=False,
        ),
    ] = None,
    keep_results_bytes: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Keep so much of each processor's results; 0: all.",
            show_default=False,
        ),
    ] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Start a query over declared streams; it sees what is fed from now on.

    Example: dovetail submit prices.sql --name prices --partitions 300 --weights 4,1,1
    """
    with open_cluster(url) as cluster:
        made = cluster.submit(
            read_query(query),
            name=name or query_name(query),
            partitions=partitions,
            policy=policy,
            weights=_weights(weights),
            expected_state=expected_state or 0,
            results="" if results in (None, "none") else str(results),
            counting=results == "none",
            spill=spill or "",
            victims=victims,
            push_fraction=_share(push_fraction, "--push-fraction"),
            spill_above_ratio=_share(spill_above_ratio, "--spill-above-ratio"),
            inactive_after_s=inactive_after_s,
            productivity_half_life_s=productivity_half_life_s,
            keep_results_s=keep_results_s,
            keep_results_bytes=0 if keep_results_bytes == "0" else keep_results_bytes,
        )
        status = made.status()
    if as_json:
        print_json(status)
    else:
        print(
            f"query {status.name} runs on {len(status.instances)} processors, "
            f"{status.partitions} groups, policy {status.policy}"
        )


def _share(text: str | None, option: str) -> float | None:
    return None if text is None else parse_share(text, what=option)


def wait(
    name: QueryName,
    *,
    timeout: Annotated[
        float | None,
        typer.Option(min=0.1, metavar="SECONDS", help="At most so long.", show_default=False),
    ] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Return when all that was fed so far is joined.

    Example: dovetail wait prices --timeout 60
    """
    with open_cluster(url) as cluster:
        rows = cluster.query(name).wait(timeout)
    if as_json:
        print_json({"query": name, "rows": rows})
    else:
        print(f"{format_count(rows)} rows are joined")


def close(
    name: QueryName,
    *,
    timeout: Annotated[
        float | None,
        typer.Option(min=0.1, metavar="SECONDS", help="At most so long.", show_default=False),
    ] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Take nothing more in, join the rest and write everything down; then it can be cleaned up.

    Example: dovetail close prices && dovetail cleanup prices --output owed
    """
    with open_cluster(url) as cluster:
        tell = None if as_json or not sys.stderr.isatty() else _line
        status = cluster.query(name).close(timeout, tell)
    if as_json:
        print_json(status)
        return
    print(f"query {name} is closed: {format_count(status.results)} results")
    if status.pushes:
        print(
            f"{format_bytes(status.spilled_bytes)} went to disk; produce what they owe with "
            f"`dovetail cleanup {name} --output DIR`"
        )


def drop(
    name: QueryName,
    *,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave its result logs and its spill where they are.")
    ] = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Forget a query that is closed or failed, with its result logs and its state on disk.

    What it still owes is gone too; clean it up first. Files in a folder of results stay.

    Example: dovetail drop prices
    """
    with open_cluster(url) as cluster:
        status = cluster.query(name).drop(keep=keep)
    if as_json:
        print_json(status)
    else:
        print(f"query {name} is forgotten")


def _weights(text: str | None) -> tuple[float, ...]:
    try:
        return tuple(float(w) for w in text.split(",")) if text else ()
    except ValueError as e:
        raise ConfigError(
            f"--weights {text!r} are no numbers", remedy="write for example 4,1,1"
        ) from e


def _line(status: QueryStatus) -> None:
    sys.stderr.write(
        f"\rclosing {status.name}: {format_bytes(status.queued_bytes)} to join, "
        f"{format_count(status.results)} results "
    )
    sys.stderr.flush()
