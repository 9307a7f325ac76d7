"""S4's distributed experiments (sections 3.5, 5.2 and 6.1): real processes, paced streams.

A manager and one to five processors are started for every line of a figure; the Python client
declares three streams, submits the join and sends rows at a steady rate, while the query's status
is looked at four times a second. The paper's time is divided by 120: a minute of it is half a
second here, and so are run times, phases of the load and the time between moves. Tuples arrive 120
times as fast, so as many arrive. What S4 does not know of is off: no smallest size of a move, no
rest for groups that moved, one pair at a time, and groups with state on disk do not move.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import psutil
import pyarrow as pa

from dovetail.generator import Workload
from dovetail.local_cluster import LocalCluster
from dovetail.queries import Query
from dovetail.streams import Stream
from dovetail_bench.experiments.experiment import Experiment
from dovetail_manager.adaptation.snapshot import AdaptationSettings
from dovetail_pipeline.cleanup import CleanupResult, run_here
from dovetail_pipeline.cleanup.stores import find_cleanups
from dovetail_proto.admin import QueryStatus
from dovetail_proto.cluster_memory import cluster_shares
from dovetail_proto.errors import DovetailError, MemoryLimitError

MINUTE_S = 0.5
"""What a minute of the paper takes here."""

LENGTH = 1.0
"""The share of each run that is run, from its beginning. Less is for tests."""

ROOMY_BYTES = 256_000_000
"""Memory for the whole state, five times over, where the paper sets it large enough."""

SPILL_ABOVE = 0.8
"""θ_m, the default: of what a limit leaves for state."""

PARTITIONS = 300
CLEANUP_BYTES = 1 << 30

HEARTBEAT_S = 0.05
SAMPLE_S = 0.05
"""Six paper seconds: what the manager knows is younger than its shortest interval by far."""

TICK_S = 0.05
POINT_S = 0.25
WARM_UP_ROWS = 500
MOVED = ("completed", "partly")
SEED = 4


@dataclass(frozen=True, slots=True)
class Load:
    """What all lines of a figure are fed with."""

    workload: Workload
    minutes: float  # of the paper
    tuple_ms: float  # of the paper, between two tuples of a stream

    @property
    def rows_per_s(self) -> float:
        """Of each stream, here."""
        return 60_000 / self.tuple_ms / MINUTE_S

    @property
    def seconds(self) -> float:
        """How long the input lasts, here."""
        return self.minutes * MINUTE_S * LENGTH


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a plot: how many processors, and how they adapt."""

    series: str
    processors: int
    policy: str
    memory_bytes: int = ROOMY_BYTES  # of each processor; see `limit_for`
    weights: tuple[float, ...] = ()  # of the processors, for the first distribution
    move_below: float = 0.8  # θ_d
    move_every_s: float = 45.0  # of the paper
    expected_bytes: int = 0  # M_query, for active-disk

    def adaptation(self, minutes: float) -> AdaptationSettings:
        """The paper's rules, and its times as they are here."""
        return AdaptationSettings(
            move_below_ratio=self.move_below,
            spill_above_ratio=SPILL_ABOVE,
            move_interval_s=self.move_every_s * MINUTE_S / 60,
            inactive_after_s=minutes * MINUTE_S / 2,
            move_min_fraction=0.0,
            settle_intervals=0,
            pairs_max=1,
            paper_restrictions=True,
        )


def limit_for(threshold_bytes: int) -> int:
    """The memory limit with which three processors begin to push at so many bytes of state."""
    limit = threshold_bytes
    while SPILL_ABOVE * _state_share(limit) < threshold_bytes:
        limit += 50_000
    return limit


def _state_share(limit_bytes: int) -> int:
    """What a limit leaves for state where one of three streams has its home."""
    try:
        bounds = cluster_shares(limit_bytes, inputs=3, partitions=PARTITIONS, hosted=1, peers=3)
    except MemoryLimitError:
        return 0
    return bounds.shares.state


def rows_of(minutes: float, tuple_ms: float) -> int:
    """Tuples of a stream in so many minutes of the paper."""
    return round(minutes * 60_000 / tuple_ms * LENGTH)


def clean_up_here(query: Query) -> CleanupResult:
    """Produce what a closed query owes in this process: the time of starting another is not in."""
    (found,) = find_cleanups([query.spill_place()], query=query.name, output="none")
    return run_here(found.stores, None, CLEANUP_BYTES)


def clean_up(query: Query) -> dict[str, Any]:
    """What a closed query left owed, and how long it takes this machine to produce it."""
    cleaned = clean_up_here(query)
    return {"results_left": cleaned.rows, "cleanup_ms": round(cleaned.seconds * 1e3, 1)}


def run_lines(
    experiment: Experiment,
    load: Load,
    lines: tuple[Line, ...],
    *,
    finish: Callable[[Query], dict[str, Any]] = clean_up,
) -> None:
    """Run each line and add its points and totals, with what `finish` tells if any were pushed."""
    experiment.settings |= {
        "minute_of_the_paper_s": MINUTE_S,
        "run_s": load.seconds,
        "paper_minutes": load.minutes * LENGTH,
        "tuples_per_s_and_stream": round(load.rows_per_s),
        "tuples_per_stream": load.workload.rows,
        "memory_bytes": {line.series: line.memory_bytes for line in lines},
        "m_query_bytes": {n.series: n.expected_bytes for n in lines if n.expected_bytes},
        "load_average_before": psutil.getloadavg()[0],  # of the machine: idle, or what else ran?
    }
    tables = [load.workload.table(i) for i in range(load.workload.streams)]
    for line in lines:
        key = (load, replace(line, series=""), finish)
        points, total = shared[key] if key in shared else _run_line(load, line, tables, finish)
        if sharing:
            shared[key] = (points, total)
        experiment.rows += [{**point, "series": line.series} for point in points]
        experiment.totals.append({**total, "series": line.series})


