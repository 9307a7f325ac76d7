"""From the rows of a slice to the keys that all inputs have, exactly, also when hashes collide."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dovetail_pipeline.cleanup.reading import SliceRows
from dovetail_processor.join.kernels import products


@dataclass(frozen=True, slots=True, eq=False)
class KeyRanges:
    """Keys of a slice, as ranges of positions."""

    ranges: NDArray[np.int64]  # [key, 2 × input]: begin and end
    hashes: NDArray[np.uint64]  # of each key

    def pick(self, chosen: NDArray[np.bool_]) -> KeyRanges:
        """Some of the keys."""
        return KeyRanges(self.ranges[chosen], self.hashes[chosen])


def match_keys(found: SliceRows) -> KeyRanges:
    """The keys that all inputs have.

    Where several keys share a hash, their positions in `found` are put in key order.
    """
    n = len(found.columns)
    ranges = np.empty((int(np.diff(found.starts).min()), 2 * n), np.int64)
    count = products.match_keys(found.hashes, found.starts, ranges)
    ranges = ranges[:count].copy()
    if found.key_offsets is not None and found.key_data is not None:
        clashes = np.empty(count, np.bool_)
        products.find_clashes(
            found.rows, found.starts, ranges, found.key_offsets, found.key_data, clashes
        )
        if clashes.any():
            parted = [_part(found, r) for r in ranges[clashes]]
            ranges = np.concatenate([ranges[~clashes], *parted])
    return KeyRanges(ranges, found.hashes[ranges[:, 0]])


def _part(found: SliceRows, ranges: NDArray[np.int64]) -> NDArray[np.int64]:
    """The ranges of each key behind one hash; 64-bit hashes collide too rarely for a kernel."""
    n = len(found.columns)
    bounds: list[dict[bytes, tuple[int, int]]] = []
    for j in range(n):
        begin, end = int(ranges[2 * j]), int(ranges[2 * j + 1])
        positions: dict[bytes, list[int]] = {}
        for p in range(begin, end):
            positions.setdefault(_key_of(found, j, p), []).append(p)
        order = [p for of_key in positions.values() for p in of_key]
        found.rows[begin:end] = found.rows[order]
        found.generations[begin:end] = found.generations[order]
        ends = begin + np.cumsum([len(p) for p in positions.values()])
        begins = ends - [len(p) for p in positions.values()]
        bounds.append(dict(zip(positions, zip(begins, ends, strict=True), strict=True)))
    shared = [key for key in bounds[0] if all(key in b for b in bounds[1:])]
    rows = [[edge for b in bounds for edge in b[key]] for key in shared]
    return np.array(rows, np.int64).reshape(len(rows), 2 * n)


def _key_of(found: SliceRows, j: int, position: int) -> bytes:
    assert found.key_offsets is not None
    assert found.key_data is not None
    row = found.starts[j] + found.rows[position]
    return found.key_data[found.key_offsets[row] : found.key_offsets[row + 1]].tobytes()
