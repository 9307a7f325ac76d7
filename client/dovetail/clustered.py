"""A whole query on several processors of this machine: `dovetail run --processors N`.

    request ─▶ local cluster ─▶ streams that read the files ─▶ query ─▶ closed ─▶ clean-up ─▶ totals

It is the same cluster that `dovetail up` starts, for one query; it keeps `embedded`'s promises.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from dovetail.local_cluster import LocalCluster
from dovetail.places import Places
from dovetail.progress import Watcher
from dovetail_manager.adaptation.snapshot import AdaptationSettings
from dovetail_proto import admin as a
from dovetail_proto.errors import Domain, Refusal
from dovetail_proto.query import QueryPlan

MOVE_INTERVAL_S = 2.0
"""A run is short; the cluster's own 45 s would let most of it pass before the first move."""

POLL_S = 0.05
"""How soon the end of the inputs, and of the query, is seen."""


@dataclass(frozen=True, slots=True)
class ClusterRun:
    """What to run, and where its results and its spill go."""

    sql: str
    plan: QueryPlan
    paths: Mapping[str, str | Path]  # by stream
    rows_expected: list[int | None]  # per input
    schemas: Mapping[str, pa.Schema]  # by stream
    processors: int
    memory_bytes: int  # per processor
    policy: str
    victims: str
    push_fraction: float
    productivity_half_life_s: float
    places: Places


@dataclass(slots=True)
class ClusterProgress:
    """Where a run stands, as `Watcher` wants it."""

    rows_in: list[int]
    rows_expected: list[int | None]
    results: int
    held_bytes: int
    pushes: int
    spilled_bytes: int
    waits_for: str


@dataclass(frozen=True, slots=True)
class ClusterSummary:
    """What a run did; lists hold one entry per processor."""

    rows_in: list[int]
    status: a.QueryStatus
    moves: int
    peak_state_bytes: list[int]
    peak_rss_bytes: list[int]
    interrupted: bool
    seconds: float


def run_on_cluster(
    run: ClusterRun, watcher: Watcher, stop: Callable[[], bool] | None
) -> ClusterSummary:
    """Join everything that the files hold, or what was read until `stop` says so.

    Afterwards every processor's results and spill store are closed. Raises DovetailError if the
    query failed.
    """
    adaptation = AdaptationSettings(move_interval_s=MOVE_INTERVAL_S)
    with LocalCluster(
        run.processors,
        memory_bytes=run.memory_bytes,
        policy=run.policy,
        adaptation=adaptation,
        manager="thread",
    ) as local:
        cluster = local.cluster
        for name, schema in run.schemas.items():
            cluster.create_stream(name, schema, path=Path(run.paths[name]).absolute())
        began = time.monotonic()
        places = run.places
        query = cluster.submit(
            run.sql,
            name=run.plan.name,
            partitions=run.plan.partitions,
            policy=run.policy,
            results=places.run_results.absolute() if places.run_results is not None else "",
            counting=places.run_results is None,
            spill=places.spill_dir or "",
            victims=run.victims,
            push_fraction=run.push_fraction,
            productivity_half_life_s=run.productivity_half_life_s,
        )
        interrupted = False
        while not all(s.ended for s in cluster.streams()):
            status = query.status()
            if status.state == "failed":
                raise Refusal(Domain.QUERY, f"query {run.plan.name!r} failed: {status.cause}")
            watcher.running(_progress(run, status))
            if stop is not None and stop():
                interrupted = True
                break
            time.sleep(POLL_S)
        status = query.close(tell=lambda s: watcher.running(_progress(run, s)))
        seconds = time.monotonic() - began
        members = {p.name: p for p in cluster.status().processors}
        instances = {i.processor: i for i in status.instances}
        return ClusterSummary(
            rows_in=[i.rows_in for i in status.inputs],
            status=status,
            moves=sum(1 for m in query.moves() if m.outcome == "completed"),
            peak_state_bytes=[instances[n].peak_state_bytes for n in local.names],
            peak_rss_bytes=[members[n].peak_rss_bytes for n in local.names],
            interrupted=interrupted,
            seconds=seconds,
        )


def _progress(run: ClusterRun, status: a.QueryStatus) -> ClusterProgress:
    return ClusterProgress(
        rows_in=[i.rows_in for i in status.inputs],
        rows_expected=run.rows_expected,
        results=status.results,
        held_bytes=max((i.held_bytes for i in status.instances), default=0),
        pushes=status.pushes,
        spilled_bytes=status.spilled_bytes,
        waits_for=status.cause,
    )
