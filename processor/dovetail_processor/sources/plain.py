"""Columns in plain layout: the types that everything behind the sources has to know.

Dictionaries and run-end encodings are decoded, views of text and lists become offsets, extension
types become their storage, at any depth. Structs without fields and the like, which Parquet cannot
hold, are left out. Unions are refused: neither Parquet nor the join holds them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from dovetail_processor.sources.bounds import Bounds
from dovetail_proto.errors import InputError


def plain_type(t: pa.DataType) -> pa.DataType:
    """The plain type that holds the values of `t`. Raises InputError where there is none."""
    if pa.types.is_union(t) or is_hollow(t):
        raise InputError(f"columns of type {t} are not supported", remedy="store them as structs")
    if isinstance(t, pa.BaseExtensionType):
        return plain_type(t.storage_type)
    if pa.types.is_dictionary(t) or pa.types.is_run_end_encoded(t):
        return plain_type(t.value_type)
    if pa.types.is_string_view(t):
        return pa.string()
    if pa.types.is_binary_view(t):
        return pa.binary()
    if pa.types.is_struct(t):
        return pa.struct([plain_field(f) for f in t if not is_hollow(f.type)])
    if pa.types.is_map(t):
        return pa.map_(plain_field(t.key_field), plain_field(t.item_field), t.keys_sorted)
    if pa.types.is_fixed_size_list(t):
        return pa.list_(plain_field(t.value_field), t.list_size)
    if pa.types.is_list(t) or pa.types.is_list_view(t):
        return pa.list_(plain_field(t.value_field))
    if pa.types.is_large_list(t) or pa.types.is_large_list_view(t):
        return pa.large_list(plain_field(t.value_field))
    return t


def is_hollow(t: pa.DataType) -> bool:
    """Whether `t` has no place for a value: no fields, no bytes, or lists of such."""
    if pa.types.is_struct(t):
        return all(is_hollow(f.type) for f in t)
    if pa.types.is_fixed_size_binary(t):
        return bool(t.byte_width == 0)
    if pa.types.is_fixed_size_list(t) and t.list_size == 0:
        return True
    return bool(pa.types.is_nested(t) and hasattr(t, "value_type") and is_hollow(t.value_type))


def plain_field(field: pa.Field) -> pa.Field:
    """`field` with its plain type; metadata is dropped."""
    return pa.field(field.name, plain_type(field.type), field.nullable)


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """`schema` with plain types, without metadata and hollow columns.

    Raises InputError naming the column.
    """
    fields = []
    for field in schema:
        if is_hollow(field.type):
            continue
        try:
            fields.append(plain_field(field))
        except InputError as e:
            raise InputError(f"column {field.name!r}: {e.message}", remedy=e.remedy) from e
    return pa.schema(fields)


def plain_batches(
    batch: pa.RecordBatch, schema: pa.Schema, bounds: Bounds
) -> Iterator[pa.RecordBatch]:
    """The rows of a valid `batch` with the columns of `schema`, all plain.

    Decoding may grow a batch a thousandfold, so it is halved first until what its dictionaries
    will grow to is within `bounds.bytes`.
    """
    if batch.num_rows > 1 and _decoded_text_bytes(batch) > bounds.bytes:
        half = batch.num_rows // 2
        yield from plain_batches(batch.slice(0, half), schema, bounds)
        yield from plain_batches(batch.slice(half), schema, bounds)
    else:
        columns = [plain_array(c, f.type) for c, f in zip(batch.columns, schema, strict=True)]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def plain_array(array: pa.Array, plain: pa.DataType) -> pa.Array:
    """The values of `array` as type `plain`, which is `plain_type` of its type."""
    import pyarrow.compute as pc

    t = array.type
    if t.equals(plain):
        return array
    if isinstance(t, pa.BaseExtensionType):
        return plain_array(array.storage, plain)
    if pa.types.is_dictionary(t):
        return plain_array(array.dictionary_decode(), plain)
    if pa.types.is_run_end_encoded(t):
        return plain_array(pc.run_end_decode(array), plain)
    if pa.types.is_struct(t):
        kept = [i for i, f in enumerate(t) if not is_hollow(f.type)]
        children = [plain_array(array.field(i), f.type) for i, f in zip(kept, plain, strict=True)]
        return pa.StructArray.from_arrays(children, fields=list(plain), mask=_nulls(array))
    if pa.types.is_fixed_size_list(t):
        size = t.list_size
        child = array.values.slice(array.offset * size, len(array) * size)
        child = plain_array(child, plain.value_type)
        return pa.FixedSizeListArray.from_arrays(child, type=plain, mask=_nulls(array))
    if pa.types.is_map(t):
        offsets, first, count = _rebased(array)
        keys = plain_array(array.keys.slice(first, count), plain.key_type)
        items = plain_array(array.items.slice(first, count), plain.item_type)
        return pa.MapArray.from_arrays(offsets, keys, items, plain, mask=_nulls(array))
    if pa.types.is_nested(t):
        return _plain_list(array, plain)
    return _clean_views(array).cast(plain)


def _plain_list(array: pa.Array, plain: pa.DataType) -> pa.Array:
    import pyarrow.compute as pc

    large = pa.types.is_large_list(plain)
    if pa.types.is_list_view(array.type) or pa.types.is_large_list_view(array.type):
        # pyarrow's own cast of list views makes arrays with one offset too few.
        sizes = pc.fill_null(array.value_lengths(), 0).to_numpy().astype(np.int64)
        offsets = pa.array(np.concatenate(([0], np.cumsum(sizes))))
        child = array.flatten()
    else:
        offsets, first, count = _rebased(array)
        child = array.values.slice(first, count)
    offsets = offsets.cast(pa.int64() if large else pa.int32())
    kind = pa.LargeListArray if large else pa.ListArray
    child = plain_array(child, plain.value_type)
    return kind.from_arrays(offsets, child, type=plain, mask=_nulls(array))


_VIEW_BYTES = 16


def _clean_views(array: pa.Array) -> pa.Array:
    """The same text with nothing under nulls: pyarrow's cast would follow what lies there, which
    `validate` does not look at.
    """
    if array.null_count == 0:
        return array
    _, views, *data = array.buffers()
    place = array.offset * _VIEW_BYTES
    rows = np.frombuffer(views, np.uint8, len(array) * _VIEW_BYTES, place).reshape(-1, _VIEW_BYTES)
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    cleaned = pa.py_buffer(np.where(valid[:, None], rows, np.uint8(0)))
    bits = pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(array.type, len(array), [bits, cleaned, *data])


def _rebased(array: pa.Array) -> tuple[pa.Array, int, int]:
    """Offsets from 0 on, and which of the child's values they speak of: first and count."""
    import pyarrow.compute as pc

    offsets = array.offsets
    first = offsets[0].as_py()
    return pc.subtract(offsets, offsets[0]), first, offsets[-1].as_py() - first


def _nulls(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


def _decoded_text_bytes(batch: pa.RecordBatch) -> int:
    """Bytes that the dictionary columns of text will take once decoded."""
    import pyarrow.compute as pc

    total = 0
    for column in batch.columns:
        t = column.type
        if pa.types.is_dictionary(t) and _has_length(t.value_type):
            lengths = pc.binary_length(column.dictionary).take(column.indices)
            total += pc.sum(lengths).as_py() or 0
    return total


def _has_length(t: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(t)
        or pa.types.is_large_string(t)
        or pa.types.is_binary(t)
        or pa.types.is_large_binary(t)
    )
