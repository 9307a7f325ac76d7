"""A planned query: what the planner promises and every processor and clean-up task runs.

    input 0: trades t  ── filter_sql, computed ──▶ kept columns ─┐ key (one name per part)
    input 1: quotes q  ── filter_sql, computed ──▶ kept columns ─┤
                                                                 ▼
                    combinations whose keys are equal, columns named "<input>.<column>"
                                                                 │ residual_sql
                                                                 ▼
                                                   outputs: a column, or an expression

Everything named `*_sql` is an expression in DuckDB's dialect with quoted names; it is evaluated
by `dovetail_processor.expressions`. Plans are plain data: `to_json` and `from_json` round-trip.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from dovetail_proto.errors import SpillError
from dovetail_proto.memory import row_bytes_of

PLAN_VERSION = 1
"""Raised whenever a field changes meaning; a plan of another version is refused."""

PARTITIONS_DEFAULT = 300
"""S4 3.4: far more groups than machines, so that a group is a small unit to push or move."""

PARTITIONS_MAX = 1 << 16
"""65 groups for each of a thousand processors. A message that names every group and its owner takes
some megabytes (`wire.control.ENVELOPE_BYTES_MAX`), and two inputs need 400 MB of memory for so many
groups at their smallest."""

INPUTS_MAX = 64
"""An index slot holds one 4-byte chain head per input and must fit an index page many times."""


@dataclass(frozen=True, slots=True)
class Computed:
    """A column computed below the join, such as a key given by an expression."""

    name: str
    sql: str  # over the stream's columns


@dataclass(frozen=True, slots=True)
class InputPlan:
    """One input of the join: a stream under an alias."""

    alias: str
    stream: str
    stream_schema: pa.Schema  # as the source delivers it, dictionaries decoded
    filter_sql: str | None  # over the stream's columns; rows where it is not true are dropped
    computed: tuple[Computed, ...]
    kept: pa.Schema  # columns held in state, in order: stream columns and computed ones
    key: tuple[str, ...]  # names in `kept`, part by part the same key as in the other inputs


@dataclass(frozen=True, slots=True)
class OutputColumn:
    """One result column: `source` (input, column) if it is a bare column, else `sql`."""

    name: str
    type: pa.DataType
    source: tuple[int, str] | None
    sql: str | None  # over joined columns


@dataclass(frozen=True, slots=True)
class QueryPlan:
    """A query that is ready to run. `key_types[p]` is what part p of the key is compared as."""

    name: str
    sql: str
    inputs: tuple[InputPlan, ...]
    key_types: tuple[pa.DataType, ...]
    partitions: int
    residual_sql: str | None  # over joined columns; combinations where it is not true are dropped
    residual_columns: tuple[tuple[int, str], ...]  # what `residual_sql` reads
    outputs: tuple[OutputColumn, ...]
    output_columns: tuple[tuple[int, str], ...]  # what the `sql` of `outputs` reads

    @property
    def output_schema(self) -> pa.Schema:
        """The schema of the results, in the run and in the clean-up alike."""
        return pa.schema([pa.field(c.name, c.type) for c in self.outputs])

    @property
    def is_bare(self) -> bool:
        """Whether results are the inputs' columns as they are: nothing is left to evaluate."""
        return self.residual_sql is None and all(c.source is not None for c in self.outputs)

    @property
    def row_bytes(self) -> int:
        """About the size of the widest rows: of an input, or of what the join emits."""
        return max(row_bytes_of(s) for s in (*(i.kept for i in self.inputs), self.emitted()[1]))

    def emitted(self) -> tuple[tuple[tuple[int, str], ...], pa.Schema]:
        """What a join emits: the columns of results, or those that they are evaluated from."""
        if self.is_bare:
            return tuple(c.source for c in self.outputs if c.source is not None), self.output_schema
        return self.joined_columns(), self.joined_schema()

    def joined_columns(self) -> tuple[tuple[int, str], ...]:
        """Every (input, column) that results are made from, without repeats, in input order."""
        bare = [c.source for c in self.outputs if c.source is not None]
        return tuple(sorted({*bare, *self.residual_columns, *self.output_columns}))

    def joined_schema(self) -> pa.Schema:
        """Schema of the combinations that the join emits: `joined_columns` under joined names."""
        return pa.schema(
            [
                pa.field(joined_name(i, name), self.inputs[i].kept.field(name).type)
                for i, name in self.joined_columns()
            ]
        )

    def dealt(self, workers: int) -> dict[str, int]:
        """Which of so many workers reads each stream, if they take them in turn.

        The splits of a stream's inputs are where it is read: both, if it is joined to itself.
        """
        streams = dict.fromkeys(i.stream for i in self.inputs)
        return {stream: n % workers for n, stream in enumerate(streams)}

    def readable(self, sql: str) -> str:
        """`sql` over joined columns as people write it: `t.price` for `"0.price"`."""
        for index, name in self.joined_columns():
            quoted = joined_name(index, name).replace('"', '""')
            sql = sql.replace(f'"{quoted}"', f"{self.inputs[index].alias}.{name}")
        return sql

    def to_json(self) -> str:
        """The plan as text: small, readable, schemas as Arrow IPC in base64."""
        return json.dumps(
            {
                "version": PLAN_VERSION,
                "name": self.name,
                "sql": self.sql,
                "partitions": self.partitions,
                "key_types": _types_to_text(self.key_types),
                "residual_sql": self.residual_sql,
                "residual_columns": self.residual_columns,
                "output_columns": self.output_columns,
                "output_types": _types_to_text([c.type for c in self.outputs]),
                "outputs": [
                    {"name": c.name, "source": c.source, "sql": c.sql} for c in self.outputs
                ],
                "inputs": [
                    {
                        "alias": i.alias,
                        "stream": i.stream,
                        "stream_schema": _schema_to_text(i.stream_schema),
                        "filter_sql": i.filter_sql,
                        "computed": [[c.name, c.sql] for c in i.computed],
                        "kept": _schema_to_text(i.kept),
                        "key": i.key,
                    }
                    for i in self.inputs
                ],
            },
            indent=1,
        )


