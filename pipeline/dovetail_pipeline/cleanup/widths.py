"""How many bytes each value of an Arrow column takes, so that repeated rows can be counted."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

OFFSET_BYTES = 4


def fixed_width(t: pa.DataType) -> int | None:
    """Bytes of every value of a type; None if values differ."""
    if isinstance(t, pa.BaseExtensionType):
        return fixed_width(t.storage_type)
    if pa.types.is_null(t):
        return 0
    if pa.types.is_fixed_size_list(t):
        width = fixed_width(t.value_type)
        return None if width is None else width * int(t.list_size)
    if pa.types.is_struct(t):
        widths = [fixed_width(t.field(i).type) for i in range(t.num_fields)]
        return None if None in widths else sum(w for w in widths if w is not None)
    try:
        return max(1, int(t.bit_width) // 8)
    except ValueError:  # text, lists, maps, views
        return None


def value_widths(array: pa.Array) -> NDArray[np.int64]:
    """Bytes of every value with its offset, validity aside; that of a null is not specified."""
    t = array.type
    width = fixed_width(t)
    if width is not None:
        return np.full(len(array), width, np.int64)
    if isinstance(t, pa.BaseExtensionType):
        return value_widths(array.storage)
    if pa.types.is_struct(t):
        total = np.zeros(len(array), np.int64)
        for child in array.flatten():
            total += value_widths(child)
        return total
    if pa.types.is_string_view(t) or pa.types.is_binary_view(t):
        return value_widths(array.cast(pa.large_binary()))
    if pa.types.is_map(t):
        entry = pa.struct([("key", t.key_type), ("value", t.item_type)])
        return value_widths(array.cast(pa.list_(entry)))
    if pa.types.is_nested(t):
        ends = np.concatenate(([0], np.cumsum(value_widths(array.flatten()))))
        lengths = _filled(pc.list_value_length(array))
        places = np.concatenate(([0], np.cumsum(lengths)))
        return np.diff(ends[places]) + OFFSET_BYTES
    return _filled(pc.binary_length(array)) + OFFSET_BYTES


def _filled(lengths: pa.Array) -> NDArray[np.int64]:
    found: NDArray[np.int64] = pc.fill_null(lengths, 0).to_numpy().astype(np.int64)
    return found
