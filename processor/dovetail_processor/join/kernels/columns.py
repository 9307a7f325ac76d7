"""Columns into rows and rows into columns: a copy per column and batch, never per row.

`words` is the arena, `rows_at` holds row addresses (in words), `at` a column's place in a row.
Reference versions, one line each, are in `tests/unit/processor/join/test_join_kernels.py`.
"""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np

from dovetail_processor.join.kernels.heap import heap_next, heap_read, heap_write
from dovetail_processor.join.kernels.raw import WORDS as ARENA
from dovetail_processor.join.kernels.raw import Memory, load, load_long, prefetch, store, store_long

PREFETCH_ROWS = 24  # how far ahead a gather asks for rows: some 100 ns at 4 ns a row

_u32 = nb.uint32[::1]
_u32_ro = nb.types.Array(nb.uint32, 1, "C", readonly=True)
_u64_ro = nb.types.Array(nb.uint64, 1, "C", readonly=True)
_u8_ro = nb.types.Array(nb.uint8, 1, "C", readonly=True)
_i32_ro = nb.types.Array(nb.int32, 1, "C", readonly=True)
_bool_ro = nb.types.Array(nb.boolean, 1, "C", readonly=True)


@nb.njit(nb.types.Tuple((nb.int32[::1], nb.int64[::1]))(_i32_ro, nb.int64), cache=True, nogil=True)
def sort_by_group(group_of: Any, partitions: Any) -> Any:
    """Rows in group order (stable), and where each group starts in it."""
    starts = np.zeros(partitions + 1, np.int64)
    for r in range(group_of.size):
        starts[group_of[r] + 1] += 1
    for g in range(partitions):
        starts[g + 1] += starts[g]
    order = np.empty(group_of.size, np.int32)
    at = starts[:partitions].copy()
    for r in range(group_of.size):
        g = group_of[r]
        order[at[g]] = r
        at[g] += 1
    return order, starts


@nb.njit(
    nb.types.Tuple((nb.int32[::1], nb.int64[::1], nb.int32[::1], nb.uint64[::1]))(
        _i32_ro, _u64_ro, _i32_ro, nb.int64
    ),
    cache=True, nogil=True,
)  # fmt: skip
def in_group_order(group_of: Any, hashes: Any, positions: Any, partitions: Any) -> Any:
    """The rows at `positions` in group order, stable.

    Their positions, where each group starts in them, and their groups and hashes in that order.
    """
    starts = np.zeros(partitions + 1, np.int64)
    for r in range(positions.size):
        starts[group_of[positions[r]] + 1] += 1
    for g in range(partitions):
        starts[g + 1] += starts[g]
    order = np.empty(positions.size, np.int32)
    groups = np.empty(positions.size, np.int32)
    sorted_hashes = np.empty(positions.size, np.uint64)
    at = starts[:partitions].copy()
    for r in range(positions.size):
        row = positions[r]
        g = group_of[row]
        k = at[g]
        order[k] = row
        groups[k] = g
        sorted_hashes[k] = hashes[row]
        at[g] = k + 1
    return order, starts, groups, sorted_hashes


@nb.njit(
    nb.void(Memory, _u32_ro, nb.int64[::1], nb.int64[::1], _i32_ro, nb.int64, nb.int64),
    cache=True, nogil=True,
)  # fmt: skip
def scatter_words(
    m: Any, rows_at: Any, ats: Any, columns: Any, order: Any, first: Any, end: Any
) -> None:
    """Columns of eight bytes, all at once: columns[c][order[r]] to ats[c] of rows first … end − 1.

    `columns` holds addresses of values.
    """
    for r in range(first, end):
        to = m[ARENA] + 4 * np.int64(rows_at[r])
        source = np.int64(order[r])
        for c in range(ats.size):
            store_long(to + 4 * ats[c], 0, load_long(columns[c], source))


@nb.njit(
    nb.void(_u32, _u32_ro, nb.int64, _u32_ro, _i32_ro, nb.int64, nb.int64), cache=True, nogil=True
)
def scatter_4(
    words: Any, rows_at: Any, at: Any, values: Any, order: Any, first: Any, end: Any
) -> None:
    """As `scatter_8`, four bytes."""
    for r in range(first, end):
        words[np.int64(rows_at[r]) + at] = values[order[r]]


@nb.njit(
    nb.void(nb.uint8[::1], _u32_ro, nb.int64, nb.int64, _u8_ro, _i32_ro, nb.int64, nb.int64),
    cache=True, nogil=True,
)  # fmt: skip
def scatter_bytes(
    raw: Any, rows_at: Any, at: Any, width: Any, values: Any, order: Any, first: Any, end: Any
) -> None:
    """As `scatter_8`, `width` bytes; `at` in bytes."""
    for r in range(first, end):
        to = 4 * np.int64(rows_at[r]) + at
        source = np.int64(order[r]) * width
        for b in range(width):
            raw[to + b] = values[source + b]


@nb.njit(
    nb.void(_u32, _u32_ro, nb.int64, nb.int64, _bool_ro, _i32_ro, nb.int64, nb.int64),
    cache=True, nogil=True,
)  # fmt: skip
def scatter_valid(
    words: Any, rows_at: Any, at: Any, bit: Any, valid: Any, order: Any, first: Any, end: Any
) -> None:
    """Clear bit `bit` of each row's validity word where the row is null."""
    mask = np.uint32(1) << np.uint32(bit)
    for r in range(first, end):
        if not valid[order[r]]:
            words[np.int64(rows_at[r]) + at] &= ~mask


