"""What crosses REST, as pydantic models: requests are checked here, answers are described here.

Answers mirror the plain types of `dovetail_proto.admin` field by field, except that schemas are
lists of columns with the Arrow IPC form beside, and checksums are hexadecimal, since JSON readers
lose integers above 2**53.
"""

from __future__ import annotations

import base64
import math
from typing import Annotated, Any, Literal

import pyarrow as pa
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

from dovetail_manager.admin.rest.schemas import columns_of
from dovetail_proto import admin as a
from dovetail_proto.ids import NAME
from dovetail_proto.query import PARTITIONS_DEFAULT, PARTITIONS_MAX
from dovetail_proto.wire.admin import ENTRIES_MAX, SCHEMA_BYTES_MAX, SQL_CHARS_MAX
from dovetail_proto.wire.fields import COUNT_MAX, TEXT_CHARS_MAX

COLUMNS_MAX = 10_000
"""As many as SCHEMA_BYTES_MAX is made for."""


def _readable(text: str) -> str:
    text.encode()  # a lone surrogate, which JSON can spell, is no text: UnicodeEncodeError
    if "\0" in text:
        raise ValueError("text must not have null characters")
    return text


Name = Annotated[str, Field(pattern=f"^{NAME.pattern}$", examples=["prices"])]
Text = Annotated[str, Field(max_length=TEXT_CHARS_MAX), AfterValidator(_readable)]
Sql = Annotated[str, Field(min_length=1, max_length=SQL_CHARS_MAX), AfterValidator(_readable)]
Count = Annotated[int, Field(ge=0, le=COUNT_MAX)]
Group = Annotated[int, Field(ge=0, lt=PARTITIONS_MAX)]
Groups = Annotated[list[Group], Field(min_length=1, max_length=PARTITIONS_MAX)]
Share = Annotated[float, Field(gt=0, le=1)]
Weight = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
PolicyName = Literal["none", "disk", "distributed", "lazy-disk", "active-disk"]
Victims = Literal["least-productive", "most-productive", "least-recent", "random"]
Checksum = Annotated[int, PlainSerializer(lambda n: f"{n:016x}", return_type=str)]


class Request(BaseModel):
    """A body from outside: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)


class Column(Request):
    """A column by name and type; `text`, `int64`, `timestamp`, `decimal(12,2)` and so on."""

    name: Annotated[str, Field(min_length=1, max_length=1024), AfterValidator(_readable)]
    type: Annotated[str, Field(max_length=64), AfterValidator(_readable)]
    nullable: bool = True


class NewStream(Request):
    """Declare a stream. `schema` is a list of columns, or base64 of an Arrow IPC schema."""

    name: Name
    columns: (
        Annotated[list[Column], Field(min_length=1, max_length=COLUMNS_MAX)]
        | Annotated[str, Field(max_length=SCHEMA_BYTES_MAX * 4 // 3 + 4)]
    ) = Field(alias="schema")
    path: Text = Field("", description="its home reads this file or folder; empty: programs send")


class NewQuery(Request):
    """Start a query over declared streams."""

    name: Name
    sql: Sql
    partitions: int = Field(PARTITIONS_DEFAULT, ge=1, le=PARTITIONS_MAX)
    weights: list[Weight] = Field([], max_length=ENTRIES_MAX, description="one per processor")
    policy: PolicyName = "lazy-disk"
    expected_state_bytes: Count = Field(0, description="0: not known")
    results: Text = Field("", description="folder for Parquet files; empty: the result logs")
    counting: bool = Field(False, description="count the results only")
    spill: Text = Field("", description="folder or URI for state on disk; empty: own data")
    victims: Victims = "least-productive"
    push_share: Share = 0.3
    spill_threshold: Share = 0.8
    inactive_after_s: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] = 60.0

    def plain(self) -> a.Submit:
        """As the manager takes it."""
        return a.Submit(**{**self.model_dump(), "weights": tuple(self.weights)})


class MoveBody(Request):
    """Move groups to a processor."""

    groups: Groups
    to: Name


class PinBody(Request):
    """Keep groups where they are, or let them go again."""

    groups: Groups
    pinned: bool = True


class RebalanceBody(Request):
    """Decide now; with `dry_run`, only tell what would be done."""

    dry_run: bool = False


class PolicyBody(Request):
    """Adapt by another policy from now on."""

    policy: PolicyName


class WaitBody(Request):
    """How long to wait at most."""

    timeout_s: Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)] = 60.0


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
    created_s: float
    ended_s: float


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
