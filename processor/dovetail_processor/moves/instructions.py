"""What a participant's machine tells its processor to do, and the facts it decides by.

Instructions are carried out in the order they are given; none may fail half-way. Whatever takes
time (choosing, shipping) is started by an instruction and answered by a later event.
"""

from __future__ import annotations

from dataclasses import dataclass

from dovetail_proto.ids import MoveId, ProcessorId, SplitId
from dovetail_proto.messages import Groups, MoveRef, MoveReply
from dovetail_proto.partition_map import PartitionMap


@dataclass(frozen=True, slots=True)
class Local:
    """What the processor knows when an event arrives."""

    free_bytes: int  # below the memory limit, after state, queues, credit and reservations
    pushing: bool  # indiskAdaptation (S4 Fig. 18): a push to disk is under way
    reading: bool = False  # groups that were sent away are still read, and cannot be dropped yet


@dataclass(frozen=True, slots=True)
class Reply:
    """Send `message` to the manager."""

    message: MoveReply


@dataclass(frozen=True, slots=True)
class ChooseGroups:
    """Choose groups worth `want_bytes`, none of `exclude` (or size `groups`, if given).

    Answer `groups_chosen`.
    """

    ref: MoveRef
    want_bytes: int
    groups: Groups
    exclude: Groups = ()


@dataclass(frozen=True, slots=True)
class ShipGroups:
    """Detach the chunk's groups unless detached already, and send them as ReceivePartitions.

    A repeated instruction means: the receiver may not have got it. A transfer that is still
    under way need not be begun again.
    """

    ref: MoveRef
    chunk: int
    groups: Groups
    receiver: ProcessorId


@dataclass(frozen=True, slots=True)
class ReattachGroups:
    """The move was rolled back: the groups, detached or not, are live here again."""

    groups: Groups


@dataclass(frozen=True, slots=True)
class DropGroups:
    """The move was committed: the groups live elsewhere; free them."""

    groups: Groups


@dataclass(frozen=True, slots=True)
class StoreInert:
    """Keep the received groups apart: not probed, not pushed, until activated or dropped."""

    move: MoveId
    chunk: int
    groups: Groups


@dataclass(frozen=True, slots=True)
class ActivateGroups:
    """The move was committed: the inert groups of the chunk are live here from now on."""

    move: MoveId
    chunk: int
    groups: Groups


@dataclass(frozen=True, slots=True)
class DropInert:
    """The move was rolled back: forget the inert groups of the chunk."""

    move: MoveId
    chunk: int
    groups: Groups


@dataclass(frozen=True, slots=True)
class HoldGroups:
    """From now on keep tuples of these groups, also those still waiting for credit, in order."""

    groups: Groups


@dataclass(frozen=True, slots=True)
class SendMarkers:
    """Put an End-of-Moved-Partitions of each split on its link to `to`, behind what is sent."""

    move: MoveId
    chunk: int
    to: ProcessorId
    splits: tuple[SplitId, ...]


@dataclass(frozen=True, slots=True)
class ReleaseGroups:
    """Send what is held of these groups to `owner`, in order, then route as usual."""

    groups: Groups
    owner: ProcessorId


@dataclass(frozen=True, slots=True)
class AdoptMap:
    """Route by this map from now on."""

    map: PartitionMap


Instruction = (
    Reply
    | ChooseGroups
    | ShipGroups
    | ReattachGroups
    | DropGroups
    | StoreInert
    | ActivateGroups
    | DropInert
    | HoldGroups
    | SendMarkers
    | ReleaseGroups
    | AdoptMap
)
