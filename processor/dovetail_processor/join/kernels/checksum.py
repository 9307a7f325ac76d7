"""Row hashes for the order-free checksum: each column is folded into one accumulator per row.

    fold(a, w) = m ^ (m >> 32)  with  m = (a ^ w) * PRIME_VALUE     a value of up to 8 bytes
    fold_null(a) = the same with  m = (a + NULL) * PRIME_NULL       a null, whatever lies under it

Both are bijections of `a`, and `fold` is one of `w`: two rows that differ in one value of up to
8 bytes never have equal hashes. Longer values are first folded to a word, from a start that
depends on their length. The reference, a few lines of plain Python, is in
`tests/unit/processor/sinks/test_checksum.py`; changing anything here changes every checksum ever
printed.
"""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np

from dovetail_processor.join.kernels.raw import load_byte, load_long

SEED = np.uint64(0x9E3779B97F4A7C15)
"""Where the accumulator of a row, of a list element and of a struct starts."""

_PRIME_VALUE = np.uint64(0xD6E8FEB86659FD93)
_PRIME_NULL = np.uint64(0xA0761D6478BD642F)
_PRIME_LENGTH = np.uint64(0xE7037ED1A0B428DB)
_NULL = np.uint64(0x8EBC6AF09C88C6E3)
_FINISH_1 = np.uint64(0xFF51AFD7ED558CCD)
_FINISH_2 = np.uint64(0xC4CEB9FE1A85EC53)
_HALF = np.uint64(32)
_FINISH_SHIFT = np.uint64(33)

_u64 = nb.uint64[::1]
_u64_ro = nb.types.Array(nb.uint64, 1, "C", readonly=True)
_i64_ro = nb.types.Array(nb.int64, 1, "C", readonly=True)
_u8_ro = nb.types.Array(nb.uint8, 1, "C", readonly=True)
_bool_ro = nb.types.Array(nb.boolean, 1, "C", readonly=True)


@nb.njit(nb.uint64(nb.uint64, nb.uint64), cache=True, nogil=True, inline="always")
def _fold(a: Any, word: Any) -> Any:
    m = (a ^ word) * _PRIME_VALUE
    return m ^ (m >> _HALF)


@nb.njit(nb.uint64(nb.uint64), cache=True, nogil=True, inline="always")
def _fold_null(a: Any) -> Any:
    m = (a + _NULL) * _PRIME_NULL
    return m ^ (m >> _HALF)


@nb.njit(nb.void(_u64, _u64_ro, _bool_ro), cache=True, nogil=True)
def fold_words(acc: Any, words: Any, valid: Any) -> None:
    """Fold words[r] into acc[r]. `valid` may be empty: all are."""
    if valid.size == 0:
        for r in range(acc.size):
            acc[r] = _fold(acc[r], words[r])
    else:
        for r in range(acc.size):
            acc[r] = _fold(acc[r], words[r]) if valid[r] else _fold_null(acc[r])


@nb.njit(nb.void(_u64, _u64_ro, _bool_ro, nb.uint64, nb.uint64, nb.uint64), cache=True, nogil=True)
def fold_floats(acc: Any, bits: Any, valid: Any, magnitude: Any, infinity: Any, nan: Any) -> None:
    """As `fold_words`, with every NaN taken as `nan`; `magnitude` masks all bits but the sign."""
    for r in range(acc.size):
        if valid.size != 0 and not valid[r]:
            acc[r] = _fold_null(acc[r])
        else:
            acc[r] = _fold(acc[r], nan if (bits[r] & magnitude) > infinity else bits[r])


@nb.njit(nb.void(_u64, _i64_ro, _u8_ro, _bool_ro), cache=True, nogil=True)
def fold_bytes(acc: Any, offsets: Any, data: Any, valid: Any) -> None:
    """Fold data[offsets[r]:offsets[r + 1]] into acc[r], eight bytes at a time, little end first."""
    source = np.int64(data.ctypes.data)
    for r in range(acc.size):
        if valid.size != 0 and not valid[r]:
            acc[r] = _fold_null(acc[r])
            continue
        at, end = offsets[r], offsets[r + 1]
        size = end - at
        value = np.uint64(size) * _PRIME_LENGTH
        while at + 8 <= end:
            value = _fold(value, np.uint64(load_long(source + at, 0)))
            at += 8
        if at < end:
            word = np.uint64(0)
            if size >= 8:  # the last eight bytes, without those that were folded
                word = np.uint64(load_long(source + end - 8, 0)) >> np.uint64(8 * (8 - end + at))
            else:
                for b in range(end - at):
                    word |= np.uint64(load_byte(source + at, b)) << np.uint64(8 * b)
            value = _fold(value, word)
        acc[r] = _fold(acc[r], value)


@nb.njit(nb.void(_u64, _i64_ro, _u64_ro, _bool_ro), cache=True, nogil=True)
def fold_lists(acc: Any, offsets: Any, elements: Any, valid: Any) -> None:
    """Fold the list of element hashes elements[offsets[r]:offsets[r + 1]] into acc[r]."""
    for r in range(acc.size):
        if valid.size != 0 and not valid[r]:
            acc[r] = _fold_null(acc[r])
            continue
        value = np.uint64(offsets[r + 1] - offsets[r]) * _PRIME_LENGTH
        for e in range(offsets[r], offsets[r + 1]):
            value = _fold(value, elements[np.uint64(e)])
        acc[r] = _fold(acc[r], value)


@nb.njit(nb.uint64(_u64_ro), cache=True, nogil=True)
def sum_rows(acc: Any) -> Any:
    """The sum modulo 2**64 of the accumulators, each first mixed so that sums do not cancel."""
    total = np.uint64(0)
    for r in range(acc.size):
        h = acc[r]
        h = (h ^ (h >> _FINISH_SHIFT)) * _FINISH_1
        h = (h ^ (h >> _FINISH_SHIFT)) * _FINISH_2
        total += h ^ (h >> _FINISH_SHIFT)
    return total
