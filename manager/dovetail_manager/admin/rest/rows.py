"""Rows between HTTP bodies and one Arrow batch of a stream, and results to JSON lines.

Nothing from outside is used before it was checked: messages first (no compression, which could
swell a small body without bound, and no dictionaries, which could do so when decoded), then every
value (`validate(full=True)`), then the schema.
"""

from __future__ import annotations

import base64
import binascii
import json
import struct
from collections.abc import Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dovetail_proto.arrow_bytes import refuse_swelling
from dovetail_proto.errors import InputError

ARROW = "application/vnd.apache.arrow.stream"
JSON = "application/json"
JSON_LINES = "application/x-ndjson"


def batch_from_arrow(body: bytes, schema: pa.Schema) -> pa.RecordBatch:
    """All rows of an Arrow IPC stream as one batch of `schema`; InputError if it is anything else.

    Names and types must be the stream's, in order. A column that the stream declares without nulls
    may be declared with nulls in the body, as long as it has none.
    """
    try:
        refuse_swelling(body, "the body")
        with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
            found = reader.schema
            if found.names != schema.names or found.types != schema.types:
                raise _wrong_columns(_brief(found), schema)
            batches = list(reader)
        for batch in batches:
            batch.validate(full=True)
        whole = pa.concat_batches(batches) if batches else _empty(found)
    except (pa.ArrowException, StopIteration, OSError, ValueError, struct.error) as e:
        raise InputError(
            f"the body is no Arrow IPC stream: {_line(e)}", remedy=f"send one as {ARROW}"
        ) from e
    return _declared(whole.columns, schema)


def batch_from_json(body: bytes, schema: pa.Schema) -> pa.RecordBatch:
    """A list of objects as one batch; a column that an object leaves out is null.

    Dates, times, timestamps and decimals are text in ISO form (decimals also numbers), binary
    columns base64. InputError names the row or the column that does not fit.
    """
    try:
        rows = json.loads(body)
    except (ValueError, RecursionError) as e:
        raise InputError(f"the body is no JSON: {_line(e)}", remedy="send a list of rows") from e
    if not isinstance(rows, list) or not all(isinstance(r, dict) for r in rows):
        raise InputError("the body is not a list of rows", remedy='send [{"column": value, …}, …]')
    known = set(schema.names)
    for number, row in enumerate(rows):
        if unknown := sorted(row.keys() - known):
            raise _wrong_columns(f"{unknown[0]!r} in row {number}", schema)
    return _declared([_column([r.get(f.name) for r in rows], f) for f in schema], schema)


def json_lines(batch: pa.RecordBatch, rows_at_once: int = 4096) -> Iterator[bytes]:
    """The rows as lines of JSON, some thousand per piece, so that no batch is held as objects.

    Times are in ISO form, decimals text, binary base64; NaN and infinities are null.
    """
    batch = pa.RecordBatch.from_arrays([_readable(c) for c in batch.columns], batch.schema.names)
    for start in range(0, batch.num_rows, rows_at_once):
        lines = []
        for row in batch.slice(start, rows_at_once).to_pylist():
            lines.append(json.dumps({k: _plain(v) for k, v in row.items()}, separators=(",", ":")))
        yield ("\n".join(lines) + "\n").encode()


def _declared(columns: list[pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    for field, column in zip(schema, columns, strict=True):
        if not field.nullable and column.null_count:
            raise InputError(
                f"column {field.name!r} has nulls, and the stream declares it without",
                remedy="leave such rows out",
            )
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)


def _column(values: list[Any], field: pa.Field) -> pa.Array:
    kind = field.type
    try:
        if pa.types.is_temporal(kind) or pa.types.is_decimal(kind):
            # Arrow reads their text; numbers would be counts since an epoch, in whatever unit.
            return pa.array([_text(v) for v in values], pa.string()).cast(kind)
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            values = [None if v is None else base64.b64decode(v, validate=True) for v in values]
        made = pa.array(values, kind)
        made.validate(full=True)
    except (pa.ArrowException, ValueError, TypeError, OverflowError, binascii.Error) as e:
        raise InputError(
            f"column {field.name!r}: {_line(e)}", remedy=f"send values of its type, {kind}"
        ) from e
    return made


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is not text")
    return str(value)


def _readable(column: pa.Array) -> pa.Array:
    """Timestamps as text: Python's have no nanoseconds, and other zones may be unknown here."""
    if not pa.types.is_timestamp(column.type):
        return column
    if column.type.tz is not None:
        column = column.cast(pa.timestamp(column.type.unit, "UTC"))
    return pc.replace_substring(column.cast(pa.string()), " ", "T", max_replacements=1)


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal | timedelta):
        return str(value)
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value


def _wrong_columns(found: str, schema: pa.Schema) -> InputError:
    return InputError(
        f"the body has {found}; the stream has ({_brief(schema)})",
        remedy="send the columns of the declared schema, in order",
    )


def _brief(schema: pa.Schema) -> str:
    text = ", ".join(f"{f.name} {f.type}" for f in schema)
    return text if len(text) <= 300 else text[:297] + "..."


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
