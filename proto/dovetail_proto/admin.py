"""What people's programs ask of a cluster, and what it answers: the verbs of `Admin`, once.

REST and gRPC are two faces of these types. Requests come from outside and are checked by
`wire.admin`; whether a request makes sense now (does that query exist?) is the manager's business.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CreateStream:
    """Declare a stream by its Arrow IPC schema."""

    name: str
    schema: bytes


@dataclass(frozen=True, slots=True)
class StreamRef:
    """A stream by its name."""

    name: str


@dataclass(frozen=True, slots=True)
class QueryRef:
    """A query by its name."""

    name: str


@dataclass(frozen=True, slots=True)
class Submit:
    """Start a query; `weights` share its groups out, one per processor, none: equally."""

    name: str
    sql: str
    partitions: int
    weights: tuple[float, ...]
    policy: str
    expected_state_bytes: int  # 0: not known


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
    """A stream and how far it has come."""

    name: str
    schema: bytes
    rows: int
    ended: bool


@dataclass(frozen=True, slots=True)
class QueryStatus:
    """A query; `cause` says why it failed, if it did."""

    name: str
    state: str
    cause: str
    policy: str
    map_version: int
    held_bytes: int
    spilled_bytes: int
    produced: int


@dataclass(frozen=True, slots=True)
class ProcessorStatus:
    """A member of the cluster."""

    name: str
    state: str
    memory_limit_bytes: int
    used_bytes: int
    groups: int
    rate: float


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """The manager's term and its processors."""

    epoch: int
    version: str
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
