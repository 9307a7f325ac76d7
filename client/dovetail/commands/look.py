"""The verbs that only look: `status`, `partitions`, `moves`, `adaptations`, `top`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dovetail.commands.cluster_options import (
    AsJson,
    QueryName,
    Url,
    open_cluster,
    print_json,
)
from dovetail.quantities import format_bytes, format_count
from dovetail.tables import console, print_facts, print_table, table

if TYPE_CHECKING:
    from dovetail.cluster import Cluster
    from dovetail_proto import admin as a

TOP_S = 1.0
"""Processors report once a second."""


def status(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[QUERY]", help="One query in full.", show_default=False),
    ] = None,
    *,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show the cluster, its streams and its queries, or one query in full.

    Example: dovetail status prices --json
    """
    with open_cluster(url) as cluster:
        if name is not None:
            one = cluster.query(name).status()
            if as_json:
                print_json(one)
            else:
                _show_query(one)
            return
        seen = _everything(cluster)
    if as_json:
        print_json(seen)
        return
    out = console()
    c: a.ClusterStatus = seen["cluster"]
    out.print(f"manager {c.name}, version {c.version}, epoch {c.epoch}")
    for part in _tables(seen, out.width):
        out.print(part)


def partitions(name: QueryName, *, url: Url = None, as_json: AsJson = False) -> None:
    """Show which processor owns which group of a query.

    Example: dovetail partitions prices
    """
    with open_cluster(url) as cluster:
        found = cluster.query(name).partitions()
    if as_json:
        print_json(found)
        return
    owners: dict[str, list[int]] = {}
    for p in found.partitions:
        owners.setdefault(p.owner, []).append(p.group)
    held = [p.group for p in found.partitions if p.pinned]
    print_table(
        ("processor", "groups", "which"),
        [(owner, len(groups), _ranges(groups)) for owner, groups in sorted(owners.items())],
    )
    print(f"map version {found.map_version}; pinned: {_ranges(held) or 'none'}")


def moves(name: QueryName, *, url: Url = None, as_json: AsJson = False) -> None:
    """List the moves of a query, newest first.

    Example: dovetail moves prices
    """
    with open_cluster(url) as cluster:
        found = cluster.query(name).moves()
    if as_json:
        print_json(found)
        return
    print_table(
        ("move", "from and to", "groups", "size", "began", "took", "state", "reason"),
        [
            (
                m.id,
                f"{m.sender} → {m.receiver}",
                m.groups,
                format_bytes(m.size_bytes),
                _clock(m.started_s),
                f"{m.ended_s - m.started_s:.2f} s" if m.ended_s else "",
                m.outcome or m.phase,
                m.failure or m.reason,
            )
            for m in found
        ],
        empty="no moves",
        spare=("began", "took", "size"),
    )


def adaptations(name: QueryName, *, url: Url = None, as_json: AsJson = False) -> None:
    """List what was decided about a query, with the numbers that led to it, newest first.

    Example: dovetail adaptations prices
    """
    with open_cluster(url) as cluster:
        found = cluster.query(name).adaptations()
    if as_json:
        print_json(found)
    else:
        show_adaptations(found)


def top(*, url: Url = None, as_json: AsJson = False) -> None:
    """Watch processors and queries, once a second, until Ctrl-C; piped or with --json, one look.

    Example: dovetail top
    """
    from rich.console import Group
    from rich.live import Live

    with open_cluster(url) as cluster:
        seen = _everything(cluster)
        if as_json:
            print_json(seen)
            return
        out = console()
        if not out.is_terminal:
            out.print(*_tables(seen, out.width))
            return
        try:
            with Live(console=out, auto_refresh=False, screen=True) as live:
                while True:
                    live.update(Group(*_tables(seen, live.console.width)), refresh=True)
                    time.sleep(TOP_S)
                    seen = _everything(cluster)
        except KeyboardInterrupt:
            return


def show_adaptations(found: Sequence[a.AdaptationRecord]) -> None:
    """Decisions as a table."""
    print_table(
        ("at", "policy", "decision", "done", "reason", "times"),
        [
            (
                _clock(r.at_s),
                r.policy,
                r.decision,
                "yes" if r.admitted else "no",
                r.objection or r.reason,
                r.repeated_times,
            )
            for r in found
        ],
        empty="nothing was decided yet",
        spare=("times", "policy"),
    )


