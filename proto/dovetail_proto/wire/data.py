"""Data-plane messages between plain types and protobuf.

Payloads are opaque here: whoever reads Arrow from one validates it in full before use.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TypeVar, cast

from google.protobuf.message import DecodeError

from dovetail_proto import feeds
from dovetail_proto import messages as m
from dovetail_proto.errors import Domain, Refusal
from dovetail_proto.ids import SplitId
from dovetail_proto.v1 import data_pb2 as pb
from dovetail_proto.wire.control import REF, Spec, read, write
from dovetail_proto.wire.fields import (
    CHUNK,
    COUNT,
    FLAG,
    LOG,
    MOVE,
    NAME_FIELD,
    POSITIVE,
    RUN_NAME,
    SOME_GROUPS,
    SPLIT,
    limited,
    optional,
    refuse,
    whole,
)

BATCH_BYTES_MAX = 64 << 20
"""A coalesced batch is some MiB; 1/16 of a 1 GiB memory limit."""

PART_BYTES = 1 << 20
"""Payload per message of a chunk: grpcio is fast from 256 KiB on and refuses above 4 MiB."""

ROWS_MAX = (1 << 31) - 1

SEGMENTS_MAX = 10**9
"""Files of a log: more than any disk takes."""

READERS = whole(0, (1 << 32) - 1, "a number of queries")

SPECS: dict[type, Spec] = {
    feeds.TupleBatch: (
        pb.TupleBatch,
        {
            "split": SPLIT,
            "first": whole(0, feeds.SEQUENCE_MAX, "a sequence"),
            "offsets": limited(BATCH_BYTES_MAX),
            "size_bytes": whole(1, 2 * BATCH_BYTES_MAX, "a size in bytes"),
            "rows": whole(1, ROWS_MAX, "rows"),
            "payload": limited(BATCH_BYTES_MAX),
        },
    ),
    m.EndOfMovedPartitions: (
        pb.EndOfMovedPartitions,
        {"query": NAME_FIELD, "move": MOVE, "chunk": CHUNK, "split": SPLIT},
    ),
    feeds.EndOfInput: (pb.EndOfInput, {"query": NAME_FIELD, "split": SPLIT}),
    feeds.LinkAck: (
        pb.LinkAck,
        {
            "query": NAME_FIELD,
            "split": SPLIT,
            "number": COUNT,
            "allowed_bytes": COUNT,
            "done_number": COUNT,
        },
    ),
    m.ReceivePartitions: (
        pb.ReceivePartitions,
        {
            "ref": REF,
            "chunk": CHUNK,
            "groups": SOME_GROUPS,
            "size_bytes": COUNT,
            "payload": limited(PART_BYTES),
        },
    ),
    feeds.IngestBatch: (
        pb.IngestBatch,
        {
            "stream": NAME_FIELD,
            "source": NAME_FIELD,
            "sequence": POSITIVE,
            "payload": limited(BATCH_BYTES_MAX),
            "rows_left": optional(COUNT),
            "over": FLAG,
        },
    ),
    feeds.IngestAck: (pb.IngestAck, {"sequence": COUNT, "rows": COUNT, "readers": READERS}),
    feeds.QueryAt: (pb.QueryAt, {"query": NAME_FIELD}),
    feeds.Joined: (pb.Joined, {"rows": COUNT}),
    feeds.ReadResults: (
        pb.ReadResultsRequest,
        {
            "query": NAME_FIELD,
            "log": LOG,
            "segment": COUNT,
            "row": COUNT,
            "follow": FLAG,
            "run": RUN_NAME,
            "rows": COUNT,
            "trimmed": FLAG,
        },
    ),
    feeds.ResultBatch: (
        pb.ResultBatch,
        {"segment": COUNT, "row": COUNT, "payload": limited(BATCH_BYTES_MAX), "ended": FLAG},
    ),
    feeds.LogPiece: (
        pb.LogPiece,
        {
            "query": NAME_FIELD,
            "run": RUN_NAME,
            "log": LOG,
            "segment": whole(0, SEGMENTS_MAX, "a segment"),
            "start": COUNT,
            "size_bytes": POSITIVE,
            "checksum": whole(0, 0xFFFFFFFF, "a checksum"),
            "payload": limited(PART_BYTES),
        },
    ),
}

_ITEMS: dict[str, type[feeds.LinkItem]] = {
    "batch": feeds.TupleBatch,
    "end_of_moved_partitions": m.EndOfMovedPartitions,
    "end_of_input": feeds.EndOfInput,
}
_FIELDS = {kind: name for name, kind in _ITEMS.items()}

Plain = TypeVar("Plain")


def encode_frame(frame: feeds.LinkFrame) -> bytes:
    """One frame of a link."""
    made = pb.LinkFrame(split=frame.split, number=frame.number)
    if frame.item is not None:
        getattr(made, _FIELDS[type(frame.item)]).CopyFrom(write(frame.item, SPECS))
    return made.SerializeToString()


def decode_frame(data: bytes) -> feeds.LinkFrame:
    """A frame; Refusal if it is forged. Only frame 0, the probe, carries nothing."""
    try:
        made = pb.LinkFrame.FromString(data)
    except DecodeError as e:
        raise Refusal(Domain.MESSAGE, f"LinkFrame does not parse: {e}") from e
    COUNT.read(made.number, "LinkFrame.number")
    split = SplitId(SPLIT.read(made.split, "LinkFrame.split"))
    field = made.WhichOneof("item")
    if (field is None) != (made.number == 0):
        raise refuse("LinkFrame.number", made.number, "0 for a probe, above 0 with an item")
    if field is None:
        return feeds.LinkFrame(split, 0, None)
    item = read(_ITEMS[field], getattr(made, field), SPECS)
    if item.split != split:
        raise refuse("LinkFrame.split", split, f"the item's, {item.split!r}")
    return feeds.LinkFrame(split, made.number, item)


def encode(message: object) -> bytes:
    """Any message of `SPECS` on its own."""
    return write(message, SPECS).SerializeToString()


def decode(kind: type[Plain], data: bytes) -> Plain:
    """What `encode` wrote; Refusal of domain `message` if it is forged."""
    try:
        return read(kind, SPECS[kind][0].FromString(data), SPECS)
    except DecodeError as e:
        raise Refusal(Domain.MESSAGE, f"{kind.__name__} does not parse: {e}") from e


def encode_parts(message: m.ReceivePartitions) -> Iterator[bytes]:
    """A chunk in messages below gRPC's size cap: the header first."""
    payload = message.payload
    header = write(replace(message, payload=bytes(payload[:PART_BYTES])), SPECS)
    yield pb.PartitionsPart(header=cast(pb.ReceivePartitions, header)).SerializeToString()
    for start in range(PART_BYTES, len(payload), PART_BYTES):
        part = pb.PartitionsPart(more=bytes(payload[start : start + PART_BYTES]))
        yield part.SerializeToString()


def decode_parts(parts: Iterable[bytes], payload_bytes_max: int) -> m.ReceivePartitions:
    """Put a chunk together; Refusal if it does not start with its header or grows too large."""
    header: m.ReceivePartitions | None = None
    payload = bytearray()
    for data in parts:
        try:
            part = pb.PartitionsPart.FromString(data)
        except DecodeError as e:
            raise Refusal(Domain.MESSAGE, f"PartitionsPart does not parse: {e}") from e
        kind = part.WhichOneof("part")
        if kind == "header" and header is None:
            header = read(m.ReceivePartitions, part.header, SPECS)
            payload += header.payload
        elif kind == "more" and header is not None:
            payload += part.more
        else:
            raise refuse("PartitionsPart.part", kind, "one header, then more of the payload")
        if len(payload) > payload_bytes_max:
            raise refuse(
                "ReceivePartitions.payload", len(payload), f"at most {payload_bytes_max} bytes"
            )
    if header is None:
        raise refuse("PartitionsPart.part", None, "a header")
    return replace(header, payload=bytes(payload))
