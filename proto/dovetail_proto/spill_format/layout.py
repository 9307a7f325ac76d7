"""How the rows of one input lie in a Parquet file: schema, encodings, and which leaves are whose.

Measured for rows of three 8-byte columns in row groups of 2 500 and 30 000 rows, one core: plain
pages without dictionary or compression are written at 15 to 22 M rows/s and read at 30 to 50;
LZ4 on numbers costs a third of both and saves a quarter of the bytes, dictionaries cost half.
On text LZ4 costs little and halves the bytes. So text and binary are LZ4, numbers plain. The two
constant columns vanish under LZ4, faster than by dictionary or delta encoding. Columns that cannot
be null (the key's, the constant ones) are declared so, which spares their levels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dovetail_proto.errors import SpillError
from dovetail_proto.query import InputPlan

PARQUET_MAGIC = b"PAR1"
GROUP_COLUMN = "__group"
GENERATION_COLUMN = "__generation"

ROW_GROUP_BYTES = 256 << 10
"""Rows are cut into row groups of this Arrow size, wherever groups begin. A row group costs 0.1 ms
to write and half of that to read, as much as a hundred thousand bytes; a reader that wants a
stretch of hashes reads half a row group too much at both of its ends."""

WIDE_COLUMNS, WIDE_TIMES_MAX = 256, 3
"""Row groups of files with twice so many columns are twice as large, and so on to three times. A
column chunk costs some 10 µs and 2 KB of memory until its file is closed: 1 000 columns in row
groups of 256 KB, 20 rows each, took 18 s to push 220 MB, and 180 MB of memory."""

ROW_GROUP_BYTES_MAX = 1 << 20
"""Where rows differ so much in size that one would be larger than this, it is cut further, so that
a reader never needs more at once, a single row aside."""

_CONSTANT = (GROUP_COLUMN, GENERATION_COLUMN)


@dataclass(frozen=True, slots=True)
class InputLayout:
    """The file layout of one input."""

    kept: pa.Schema
    key: tuple[str, ...]
    file_schema: pa.Schema
    leaves: dict[str, tuple[int, ...]]  # leaf columns of each kept column, by position in the file
    leaf_count: int
    options: dict[str, Any]  # for pq.ParquetWriter

    def schema_of(self, columns: Sequence[str]) -> pa.Schema:
        """Some columns of a file, the kept ones with their kept types."""
        return pa.schema(
            [(self.file_schema if n in _CONSTANT else self.kept).field(n) for n in columns]
        )


def input_layout(plan: InputPlan) -> InputLayout:
    """The layout for an input's kept columns; SpillError if Parquet cannot hold one of them."""
    taken = [n for n in plan.kept.names if n in _CONSTANT]
    if taken:
        raise SpillError(
            f"input {plan.alias!r}: column {taken[0]!r} has a name that the spill format uses",
            remedy="rename the column in the stream",
        )
    fields = [f.with_nullable(f.name not in plan.key) for f in plan.kept]
    fields += [pa.field(n, pa.int32(), nullable=False) for n in _CONSTANT]
    schema = pa.schema(fields)
    probe = pa.BufferOutputStream()
    try:
        pq.write_table(schema.empty_table(), probe)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as e:
        raise SpillError(
            f"input {plan.alias!r}: a kept column cannot be written as Parquet: {e}",
            remedy="cast it in the stream or leave it out of the query",
        ) from e
    parquet = pq.read_metadata(pa.BufferReader(probe.getvalue())).schema
    columns = [parquet.column(i) for i in range(len(parquet.names))]
    packed = [c.path for c in columns if c.physical_type == "BYTE_ARRAY"]
    leaves: dict[str, tuple[int, ...]] = {}
    at = 0
    for f in schema:
        count = _leaf_count(f.type)
        leaves[f.name] = tuple(range(at, at + count))
        at += count
    if at != len(columns):  # a type whose leaves we do not know would shift its neighbours
        raise SpillError(f"input {plan.alias!r}: unexpected Parquet layout of {schema}")
    return InputLayout(
        kept=plan.kept,
        key=plan.key,
        file_schema=schema,
        leaves=leaves,
        leaf_count=at,
        options={
            "use_dictionary": False,
            "compression": dict.fromkeys([*packed, *_CONSTANT], "lz4"),
            "write_statistics": list(_CONSTANT),
            "write_page_checksum": True,
            "store_schema": True,
        },
    )


def _leaf_count(t: pa.DataType) -> int:
    if isinstance(t, pa.BaseExtensionType):
        return _leaf_count(t.storage_type)
    if pa.types.is_dictionary(t):
        return _leaf_count(t.value_type)
    if pa.types.is_struct(t):
        return sum(_leaf_count(t.field(i).type) for i in range(t.num_fields))
    if pa.types.is_map(t):
        return _leaf_count(t.key_type) + _leaf_count(t.item_type)
    if (
        pa.types.is_list(t)
        or pa.types.is_large_list(t)
        or pa.types.is_fixed_size_list(t)
        or pa.types.is_list_view(t)
        or pa.types.is_large_list_view(t)
    ):
        return _leaf_count(t.value_type)
    return 1
