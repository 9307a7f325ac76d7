"""The clean-up's kernels: keys that owe results, how many they owe, and the owed combinations.

The rows of a slice are numbered 0 … m − 1, all of input 0 first, then input 1, and so on. Sorted by
(input, key hash, generation) they form *positions*: position p holds row `rows[p]` of generation
`generations[p]`. So the rows of one key are one range of positions per input, and within it the
rows of a generation, or of all generations up to t, are a range again:

    input 0   … | key A: gen 0 0 2 | key B: gen 1 | …          t = 2:   <t [0, 2)  =t [2, 3)
    input 1   … | key A: gen 1 2 2 | key B: gen 1 | …                   <t [0, 1)  =t [1, 3)

A term of incremental view maintenance says which of the three ranges <t, =t and ≤t each input
contributes: the term's combinations are their cross product. `emit_owed` walks keys, generations,
terms and products, and stops when the chunk is full; called again, it goes on where it stopped.

Most terms are empty. Before the first generation at which every input has a row, all are: a key is
begun there. After it, an input may have no row of generation t, or none before; which ones, is kept
as the bits of two numbers: passing over a term takes one comparison, not one per input.
"""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np

OLDER, NEW, ALL = 0, 1, 2  # values in `terms`: generation < t, = t, ≤ t

COUNT_MAX = np.float64(1 << 62)
"""A key with more combinations than this is not counted here: 64 bits might not hold its sums."""

# Fields of `cursor`: where `emit_owed` stopped.
KEY = 0  # the key at hand
STAGE = 1  # BEFORE_KEY, AT_TERM or IN_PRODUCT
TERM = 2
FIELDS = 3  # then per input: end of <t, end of =t, place in the product
BEFORE_KEY, AT_TERM, IN_PRODUCT = 0, 1, 2

_i64 = nb.int64[::1]
_i64_2d = nb.int64[:, ::1]
_i32_ro = nb.types.Array(nb.int32, 1, "C", readonly=True)
_u64_ro = nb.types.Array(nb.uint64, 1, "C", readonly=True)
_i64_ro = nb.types.Array(nb.int64, 1, "C", readonly=True)
_u8_ro = nb.types.Array(nb.uint8, 1, "C", readonly=True)


def cursor_size(inputs: int) -> int:
    """How many elements the cursor of `emit_owed` has; all zero is the beginning."""
    return FIELDS + 3 * inputs


@nb.njit(nb.int64(_u64_ro, _i64_ro, _i64_2d), cache=True, nogil=True)
def match_keys(hashes: Any, starts: Any, ranges: Any) -> Any:
    """Find the hashes that all inputs have; return how many.

    hashes: by position; input j has positions starts[j] … starts[j + 1] − 1.
    Written: ranges[k, 2j] and ranges[k, 2j + 1], where the rows of hash k begin and end in input j.
    """
    n = starts.size - 1
    at = starts[:-1].copy()
    found = 0
    for j in range(n):
        if at[j] == starts[j + 1]:
            return found
    while True:
        target = hashes[at[0]]
        agreed = False
        while not agreed:  # raise the target until every input stands at it
            agreed = True
            for j in range(n):
                while hashes[at[j]] < target:
                    at[j] += 1
                    if at[j] == starts[j + 1]:
                        return found
                if hashes[at[j]] > target:
                    target = hashes[at[j]]
                    agreed = False
        ended = False
        for j in range(n):
            ranges[found, 2 * j] = at[j]
            while at[j] < starts[j + 1] and hashes[at[j]] == target:
                at[j] += 1
            ranges[found, 2 * j + 1] = at[j]
            ended |= at[j] == starts[j + 1]
        found += 1
        if ended:
            return found


