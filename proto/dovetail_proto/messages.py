"""What manager, processors and splits tell each other, as plain data.

The names of the eight steps of a move are the paper's (S4 5.1, Fig. 13); `Reserve`, `Reactivated`
and `FinishMove` are ours. `wire` carries every type here over protobuf; the machines in
`dovetail_manager.moves` and `dovetail_processor.moves` see nothing else.

Fencing: every control message of a move carries a `MoveRef`. A processor refuses a lower epoch
than the highest it has seen, a move that has ended, and a step that does not follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from dovetail_proto.ids import (
    Epoch,
    GroupId,
    MapVersion,
    MoveId,
    ProcessorId,
    QueryName,
    SplitId,
    StreamName,
)
from dovetail_proto.partition_map import MapPatch

Groups = tuple[GroupId, ...]
"""Group ids, ascending, each once."""


@dataclass(frozen=True, slots=True)
class MoveRef:
    """Which move a message belongs to, and by whose authority."""

    query: QueryName
    epoch: Epoch  # of the manager that sent it, or whose order led to it
    move: MoveId
    oldest_open: MoveId  # every move of the query before this one has ended at all participants


# The eight steps -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ComputePartitionsToMove:
    """Step 1, manager → sender: choose groups worth `want_bytes`, or exactly `groups` if given.

    Groups in `exclude` are pinned: the sender leaves them out when it chooses.
    """

    ref: MoveRef
    want_bytes: int
    groups: Groups = ()
    exclude: Groups = ()


@dataclass(frozen=True, slots=True)
class PartitionsToMove:
    """Step 2, sender → manager: these groups, in order of choice, of these bytes; maybe none."""

    ref: MoveRef
    groups: Groups
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DeactivatePartitions:
    """Step 3, manager → sender and split hosts: hold the chunk's tuples back, then mark the end."""

    ref: MoveRef
    chunk: int
    groups: Groups
    sender: ProcessorId
    splits: tuple[SplitId, ...]  # every split of the query: whose markers the sender waits for


@dataclass(frozen=True, slots=True)
class Deactivated:
    """Step 4, split host (and sender) → manager: tuples are held, markers are on their way."""

    ref: MoveRef
    chunk: int


@dataclass(frozen=True, slots=True)
class EndOfMovedPartitions:
    """In-band, split → sender: no tuple of the chunk comes after this. Needs no credit."""

    query: QueryName
    move: MoveId
    chunk: int
    split: SplitId


@dataclass(frozen=True, slots=True)
class SendPartitions:
    """Step 5, manager → sender: hand the chunk to `receiver` once all markers are in."""

    ref: MoveRef
    chunk: int
    groups: Groups
    receiver: ProcessorId


@dataclass(frozen=True, slots=True)
class ReceivePartitions:
    """Step 6, sender → receiver: the chunk's state; inert until the commit."""

    ref: MoveRef
    chunk: int
    groups: Groups
    size_bytes: int  # memory it needs at the receiver
    payload: bytes | memoryview = field(repr=False)  # the groups: rows, generations, marks


@dataclass(frozen=True, slots=True)
class Received:
    """Step 7, receiver → manager: the whole chunk is here."""

    ref: MoveRef
    chunk: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ReactivatePartitions:
    """Step 8, manager → every participant: the chunk is over, `patch` says who owns its groups.

    After a commit the owner is the receiver, after a rollback the sender. The owner hears it
    first; the others when it has answered, so that released tuples find their groups active.
    """

    ref: MoveRef
    chunk: int
    groups: Groups
    owner: ProcessorId
    patch: MapPatch


@dataclass(frozen=True, slots=True)
class Reactivated:
    """Answer to step 8: done here; this participant's map is now at `map_version`."""

    ref: MoveRef
    chunk: int
    map_version: MapVersion


# Around the eight steps ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reserve:
    """Before step 3, manager → receiver: keep `size_bytes` free for this move."""

    ref: MoveRef
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Reserved:
    """Receiver → manager: the memory is kept."""

    ref: MoveRef


@dataclass(frozen=True, slots=True)
class FinishMove:
    """Manager → every participant: nothing of this move follows; late messages find it shut."""

    ref: MoveRef


@dataclass(frozen=True, slots=True)
class MoveFinished:
    """Participant → manager: shut here."""

    ref: MoveRef


@dataclass(frozen=True, slots=True)
class PushPartitions:
    """Manager → processor, active-disk only: push `size_bytes` of the least productive state."""

    query: QueryName
    epoch: Epoch
    order: int  # grows by one per order of an epoch; a repeated order is done once
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Pushed:
    """Processor → manager: order done; `size_bytes` of memory went to disk (0 if none could)."""

    query: QueryName
    epoch: Epoch
    order: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Refused:
    """Any direction: your message about `move` was not accepted, and nothing was changed."""

    ref: MoveRef
    chunk: int  # −1 if the message was not about a chunk
    refused: str  # the name of the refused message
    domain: str  # dovetail_proto.errors.Domain
    message: str
    epoch: Epoch  # the highest that the refuser knows: above `ref.epoch`, the asker is deposed
    map_version: MapVersion  # the refuser's, 0 if it holds no map


