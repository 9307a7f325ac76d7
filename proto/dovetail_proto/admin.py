"""What people's programs ask of a cluster, and what it answers: the verbs of `Admin`, once.

REST and gRPC are made from these types: a field's type says how `wire.admin` checks it, its note is
what the OpenAPI document says of it. Whether a request makes sense now is the manager's business.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated

from dovetail_proto import cleanups
from dovetail_proto.ids import ProcessorId, process_of
from dovetail_proto.query import PARTITIONS_DEFAULT
from dovetail_proto.wire.fields import (
    Checksum,
    Group,
    Groups,
    Log,
    Move,
    Name,
    Owner,
    PartitionCount,
    Positive,
    Run,
    Sql,
    Weights,
)

CLEANUP_BYTES_DEFAULT = cleanups.CLEANUP_BYTES_DEFAULT
StartCleanup = cleanups.StartCleanup
CleanupStatus = cleanups.CleanupStatus


@dataclass(frozen=True, slots=True)
class Everything:
    """A question that needs no choice."""


@dataclass(frozen=True, slots=True)
class CreateStream:
    """Declare a stream by its Arrow IPC schema."""

    name: Name
    schema: bytes
    path: str = ""  # the home reads this file or folder; empty: programs send


@dataclass(frozen=True, slots=True)
class StreamRef:
    """A stream by its name."""

    name: Name


@dataclass(frozen=True, slots=True)
class QueryRef:
    """A query by its name."""

    name: Name


@dataclass(frozen=True, slots=True)
class DropQuery:
    """Forget a query, and remove its result logs and its state on disk unless they are kept."""

    name: Name
    keep: bool = False


@dataclass(frozen=True, slots=True)
class ProcessorRef:
    """A processor by its name."""

    name: Owner


@dataclass(frozen=True, slots=True)
class Submit:
    """Start a query; `weights` share its groups out, one per processor, none: by limits.

    Results go to logs, to files below `results`, or are counted; spilled state goes below `spill`.
    """

    name: Name
    sql: Sql
    partitions: PartitionCount = PARTITIONS_DEFAULT
    weights: Weights = ()
    policy: Name = "lazy-disk"
    expected_state_bytes: int = 0  # 0: not known
    results: str = ""
    counting: bool = False
    spill: str = ""
    victims: str = "least-productive"
    push_fraction: float | None = None  # this and what follows; None: the manager's setting
    spill_above_ratio: float | None = None  # θ_m
    inactive_after_s: float | None = None  # θ_t
    productivity_half_life_s: float | None = None  # of P_o; 0: it is a plain sum
    keep_results_s: float | None = None  # in result logs, or less by the bytes; 0: for ever
    keep_results_bytes: int | None = None  # of each result log, or less by age; 0: all


@dataclass(frozen=True, slots=True)
class MoveGroups:
    """Move groups of a query to a processor."""

    query: Name
    groups: Groups
    to: Owner


@dataclass(frozen=True, slots=True)
class Pin:
    """Keep groups where they are, or let them go again."""

    query: Name
    groups: Groups
    pinned: bool


@dataclass(frozen=True, slots=True)
class Rebalance:
    """Decide now; with `dry_run`, only tell what would be done."""

    query: Name
    dry_run: bool


@dataclass(frozen=True, slots=True)
class SetPolicy:
    """Adapt a query by another policy from now on."""

    query: Name
    policy: Name


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """A stream, how far it has come, and where programs send its rows."""

    name: Name
    schema: bytes
    rows: int
    ended: Annotated[bool, "nothing more may be sent, or its file is read"]
    drained: Annotated[bool, "ended, and all its rows are on their way to the queries"]
    home: Annotated[Owner, "the processor that takes its rows"]
    address: Annotated[str, "of the home's data plane; empty while the home is away"]
    path: Annotated[str, "the file or folder that is read; empty: programs send"]
    created_s: Annotated[float, "since 1970, as all times here"]


@dataclass(frozen=True, slots=True)
class Streams:
    """All streams, by name."""

    streams: tuple[StreamStatus, ...]


@dataclass(frozen=True, slots=True)
class InputStatus:
    """One input of a query."""

    alias: str
    stream: Name
    rows_in: int


@dataclass(frozen=True, slots=True)
class InstanceStatus:
    """The part of a query on one processor, as it last reported it."""

    processor: Owner
    stage: Annotated[
        str, "running, closed or failed; dead, left or (before a restart) gone, if it was running"
    ]
    groups: int
    held_bytes: int
    spilled_bytes: int
    produced: int
    results: int
    checksum: Checksum
    pushes: int
    spilled_groups: int
    queued_bytes: int
    peak_state_bytes: int


@dataclass(frozen=True, slots=True)
class LogStatus:
    """A log of results; offsets in it hold, whoever keeps it."""

    name: Log
    processor: Annotated[Owner, "that writes it, or keeps it since the writer left"]
    address: Annotated[str, "where it can be read; empty: the processor is away"]
    run: Annotated[Run, "tells it from a log of another query that had the same name"]
    rows: Annotated[int, "that are in it, once the query is closed; 0 until then"]
    trimmed: Annotated[bool, "its oldest segments may be gone: the query does not keep all"] = False


@dataclass(frozen=True, slots=True)
class QueryStatus:
    """A query; `cause` says why it failed or waits. Counts are sums over `instances`."""

    name: Name
    state: Annotated[str, "running, paused, closing, closed or failed"]
    phase: Annotated[str, "what was last asked for: running, paused or closing"]
    cause: str
    policy: Name
    sql: Sql
    schema: Annotated[bytes, "of the results, Arrow IPC"]
    partitions: PartitionCount
    map_version: int
    held_bytes: int
    spilled_bytes: int
    produced: Annotated[int, "combinations, before conditions that span inputs"]
    results: int
    checksum: Annotated[Checksum, "order-free, of the results, mod 2**64"]
    pushes: int
    spilled_groups: int
    queued_bytes: int
    inputs: tuple[InputStatus, ...]
    instances: tuple[InstanceStatus, ...]
    results_place: Annotated[str, "folder; empty: the processors' result logs, or counted only"]
    counting: bool
    spill: Annotated[str, "folder; empty: the processors' own data"]
    push_fraction: float
    spill_above_ratio: Annotated[float, "θ_m"]
    inactive_after_s: Annotated[float, "θ_t"]
    productivity_half_life_s: Annotated[float, "of P_o; 0: it is a plain sum"]
    created_s: float
    ended_s: Annotated[float, "when it was closed or failed; 0 until then"]
    logs: Annotated[tuple[LogStatus, ...], "none with `results_place` or `counting`"]
    cleanup: Annotated[tuple[CleanupStatus, ...], "the latest one, if there was one"]
    warning: Annotated[str, "what its policy does not know and decides without; empty: nothing"]
    keep_results_s: Annotated[float, "in result logs, or less by the bytes; 0: for ever"]
    keep_results_bytes: Annotated[int, "of each result log, or less by age; 0: all"]


@dataclass(frozen=True, slots=True)
class Queries:
    """All queries, by name."""

    queries: tuple[QueryStatus, ...]


@dataclass(frozen=True, slots=True)
class ProcessorStatus:
    """A member of the cluster, or one that has been; `cause` says why it is dead."""

    name: Owner
    state: Annotated[str, "alive, leaving, left or dead"]
    cause: str
    address: Annotated[str, "of its data plane"]
    incarnation: Positive
    memory_limit_bytes: int
    used_bytes: int
    held_bytes: int
    queued_bytes: int
    groups: Annotated[int, "of all queries"]
    rate: Annotated[float, "combinations per second, of all queries"]
    rss_bytes: int
    peak_rss_bytes: int
    cpu_share: Annotated[float, "of one core"]
    heard_s: Annotated[float, "when it was last heard"]


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """The manager's term and its processors."""

    name: Annotated[str, "the manager's"]
    epoch: Positive
    version: str
    started_s: Annotated[float, "when this manager began to lead"]
    processors: tuple[ProcessorStatus, ...]


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """Who owns a group, and since which version of the map."""

    group: Group
    owner: Owner
    since_version: int
    pinned: bool


