"""The order-free checksum of rows: equal for equal bags of rows, however they were batched.

It is the sum modulo 2**64 of one hash per row, so that sums of parts add up. A row's hash depends
on its values, on which of them are null and on the order of the columns; not on names, offsets,
chunks, nor on what lies under a null. Equal values hash alike in types that differ in layout only:
integers of any width; text and binary with any offsets, views and dictionaries; all kinds of
lists. Floating-point values are compared by their bits, so −0.0 and 0.0 differ, except that
all NaNs are one. The kernels, and the hash itself, are in `join.kernels.checksum`.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail_processor.join.kernels import checksum as kernels
from dovetail_proto.columns import fixed_view, validity

_ALL_VALID = np.zeros(0, np.bool_)
_FLOATS = {  # bytes per value: all bits but the sign, bits of infinity, bits of the one NaN
    2: (0x7FFF, 0x7C00, 0x7E00),
    4: (0x7FFFFFFF, 0x7F800000, 0x7FC00000),
    8: (0x7FFFFFFFFFFFFFFF, 0x7FF0000000000000, 0x7FF8000000000000),
}


def checksum(batch: pa.RecordBatch) -> int:
    """The checksum of the batch's rows, in 0 … 2**64 − 1.

    Any Arrow type but unions; those raise TypeError. The batch must be valid.
    """
    return int(kernels.sum_rows(_hashes(batch.columns, batch.num_rows)))


def _hashes(columns: list[pa.Array], rows: int) -> NDArray[np.uint64]:
    """One accumulator per row, with all columns folded in."""
    acc = np.full(rows, kernels.SEED, np.uint64)
    for column in columns:
        _fold(acc, column)
    return acc


def _fold(acc: NDArray[np.uint64], array: pa.Array) -> None:
    import pyarrow.compute as pc

    t = array.type
    if isinstance(t, pa.BaseExtensionType):
        _fold(acc, array.storage)
    elif pa.types.is_dictionary(t):
        _fold(acc, array.dictionary_decode())
    elif pa.types.is_run_end_encoded(t):
        _fold(acc, pc.run_end_decode(array))
    elif pa.types.is_nested(t):
        _fold_nested(acc, array)
    elif pa.types.is_null(t):
        kernels.fold_words(acc, acc, np.zeros(len(array), np.bool_))
    else:
        _fold_flat(acc, array, _valid(array))


def _fold_flat(acc: NDArray[np.uint64], array: pa.Array, valid: NDArray[np.bool_]) -> None:
    t = array.type
    if pa.types.is_string_view(t) or pa.types.is_binary_view(t):
        array = array.cast(pa.large_binary())
        t = array.type
    if pa.types.is_boolean(t):
        kernels.fold_words(acc, _words(array.cast(pa.uint8()), signed=False), valid)
    elif pa.types.is_floating(t):
        constants = _FLOATS[t.bit_width // 8]
        kernels.fold_floats(acc, _words(array, signed=False), valid, *constants)
    elif pa.types.is_large_string(t) or pa.types.is_large_binary(t):
        kernels.fold_bytes(acc, _offsets(array, np.int64), _data(array), valid)
    elif pa.types.is_string(t) or pa.types.is_binary(t):
        kernels.fold_bytes(acc, _offsets(array, np.int32), _data(array), valid)
    elif t.bit_width <= 64 and not pa.types.is_fixed_size_binary(t):
        signed = not pa.types.is_unsigned_integer(t)
        kernels.fold_words(acc, _words(array, signed=signed), valid)
    else:  # wide decimals, fixed-size binary, intervals of months, days and nanoseconds
        width = t.bit_width // 8
        offsets = np.arange(len(array) + 1, dtype=np.int64) * width
        kernels.fold_bytes(acc, offsets, fixed_view(array).reshape(-1), valid)


def _fold_nested(acc: NDArray[np.uint64], array: pa.Array) -> None:
    import pyarrow.compute as pc

    t = array.type
    valid = _valid(array)
    if pa.types.is_struct(t):
        children = [array.field(i) for i in range(t.num_fields)]
        kernels.fold_words(acc, _hashes(children, len(array)), valid)
    elif pa.types.is_fixed_size_list(t):
        size = t.list_size
        elements = array.values.slice(array.offset * size, len(array) * size)
        offsets = np.arange(len(array) + 1, dtype=np.int64) * size
        kernels.fold_lists(acc, offsets, _hashes([elements], len(elements)), valid)
    elif pa.types.is_list_view(t) or pa.types.is_large_list_view(t):
        sizes = pc.fill_null(array.value_lengths(), 0).to_numpy().astype(np.int64)
        elements = array.flatten()  # of the lists that are not null, in row order
        offsets = np.concatenate(([0], np.cumsum(sizes)))
        kernels.fold_lists(acc, offsets, _hashes([elements], len(elements)), valid)
    elif pa.types.is_list(t) or pa.types.is_large_list(t) or pa.types.is_map(t):
        offsets = _offsets(array, np.int64 if pa.types.is_large_list(t) else np.int32)
        first = int(offsets[0])
        elements = array.values if not pa.types.is_map(t) else _entries(array)
        elements = elements.slice(first, int(offsets[-1]) - first)
        kernels.fold_lists(acc, offsets - first, _hashes([elements], len(elements)), valid)
    else:
        raise TypeError(f"no checksum for a column of type {t}")


def _entries(array: pa.MapArray) -> pa.StructArray:
    """A map's keys and items as structs, all of them, not only those of a slice."""
    return pa.StructArray.from_arrays([array.keys, array.items], ["key", "value"])


def _valid(array: pa.Array) -> NDArray[np.bool_]:
    mask = validity(array)
    return _ALL_VALID if mask is None else mask


def _words(array: pa.Array, *, signed: bool) -> NDArray[np.uint64]:
    """Values of 1, 2, 4 or 8 bytes as words, extended by their sign or by zeros."""
    width = array.type.bit_width // 8
    values = fixed_view(array).reshape(-1).view(f"{'i' if signed else 'u'}{width}")
    words = values.astype(np.int64 if signed else np.uint64, copy=False).view(np.uint64)
    return np.require(words, requirements="A")  # a foreign buffer may lie at any address


def _offsets(array: pa.Array, width: type[np.signedinteger]) -> NDArray[np.int64]:
    buffer = array.buffers()[1]
    if len(array) == 0 or buffer is None:
        return np.zeros(len(array) + 1, np.int64)
    size = np.dtype(width).itemsize
    offsets = np.frombuffer(buffer, width, len(array) + 1, array.offset * size)
    return np.require(offsets.astype(np.int64, copy=False), requirements="A")


def _data(array: pa.Array) -> NDArray[np.uint8]:
    buffer = array.buffers()[2]
    return np.frombuffer(buffer, np.uint8) if buffer else np.zeros(0, np.uint8)
