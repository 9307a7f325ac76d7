"""Bodies that come in over REST, as pydantic models; `answers` has what goes out."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from dovetail_proto import admin as a
from dovetail_proto.ids import NAME, OWNER
from dovetail_proto.query import PARTITIONS_DEFAULT, PARTITIONS_MAX
from dovetail_proto.wire.fields import (
    COUNT_MAX,
    SCHEMA_BYTES_MAX,
    SQL_CHARS_MAX,
    TEXT_CHARS_MAX,
    WEIGHTS_MAX,
)

COLUMNS_MAX = 10_000
"""As many as SCHEMA_BYTES_MAX is made for."""

OWN = "if not given, the manager's setting"


def _readable(text: str) -> str:
    text.encode()  # a lone surrogate, which JSON can spell, is no text: UnicodeEncodeError
    if "\0" in text:
        raise ValueError("text must not have null characters")
    return text


Name = Annotated[str, Field(pattern=f"^{NAME.pattern}$", examples=["prices"])]
ProcessorName = Annotated[str, Field(pattern=f"^{OWNER.pattern}$", examples=["p1"])]
Text = Annotated[str, Field(max_length=TEXT_CHARS_MAX), AfterValidator(_readable)]
Sql = Annotated[str, Field(min_length=1, max_length=SQL_CHARS_MAX), AfterValidator(_readable)]
Count = Annotated[int, Field(ge=0, le=COUNT_MAX)]
Group = Annotated[int, Field(ge=0, lt=PARTITIONS_MAX)]
Groups = Annotated[list[Group], Field(min_length=1, max_length=PARTITIONS_MAX)]
Share = Annotated[float, Field(gt=0, le=1)]
Seconds = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
Weight = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
PolicyName = Literal["none", "disk", "distributed", "lazy-disk", "active-disk"]
Victims = Literal["least-productive", "most-productive", "least-recent", "random"]


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
    weights: list[Weight] = Field([], max_length=WEIGHTS_MAX, description="one per processor")
    policy: PolicyName = "lazy-disk"
    expected_state_bytes: Count = Field(0, description="0: not known")
    results: Text = Field("", description="folder for Parquet files; empty: the result logs")
    counting: bool = Field(False, description="count the results only")
    spill: Text = Field(
        "", description="folder or URI for state on disk; empty: below the manager's"
    )
    victims: Victims = "least-productive"
    push_fraction: Share | None = Field(None, description=OWN)
    spill_above_ratio: Share | None = Field(None, description=OWN)
    inactive_after_s: Seconds | None = Field(None, description=OWN)
    productivity_half_life_s: Seconds | None = Field(None, description=f"{OWN}; 0: plain sum")
    keep_results_s: Seconds | None = Field(
        None, description=f"in result logs, or less by the bytes; 0: for ever; {OWN}"
    )
    keep_results_bytes: Count | None = Field(
        None, description=f"of each result log, or less by age; 0: all; {OWN}"
    )

    def plain(self) -> a.Submit:
        """As the manager takes it."""
        return a.Submit(**{**self.model_dump(), "weights": tuple(self.weights)})


class MoveBody(Request):
    """Move groups to a processor."""

    groups: Groups
    to: ProcessorName


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


class CleanupBody(Request):
    """Produce what a closed query owes."""

    master: Text = Field("", description="local, spark or one of the manager's; empty: its choice")
    output: Text = Field("", description="folder or URI; none: only count; empty: the query's own")
    memory_bytes: Annotated[int, Field(ge=1, le=COUNT_MAX)] = a.CLEANUP_BYTES_DEFAULT


class WaitBody(Request):
    """How long to wait at most."""

    timeout_s: Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)] = 60.0
