"""Admin requests and answers between plain types and protobuf, field by field as `admin` has them.

Every message of admin.proto is the plain type of its name; how a field is read follows from the
field's type there. So a type or a field that one side lacks shows when this module is imported or
in its test, never as a value that is silently left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from google.protobuf.message import DecodeError, Message

from dovetail_proto import admin
from dovetail_proto.errors import Domain, Refusal
from dovetail_proto.query import PARTITIONS_MAX
from dovetail_proto.v1 import admin_pb2 as pb
from dovetail_proto.wire.control import Spec, read, write
from dovetail_proto.wire.fields import (
    COUNT,
    FLAG,
    NUMBER,
    NUMBERS,
    SCHEMA,
    TEXT,
    Codec,
    optional,
    refuse,
)

ENTRIES_MAX = PARTITIONS_MAX
"""In one list: a query's groups are the longest."""

Plain = TypeVar("Plain")

_BY_TYPE: dict[Any, Codec] = {
    str: TEXT,
    int: COUNT,
    float: NUMBER,
    bool: FLAG,
    bytes: SCHEMA,
    Mapping[str, float]: NUMBERS,
}


def _codec(hint: Any) -> Codec:
    """How a field crosses: as its type says, or by the codec that the type is annotated with."""
    inner = get_args(hint)
    if get_origin(hint) is Annotated:
        return next((mark for mark in inner if isinstance(mark, Codec)), None) or _codec(inner[0])
    if get_origin(hint) is tuple:
        return _many(inner[0])
    if type(None) in inner:
        return optional(_codec(inner[0]))
    return _BY_TYPE[hint]


def _many(kind: type) -> Codec:
    """A list of messages."""

    def read_all(values: Any, where: str) -> tuple[Any, ...]:
        if len(values) > ENTRIES_MAX:
            raise refuse(where, f"{len(values)} entries", f"at most {ENTRIES_MAX}")
        return tuple(read(kind, v, SPECS) for v in values)

    return Codec(read_all, lambda plain: [write(p, SPECS) for p in plain])


def _spec(message: str) -> tuple[type, Spec]:
    kind: type = getattr(admin, message.removesuffix("Request"))
    hints = get_type_hints(kind, include_extras=True)
    return kind, (getattr(pb, message), {name: _codec(hint) for name, hint in hints.items()})


SPECS: dict[type, Spec] = dict(map(_spec, pb.DESCRIPTOR.message_types_by_name))


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
