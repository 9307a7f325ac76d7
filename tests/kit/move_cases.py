"""A move of groups 0 and 1 from s to r, with splits on s and h: its participants at any step."""

from __future__ import annotations

from collections import deque
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from dovetail_processor.moves.instructions import (
    Local,
)
from dovetail_processor.moves.participant import Participant
from dovetail_proto import messages as m
from dovetail_proto.ids import Epoch, GroupId, MapVersion, MoveId, ProcessorId, QueryName, SplitId
from dovetail_proto.partition_map import MapPatch, PartitionMap

Q = QueryName("q")
S, R, H = ProcessorId("s"), ProcessorId("r"), ProcessorId("h")
SPLITS = (SplitId("q/0"), SplitId("q/1"))
HOSTS = {S: (SPLITS[0],), H: (SPLITS[1],)}
MAP = PartitionMap.initial(Q, [S, S, S, S, R, R])
ROOMY = Local(free_bytes=1000, pushing=False)
ID = MoveId("0000000002-00000005")
REF = m.MoveRef(Q, Epoch(2), ID, ID)


def groups(*ids: int) -> m.Groups:
    """Typed ids."""
    return tuple(GroupId(i) for i in ids)


def state_of(thing: Any) -> Any:
    """Everything that a machine remembers, as plain comparable data."""
    if isinstance(thing, str | int | float | bytes | None):
        return repr(thing)
    if isinstance(thing, PartitionMap):
        return thing.to_json()
    if isinstance(thing, np.ndarray):
        return thing.tolist()
    if is_dataclass(thing) and not isinstance(thing, type):
        return [(f.name, state_of(getattr(thing, f.name, None))) for f in fields(thing)]
    if isinstance(thing, dict):
        return [(state_of(k), state_of(v)) for k, v in thing.items()]
    if isinstance(thing, set | frozenset):
        return sorted(map(repr, thing))
    if isinstance(thing, list | tuple | deque):
        return [state_of(t) for t in thing]
    if hasattr(thing, "__dict__"):
        return [(k, state_of(v)) for k, v in vars(thing).items()]
    return repr(thing)


def sender_at(step: int) -> Participant:
    """The sender (and host of split 0) after `step` of moving groups 0 and 1 in chunk 0."""
    p = Participant(Q, S, MAP, HOSTS[S], Epoch(2))
    if step >= 1:
        p.handle(m.ComputePartitionsToMove(REF, 10), ROOMY)
        p.groups_chosen(ID, groups(0, 1), (5, 5))
    if step >= 3:
        p.handle(m.DeactivatePartitions(REF, 0, groups(0, 1), S, SPLITS), ROOMY)
    if step >= 5:
        p.handle(m.SendPartitions(REF, 0, groups(0, 1), R), ROOMY)
        for split in SPLITS:
            p.marker(m.EndOfMovedPartitions(Q, ID, 0, split))
    return p


def receiver_at(step: int) -> Participant:
    """The receiver after `step`."""
    p = Participant(Q, R, MAP, (), Epoch(2))
    if step >= 2:
        p.handle(m.Reserve(REF, 10), ROOMY)
    if step >= 6:
        p.handle(m.ReceivePartitions(REF, 0, groups(0, 1), 10, b""), ROOMY)
    return p


def host_at(step: int) -> Participant:
    """A processor that only hosts a split."""
    p = Participant(Q, H, MAP, HOSTS[H], Epoch(2))
    if step >= 3:
        p.handle(m.DeactivatePartitions(REF, 0, groups(0, 1), S, SPLITS), ROOMY)
    return p


COMMITTED = MAP.moved(groups(0, 1), R).patch_since(MapVersion(1))
UNCHANGED = MapPatch(Q, MapVersion(1), MapVersion(1), ())
SKIPPING = MapPatch(Q, MapVersion(5), MapVersion(6), ())
OLD = m.MoveRef(Q, Epoch(1), MoveId("0000000001-00000001"), MoveId("0000000001-00000001"))
OTHER = m.MoveRef(Q, Epoch(2), MoveId("0000000002-00000009"), ID)
STRANGE = m.MoveRef(QueryName("other"), Epoch(2), ID, ID)