def plan_from_json(text: str) -> QueryPlan:
    """Read what `QueryPlan.to_json` wrote; SpillError if it is of another version or not a plan."""
    try:
        raw: dict[str, Any] = json.loads(text)
        if raw["version"] != PLAN_VERSION:
            raise SpillError(
                f"plan has version {raw['version']}, this Dovetail reads version {PLAN_VERSION}",
                remedy="use the Dovetail that wrote it",
            )
        types = _types_from_text(raw["output_types"])
        return QueryPlan(
            name=raw["name"],
            sql=raw["sql"],
            inputs=tuple(
                InputPlan(
                    alias=i["alias"],
                    stream=i["stream"],
                    stream_schema=_schema_from_text(i["stream_schema"]),
                    filter_sql=i["filter_sql"],
                    computed=tuple(Computed(*c) for c in i["computed"]),
                    kept=_schema_from_text(i["kept"]),
                    key=tuple(i["key"]),
                )
                for i in raw["inputs"]
            ),
            key_types=_types_from_text(raw["key_types"]),
            partitions=raw["partitions"],
            residual_sql=raw["residual_sql"],
            residual_columns=tuple((i, n) for i, n in raw["residual_columns"]),
            outputs=tuple(
                OutputColumn(
                    name=c["name"],
                    type=t,
                    source=None if c["source"] is None else (c["source"][0], c["source"][1]),
                    sql=c["sql"],
                )
                for c, t in zip(raw["outputs"], types, strict=True)
            ),
            output_columns=tuple((i, n) for i, n in raw["output_columns"]),
        )
    except (KeyError, TypeError, ValueError, pa.ArrowInvalid) as e:
        raise SpillError(f"not a query plan: {e}", remedy="restore the file it came from") from e


def joined_name(index: int, column: str) -> str:
    """The name of input `index`'s `column` in a combination."""
    return f"{index}.{column}"


def _schema_to_text(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def _schema_from_text(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def _types_to_text(types: Sequence[pa.DataType]) -> str:
    return _schema_to_text(pa.schema([pa.field(str(i), t) for i, t in enumerate(types)]))


def _types_from_text(text: str) -> tuple[pa.DataType, ...]:
    return tuple(f.type for f in _schema_from_text(text))
