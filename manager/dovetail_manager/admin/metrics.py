"""Every metric of the manager, by Prometheus' naming rules: base units, `_total` for counters.

What the service knows is read when it is asked for (`Collector`); what happens between is counted
here. Labels are names that people gave (queries, streams, processors) and closed sets of words.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector as BaseCollector

from dovetail_manager.admin.service import AdminService
from dovetail_proto import admin as a

CONTENT_TYPE = CONTENT_TYPE_LATEST

MOVE_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
"""A chunk of groups takes some tens of milliseconds; a move of a large state, a minute."""

PROCESSOR_GAUGES = {
    "memory_limit_bytes": ("memory_limit_bytes", "Limit on state, queues and output together."),
    "memory_used_bytes": ("used_bytes", "What counts against the limit."),
    "state_held_bytes": ("held_bytes", "State of partition groups in memory."),
    "queued_bytes": ("queued_bytes", "Rows that wait to be joined."),
    "resident_memory_bytes": ("rss_bytes", "Resident memory of the process."),
    "groups": ("groups", "Partition groups owned, of all queries."),
    "cpu_usage_cores": ("cpu_share", "Processor time per second."),
    "last_heard_timestamp_seconds": ("heard_s", "When it was last heard."),
}
"""dovetail_processor_<name> ← field of ProcessorStatus."""

QUERY_GAUGES = {
    "state_held_bytes": ("held_bytes", "State in memory."),
    "state_spilled_bytes": ("spilled_bytes", "State on disk."),
    "queued_bytes": ("queued_bytes", "Rows that wait to be joined."),
    "map_version": ("map_version", "Version of the partition map."),
}
QUERY_COUNTERS = {
    "results": ("results", "Results produced."),
    "combinations": ("produced", "Combinations, before conditions that span inputs."),
    "pushes": ("pushes", "Pushes of state to disk."),
}
"""dovetail_query_<name>_total ← field of QueryStatus."""

QUERY_STATES = ("running", "paused", "closing", "closed", "failed")
PROCESSOR_STATES = ("alive", "leaving", "left", "dead")


class Metrics:
    """The registry of one manager."""

    def __init__(self, service: AdminService) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(Collector(service))
        self._requests = Counter(
            "dovetail_rest_requests",
            "Requests over REST.",
            ("method", "route", "status"),
            registry=self._registry,
        )
        self._durations = Histogram(
            "dovetail_rest_request_duration_seconds",
            "From a request to the end of its answer.",
            ("route",),
            registry=self._registry,
        )
        self._moves = Counter(
            "dovetail_moves", "Moves that ended.", ("query", "outcome"), registry=self._registry
        )
        self._moved = Counter(
            "dovetail_moved_bytes",
            "Bytes of moves that ended.",
            ("query",),
            registry=self._registry,
        )
        self._move_durations = Histogram(
            "dovetail_move_duration_seconds",
            "From a move's first step to its last.",
            buckets=MOVE_SECONDS,
            registry=self._registry,
        )
        self._service = service
        self._counted: dict[str, set[str]] = {}  # query → ended moves that are listed yet
        self._lock = threading.Lock()

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one request; `route` is a path's template, so that labels stay few."""
        self._requests.labels(method, route, str(status)).inc()
        self._durations.labels(route).observe(seconds)

    def text(self) -> bytes:
        """The answer of `/metrics`."""
        self._count_moves()
        made: bytes = generate_latest(self._registry)
        return made

    def _count_moves(self) -> None:
        # The list forgets old moves and dropped queries; a counter must not.
        with self._lock:
            queries = [q.name for q in self._service.list_queries().queries]
            for query in queries:
                ended = [m for m in self._moves_of(query) if m.ended_s]
                counted = self._counted.get(query, set())
                for move in ended:
                    if move.id not in counted:
                        self._moves.labels(query, move.outcome or "unknown").inc()
                        self._moved.labels(query).inc(move.size_bytes)
                        self._move_durations.observe(max(0.0, move.ended_s - move.started_s))
                self._counted[query] = {m.id for m in ended}
            for gone in self._counted.keys() - set(queries):
                del self._counted[gone]

    def _moves_of(self, query: str) -> tuple[a.MoveStatus, ...]:
        from dovetail_proto.errors import DovetailError

        try:
            return self._service.list_moves(a.QueryRef(query)).moves
        except DovetailError:  # dropped since it was listed
            return ()


class Collector(BaseCollector):
    """What the service knows, each time it is asked."""

    def __init__(self, service: AdminService) -> None:
        self._service = service

    def describe(self) -> Iterable[Any]:
        """Nothing ahead: the registry must not ask a manager that is only starting."""
        return ()

    def collect(self) -> Iterator[Any]:
        """All families."""
        cluster = self._service.get_cluster()
        build = GaugeMetricFamily("dovetail_build_info", "The version.", labels=["version"])
        build.add_metric([cluster.version], 1)
        yield build
        yield GaugeMetricFamily("dovetail_manager_epoch", "The manager's term.", cluster.epoch)
        yield GaugeMetricFamily(
            "dovetail_manager_start_time_seconds", "When it began to lead.", cluster.started_s
        )
        yield from _processors(cluster.processors)
        yield from _queries(self._service.list_queries().queries)
        yield from _streams(self._service.list_streams().streams)


def _processors(members: Iterable[a.ProcessorStatus]) -> Iterator[Any]:
    states = GaugeMetricFamily("dovetail_processors", "Members by state.", labels=["state"])
    for state in PROCESSOR_STATES:
        states.add_metric([state], sum(m.state == state for m in members))
    yield states
    present = [m for m in members if m.state in ("alive", "leaving")]
    for name, (attribute, text) in PROCESSOR_GAUGES.items():
        family = GaugeMetricFamily(f"dovetail_processor_{name}", text, labels=["processor"])
        for member in present:
            family.add_metric([member.name], getattr(member, attribute))
        yield family


def _queries(queries: Iterable[a.QueryStatus]) -> Iterator[Any]:
    states = GaugeMetricFamily(
        "dovetail_query_state", "1 for the state it is in.", labels=["query", "state"]
    )
    rows = CounterMetricFamily(
        "dovetail_query_input_rows", "Rows taken in.", labels=["query", "input", "stream"]
    )
    for query in queries:
        for state in QUERY_STATES:
            states.add_metric([query.name, state], query.state == state)
        for given in query.inputs:
            rows.add_metric([query.name, given.alias, given.stream], given.rows_in)
    yield states
    yield rows
    families = [(GaugeMetricFamily, QUERY_GAUGES), (CounterMetricFamily, QUERY_COUNTERS)]
    for kind, fields in families:
        for name, (attribute, text) in fields.items():
            family = kind(f"dovetail_query_{name}", text, labels=["query"])
            for query in queries:
                family.add_metric([query.name], getattr(query, attribute))
            yield family


def _streams(streams: Iterable[a.StreamStatus]) -> Iterator[Any]:
    rows = CounterMetricFamily("dovetail_stream_rows", "Rows taken in.", labels=["stream"])
    ended = GaugeMetricFamily(
        "dovetail_stream_ended", "1 when nothing more may be sent.", labels=["stream"]
    )
    for stream in streams:
        rows.add_metric([stream.name], stream.rows)
        ended.add_metric([stream.name], stream.ended)
    yield rows
    yield ended
