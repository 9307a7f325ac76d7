"""What a policy sees and what it may decide: plain numbers in, decisions with reasons out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from dovetail_proto.ids import ProcessorId, QueryName, StreamName


@dataclass(frozen=True, slots=True)
class AdaptationSettings:
    """The thresholds of S4, by its names, with the defaults of its experiments.

    Those that `DiskSettings` has too are a query's own; the manager's hold where a submission
    says nothing.
    """

    move_below_ratio: float = 0.8
    """θ_d: move when M_least / M_most is below it (S4 5.1 and Fig. 17)."""

    spill_above_ratio: float = 0.8
    """θ_m: a processor pushes to disk when state takes more of its memory than this (Fig. 18)."""

    force_above_rate_ratio: float = 2.0
    """θ_f: force a push when MaxRate / MinRate exceeds it (Fig. 19)."""

    force_above_ratio: float = 0.4
    """No push is forced where state takes less than this of the memory it may have: half of θ_m.
    While memory is that empty nobody needs the room, and what will come is a guess."""

    inactive_after_s: float = 60.0
    """θ_t: a group without a new tuple for longer is pushed first (S4 4.3)."""

    push_fraction: float = 0.3
    """Share of the held state that one push takes (S4 4.4: 30 % was best)."""

    productivity_half_life_s: float = 0.0
    """After so long a combination counts half in P_o; 0: P_o is the plain sum of S4 4.3."""

    move_interval_s: float = 45.0
    """Time between two rounds of moves or forced pushes (S4 5.2); 2 s in `dovetail run`."""

    move_min_fraction: float = 0.1
    """A move of less than this share of the smaller of the two memory limits is not worth its
    messages."""

    pairs_max: int = 1 << 15
    """How many pairs may move (the k-th most with the k-th least used) or be compared by rate in
    one round. 1 is S4's rule; more processors need more pairs to settle in the same time."""

    settle_intervals: int = 5
    """A group that has moved stays for this many intervals, so that alternating load does not
    send it back and forth; the sender leaves it out when it chooses."""

    paper_restrictions: bool = False
    """Leave groups with generations on disk where they are, as S4 6 does."""


@dataclass(frozen=True, slots=True)
class ProcessorLoad:
    """One processor as the policies see it."""

    processor: ProcessorId
    limit_bytes: int  # M_a
    used_bytes: int  # M_u: whatever counts against the limit
    held_bytes: int  # state of this query's groups in memory
    state_limit_bytes: int  # what the limit leaves for this query's state
    groups: int  # of this query
    rate: float  # smoothed combinations per sample and group (S4 6, "average output rate")
    free: bool = True  # no push, no move, not leaving: may take part in an adaptation

    @property
    def used_share(self) -> float:
        """M: how full it is, so that processors with unequal limits can be compared."""
        return self.used_bytes / self.limit_bytes


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The cluster at one moment, for one query."""

    query: QueryName
    now_s: float
    processors: tuple[ProcessorLoad, ...]  # members that are alive
    query_bytes: int  # M_query: expected state in all, as well as it is known
    unknown: tuple[StreamName, ...] = ()  # streams of which it is not known what they still bring
    forced_bytes: int = 0  # pushed by the manager's order so far
    adapted_s: float = float("-inf")  # when moves or forced pushes were last decided


Numbers = dict[str, float]


@dataclass(frozen=True, slots=True)
class MoveState:
    """Move `want_bytes` of the most productive groups from `sender` to `receiver`."""

    sender: ProcessorId
    receiver: ProcessorId
    want_bytes: int
    reason: str
    numbers: Numbers = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PushState:
    """Push `want_bytes` of the least productive groups of `processor` to disk."""

    processor: ProcessorId
    want_bytes: int
    reason: str
    numbers: Numbers = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Nothing:
    """Leave all as it is, and why. `kind` is the reason without its numbers."""

    kind: str
    reason: str
    numbers: Numbers = field(default_factory=dict)


Decision = MoveState | PushState | Nothing


@dataclass(frozen=True, slots=True)
class Policy:
    """A named way to adapt. `decide` never returns an empty list."""

    name: str
    spills_locally: bool  # processors push on their own when above θ_m
    decide: Callable[[Snapshot, AdaptationSettings], list[Decision]]
