"""What REST answers, as pydantic models; `bodies` has what comes in.

The answers of verbs are made from the plain types of `dovetail_proto.admin`, with the same fields
and their notes, except that a schema is a list of columns with the Arrow IPC form beside, checksums
are hexadecimal, since JSON readers lose integers above 2**53, and a number that is not finite is
null.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pyarrow as pa
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, create_model

from dovetail_manager.admin.rest.schemas import columns_of
from dovetail_proto import admin as a
from dovetail_proto.wire.fields import CHECKSUM


class Answer(BaseModel):
    """What a verb answers; read from a plain type by its attributes."""

    model_config = ConfigDict(from_attributes=True, populate_by_name=True)


class ColumnOut(Answer):
    """A column; a type that has no short name is spelled as Arrow does."""

    name: str
    type: str
    nullable: bool


def _columns(value: Any) -> Any:
    if isinstance(value, bytes):
        return columns_of(pa.ipc.read_schema(pa.py_buffer(value))) if value else []
    return value


def _base64(value: Any) -> Any:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def _finite(numbers: Any) -> Any:
    # A ratio to nothing is infinite, and JSON has no word for it.
    return {name: value if math.isfinite(value) else None for name, value in numbers.items()}


Columns = Annotated[list[ColumnOut], BeforeValidator(_columns)]
ArrowSchema = Annotated[str, BeforeValidator(_base64)]
Checksum = Annotated[int, PlainSerializer(lambda n: f"{n:016x}", return_type=str)]
Numbers = Annotated[dict[str, float | None], BeforeValidator(_finite)]


@cache
def _model(kind: type) -> type[Answer]:
    """The answer for a plain type, by its name less what tells it from a thing."""
    fields: dict[str, Any] = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        inner, *marks = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        note = next((mark for mark in marks if isinstance(mark, str)), None)
        if inner is bytes:
            fields["columns"] = Columns, Field(validation_alias=name, serialization_alias=name)
            form = Field(validation_alias=name, description="Arrow IPC, base64")
            fields[f"arrow_{name}"] = ArrowSchema, form
        else:
            fields[name] = Checksum if CHECKSUM in marks else _type(inner), Field(description=note)
    title = kind.__name__.removesuffix("Status").removesuffix("Record")
    return create_model(title, __base__=Answer, __doc__=kind.__doc__, **fields)


def _type(hint: Any) -> Any:
    if get_origin(hint) is tuple:
        return list[_model(get_args(hint)[0])]  # type: ignore[misc] # made just now
    return Numbers if hint == Mapping[str, float] else hint


Stream = _model(a.StreamStatus)
Streams = _model(a.Streams)
Query = _model(a.QueryStatus)
Queries = _model(a.Queries)
Cleanup = _model(a.CleanupStatus)
Processor = _model(a.ProcessorStatus)
Cluster = _model(a.ClusterStatus)
Partitions = _model(a.Partitions)
Move = _model(a.MoveStatus)
Moves = _model(a.Moves)
Adaptations = _model(a.Adaptations)


class Taken(Answer):
    """What became of a batch: its source and sequence, and the stream's rows so far."""

    source: str
    sequence: int
    rows: int = Field(description="in this batch")
    stream_rows: int = Field(description="of the stream so far")
    readers: int = Field(description="queries that have taken the rows in; 0: they went nowhere")


class Waited(Answer):
    """All that the query's streams had taken in is joined."""

    rows: int


class Error(BaseModel):
    """Every error; `code` is stable, `remedy` says what to do."""

    code: str
    message: str
    details: dict[str, Any]
    remedy: str
    domain: str | None = None


class Health(BaseModel):
    """How the manager is."""

    status: str