@nb.njit(
    nb.void(_i32_ro, _i64_ro, _i64_2d, _i64_ro, _u8_ro, nb.boolean[::1]), cache=True, nogil=True
)
def find_clashes(
    rows: Any, starts: Any, ranges: Any, key_offsets: Any, key_data: Any, clashes: Any
) -> None:
    """Written: clashes[k], whether hash k stands for more than one key.

    The key of row r of input j is key_data from key_offsets[starts[j] + r] to the next offset.
    """
    n = starts.size - 1
    for k in range(ranges.shape[0]):
        first = np.int64(rows[ranges[k, 0]])
        base = key_offsets[first]
        size = key_offsets[first + 1] - base
        clashes[k] = False
        for j in range(n):
            for p in range(ranges[k, 2 * j], ranges[k, 2 * j + 1]):
                row = starts[j] + rows[p]
                at = key_offsets[row]
                same = key_offsets[row + 1] - at == size
                b = 0
                while same and b < size:
                    same = key_data[at + b] == key_data[base + b]
                    b += 1
                clashes[k] |= not same


@nb.njit(cache=True, nogil=True, inline="always")
def _next_generation(generations: Any, ranges: Any, k: Any, ends: Any) -> Any:
    """The lowest generation of key k at or after its inputs' `ends`; −1 if there is none."""
    lowest = np.int64(-1)
    for j in range(ends.size):
        if ends[j] < ranges[k, 2 * j + 1]:
            g = np.int64(generations[ends[j]])
            if lowest < 0 or g < lowest:
                lowest = g
    return lowest


@nb.njit(cache=True, nogil=True, inline="always")
def _begin(generations: Any, ranges: Any, k: Any, ends: Any) -> None:
    """Set `ends` before the first generation at which every input of key k has a row."""
    first = np.int64(0)
    for j in range(ends.size):
        first = max(first, np.int64(generations[ranges[k, 2 * j]]))
    for j in range(ends.size):
        ends[j] = ranges[k, 2 * j]
        while ends[j] < ranges[k, 2 * j + 1] and generations[ends[j]] < first:
            ends[j] += 1


@nb.njit(cache=True, nogil=True)
def _needed(terms: Any) -> Any:
    """Per term, as bits: the inputs that must have older rows, and those that need new ones."""
    needed = np.zeros((terms.shape[0], 2), np.uint64)
    for term in range(terms.shape[0]):
        for j in range(terms.shape[1]):
            if terms[term, j] != ALL:
                needed[term, terms[term, j]] |= np.uint64(1) << np.uint64(j)
    return needed


@nb.njit(cache=True, nogil=True, inline="always")
def _missing(ranges: Any, k: Any, older: Any, ends: Any) -> Any:
    """As bits: the inputs without rows of key k before t, and those without any of t."""
    no_older = np.uint64(0)
    no_new = np.uint64(0)
    for j in range(ends.size):
        bit = np.uint64(1) << np.uint64(j)
        if older[j] == ranges[k, 2 * j]:
            no_older |= bit
        if ends[j] == older[j]:
            no_new |= bit
    return no_older, no_new


@nb.njit(
    nb.void(_i32_ro, _i64_2d, nb.int8[:, ::1], nb.uint64[:, ::1], nb.boolean[::1]),
    cache=True, nogil=True,
)  # fmt: skip
def count_combinations(generations: Any, ranges: Any, terms: Any, counts: Any, exact: Any) -> None:
    """Count every key's combinations in three ways that do not rest on each other.

    Written: counts[k] = all of them, those that share a generation, those in the delta terms.
    Where exact[k] is false, they are too many for this kernel and counts[k] is not written.
    """
    n = ranges.shape[1] // 2
    older = np.empty(n, np.int64)
    ends = np.empty(n, np.int64)
    needed = _needed(terms)
    for k in range(ranges.shape[0]):
        total = np.uint64(1)
        size = np.float64(1)
        for j in range(n):
            rows = ranges[k, 2 * j + 1] - ranges[k, 2 * j]
            total *= np.uint64(rows)
            size *= np.float64(rows)
        exact[k] = size <= COUNT_MAX
        if not exact[k]:
            continue
        _begin(generations, ranges, k, ends)
        shared = np.uint64(0)
        owed = np.uint64(0)
        while True:
            t = _next_generation(generations, ranges, k, ends)
            if t < 0:
                break
            product = np.uint64(1)
            for j in range(n):
                older[j] = ends[j]
                while ends[j] < ranges[k, 2 * j + 1] and generations[ends[j]] == t:
                    ends[j] += 1
                product *= np.uint64(ends[j] - older[j])
            shared += product
            no_older, no_new = _missing(ranges, k, older, ends)
            for term in range(terms.shape[0]):
                if (needed[term, OLDER] & no_older) | (needed[term, NEW] & no_new):
                    continue
                product = np.uint64(1)
                for j in range(n):
                    begin = older[j] if terms[term, j] == NEW else ranges[k, 2 * j]
                    end = older[j] if terms[term, j] == OLDER else ends[j]
                    product *= np.uint64(end - begin)
                owed += product
        counts[k, 0] = total
        counts[k, 1] = shared
        counts[k, 2] = owed


