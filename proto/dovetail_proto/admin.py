"""What people's programs ask of a cluster, and what it answers: the verbs of `Admin`, once.

REST and gRPC are two faces of these types. Requests come from outside and are checked by
`wire.admin`; whether a request makes sense now (does that query exist?) is the manager's business.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dovetail_proto import cleanups
from dovetail_proto.query import PARTITIONS_DEFAULT

CLEANUP_BYTES_DEFAULT = cleanups.CLEANUP_BYTES_DEFAULT
StartCleanup = cleanups.StartCleanup
CleanupStatus = cleanups.CleanupStatus


@dataclass(frozen=True, slots=True)
class Everything:
    """A question that needs no choice."""


@dataclass(frozen=True, slots=True)
class CreateStream:
    """Declare a stream by its Arrow IPC schema."""

    name: str
    schema: bytes
    path: str = ""  # the home reads this file or folder; empty: programs send


@dataclass(frozen=True, slots=True)
class StreamRef:
    """A stream by its name."""

    name: str


@dataclass(frozen=True, slots=True)
class QueryRef:
    """A query by its name."""

    name: str


@dataclass(frozen=True, slots=True)
class DropQuery:
    """Forget a query, and remove its result logs and its state on disk unless they are kept."""

    name: str
    keep: bool = False


@dataclass(frozen=True, slots=True)
class ProcessorRef:
    """A processor by its name."""

    name: str


@dataclass(frozen=True, slots=True)
class Submit:
    """Start a query; `weights` share its groups out, one per processor, none: by limits.

    Results go to the result log of every processor, or as Parquet files to a folder below
    `results`, or are only counted. Spilled state goes below `spill`, or to the processors' own
    data. The other fields say how state goes to disk where the policy lets it.
    """

    name: str
    sql: str
    partitions: int = PARTITIONS_DEFAULT
    weights: tuple[float, ...] = ()
    policy: str = "lazy-disk"
    expected_state_bytes: int = 0  # 0: not known
    results: str = ""
    counting: bool = False
    spill: str = ""
    victims: str = "least-productive"
    push_fraction: float | None = None  # this and what follows; None: the manager's setting
    spill_above_ratio: float | None = None  # θ_m
    inactive_after_s: float | None = None  # θ_t
    productivity_half_life_s: float | None = None  # of P_o; 0: it is a plain sum


@dataclass(frozen=True, slots=True)
class MoveGroups:
    """Move groups of a query to a processor."""

    query: str
    groups: tuple[int, ...]
    to: str


@dataclass(frozen=True, slots=True)
class Pin:
    """Keep groups where they are, or let them go again."""

    query: str
    groups: tuple[int, ...]
    pinned: bool


@dataclass(frozen=True, slots=True)
class Rebalance:
    """Decide now; with `dry_run`, only tell what would be done."""

    query: str
    dry_run: bool


@dataclass(frozen=True, slots=True)
class SetPolicy:
    """Adapt a query by another policy from now on."""

    query: str
    policy: str


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """A stream, how far it has come, and where programs send its rows."""

    name: str
    schema: bytes
    rows: int
    ended: bool  # nothing more may be sent, or its file is read
    drained: bool  # ended, and all its rows are on their way to the queries
    home: str  # the processor that takes its rows
    address: str  # of the home's data plane; empty while the home is away
    path: str  # the file or folder that is read; empty: programs send
    created_s: float  # since 1970, as all times here


@dataclass(frozen=True, slots=True)
class Streams:
    """All streams, by name."""

    streams: tuple[StreamStatus, ...]


@dataclass(frozen=True, slots=True)
class InputStatus:
    """One input of a query."""

    alias: str
    stream: str
    rows_in: int


@dataclass(frozen=True, slots=True)
class InstanceStatus:
    """The part of a query on one processor, as it last reported it."""

    processor: str
    stage: str  # running, closed or failed
    groups: int
    held_bytes: int
    spilled_bytes: int
    produced: int
    results: int
    checksum: int
    pushes: int
    spilled_groups: int
    queued_bytes: int
    peak_state_bytes: int


@dataclass(frozen=True, slots=True)
class LogStatus:
    """A log of results; offsets in it hold, whoever keeps it."""

    name: str
    processor: str  # that writes it, or keeps it since the writer left
    address: str  # where it can be read; empty: the processor is away
    run: str  # tells it from a log of another query that had the same name
    rows: int  # that are in it, once the query is closed; 0 until then


@dataclass(frozen=True, slots=True)
class QueryStatus:
    """A query; `cause` says why it failed, or what it waits for. Counts are sums over `instances`.

    `state` is running, paused, closing, closed or failed; `phase` what was last asked for:
    running, paused or closing.
    """

    name: str
    state: str
    phase: str
    cause: str
    policy: str
    sql: str
    schema: bytes  # of the results, Arrow IPC
    partitions: int
    map_version: int
    held_bytes: int
    spilled_bytes: int
    produced: int  # combinations, before conditions that span inputs
    results: int
    checksum: int  # order-free, of the results, mod 2**64
    pushes: int
    spilled_groups: int
    queued_bytes: int
    inputs: tuple[InputStatus, ...]
    instances: tuple[InstanceStatus, ...]
    results_place: str  # folder; empty: the processors' result logs, or counted only
    counting: bool
    spill: str  # folder; empty: the processors' own data
    push_fraction: float
    spill_above_ratio: float  # θ_m
    inactive_after_s: float  # θ_t
    productivity_half_life_s: float  # of P_o; 0: it is a plain sum
    created_s: float
    ended_s: float  # when it was closed or failed; 0 until then
    logs: tuple[LogStatus, ...]  # none with `results_place` or `counting`
    cleanup: tuple[CleanupStatus, ...]  # the latest one, if there was one


@dataclass(frozen=True, slots=True)
class Queries:
    """All queries, by name."""

    queries: tuple[QueryStatus, ...]


@dataclass(frozen=True, slots=True)
class ProcessorStatus:
    """A member of the cluster, or one that has been; `cause` says why it is dead."""

    name: str
    state: str  # alive, leaving, left or dead
    cause: str
    address: str  # of its data plane
    incarnation: int
    memory_limit_bytes: int
    used_bytes: int
    held_bytes: int
    queued_bytes: int
    groups: int  # of all queries
    rate: float  # combinations per second, of all queries
    rss_bytes: int
    peak_rss_bytes: int
    cpu_share: float  # of one core
    heard_s: float  # when it was last heard


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """The manager's term and its processors."""

    name: str  # the manager's
    epoch: int
    version: str
    started_s: float  # when this manager took office
    processors: tuple[ProcessorStatus, ...]


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """Who owns a group, and since which version of the map."""

    group: int
    owner: str
    since_version: int
    pinned: bool


@dataclass(frozen=True, slots=True)
class Partitions:
    """The partition map of a query."""

    map_version: int
    partitions: tuple[PartitionStatus, ...]


@dataclass(frozen=True, slots=True)
class MoveStatus:
    """A move, under way or ended (`ended_s` is 0 until then)."""

    id: str
    sender: str
    receiver: str
    phase: str
    outcome: str
    reason: str
    failure: str
    groups: int
    size_bytes: int
    started_s: float
    ended_s: float


@dataclass(frozen=True, slots=True)
class Moves:
    """The moves of a query, newest first."""

    moves: tuple[MoveStatus, ...]


@dataclass(frozen=True, slots=True)
class AdaptationRecord:
    """A decision with the numbers that led to it, or why nothing was done."""

    at_s: float
    policy: str
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

    number: int  # grows by one; starts anew with each manager
    at_s: float
    kind: str
    query: str = ""
    stream: str = ""
    processor: str = ""
    move: str = ""
    text: str = ""  # the cause, the outcome, the reason


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
