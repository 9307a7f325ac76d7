"""Arrow columns as NumPy arrays, without copies where Arrow's layout allows it.

These views are what kernels take. They honour an array's offset and length, so slices are fine.
What lies under a null is unspecified.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Array = NDArray[np.generic]


def fixed_view(array: pa.Array) -> NDArray[np.uint8]:
    """The values of a fixed-width, not bit-packed column as bytes of shape [rows, width]."""
    width = array.type.bit_width // 8
    values = array.buffers()[1]
    if len(array) == 0 or values is None:
        return np.zeros((len(array), width), np.uint8)
    raw = np.frombuffer(values, np.uint8, len(array) * width, array.offset * width)
    return raw.reshape(len(array), width)


def word_view(array: pa.Array, dtype: str) -> Array:
    """The values of a fixed-width column as a one-dimensional array of `dtype` of that width."""
    return fixed_view(array).reshape(-1).view(dtype)


def bytes_view(array: pa.Array) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """Offsets (rows + 1) and data of a `string` or `binary` column; offsets index into data."""
    _, offsets, data = array.buffers()
    if len(array) == 0 or offsets is None:
        return np.zeros(len(array) + 1, np.int32), np.zeros(0, np.uint8)
    view = np.frombuffer(offsets, np.int32, len(array) + 1, array.offset * 4)
    return view, np.frombuffer(data, np.uint8) if data else np.zeros(0, np.uint8)


def validity(array: pa.Array) -> NDArray[np.bool_] | None:
    """True where a row is not null; None if no row is."""
    if array.null_count == 0:
        return None
    mask: NDArray[np.bool_] = array.is_valid().to_numpy(zero_copy_only=False)
    return mask
