"""The one hash: which group a key belongs to, in every process and at any time.

A key is brought to its canonical form (parts widened to their common type, −0.0 as 0.0, one NaN)
and hashed to 64 bits. A key of one part of at most eight bytes is hashed by a bijection, so that
equal hashes mean equal keys; any other key also has canonical bytes to compare. The group of a
hash is `(hash >> 32) * P >> 32`: group g owns a contiguous range of hashes, and no division is
needed. Changing anything here orphans spilled state: `tests/unit/proto/test_partitioning.py` holds
fixed vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numba as nb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail_proto.columns import bytes_view, fixed_view, validity, word_view
from dovetail_proto.kernel_cache import keep_kernels_of
from dovetail_proto.key_casts import as_key_type
from dovetail_proto.key_types import fits_word, is_bijective

keep_kernels_of([Path(__file__)])


@dataclass(frozen=True, slots=True)
class Keys:
    """The canonical keys of a batch, row by row."""

    hashes: NDArray[np.uint64]  # meaningless where not valid
    valid: NDArray[np.bool_] | None  # None: all are; a null in any part never matches
    offsets: NDArray[np.int64] | None  # rows + 1, into data; None where the hash is a bijection
    data: NDArray[np.uint8] | None  # canonical bytes of the keys

    def take(self, positions: NDArray[Any]) -> Keys:
        """The keys of the rows at some positions."""
        valid = None if self.valid is None or self.valid[positions].all() else self.valid[positions]
        if self.offsets is None or self.data is None:
            return Keys(self.hashes[positions], valid, None, None)
        buffers = [None, pa.py_buffer(self.offsets), pa.py_buffer(self.data)]
        whole = pa.Array.from_buffers(pa.large_binary(), self.hashes.size, buffers)
        _, offsets, data = whole.take(pa.array(positions)).buffers()
        return Keys(
            self.hashes[positions],
            valid,
            np.frombuffer(offsets, np.int64, positions.size + 1),
            np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8),
        )


def canonical_keys(columns: Sequence[pa.Array], key_types: Sequence[pa.DataType]) -> Keys:
    """Hash the key whose parts are `columns`, each compared as its `key_types`."""
    parts = [as_key_type(c, t) for c, t in zip(columns, key_types, strict=True)]
    valid: NDArray[np.bool_] | None = None
    for part in parts:
        mask = validity(part)
        if mask is not None:
            valid = mask if valid is None else valid & mask
    if is_bijective(key_types):
        return Keys(_mix_words(_words(parts[0])), valid, None, None)
    offsets, data = _key_bytes(parts)
    return Keys(_hash_bytes(offsets, data), valid, offsets, data)


def partition_ids(hashes: NDArray[np.uint64], partitions: int) -> NDArray[np.int32]:
    """The group of each hash, in 0 … partitions − 1."""
    return _scale(hashes, partitions)


def _words(column: pa.Array) -> NDArray[np.uint64]:
    """A part of at most eight bytes as one word: sign-extended, floats as canonical float64."""
    t = column.type
    if pa.types.is_boolean(t):
        return word_view(column.cast(pa.uint8()), "u1").astype(np.uint64)
    if pa.types.is_floating(t):
        wide = word_view(column, f"f{t.bit_width // 8}").astype(np.float64) + 0.0
        wide[np.isnan(wide)] = np.nan
        return wide.view(np.uint64)
    kind = "u" if pa.types.is_unsigned_integer(t) else "i"
    values = word_view(column, f"{kind}{t.bit_width // 8}")
    return (values.astype(np.int64) if kind == "i" else values.astype(np.uint64)).view(np.uint64)


def _key_bytes(parts: list[pa.Array]) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """The parts of every row laid end to end; text is led by its length if it is not alone."""
    rows = len(parts[0])
    alone = len(parts) == 1
    lengths = np.zeros(rows, np.int64)
    laid: list[tuple[NDArray[np.int32] | None, NDArray[np.uint8]]] = []
    for part in parts:
        if pa.types.is_string(part.type) or pa.types.is_binary(part.type):
            offsets, data = bytes_view(part)
            lengths += np.diff(offsets) + (0 if alone else 4)
            laid.append((offsets, data))
        else:
            if fits_word(part.type):
                raw = _words(part).view(np.uint8).reshape(rows, 8)
            else:
                raw = fixed_view(part)
            lengths += raw.shape[1]
            laid.append((None, np.ascontiguousarray(raw).reshape(-1)))
    ends = np.zeros(rows + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    out = np.empty(int(ends[-1]), np.uint8)
    at = ends[:-1].copy()
    for offs, data in laid:
        if offs is None:
            _lay_fixed(out, at, data, data.size // rows if rows else 0)
        else:
            _lay_text(out, at, offs, data, not alone)
    return ends, out


@nb.njit(nb.uint64(nb.uint64), cache=True, nogil=True, inline="always")
def mix(x: Any) -> Any:
    """A bijection of 64 bits in which every input bit moves every output bit."""
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


_words_t = nb.types.Array(nb.uint64, 1, "C", readonly=True)
_bytes_t = nb.types.Array(nb.uint8, 1, "C", readonly=True)
_i32_t = nb.types.Array(nb.int32, 1, "C", readonly=True)
_i64_t = nb.types.Array(nb.int64, 1, "C", readonly=True)


@nb.njit(nb.uint64[::1](_words_t), cache=True, nogil=True)
def _mix_words(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    out = np.empty(words.size, np.uint64)
    for i in range(words.size):
        out[i] = mix(words[i] + np.uint64(0x9E3779B97F4A7C15))
    return out


@nb.njit(nb.uint64[::1](_i64_t, _bytes_t), cache=True, nogil=True)
def _hash_bytes(offsets: NDArray[np.int64], data: NDArray[np.uint8]) -> NDArray[np.uint64]:
    out = np.empty(offsets.size - 1, np.uint64)
    for i in range(out.size):
        at = offsets[i]
        end = offsets[i + 1]
        h = np.uint64(end - at) * np.uint64(0x9E3779B97F4A7C15)
        while end - at >= 8:
            word = np.uint64(0)
            for b in range(8):
                word |= np.uint64(data[at + b]) << np.uint64(8 * b)
            h = mix(h ^ word)
            at += 8
        word = np.uint64(0)
        for b in range(end - at):
            word |= np.uint64(data[at + b]) << np.uint64(8 * b)
        out[i] = mix(h ^ word)
    return out


@nb.njit(nb.int32[::1](_words_t, nb.int64), cache=True, nogil=True)
def _scale(hashes: NDArray[np.uint64], partitions: int) -> NDArray[np.int32]:
    out = np.empty(hashes.size, np.int32)
    for i in range(hashes.size):
        out[i] = ((hashes[i] >> np.uint64(32)) * np.uint64(partitions)) >> np.uint64(32)
    return out


@nb.njit(nb.void(nb.uint8[::1], nb.int64[::1], _bytes_t, nb.int64), cache=True, nogil=True)
def _lay_fixed(
    out: NDArray[np.uint8], at: NDArray[np.int64], data: NDArray[np.uint8], width: int
) -> None:
    for i in range(at.size):
        for b in range(width):
            out[at[i] + b] = data[i * width + b]
        at[i] += width


@nb.njit(
    nb.void(nb.uint8[::1], nb.int64[::1], _i32_t, _bytes_t, nb.boolean), cache=True, nogil=True
)
def _lay_text(
    out: NDArray[np.uint8],
    at: NDArray[np.int64],
    offsets: NDArray[np.int32],
    data: NDArray[np.uint8],
    led: bool,
) -> None:
    for i in range(at.size):
        size = offsets[i + 1] - offsets[i]
        if led:
            for b in range(4):
                out[at[i] + b] = (size >> (8 * b)) & 0xFF
            at[i] += 4
        for b in range(size):
            out[at[i] + b] = data[offsets[i] + b]
        at[i] += size
