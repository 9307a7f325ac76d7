"""Which logs of a query a reader gets, whoever reads: Python clients and REST alike."""

from __future__ import annotations

from collections.abc import Collection

from dovetail_proto.admin import LogStatus, QueryStatus
from dovetail_proto.errors import Domain, Refusal
from dovetail_proto.transport import Unreachable

Logs = tuple[list[LogStatus], bool]
"""Logs, and whether the query is over: then there will be no other ones."""


def logs_to_read(query: QueryStatus, chosen: Collection[str] | None) -> Logs:
    """The chosen ones, or all; Refusal if the query keeps no logs, or not these."""
    if query.counting or query.results_place:
        place = f"are files in {query.results_place!r}" if query.results_place else "were counted"
        raise Refusal(
            Domain.QUERY,
            f"query {query.name!r} keeps no result log: its results {place}",
            remedy="submit it without results and counting to read them here",
            reason="state",
        )
    known = {log.name: log for log in query.logs}
    if unknown := sorted(set(chosen or ()) - set(known)):
        raise Refusal(
            Domain.QUERY,
            f"query {query.name!r} has no log {unknown[0]!r}",
            remedy=f"name one of {', '.join(known)}",
            reason="unknown",
        )
    logs = [log for name, log in known.items() if chosen is None or name in chosen]
    if query.state == "closed":
        logs = [log for log in logs if log.rows]  # nobody need have the others
    return logs, query.state in ("closed", "failed")


def away(query: str, log: LogStatus) -> Unreachable:
    """The error if a log has no address."""
    process, _, worker = log.processor.partition(".")
    threads = f" and at least {int(worker) + 1} --threads" if worker else ""
    return Unreachable(
        f"processor {log.processor!r}, which has log {log.name!r} of query {query!r}, is away",
        remedy=f"start {process!r} again with the data folder that it had{threads}, or "
        f"{READ_OTHERS}",
    )


READ_OTHERS = "read the other logs alone: name them (--log, `logs=` in Python, ?log= over REST)"
"""What to do where one log cannot be read."""
