"""Admin requests and answers between plain types and protobuf, by the same table of fields."""

from __future__ import annotations

import math
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message

from dovetail_proto import admin as a
from dovetail_proto.errors import Domain, Refusal
from dovetail_proto.query import INPUTS_MAX, PARTITIONS_MAX
from dovetail_proto.v1 import admin_pb2 as pb
from dovetail_proto.wire.control import CHECKSUM, Spec, read, write
from dovetail_proto.wire.fields import (
    COUNT,
    FLAG,
    LOG,
    MOVE,
    NAME_FIELD,
    POSITIVE,
    RUN_NAME,
    SOME_GROUPS,
    TEXT,
    Codec,
    limited,
    optional,
    refuse,
    whole,
)

SQL_CHARS_MAX = 1 << 20
"""Far beyond what a person writes; the planner has its own, smaller bound on words."""

SCHEMA_BYTES_MAX = 1 << 20
"""An Arrow schema of ten thousand columns takes less."""

ENTRIES_MAX = 10_000
"""Processors, streams, queries or events in one message."""

NUMBERS_MAX = 1_000

Plain = TypeVar("Plain")


def _read_sql(value: str, where: str) -> str:
    if not value.strip() or len(value) > SQL_CHARS_MAX:
        raise refuse(where, value, f"SQL of at most {SQL_CHARS_MAX} characters")
    return value


def _read_number(value: float, where: str) -> float:
    if not math.isfinite(value):
        raise refuse(where, value, "a finite number")
    return value


def _read_weights(values: Any, where: str) -> tuple[float, ...]:
    weights = tuple(_read_number(v, where) for v in values)
    if len(weights) > ENTRIES_MAX or any(w < 0 for w in weights):
        raise refuse(where, weights, f"at most {ENTRIES_MAX} weights of 0 or more")
    if weights and not sum(weights):
        raise refuse(where, weights, "weights of which one at least is above 0")
    return weights


def _read_numbers(values: Any, where: str) -> dict[str, float]:
    if len(values) > NUMBERS_MAX:
        raise refuse(where, f"{len(values)} numbers", f"at most {NUMBERS_MAX}")
    return {TEXT.read(k, where): _read_number(v, where) for k, v in values.items()}


def _many(kind: type, bound: int) -> Codec:
    """A list of messages, at most `bound`."""

    def read_all(values: Any, where: str) -> tuple[Any, ...]:
        if len(values) > bound:
            raise refuse(where, f"{len(values)} entries", f"at most {bound}")
        return tuple(read(kind, v, SPECS) for v in values)

    return Codec(read_all, lambda plain: [write(p, SPECS) for p in plain])


SQL = Codec(_read_sql)
NUMBER = Codec(_read_number)
WEIGHTS = Codec(_read_weights, list)
NUMBERS = Codec(_read_numbers, dict)
SCHEMA = limited(SCHEMA_BYTES_MAX)
PARTITION_COUNT = whole(1, PARTITIONS_MAX, "a number of partitions")
GROUP = whole(0, PARTITIONS_MAX - 1, "a group")