sharing = False
"""Whether lines with the same settings are run once for all figures; `__main__` does so."""

shared: dict[Hashable, tuple[list[dict[str, Any]], dict[str, Any]]] = {}
"""Points and totals of the lines that were run while `sharing`, by all but their name."""


def _run_line(
    load: Load, line: Line, tables: list[pa.Table], finish: Callable[[Query], dict[str, Any]]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    with LocalCluster(
        line.processors,
        memory_bytes=line.memory_bytes,
        policy=line.policy,
        adaptation=line.adaptation(load.minutes),
        heartbeat_s=HEARTBEAT_S,
        sample_s=SAMPLE_S,
    ) as local:
        run = _Run(local, load, line)
        run.warm_up(tables)
        run.feed(tables)
        return run.points, run.total(finish)


class _Run:
    """One line: from the submission to the end of the input, or to the query's failure."""

    def __init__(self, local: LocalCluster, load: Load, line: Line) -> None:
        self._line = line
        self._load = load
        self._cluster = local.cluster
        self._streams: list[Stream] = [
            local.cluster.create_stream(name, load.workload.schema) for name in load.workload.names
        ]
        self._query: Query
        self._began = 0.0
        self._failed = threading.Event()  # nothing more is to be sent
        self.points: list[dict[str, Any]] = []

    def warm_up(self, tables: list[pa.Table]) -> None:
        """Join a few rows in a query of their own: processes load what they need for a join."""
        self._query = self._submit("warm-up")
        for stream, table in zip(self._streams, tables, strict=True):
            stream.send(table.slice(0, WARM_UP_ROWS))
        self._query.wait()
        self._query.close()
        self._query.drop()

    def feed(self, tables: list[pa.Table]) -> None:
        """Send all streams at their rate, and note the status until they are through."""
        self._query = self._submit("experiment")
        errors: list[DovetailError] = []

        def send(stream: Stream, table: pa.Table) -> None:
            batches = self._paced(table)
            try:
                stream.send(pa.RecordBatchReader.from_batches(table.schema, batches))
            except DovetailError as e:
                errors.append(e)

        self._began = time.monotonic()
        senders = [
            threading.Thread(target=send, args=pair, daemon=True)
            for pair in zip(self._streams, tables, strict=True)
        ]
        for sender in senders:
            sender.start()
        while any(s.is_alive() for s in senders) and not self._failed.is_set():
            senders[0].join(POINT_S)
            self._note(self._query.status())
        for sender in senders:
            sender.join()
        if errors and not self._failed.is_set():
            raise errors[0]
        if not self._failed.is_set():
            self._query.wait()
            self._note(self._query.status())

    def total(self, finish: Callable[[Query], dict[str, Any]]) -> dict[str, Any]:
        """Close the query and sum up."""
        stopped_minutes = self.points[-1]["paper_minutes"] if self._failed.is_set() else None
        status = self._query.status() if stopped_minutes is not None else self._query.close()
        moves = [m for m in self._query.moves() if m.outcome in MOVED and m.groups]
        total: dict[str, Any] = {
            "series": self._line.series,
            "results_run": status.results,
            "stopped_at_minute": stopped_minutes,
            "moves": len(moves),
            "moved_bytes": sum(m.size_bytes for m in moves),
            "pushes": status.pushes,
            "pushes_by_processor": {i.processor: i.pushes for i in status.instances},
            "results_left": 0,
            "cleanup_ms": 0.0,
        }
        return total | (finish(self._query) if status.pushes else {})

    def _submit(self, name: str) -> Query:
        return self._cluster.submit(
            self._load.workload.sql,
            name=name,
            weights=self._line.weights,
            expected_state=self._line.expected_bytes,
            counting=True,
        )

    def _paced(self, table: pa.Table) -> Iterator[pa.RecordBatch]:
        """The rows that are due, tick by tick; none after a failure."""
        rows = max(1, round(self._load.rows_per_s * TICK_S))
        for first in range(0, table.num_rows, rows):
            due = self._began + (first + rows) / self._load.rows_per_s
            if self._failed.wait(max(0.0, due - time.monotonic())):
                return
            yield from table.slice(first, rows).combine_chunks().to_batches()

    def _note(self, status: QueryStatus) -> None:
        if status.state == "failed":
            self._failed.set()
            return
        minutes = (time.monotonic() - self._began) / MINUTE_S
        self.points.append(
            {
                "series": self._line.series,
                "paper_minutes": round(minutes, 2),
                "results": status.results,
                "pushes": status.pushes,
                "memory_bytes": status.held_bytes + status.queued_bytes,
                "memory_by_processor": {
                    i.processor: i.held_bytes + i.queued_bytes for i in status.instances
                },
            }
        )
