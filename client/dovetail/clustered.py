"""A whole query on several processors of this machine: `dovetail run --processors N`.

    request ─▶ local cluster ─▶ streams that read the files ─▶ query ─▶ closed ─▶ clean-up ─▶ report

It is the same cluster that `dovetail up` starts, for one query; it keeps `embedded`'s promises.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from dovetail.embedded import RunReport, new_report
from dovetail.local_cluster import LocalCluster
from dovetail.places import Places
from dovetail.preparing import Prepared, RunRequest
from dovetail.progress import RunProgress, Watcher
from dovetail_manager.adaptation.snapshot import AdaptationSettings
from dovetail_proto import admin as a
from dovetail_proto.errors import Domain, Refusal

MOVE_INTERVAL_S = 2.0
"""A run is short; the cluster's own 45 s would let most of it pass before the first move."""

POLL_S = 0.05
"""How soon the end of the inputs, and of the query, is seen."""


def run_on_cluster(
    request: RunRequest,
    prepared: Prepared,
    places: Places,
    watcher: Watcher,
    stop: Callable[[], bool],
) -> RunReport:
    """Join everything that the files hold, or what was read until `stop` says so.

    Afterwards every processor's results and spill store are closed. Raises DovetailError if the
    query failed.
    """
    plan = prepared.plan
    expected = [source.rows_total for source in prepared.sources]
    with LocalCluster(
        request.processors,
        memory_bytes=request.memory_bytes,
        policy=request.adapts_by,
        adaptation=AdaptationSettings(move_interval_s=MOVE_INTERVAL_S),
        here="manager",
    ) as local:
        cluster = local.cluster
        for name, schema in {i.stream: i.stream_schema for i in plan.inputs}.items():
            cluster.create_stream(name, schema, path=Path(request.inputs[name]).absolute())
        began = time.monotonic()
        query = cluster.submit(
            request.sql,
            name=plan.name,
            partitions=plan.partitions,
            policy=request.adapts_by,
            results=places.run_results.absolute() if places.run_results is not None else "",
            counting=places.run_results is None,
            spill=places.spill_dir or "",
            victims=request.victims,
            push_fraction=request.push_fraction,
            productivity_half_life_s=request.productivity_half_life_s,
        )
        interrupted = False
        while not all(s.ended for s in cluster.streams()):
            status = query.status()
            if status.state == "failed":
                raise Refusal(Domain.QUERY, f"query {plan.name!r} failed: {status.cause}")
            watcher.running(_progress(expected, status))
            if stop():
                interrupted = True
                break
            time.sleep(POLL_S)
        status = query.close(tell=lambda s: watcher.running(_progress(expected, s)))
        members = {p.name: p for p in cluster.status().processors}
        instances = {i.processor: i for i in status.instances}
        return new_report(
            request,
            plan,
            [i.rows_in for i in status.inputs],
            status,
            moves=sum(1 for m in query.moves() if m.outcome == "completed"),
            peak_state_bytes=[instances[n].peak_state_bytes for n in local.names],
            peak_rss_bytes=[members[n].peak_rss_bytes for n in local.names],
            interrupted=interrupted,
            seconds_run=time.monotonic() - began,
        )


def _progress(expected: list[int | None], status: a.QueryStatus) -> RunProgress:
    return RunProgress(
        rows_in=[i.rows_in for i in status.inputs],
        rows_expected=expected,
        results=status.results,
        held_bytes=max((i.held_bytes for i in status.instances), default=0),
        pushes=status.pushes,
        spilled_bytes=status.spilled_bytes,
        waits_for=status.cause,
    )
