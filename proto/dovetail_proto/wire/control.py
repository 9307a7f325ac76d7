"""Control messages between plain types and protobuf, driven by one table of fields."""

from __future__ import annotations

import re
from typing import Any, TypeVar, cast

from google.protobuf.message import DecodeError, Message

from dovetail_proto import messages as m
from dovetail_proto.errors import Domain, Refusal
from dovetail_proto.handover import handover_from_json
from dovetail_proto.ids import OWNER, ProcessorId
from dovetail_proto.partition_map import MapPatch
from dovetail_proto.query import INPUTS_MAX
from dovetail_proto.v1 import control_pb2 as pb
from dovetail_proto.wire.fields import (
    CHECKSUM,
    CHOSEN_GROUPS,
    CHUNK,
    CHUNK_OR_NONE,
    COUNT,
    FLAG,
    GROUPS,
    MOVE,
    NAME_FIELD,
    OWNER_FIELD,
    OWNER_OR_NONE,
    POSITIVE,
    SIZES,
    SOME_GROUPS,
    SPLITS,
    TEXT,
    Codec,
    one_of,
    optional,
    refuse,
)

ENVELOPE_BYTES_MAX = 16 << 20
"""Three times a patch that moves every group of the largest query, with the longest names. An
assignment is kept within a half of it (`dovetail_manager.assignments`)."""

LOADS_MAX = 10_000
"""Queries, or streams, that one processor reports on."""

ADDRESS_TEXT = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]{1,253}):[0-9]{1,5}")
"""Host and port, as gRPC dials them."""

Plain = TypeVar("Plain")
Spec = tuple[type[Message], dict[str, Codec]]


def write(message: Any, specs: dict[type, Spec]) -> Message:
    """The protobuf form of a plain message."""
    made, fields = specs[type(message)]
    return made(**{name: c.write(getattr(message, name)) for name, c in fields.items()})


def read(kind: type[Plain], message: Any, specs: dict[type, Spec]) -> Plain:
    """The plain form of a protobuf message; Refusal if a field is not what it must be."""
    _, fields = specs[kind]
    where = kind.__name__
    values = {
        n: None
        if c.optional and not message.HasField(n)
        else c.read(getattr(message, n), f"{where}.{n}")
        for n, c in fields.items()
    }
    return kind(**values)


def _read_ref(value: Any, where: str) -> m.MoveRef:
    ref = m.MoveRef(
        NAME_FIELD.read(value.query, f"{where}.query"),
        POSITIVE.read(value.epoch, f"{where}.epoch"),
        MOVE.read(value.move, f"{where}.move"),
        MOVE.read(value.oldest_open, f"{where}.oldest_open"),
    )
    if ref.oldest_open > ref.move:
        raise refuse(f"{where}.oldest_open", ref.oldest_open, f"at most the move {ref.move}")
    return ref


def _write_ref(ref: m.MoveRef) -> pb.MoveRef:
    return pb.MoveRef(query=ref.query, epoch=ref.epoch, move=ref.move, oldest_open=ref.oldest_open)


def _read_patch(value: Any, where: str) -> MapPatch:
    groups = [c.group for c in value.changes]
    GROUPS.read(groups, f"{where}.changes")
    patch = MapPatch(
        NAME_FIELD.read(value.query, f"{where}.query"),
        POSITIVE.read(value.from_version, f"{where}.from_version"),
        POSITIVE.read(value.to_version, f"{where}.to_version"),
        tuple((c.group, OWNER_FIELD.read(c.owner, f"{where}.owner")) for c in value.changes),
    )
    if patch.to_version < patch.from_version:
        raise refuse(f"{where}.to_version", patch.to_version, "after from_version")
    return patch


def _write_patch(patch: MapPatch) -> pb.MapPatch:
    return pb.MapPatch(
        query=patch.query,
        from_version=patch.from_version,
        to_version=patch.to_version,
        changes=[pb.GroupOwner(group=g, owner=p) for g, p in patch.changes],
    )


def _read_loads(values: Any, where: str) -> tuple[m.QueryLoad, ...]:
    if len(values) > LOADS_MAX:
        raise refuse(where, len(values), f"at most {LOADS_MAX} loads")
    return tuple(read(m.QueryLoad, v, SPECS) for v in values)


