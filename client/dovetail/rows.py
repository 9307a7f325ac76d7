"""Rows as people have them to batches as a stream takes them.

Arrow tables, batches and readers, pandas and Polars frames, and whatever else speaks Arrow's C
stream interface, are brought into the declared schema: columns by name, encodings (dictionaries,
views, large offsets) undone, nothing else converted. Batches are cut to a size that travels well.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from dovetail_proto.errors import InputError
from dovetail_proto.wire.data import BATCH_BYTES_MAX

CUT_ROWS = 64 << 10
"""What the join's kernels are measured with."""

CUT_BYTES = 2 << 20
"""grpcio is fast from 256 KiB on; a processor reads files in batches of this size too."""

ENVELOPE_BYTES = 64 << 10
"""Room for the schema and the envelope beside the rows of a message."""


def batches_of(data: Any, schema: pa.Schema, stream: str) -> Iterator[pa.RecordBatch]:
    """`data` as batches of `schema`, small enough to send; InputError says what does not fit."""
    for batch in _read(data, schema, stream):
        for start in range(0, batch.num_rows, CUT_ROWS):  # first: undoing an encoding may swell
            fitted = _fit(batch.slice(start, CUT_ROWS), schema, stream)
            yield from _cut(fitted, stream)


def _read(data: Any, schema: pa.Schema, stream: str) -> Iterator[pa.RecordBatch]:
    if isinstance(data, pa.RecordBatch):
        yield data
    elif isinstance(data, pa.Table):
        yield from data.to_batches()
    elif isinstance(data, pa.RecordBatchReader):
        yield from data
    elif type(data).__module__.partition(".")[0] == "pandas":
        yield from _from_pandas(data, schema, stream).to_batches()
    elif hasattr(data, "__arrow_c_stream__"):
        yield from pa.RecordBatchReader.from_stream(data)
    else:
        raise InputError(
            f"stream {stream!r}: rows cannot come as {type(data).__name__}",
            remedy="send an Arrow table, batch or reader, or a pandas or Polars frame",
        )


def _from_pandas(frame: Any, schema: pa.Schema, stream: str) -> pa.Table:
    # pandas has no integers with gaps and one kind of time: the declared types decide.
    _check_names([str(c) for c in frame.columns], schema, stream)
    try:
        return pa.Table.from_pandas(frame, schema=schema, preserve_index=False)
    except (pa.ArrowException, TypeError, ValueError) as e:
        raise InputError(
            f"stream {stream!r}: the frame does not fit ({_brief(schema)}): {e}",
            remedy="convert its columns with astype",
        ) from e


def _fit(batch: pa.RecordBatch, schema: pa.Schema, stream: str) -> pa.RecordBatch:
    """The batch with the declared columns, in order."""
    _check_names(batch.schema.names, schema, stream)
    columns = []
    for field in schema:
        column = batch.column(field.name)
        if column.type != field.type:
            if _undone(column.type) != _undone(field.type) and not pa.types.is_null(column.type):
                raise _wrong(batch.schema, schema, stream)
            try:
                column = column.cast(field.type)
            except pa.ArrowException as e:
                raise InputError(f"stream {stream!r}: column {field.name!r}: {e}") from e
        if not field.nullable and column.null_count:
            raise InputError(
                f"stream {stream!r}: column {field.name!r} has nulls but is declared without",
                remedy="leave those rows out, or declare it nullable",
            )
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _check_names(found: list[str], schema: pa.Schema, stream: str) -> None:
    if sorted(found) != sorted(schema.names):
        missing = [n for n in schema.names if n not in found]
        extra = [n for n in found if n not in schema.names]
        what = [
            *([f"without {', '.join(missing)}"] if missing else []),
            *([f"with {', '.join(extra)}"] if extra else []),
        ]
        raise InputError(
            f"stream {stream!r}: rows {' and '.join(what) or 'with a column twice'} do not have "
            f"the declared columns ({_brief(schema)})",
            remedy="send the columns of the declared schema",
        )


def _wrong(found: pa.Schema, schema: pa.Schema, stream: str) -> InputError:
    return InputError(
        f"a batch for {stream!r}: its columns are ({_brief(found)}), not ({_brief(schema)})",
        remedy="send the columns of the declared schema; cast the ones that differ",
    )


def _undone(kind: pa.DataType) -> pa.DataType:
    """The type without its encoding."""
    if pa.types.is_dictionary(kind):
        return _undone(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_large_list(kind):
        return pa.list_(_undone(kind.value_type))
    if pa.types.is_list(kind):
        return pa.list_(_undone(kind.value_type))
    return kind


def _cut(batch: pa.RecordBatch, stream: str) -> Iterator[pa.RecordBatch]:
    """Parts of at most CUT_BYTES bytes, or of a single row."""
    left = [batch]
    while left:
        part = left.pop()
        if part.num_rows > 1 and part.nbytes > CUT_BYTES:
            half = part.num_rows // 2
            left += [part.slice(half), part.slice(0, half)]
        elif part.nbytes > BATCH_BYTES_MAX - ENVELOPE_BYTES:
            raise InputError(
                f"stream {stream!r}: a row has {part.nbytes} bytes, more than "
                f"{BATCH_BYTES_MAX - ENVELOPE_BYTES}",
                remedy="send large values by reference",
            )
        else:
            yield part


def _brief(schema: pa.Schema) -> str:
    text = ", ".join(f"{f.name} {f.type}" for f in schema)
    return text if len(text) <= 300 else text[:297] + "..."