@nb.njit(
    nb.int64(_i32_ro, _i32_ro, _i64_2d, nb.int8[:, ::1], _i64, nb.int32[:, ::1]),
    cache=True, nogil=True,
)  # fmt: skip
def emit_owed(rows: Any, generations: Any, ranges: Any, terms: Any, cursor: Any, out: Any) -> Any:
    """Write owed combinations until they end or the chunk is full; return how many.

    Written: out[j, c], the row of input j in combination c. The combinations have ended when fewer
    were written than the chunk holds.
    """
    n = out.shape[0]
    capacity = out.shape[1]
    older = cursor[FIELDS : FIELDS + n]  # where <t ends and =t begins
    ends = cursor[FIELDS + n : FIELDS + 2 * n]  # where =t ends
    place = cursor[FIELDS + 2 * n :]
    low = np.empty(n, np.int64)
    high = np.empty(n, np.int64)
    needed = _needed(terms)
    no_older, no_new = np.uint64(0), np.uint64(0)
    known = False  # whether these are of the generation at hand
    written = 0
    while cursor[KEY] < ranges.shape[0]:
        k = cursor[KEY]
        if cursor[STAGE] == BEFORE_KEY:
            _begin(generations, ranges, k, ends)
            cursor[TERM] = terms.shape[0]
            cursor[STAGE] = AT_TERM
        if cursor[TERM] == terms.shape[0]:  # on to the next generation of this key
            t = _next_generation(generations, ranges, k, ends)
            if t < 0:
                cursor[KEY] += 1
                cursor[STAGE] = BEFORE_KEY
                continue
            for j in range(n):
                older[j] = ends[j]
                while ends[j] < ranges[k, 2 * j + 1] and generations[ends[j]] == t:
                    ends[j] += 1
            cursor[TERM] = 0
            known = False
        if not known:
            no_older, no_new = _missing(ranges, k, older, ends)
            known = True
        term = cursor[TERM]
        if (needed[term, OLDER] & no_older) | (needed[term, NEW] & no_new):
            cursor[TERM] += 1
            continue
        inner = 0
        for j in range(n):
            low[j] = older[j] if terms[term, j] == NEW else ranges[k, 2 * j]
            high[j] = older[j] if terms[term, j] == OLDER else ends[j]
            if high[j] - low[j] > high[inner] - low[inner]:
                inner = j  # the widest range runs fastest
        if cursor[STAGE] == AT_TERM:
            for j in range(n):
                place[j] = low[j]
            cursor[STAGE] = IN_PRODUCT
        ended = False
        while not ended:
            count = min(high[inner] - place[inner], capacity - written)
            for j in range(n):
                if j == inner:
                    first = place[inner]
                    for c in range(count):
                        out[j, written + c] = rows[first + c]
                else:
                    row = rows[place[j]]
                    for c in range(count):
                        out[j, written + c] = row
            written += count
            place[inner] += count
            if place[inner] < high[inner]:
                return written
            place[inner] = low[inner]
            ended = True
            for j in range(n - 1, -1, -1):
                if j != inner:
                    place[j] += 1
                    if place[j] < high[j]:
                        ended = False
                        break
                    place[j] = low[j]
        cursor[TERM] += 1
        cursor[STAGE] = AT_TERM
    return written