def _read_stream_loads(values: Any, where: str) -> tuple[m.StreamLoad, ...]:
    if len(values) > LOADS_MAX:
        raise refuse(where, len(values), f"at most {LOADS_MAX} streams")
    return tuple(read(m.StreamLoad, v, SPECS) for v in values)


def _read_rows_in(values: Any, where: str) -> tuple[int, ...]:
    if len(values) > INPUTS_MAX:
        raise refuse(where, len(values), f"at most {INPUTS_MAX} inputs")
    return tuple(COUNT.read(v, where) for v in values)


def _read_address(value: str, where: str) -> str:
    if value and not ADDRESS_TEXT.fullmatch(value):
        raise refuse(where, value, "an address, <host>:<port>")
    return value


def _read_share(value: float, where: str) -> float:
    if not 0 <= value < float("inf"):
        raise refuse(where, value, "a share of 0 or more")
    return value


def _read_handover(value: str, where: str) -> str:
    if value:
        handover_from_json(value)
    return value


def _read_document(value: str, where: str) -> str:
    if not value:
        raise refuse(where, value, "an assignment")
    return value


REF = Codec(_read_ref, _write_ref)
PATCH = Codec(_read_patch, _write_patch)
LOADS = Codec(_read_loads, lambda loads: [write(load, SPECS) for load in loads])
STREAM_LOADS = Codec(_read_stream_loads, lambda loads: [write(load, SPECS) for load in loads])
ADDRESS = Codec(_read_address)
SHARE = Codec(_read_share)
ROWS_IN = Codec(_read_rows_in, list)
DOCUMENT = Codec(_read_document)
HANDOVER = Codec(_read_handover)

