"""Arrow schemas as people write them: a list of columns with type names, or base64 of Arrow IPC."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa

from dovetail_manager.admin.rest.refusals import invalid

TYPES: dict[str, pa.DataType] = {
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint8": pa.uint8(),
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "text": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
}
"""The common types by their names here; `decimal(p,s)` besides. Others come as Arrow IPC."""

_ALSO = {
    "boolean": "bool",
    "smallint": "int16",
    "integer": "int32",
    "int": "int32",
    "bigint": "int64",
    "real": "float32",
    "float": "float32",
    "double": "float64",
    "string": "text",
    "varchar": "text",
    "utf8": "text",
    "bytes": "binary",
    "blob": "binary",
    "date32": "date",
}
"""Names that SQL and Arrow have for the same."""

_DECIMAL = re.compile(r"decimal\(\s*(\d{1,2})\s*,\s*(\d{1,2})\s*\)")

_NAMES = {kind: name for name, kind in TYPES.items()}


class Column(Protocol):
    """What a column is declared by."""

    name: str
    type: str
    nullable: bool


def schema_of(declared: str | Sequence[Column]) -> pa.Schema:
    """The schema that a request declares; Refusal names the column or says what is not IPC."""
    if isinstance(declared, str):
        return _from_base64(declared)
    names = [c.name for c in declared]
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise invalid("schema", f"column {twice[0]!r} is there twice", remedy="name each once")
    return pa.schema([pa.field(c.name, _type(c.type, c.name), c.nullable) for c in declared])


def columns_of(schema: pa.Schema) -> list[dict[str, object]]:
    """A schema as a list of columns; a type without a name here is shown as Arrow shows it."""
    return [
        {"name": f.name, "type": _NAMES.get(f.type, str(f.type)), "nullable": f.nullable}
        for f in schema
    ]


def _type(text: str, column: str) -> pa.DataType:
    name = text.strip().lower()
    if found := TYPES.get(_ALSO.get(name, name)):
        return found
    if match := _DECIMAL.fullmatch(name):
        precision, scale = int(match[1]), int(match[2])
        if 1 <= precision <= 38 and scale <= precision:
            return pa.decimal128(precision, scale)
    raise invalid(
        f"schema: column {column!r}",
        f"{text[:40]!r} is not a type",
        remedy=f"use one of {', '.join(TYPES)}, decimal(p,s), or a schema as base64 of Arrow IPC",
    )


def _from_base64(text: str) -> pa.Schema:
    try:
        data = base64.b64decode(text, validate=True)
        return pa.ipc.read_schema(pa.py_buffer(data))
    except (binascii.Error, pa.ArrowException, OSError, ValueError) as e:
        raise invalid(
            "schema",
            "not base64 of an Arrow IPC schema",
            remedy="send schema.serialize() of pyarrow, or a list of {name, type, nullable}",
        ) from e