SPECS: dict[type, Spec] = {
    a.Everything: (pb.Everything, {}),
    a.CreateStream: (
        pb.CreateStreamRequest,
        {"name": NAME_FIELD, "schema": SCHEMA, "path": TEXT},
    ),
    a.StreamRef: (pb.StreamName, {"name": NAME_FIELD}),
    a.QueryRef: (pb.QueryName, {"name": NAME_FIELD}),
    a.DropQuery: (pb.DropQueryRequest, {"name": NAME_FIELD, "keep": FLAG}),
    a.ProcessorRef: (pb.ProcessorName, {"name": NAME_FIELD}),
    a.Submit: (
        pb.SubmitRequest,
        {
            "name": NAME_FIELD,
            "sql": SQL,
            "partitions": PARTITION_COUNT,
            "weights": WEIGHTS,
            "policy": NAME_FIELD,
            "expected_state_bytes": COUNT,
            "results": TEXT,
            "counting": FLAG,
            "spill": TEXT,
            "victims": TEXT,
            "push_fraction": optional(NUMBER),
            "spill_above_ratio": optional(NUMBER),
            "inactive_after_s": optional(NUMBER),
            "productivity_half_life_s": optional(NUMBER),
        },
    ),
    a.MoveGroups: (
        pb.MoveRequest,
        {"query": NAME_FIELD, "groups": SOME_GROUPS, "to": NAME_FIELD},
    ),
    a.Pin: (pb.PinRequest, {"query": NAME_FIELD, "groups": SOME_GROUPS, "pinned": FLAG}),
    a.Rebalance: (pb.RebalanceRequest, {"query": NAME_FIELD, "dry_run": FLAG}),
    a.SetPolicy: (pb.SetPolicyRequest, {"query": NAME_FIELD, "policy": NAME_FIELD}),
    a.StartCleanup: (
        pb.StartCleanupRequest,
        {"query": NAME_FIELD, "master": TEXT, "output": TEXT, "memory_bytes": POSITIVE},
    ),
    a.CleanupStatus: (
        pb.CleanupStatus,
        {
            "query": NAME_FIELD,
            "state": TEXT,
            "master": TEXT,
            "output": TEXT,
            "stage": TEXT,
            "bins_done": COUNT,
            "bins": COUNT,
            "combinations": COUNT,
            "owed": COUNT,
            "results": COUNT,
            "checksum": CHECKSUM,
            "code": TEXT,
            "cause": TEXT,
            "remedy": TEXT,
            "started_s": NUMBER,
            "ended_s": NUMBER,
        },
    ),
    a.StreamStatus: (
        pb.StreamStatus,
        {
            "name": NAME_FIELD,
            "schema": SCHEMA,
            "rows": COUNT,
            "ended": FLAG,
            "drained": FLAG,
            "home": NAME_FIELD,
            "address": TEXT,
            "path": TEXT,
            "created_s": NUMBER,
        },
    ),
    a.Streams: (pb.Streams, {"streams": _many(a.StreamStatus, ENTRIES_MAX)}),
    a.InputStatus: (pb.InputStatus, {"alias": TEXT, "stream": NAME_FIELD, "rows_in": COUNT}),
    a.InstanceStatus: (
        pb.InstanceStatus,
        {
            "processor": NAME_FIELD,
            "stage": TEXT,
            "groups": COUNT,
            "held_bytes": COUNT,
            "spilled_bytes": COUNT,
            "produced": COUNT,
            "results": COUNT,
            "checksum": CHECKSUM,
            "pushes": COUNT,
            "spilled_groups": COUNT,
            "queued_bytes": COUNT,
            "peak_state_bytes": COUNT,
        },
    ),
    a.LogStatus: (
        pb.LogStatus,
        {"name": LOG, "processor": NAME_FIELD, "address": TEXT, "run": RUN_NAME, "rows": COUNT},
    ),
    a.QueryStatus: (
        pb.QueryStatus,
        {
            "name": NAME_FIELD,
            "state": TEXT,
            "phase": TEXT,
            "cause": TEXT,
            "policy": NAME_FIELD,
            "sql": SQL,
            "schema": SCHEMA,
            "partitions": PARTITION_COUNT,
            "map_version": COUNT,
            "held_bytes": COUNT,
            "spilled_bytes": COUNT,
            "produced": COUNT,
            "results": COUNT,
            "checksum": CHECKSUM,
            "pushes": COUNT,
            "spilled_groups": COUNT,
            "queued_bytes": COUNT,
            "inputs": _many(a.InputStatus, INPUTS_MAX),
            "instances": _many(a.InstanceStatus, ENTRIES_MAX),
            "results_place": TEXT,
            "counting": FLAG,
            "spill": TEXT,
            "push_fraction": NUMBER,
            "spill_above_ratio": NUMBER,
            "inactive_after_s": NUMBER,
            "productivity_half_life_s": NUMBER,
            "created_s": NUMBER,
            "ended_s": NUMBER,
            "logs": _many(a.LogStatus, ENTRIES_MAX),
            "cleanup": _many(a.CleanupStatus, ENTRIES_MAX),
        },
    ),
    a.Queries: (pb.Queries, {"queries": _many(a.QueryStatus, ENTRIES_MAX)}),
    a.ProcessorStatus: (
        pb.ProcessorStatus,
        {
            "name": NAME_FIELD,
            "state": TEXT,
            "cause": TEXT,
            "address": TEXT,
            "incarnation": POSITIVE,
            "memory_limit_bytes": COUNT,
            "used_bytes": COUNT,
            "held_bytes": COUNT,
            "queued_bytes": COUNT,
            "groups": COUNT,
            "rate": NUMBER,
            "rss_bytes": COUNT,
            "peak_rss_bytes": COUNT,
            "cpu_share": NUMBER,
            "heard_s": NUMBER,
        },
    ),
    a.ClusterStatus: (
        pb.ClusterStatus,
        {
            "name": TEXT,
            "epoch": POSITIVE,
            "version": TEXT,
            "started_s": NUMBER,
            "processors": _many(a.ProcessorStatus, ENTRIES_MAX),
        },
    ),
    a.PartitionStatus: (
        pb.PartitionStatus,
        {"group": GROUP, "owner": NAME_FIELD, "since_version": COUNT, "pinned": FLAG},
    ),
    a.Partitions: (
        pb.Partitions,
        {"map_version": COUNT, "partitions": _many(a.PartitionStatus, PARTITIONS_MAX)},
    ),
    a.MoveStatus: (
        pb.MoveStatus,
        {
            "id": MOVE,
            "sender": NAME_FIELD,
            "receiver": NAME_FIELD,
            "phase": TEXT,
            "outcome": TEXT,
            "reason": TEXT,
            "failure": TEXT,
            "groups": COUNT,
            "size_bytes": COUNT,
            "started_s": NUMBER,
            "ended_s": NUMBER,
        },
    ),
    a.Moves: (pb.Moves, {"moves": _many(a.MoveStatus, PARTITIONS_MAX)}),
    a.AdaptationRecord: (
        pb.AdaptationRecord,
        {
            "at_s": NUMBER,
            "policy": NAME_FIELD,
            "decision": TEXT,
            "reason": TEXT,
            "admitted": FLAG,
            "objection": TEXT,
            "numbers": NUMBERS,
            "repeated_times": COUNT,
        },
    ),
    a.Adaptations: (pb.Adaptations, {"adaptations": _many(a.AdaptationRecord, PARTITIONS_MAX)}),
    a.EventsSince: (pb.EventsSince, {"since": COUNT}),
    a.Event: (
        pb.Event,
        {
            "number": POSITIVE,
            "at_s": NUMBER,
            "kind": TEXT,
            "query": TEXT,
            "stream": TEXT,
            "processor": TEXT,
            "move": TEXT,
            "text": TEXT,
        },
    ),
    a.Events: (
        pb.Events,
        {"events": _many(a.Event, ENTRIES_MAX), "last": COUNT, "missed": COUNT},
    ),
}


def to_wire(plain: Any) -> Message:
    """The protobuf form of a request or an answer."""
    return write(plain, SPECS)


def from_wire(kind: type[Plain], message: Message) -> Plain:
    """The plain form, checked; Refusal of domain `message` names the field that is wrong."""
    return read(kind, message, SPECS)


def encode(plain: Any) -> bytes:
    """A request or an answer as bytes."""
    return to_wire(plain).SerializeToString()


def decode(kind: type[Plain], data: bytes) -> Plain:
    """The plain form of bytes from outside; Refusal of domain `message` if they are forged."""
    try:
        message = SPECS[kind][0].FromString(data)
    except DecodeError as e:
        raise Refusal(Domain.MESSAGE, f"{kind.__name__} does not parse: {e}") from e
    return from_wire(kind, message)