SPECS: dict[type, Spec] = {
    m.ComputePartitionsToMove: (
        pb.ComputePartitionsToMove,
        {"ref": REF, "want_bytes": COUNT, "groups": GROUPS, "exclude": GROUPS},
    ),
    m.PartitionsToMove: (
        pb.PartitionsToMove,
        {"ref": REF, "groups": CHOSEN_GROUPS, "sizes": SIZES},
    ),
    m.DeactivatePartitions: (
        pb.DeactivatePartitions,
        {
            "ref": REF,
            "chunk": CHUNK,
            "groups": SOME_GROUPS,
            "sender": OWNER_FIELD,
            "splits": SPLITS,
        },
    ),
    m.Deactivated: (pb.Deactivated, {"ref": REF, "chunk": CHUNK}),
    m.SendPartitions: (
        pb.SendPartitions,
        {"ref": REF, "chunk": CHUNK, "groups": SOME_GROUPS, "receiver": OWNER_FIELD},
    ),
    m.Received: (pb.Received, {"ref": REF, "chunk": CHUNK, "size_bytes": COUNT}),
    m.ReactivatePartitions: (
        pb.ReactivatePartitions,
        {"ref": REF, "chunk": CHUNK, "groups": SOME_GROUPS, "owner": OWNER_FIELD, "patch": PATCH},
    ),
    m.Reactivated: (pb.Reactivated, {"ref": REF, "chunk": CHUNK, "map_version": POSITIVE}),
    m.Reserve: (pb.Reserve, {"ref": REF, "size_bytes": COUNT}),
    m.Reserved: (pb.Reserved, {"ref": REF}),
    m.FinishMove: (pb.FinishMove, {"ref": REF}),
    m.MoveFinished: (pb.MoveFinished, {"ref": REF}),
    m.PushPartitions: (
        pb.PushPartitions,
        {"query": NAME_FIELD, "epoch": POSITIVE, "order": POSITIVE, "size_bytes": POSITIVE},
    ),
    m.Pushed: (
        pb.Pushed,
        {"query": NAME_FIELD, "epoch": POSITIVE, "order": POSITIVE, "size_bytes": COUNT},
    ),
    m.Refused: (
        pb.Refused,
        {
            "ref": REF,
            "chunk": CHUNK_OR_NONE,
            "refused": TEXT,
            "domain": one_of(Domain),
            "message": TEXT,
            "epoch": COUNT,
            "map_version": COUNT,
        },
    ),
    m.Join: (
        pb.Join,
        {
            "processor": OWNER_FIELD,
            "incarnation": POSITIVE,
            "version": TEXT,
            "memory_limit_bytes": POSITIVE,
            "address": ADDRESS,
        },
    ),
    m.QueryLoad: (
        pb.QueryLoad,
        {
            "query": NAME_FIELD,
            "groups": COUNT,
            "held_bytes": COUNT,
            "spilled_bytes": COUNT,
            "produced": COUNT,
            "rows_in": ROWS_IN,
            "results": COUNT,
            "checksum": CHECKSUM,
            "pushes": COUNT,
            "spilled_groups": COUNT,
            "queued_bytes": COUNT,
            "peak_state_bytes": COUNT,
            "pushed_bytes": COUNT,
            "state_limit_bytes": COUNT,
            "stage": one_of(m.Stage),
            "cause": TEXT,
        },
    ),
    m.StreamLoad: (
        pb.StreamLoad,
        {
            "stream": NAME_FIELD,
            "rows": COUNT,
            "ended": FLAG,
            "handover": HANDOVER,
            "rows_left": optional(COUNT),
        },
    ),
    m.Heartbeat: (
        pb.Heartbeat,
        {
            "processor": OWNER_FIELD,
            "incarnation": POSITIVE,
            "used_bytes": COUNT,
            "loads": LOADS,
            "adapting": FLAG,
            "assigned": COUNT,
            "streams": STREAM_LOADS,
            "rss_bytes": COUNT,
            "peak_rss_bytes": COUNT,
            "cpu_share": SHARE,
            "room_bytes": optional(COUNT),
        },
    ),
    m.Heard: (
        pb.Heard,
        {"epoch": POSITIVE, "processor": OWNER_FIELD, "incarnation": POSITIVE, "member": FLAG},
    ),
    m.Assign: (pb.Assign, {"epoch": POSITIVE, "version": POSITIVE, "document": DOCUMENT}),
    m.Leave: (
        pb.Leave,
        {
            "processor": OWNER_FIELD,
            "incarnation": POSITIVE,
            "successor": OWNER_OR_NONE,
            "ends": FLAG,
        },
    ),
    m.StopQuery: (pb.StopQuery, {"query": NAME_FIELD, "epoch": POSITIVE, "cause": TEXT}),
    m.QueryStopped: (pb.QueryStopped, {"query": NAME_FIELD, "epoch": POSITIVE}),
}


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


_PARTS = (m.QueryLoad, m.StreamLoad)
_KINDS = {_snake(kind.__name__): kind for kind in SPECS if kind not in _PARTS}


def encode(source: ProcessorId | None, message: m.ControlMessage) -> bytes:
    """An envelope; `source` is None for the manager."""
    envelope = pb.ControlEnvelope(source=source or "")
    field = _snake(type(message).__name__)
    getattr(envelope, field).CopyFrom(write(message, SPECS))
    return envelope.SerializeToString()


def decode(data: bytes) -> tuple[ProcessorId | None, m.ControlMessage]:
    """The source and the message of an envelope; Refusal of domain `message` if it is forged."""
    if len(data) > ENVELOPE_BYTES_MAX:
        raise refuse("ControlEnvelope", f"{len(data)} bytes", f"at most {ENVELOPE_BYTES_MAX} bytes")
    try:
        envelope = pb.ControlEnvelope.FromString(data)
    except DecodeError as e:
        raise Refusal(Domain.MESSAGE, f"ControlEnvelope does not parse: {e}") from e
    if envelope.source and not OWNER.fullmatch(envelope.source):
        raise refuse("ControlEnvelope.source", envelope.source, "a processor's name")
    field = envelope.WhichOneof("message")
    if field is None:
        raise refuse("ControlEnvelope.message", None, "a message of this version")
    source = ProcessorId(envelope.source) if envelope.source else None
    message: Any = read(_KINDS[field], getattr(envelope, field), SPECS)
    return source, cast(m.ControlMessage, message)