def _everything(cluster: Cluster) -> dict[str, Any]:
    return {
        "cluster": cluster.status(),
        "streams": cluster.streams(),
        "queries": cluster.queries(),
    }


def _tables(seen: dict[str, Any], width: int) -> list[Any]:
    c: a.ClusterStatus = seen["cluster"]
    processors = [
        (
            p.name,
            f"{p.state}: {p.cause}" if p.cause else p.state,
            f"{format_bytes(p.used_bytes)} / {format_bytes(p.memory_limit_bytes)}",
            p.groups,
            round(p.rate),
            format_bytes(p.rss_bytes),
            f"{p.cpu_share:.0%}",
        )
        for p in c.processors
    ]
    streams = [(s.name, s.rows, "ended" if s.ended else "open", s.home) for s in seen["streams"]]
    queries = [
        (
            q.name,
            f"{q.state}: {q.cause}" if q.cause else q.state,
            q.policy,
            sum(i.rows_in for i in q.inputs),
            q.results,
            format_bytes(q.held_bytes),
            format_bytes(q.spilled_bytes),
        )
        for q in seen["queries"]
    ]
    columns = ("processor", "state", "memory", "groups", "out/s", "process", "cpu")
    parts = [table(columns, processors, width, spare=("process", "cpu", "out/s"))]
    if streams:
        parts.append(table(("stream", "rows", "state", "home"), streams, width))
    if queries:
        titles = ("query", "state", "policy", "rows in", "results", "in memory", "on disk")
        parts.append(table(titles, queries, width, spare=("policy", "rows in", "on disk")))
    return parts


def _logs(q: a.QueryStatus) -> str:
    logs = [log.name if log.address else f"{log.name} ({log.processor} is away)" for log in q.logs]
    return f"result logs: {', '.join(logs)}"


def _kept(q: a.QueryStatus) -> str:
    age = f"for {q.keep_results_s:g} s" if q.keep_results_s else ""
    size = f"{format_bytes(q.keep_results_bytes)} of each log" if q.keep_results_bytes else ""
    return ", ".join(filter(None, (age, size)))


def _show_query(q: a.QueryStatus) -> None:
    facts = {
        "query": q.name,
        "state": f"{q.state}: {q.cause}" if q.cause else q.state,
        "policy": q.policy,
        "rows in": ", ".join(f"{i.alias} {format_count(i.rows_in)}" for i in q.inputs),
        "results": format_count(q.results),
        "on disk": f"{format_bytes(q.spilled_bytes)} of {q.spilled_groups} groups in {q.pushes} "
        "pushes",
        "results go to": q.results_place or ("nowhere: counted" if q.counting else _logs(q)),
        "spill": q.spill or "nowhere: nothing may go to disk",
    }
    if q.keep_results_s or q.keep_results_bytes:
        facts["results kept"] = _kept(q)
    if q.warning:
        facts["warning"] = q.warning
    if q.cleanup:
        facts["clean-up"] = _cleanup(q.cleanup[0])
    print_facts(facts)
    print_table(
        ("processor", "stage", "groups", "in memory", "on disk", "results", "queued"),
        [
            (
                i.processor,
                i.stage,
                i.groups,
                format_bytes(i.held_bytes),
                format_bytes(i.spilled_bytes),
                i.results,
                format_bytes(i.queued_bytes),
            )
            for i in q.instances
        ],
    )


def _ranges(numbers: Sequence[int]) -> str:
    """`0-3, 7`."""
    parts: list[list[int]] = []
    for n in numbers:
        if parts and parts[-1][1] == n - 1:
            parts[-1][1] = n
        else:
            parts.append([n, n])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def _clock(at_s: float) -> str:
    return datetime.fromtimestamp(at_s).strftime("%H:%M:%S")


def _cleanup(c: a.CleanupStatus) -> str:
    if c.state == "running":
        owed = f" of {format_count(c.owed)}" if c.owed else ""
        made = f"{format_count(c.combinations)}{owed} combinations" if c.bins else c.stage
        return f"running on {c.master}: {made}"
    if c.state == "done":
        return f"done: {format_count(c.results)} results in {c.output or 'no folder: counted'}"
    return f"{c.state}: {c.cause}" if c.cause else c.state
