"""What REST answers, as pydantic models; `bodies` has what comes in.

They mirror the plain types of `dovetail_proto.admin` field by field, except that schemas are lists
of columns with the Arrow IPC form beside, and checksums are hexadecimal, since JSON readers lose
integers above 2**53.
"""

from __future__ import annotations

import base64
import math
from typing import Annotated, Any

import pyarrow as pa
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

from dovetail_manager.admin.rest.schemas import columns_of

Checksum = Annotated[int, PlainSerializer(lambda n: f"{n:016x}", return_type=str)]


class Answer(BaseModel):
    """What a verb answers; read from a plain type by its attributes."""

    model_config = ConfigDict(from_attributes=True, populate_by_name=True)


def _columns(value: Any) -> Any:
    if isinstance(value, bytes):
        return columns_of(pa.ipc.read_schema(pa.py_buffer(value))) if value else []
    return value


def _base64(value: Any) -> Any:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


class ColumnOut(Answer):
    """A column; a type that has no short name is spelled as Arrow does."""

    name: str
    type: str
    nullable: bool


Columns = Annotated[list[ColumnOut], BeforeValidator(_columns)]
ArrowSchema = Annotated[str, BeforeValidator(_base64)]


class Stream(Answer):
    """A stream and how far it has come."""

    name: str
    columns: Columns = Field(validation_alias="schema", serialization_alias="schema")
    arrow_schema: ArrowSchema = Field(validation_alias="schema", description="Arrow IPC, base64")
    rows: int
    ended: bool
    drained: bool
    home: str
    address: str = Field(description="of its home; empty while the home is away")
    path: str
    created_s: float


class Streams(Answer):
    """All streams, by name."""

    streams: list[Stream]


class Input(Answer):
    """One input of a query."""

    alias: str
    stream: str
    rows_in: int


class Instance(Answer):
    """The part of a query on one processor."""

    processor: str
    stage: str
    groups: int
    held_bytes: int
    spilled_bytes: int
    produced: int
    results: int
    checksum: Checksum
    pushes: int
    spilled_groups: int
    queued_bytes: int
    peak_state_bytes: int


class Log(Answer):
    """A log of results, and the processor that writes or keeps it."""

    name: str
    processor: str
    address: str = Field(description="empty while the processor is away")
    run: str = Field(description="tells it from a log of another query that had the same name")
    rows: int = Field(description="in it, once the query is closed; 0 until then")


class Cleanup(Answer):
    """A clean-up; `cause` and `remedy` say why it failed, if it did."""

    query: str
    state: str = Field(description="running, done, failed or cancelled")
    master: str
    output: str = Field(description="empty: results are only counted")
    stage: str
    bins_done: int
    bins: int
    combinations: int = Field(description="made so far, before conditions that span inputs")
    owed: int = Field(description="0 while it is not known")
    results: int = Field(description="rows, once it is done")
    checksum: Checksum
    code: str
    cause: str
    remedy: str
    started_s: float
    ended_s: float


class Query(Answer):
    """A query; `cause` says why it failed, if it did."""

    name: str
    state: str
    phase: str
    cause: str
    policy: str
    sql: str
    columns: Columns = Field(validation_alias="schema", serialization_alias="schema")
    arrow_schema: ArrowSchema = Field(validation_alias="schema", description="Arrow IPC, base64")
    partitions: int
    map_version: int
    held_bytes: int
    spilled_bytes: int
    produced: int
    results: int
    checksum: Checksum
    pushes: int
    spilled_groups: int
    queued_bytes: int
    inputs: list[Input]
    instances: list[Instance]
    results_place: str
    counting: bool
    spill: str
    push_fraction: float
    spill_above_ratio: float
    inactive_after_s: float
    productivity_half_life_s: float
    created_s: float
    ended_s: float
    logs: list[Log]
    cleanup: list[Cleanup] = Field(description="the latest one, if there was one")


class Queries(Answer):
    """All queries, by name."""

    queries: list[Query]


class Processor(Answer):
    """A member of the cluster, or one that has been."""

    name: str
    state: str
    cause: str
    address: str
    incarnation: int
    memory_limit_bytes: int
    used_bytes: int
    held_bytes: int
    queued_bytes: int
    groups: int
    rate: float
    rss_bytes: int
    peak_rss_bytes: int
    cpu_share: float
    heard_s: float


class Cluster(Answer):
    """The manager's term and its processors."""

    name: str
    epoch: int
    version: str
    started_s: float
    processors: list[Processor]


class Partition(Answer):
    """Who owns a group, and since which version of the map."""

    group: int
    owner: str
    since_version: int
    pinned: bool


class Partitions(Answer):
    """The partition map of a query."""

    map_version: int
    partitions: list[Partition]


class Move(Answer):
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


class Moves(Answer):
    """The moves of a query, newest first."""

    moves: list[Move]


def _finite(numbers: Any) -> Any:
    # A ratio to nothing is infinite, and JSON has no word for it.
    return {name: value if math.isfinite(value) else None for name, value in numbers.items()}


class Adaptation(Answer):
    """A decision with the numbers that led to it, or why nothing was done."""

    at_s: float
    policy: str
    decision: str
    reason: str
    admitted: bool
    objection: str
    numbers: Annotated[dict[str, float | None], BeforeValidator(_finite)]
    repeated_times: int


class Adaptations(Answer):
    """The decisions about a query, newest first."""

    adaptations: list[Adaptation]


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