@dataclass(frozen=True, slots=True)
class Partitions:
    """The partition map of a query."""

    map_version: int
    partitions: tuple[PartitionStatus, ...]


@dataclass(frozen=True, slots=True)
class MoveStatus:
    """A move, under way or ended."""

    id: Move
    sender: Owner
    receiver: Owner
    phase: str
    outcome: str
    reason: str
    failure: str
    groups: int
    size_bytes: int
    started_s: float
    ended_s: Annotated[float, "0 until then"]


@dataclass(frozen=True, slots=True)
class Moves:
    """The moves of a query, newest first."""

    moves: tuple[MoveStatus, ...]


@dataclass(frozen=True, slots=True)
class AdaptationRecord:
    """A decision with the numbers that led to it, or why nothing was done."""

    at_s: float
    policy: Name
    decision: str
    reason: str
    admitted: bool
    objection: str
    numbers: Mapping[str, float]
    repeated_times: int


@dataclass(frozen=True, slots=True)
class Adaptations:
    """The decisions about a query, newest first."""

    adaptations: tuple[AdaptationRecord, ...]


@dataclass(frozen=True, slots=True)
class EventsSince:
    """Ask for events whose number is above `since`; 0: all that are remembered."""

    since: int


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened. `kind` is one of EVENT_KINDS; what it is about is filled in."""

    number: Annotated[Positive, "grows by one; starts anew with each manager"]
    at_s: float
    kind: str
    query: str = ""
    stream: str = ""
    processor: str = ""
    move: str = ""
    text: Annotated[str, "the cause, the outcome, the reason"] = ""


@dataclass(frozen=True, slots=True)
class Events:
    """Events in order; `last` is where to go on, `missed` how many are forgotten already."""

    events: tuple[Event, ...]
    last: int
    missed: int


EVENT_KINDS = (
    "processor-joined",
    "processor-leaving",
    "processor-left",
    "processor-died",
    "stream-created",
    "stream-ended",
    "stream-rehomed",
    "stream-dropped",
    "query-submitted",
    "query-paused",
    "query-resumed",
    "query-closing",
    "query-closed",
    "query-failed",
    "query-warned",
    "query-dropped",
    "cleanup-started",
    "cleanup-ended",
    "move-begun",
    "move-ended",
    "adaptation-decided",
)


def processor_state(processors: Iterable[ProcessorStatus], name: str) -> str:
    """Of a processor whose workers leave together: leaving until all have left; empty: unknown."""
    states = {p.state for p in processors if name in (p.name, process_of(ProcessorId(p.name)))}
    return next((s for s in ("leaving", "alive", "dead", "left") if s in states), "")