@nb.njit(nb.void(_u32, _u32_ro, nb.int64, nb.uint32, nb.int64, nb.int64), cache=True, nogil=True)
def fill_4(words: Any, rows_at: Any, at: Any, value: Any, first: Any, end: Any) -> None:
    """The same four bytes into each row."""
    for r in range(first, end):
        words[np.int64(rows_at[r]) + at] = value


@nb.njit(nb.void(_u32, _i32_ro, _bool_ro, _i32_ro), cache=True, nogil=True)
def add_heap_need(need: Any, offsets: Any, valid: Any, order: Any) -> None:
    """Add to each row named by `order` the words that its text in one column takes."""
    for k in range(order.size):
        r = order[k]
        if valid.size == 0 or valid[r]:
            need[r] += np.uint32((offsets[r + 1] - offsets[r] + 3) // 4)


@nb.njit(
    nb.void(
        Memory, _u32_ro, nb.int64, _u32, _i32_ro, _u8_ro, _bool_ro, _i32_ro, nb.int64, nb.int64
    ),
    cache=True, nogil=True,
)  # fmt: skip
def scatter_text(
    m: Any, rows_at: Any, at: Any, heap_at: Any, offsets: Any, data: Any, valid: Any, order: Any,
    first: Any, end: Any,
) -> None:  # fmt: skip
    """Text to its place at heap_at[r], (address, length) into the row; heap_at moves on."""
    source = data.ctypes.data
    for r in range(first, end):
        value = order[r]
        to = np.int64(rows_at[r]) + at
        size = np.int64(offsets[value + 1]) - np.int64(offsets[value])
        if size == 0 or (valid.size > 0 and not valid[value]):
            store(m[ARENA], to, 0)
            store(m[ARENA], to + 1, 0)
            continue
        place = heap_next(m, np.int64(heap_at[r]))
        store(m[ARENA], to, place)
        store(m[ARENA], to + 1, size)
        heap_at[r] = heap_write(m, place, source + np.int64(offsets[value]), size)


@nb.njit(
    nb.void(Memory, _u32_ro, nb.int64[::1], nb.int64[::1]), cache=True, nogil=True
)  # fmt: skip
def gather_words(m: Any, rows_at: Any, ats: Any, columns: Any) -> None:
    """columns[c][k] = the eight bytes at ats[c] of row rows_at[k]; `columns` holds addresses."""
    rows = rows_at.size
    arena = m[ARENA]
    for c in range(0, ats.size - 1, 2):  # two at a time: half the passes over rows_at
        at0, at1 = 4 * ats[c], 4 * ats[c + 1]
        to0, to1 = columns[c], columns[c + 1]
        for k in range(rows):
            if k + PREFETCH_ROWS < rows:
                prefetch(arena, np.int64(rows_at[k + PREFETCH_ROWS]))
            source = arena + 4 * np.int64(rows_at[k])
            store_long(to0, k, load_long(source + at0, 0))
            store_long(to1, k, load_long(source + at1, 0))
    if ats.size % 2 == 1:
        at0 = 4 * ats[ats.size - 1]
        to0 = columns[ats.size - 1]
        for k in range(rows):
            store_long(to0, k, load_long(arena + 4 * np.int64(rows_at[k]) + at0, 0))


@nb.njit(nb.void(_u32_ro, _u32_ro, nb.int64, nb.uint32[::1]), cache=True, nogil=True)
def gather_4(words: Any, rows_at: Any, at: Any, out: Any) -> None:
    """As `gather_8`, four bytes."""
    for k in range(out.size):
        out[k] = words[np.int64(rows_at[k]) + at]


@nb.njit(nb.void(_u8_ro, _u32_ro, nb.int64, nb.int64, nb.uint8[::1]), cache=True, nogil=True)
def gather_bytes(raw: Any, rows_at: Any, at: Any, width: Any, out: Any) -> None:
    """As `gather_8`, `width` bytes; `at` in bytes."""
    for k in range(rows_at.size):
        source = 4 * np.int64(rows_at[k]) + at
        for b in range(width):
            out[k * width + b] = raw[source + b]


@nb.njit(nb.int64(_u32_ro, _u32_ro, nb.int64, nb.int64, nb.uint8[::1]), cache=True, nogil=True)
def gather_valid(words: Any, rows_at: Any, at: Any, bit: Any, out: Any) -> Any:
    """The validity bits of a column as an Arrow bitmap (out is zeroed); the number of nulls."""
    nulls = 0
    for k in range(rows_at.size):
        if (words[np.int64(rows_at[k]) + at] >> np.uint32(bit)) & np.uint32(1):
            out[k >> 3] |= np.uint8(1 << (k & 7))
        else:
            nulls += 1
    return nulls


@nb.njit(
    nb.void(Memory, _u32_ro, nb.int64, _i32_ro, nb.uint8[::1]), cache=True, nogil=True
)  # fmt: skip
def gather_text(m: Any, rows_at: Any, at: Any, offsets: Any, out: Any) -> None:
    """The text of each row to its place in `out`, which `offsets` gives."""
    to = out.ctypes.data
    for k in range(rows_at.size):
        size = np.int64(offsets[k + 1]) - np.int64(offsets[k])
        if size > 0:
            place = load(m[ARENA], np.int64(rows_at[k]) + at)
            heap_read(m, place, to + np.int64(offsets[k]), size)