# Membership ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Join:
    """Processor → manager: take me in. A new incarnation means that the former one is dead."""

    processor: ProcessorId
    incarnation: int  # chosen at start, never reused by this processor
    version: str  # of Dovetail; others are refused
    memory_limit_bytes: int
    address: str = ""  # where its data plane answers; empty only where nobody has to dial it


class Stage(StrEnum):
    """How far a query has come on one processor."""

    RUNNING = "running"
    CLOSED = "closed"  # all input is joined, the sink and the spill store are closed
    FAILED = "failed"  # it cannot go on here; `cause` says why


@dataclass(frozen=True, slots=True)
class QueryLoad:
    """What a processor reports of one query: sums over its groups and counts since it began."""

    query: QueryName
    groups: int
    held_bytes: int
    spilled_bytes: int  # of files that this processor's pushes wrote so far
    produced: int  # combinations, since the processor started
    rows_in: tuple[int, ...] = ()  # per input: rows that splits here took in; 0 where it has none
    results: int = 0  # rows handed to the sink
    checksum: int = 0  # order-free, of those, mod 2**64
    pushes: int = 0
    spilled_groups: int = 0  # groups that this processor pushed at least once
    queued_bytes: int = 0  # on links, in queues and held back
    peak_state_bytes: int = 0
    pushed_bytes: int = 0  # that pushed groups held in memory
    state_limit_bytes: int = 0  # what the memory limit leaves for this query's state
    stage: Stage = Stage.RUNNING
    cause: str = ""  # why it failed, or what it waits for while it runs; empty otherwise


def all_together(loads: Sequence[QueryLoad]) -> QueryLoad:
    """What several workers report of one query, as one; of `cause`, the first that there is."""
    first = loads[0]
    summed = {
        name: sum(getattr(load, name) for load in loads)
        for name in QueryLoad.__dataclass_fields__
        if isinstance(getattr(first, name), int)
    }
    summed["checksum"] %= 2**64
    return replace(
        first,
        **summed,
        rows_in=tuple(map(sum, zip(*(load.rows_in for load in loads), strict=True))),
        cause=next((load.cause for load in loads if load.cause), ""),
    )


@dataclass(frozen=True, slots=True)
class StreamLoad:
    """What the home of a stream reports of it."""

    stream: StreamName
    rows: int
    ended: bool  # nothing will come any more, and all that came is routed
    handover: str = ""  # what its next home has to know, once all that came here is joined
    rows_left: int | None = None  # still to come, as far as files and sources told; None: unknown


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Processor → manager, about once a second: alive, with this load."""

    processor: ProcessorId
    incarnation: int
    used_bytes: int  # state, queues, reservations: whatever counts against the limit
    loads: tuple[QueryLoad, ...]
    adapting: bool  # a push or a move is under way here
    assigned: int = 0  # version of the assignment that is carried out here; 0: none yet
    streams: tuple[StreamLoad, ...] = ()
    rss_bytes: int = 0
    peak_rss_bytes: int = 0
    cpu_share: float = 0.0  # of one core, since the last heartbeat
    room_bytes: int | None = None  # what a further query could get; None: not said


@dataclass(frozen=True, slots=True)
class Heard:
    """Manager → processor, to Join and Heartbeat: `member` False means stop: you were let go."""

    epoch: Epoch
    processor: ProcessorId
    incarnation: int
    member: bool


@dataclass(frozen=True, slots=True)
class Assign:
    """Manager → processor: all that you are to run. Sent again until a heartbeat names `version`.

    The whole of it, not a change: a lost, repeated or late one does no harm.
    """

    epoch: Epoch
    version: int  # grows with every change within an epoch
    document: str = field(repr=False)  # `dovetail_proto.assignment.Assignment` as JSON


@dataclass(frozen=True, slots=True)
class Leave:
    """Processor → manager: move my groups and streams away, then let me go.

    `successor` has all of its result logs, as far as they were to be handed over; empty until then.
    One that `ends` was told so by its machine and cannot be refused: what keeps it has to give way.
    """

    processor: ProcessorId
    incarnation: int
    successor: str = ""
    ends: bool = False


@dataclass(frozen=True, slots=True)
class StopQuery:
    """Manager → processor: the query failed for `cause`; drop its state, keep its results."""

    query: QueryName
    epoch: Epoch
    cause: str


@dataclass(frozen=True, slots=True)
class QueryStopped:
    """Processor → manager: dropped."""

    query: QueryName
    epoch: Epoch


MoveRequest = (
    ComputePartitionsToMove
    | Reserve
    | DeactivatePartitions
    | SendPartitions
    | ReceivePartitions
    | ReactivatePartitions
    | FinishMove
)
"""What a participant is asked to do."""

MoveReply = (
    PartitionsToMove | Reserved | Deactivated | Received | Reactivated | MoveFinished | Refused
)
"""What the manager hears back."""

ControlMessage = (
    MoveRequest
    | MoveReply
    | PushPartitions
    | Pushed
    | Join
    | Heartbeat
    | Heard
    | Assign
    | Leave
    | StopQuery
    | QueryStopped
)
