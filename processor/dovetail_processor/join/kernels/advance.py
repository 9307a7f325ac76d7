"""The join itself: one pass over a batch of one input, in group order.

For every row: find its key's slot, take room for the row, combine it with the rows of all other
inputs that the slot's chains lead to, and put it at the head of its own chain. `advance` does that
until the batch is done, the output chunk is full (fuel) or memory is short; it can be called again
and goes on where it stopped, in the middle of a row's combinations if need be.

Once inputs have ended, a group that was never pushed holds all of their rows. There a row keeps to
what is there: without a partner in each ended input it can meet nobody, ever, and is passed by;
where all other inputs have ended it is combined and not kept. Neither makes a slot.

Memory latency rules this loop, so rows go through it in blocks, a pipeline of stages: ask for the
slots of block b + 2, find the slots of block b + 1 and ask for the rows they lead to where every
input has one, ask for the rows behind those of block b, combine and link the rows of block b.
"""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np

from dovetail_processor.join.kernels.index import (
    DEPTH,
    GROUP_FIELDS,
    entry_of,
    find,
    find_or_insert,
    home_of,
)
from dovetail_processor.join.kernels.pages import GROWTHS
from dovetail_processor.join.kernels.parts import PART_FIELDS, ROWS, make_room
from dovetail_processor.join.kernels.raw import (
    GROUPS,
    INPUTS,
    KEYED,
    PARTS,
    SLAB,
    SLOT_WORDS,
    WORDS,
    Memory,
    load,
    load_int,
    load_long,
    prefetch,
    store,
    store_long,
)

# Fields of `cursor`: where `advance` stopped.
ROW = 0  # position of the next row of the batch
EMITTED = 1  # combinations in the output chunk
MID_ROW = 2  # 1: inside the combinations of ROW, the odometer is in POSITIONS
POSITIONS = 3  # … 3 + n − 1: per input, the row of the next combination; then n: where each began

DONE, CHUNK_FULL, MEMORY_SHORT = 0, 1, 2

NOBODY = -1  # in place of a slot: a row's key is not there, and needs none

BLOCK_ROWS = 64  # enough misses under way to hide one; the block's slots stay in the first cache

SEARCHED_SLOTS = (
    3  # what a search for a key that is not there looks at, in a page at its usual load
)

_u32 = nb.uint32[::1]
_i64 = nb.int64[::1]
_u8_ro = nb.types.Array(nb.uint8, 1, "C", readonly=True)
_bool_ro = nb.types.Array(nb.boolean, 1, "C", readonly=True)


@nb.njit(cache=True, nogil=True, forceinline=True)
def _lacks(words: Any, heads: Any, ended: Any) -> Any:
    """Whether a key, whose chain heads are at `heads`, has no row in an ended input."""
    for j in range(ended.size):
        if ended[j] and load(words, heads + j) == 0:
            return True
    return False


@nb.njit(cache=True, nogil=True, forceinline=True)
def _link(m: Any, head: Any, row: Any, part: Any) -> None:
    store(m[WORDS], row, load(m[WORDS], head))
    store(m[WORDS], head, row)
    rows = part * PART_FIELDS + ROWS
    store(m[PARTS], rows, load(m[PARTS], rows) + 1)


@nb.njit(cache=True, nogil=True, forceinline=True)
def _fill(lane: Any, begin: Any, end: Any, value: Any) -> None:
    for c in range(begin, end):
        store(lane, c, value)


@nb.njit(cache=True, nogil=True, forceinline=True)
def _combine(m: Any, out: Any, capacity: Any, cursor: Any, i: Any, n: Any, row: Any, k: Any) -> Any:
    """Emit the combinations of `row` from the odometer on; (chunk length, whether it ended).

    `row` is what is written for input i.

    The last other input runs fastest; its chain is walked once and copied for the later rounds.
    """
    words = m[WORDS]
    last = n - 1 if i != n - 1 else n - 2
    fast = out + 4 * last * capacity
    first = k
    copy_from = np.int64(-1)
    copy_size = np.int64(0)
    while True:
        begin = k
        position = np.int64(0)
        if copy_from >= 0 and k + copy_size <= capacity:
            for c in range(copy_size):
                store(fast, k + c, load(fast, copy_from + c))
            k += copy_size
        else:
            position = load_long(cursor, POSITIONS + last)
            whole = position == load_long(cursor, POSITIONS + n + last)
            while position != 0 and k < capacity:
                store(fast, k, position)
                position = load(words, position)
                k += 1
            if position == 0 and whole:
                copy_from = begin
                copy_size = k - begin
        for j in range(n):
            if j not in (last, i):
                _fill(out + 4 * j * capacity, begin, k, load_long(cursor, POSITIONS + j))
        if position != 0:
            store_long(cursor, POSITIONS + last, position)
            _fill(out + 4 * i * capacity, first, k, row)
            return k, False
        store_long(cursor, POSITIONS + last, load_long(cursor, POSITIONS + n + last))
        j = last - 1
        while j >= 0:
            if j != i:
                position = load(words, load_long(cursor, POSITIONS + j))
                if position != 0:
                    store_long(cursor, POSITIONS + j, position)
                    break
                store_long(cursor, POSITIONS + j, load_long(cursor, POSITIONS + n + j))
            j -= 1
        if j < 0:
            _fill(out + 4 * i * capacity, first, k, row)
            return k, True


@nb.njit(cache=True, nogil=True, forceinline=True)
def _ask(m: Any, hashes: Any, group_of: Any, first: Any, end: Any) -> None:
    """First stage: prefetch the slots at which searches for rows first … end − 1 may end."""
    for r in range(first, end):
        low = load(hashes, 2 * r)
        entry = entry_of(m, load_int(group_of, r), low)
        if entry != 0:
            home = home_of(m, entry, low)
            prefetch(m[WORDS], home)
            prefetch(m[WORDS], home + SEARCHED_SLOTS * m[SLOT_WORDS] - 1)


@nb.njit(cache=True, nogil=True, forceinline=True)
def _locate(m: Any, hashes: Any, group_of: Any, keys: Any, r: Any) -> Any:
    """Address of row r's slot, made if need be; 0 if memory is short. `keys`: see `advance`.

    NOBODY where the group holds all rows of an ended input, and none with this key.
    """
    key_data, key_offsets, order, generations = keys
    key = np.int64(0)
    key_size = np.int64(0)
    if m[KEYED] != 0:
        at = load_int(order, r)
        key = key_data + load_long(key_offsets, at)
        key_size = load_long(key_offsets, at + 1) - load_long(key_offsets, at)
    g = load_int(group_of, r)
    digest = load_long(hashes, r)
    if _is_whole(generations, g):
        entry = entry_of(m, g, digest & 0xFFFFFFFF)
        if entry == 0:
            return NOBODY
        depth = load(m[GROUPS], g * GROUP_FIELDS + DEPTH)
        return max(find(m, depth, entry, digest, key, key_size), NOBODY)
    return find_or_insert(m, g, digest, key, key_size)


@nb.njit(cache=True, nogil=True, forceinline=True)
def _is_whole(generations: Any, g: Any) -> Any:
    """Whether an input has ended and nothing of group g was ever pushed: it has all those rows."""
    return generations != 0 and load_long(generations, g) == 0


@nb.njit(cache=True, nogil=True, forceinline=True)
def _meets(m: Any, i: Any, heads: Any) -> Any:
    """Whether a key, whose chain heads are at `heads`, has a row in every input but `i`."""
    for j in range(m[INPUTS]):
        if j != i and load(m[WORDS], heads + j) == 0:
            return False
    return True


@nb.njit(cache=True, nogil=True, forceinline=True)
def _locate_block(
    m: Any, hashes: Any, group_of: Any, keys: Any, i: Any, first: Any, end: Any, slots: Any
) -> Any:
    """Second stage: slots of rows first … end − 1, 0 from where memory is short; GROWTHS before."""
    growths = load_long(m[SLAB], GROWTHS)
    head = 2 + m[KEYED]
    slot = np.int64(1)
    for r in range(first, end):
        if slot != 0:
            slot = _locate(m, hashes, group_of, keys, r)
        store_long(slots, r - first, slot)
        if slot > 0 and _meets(m, i, slot + head):
            for j in range(m[INPUTS]):
                if j != i:
                    prefetch(m[WORDS], load(m[WORDS], slot + head + j))
    return growths


@nb.njit(cache=True, nogil=True, forceinline=True)
def _follow(m: Any, i: Any, rows: Any, slots: Any) -> None:
    """Third stage: prefetch the second rows of the chains that a block will walk.

    Not after an index page has moved: a stale slot leads anywhere.
    """
    head = 2 + m[KEYED]
    for r in range(rows):
        slot = load_long(slots, r)
        if slot > 0 and _meets(m, i, slot + head):
            for j in range(m[INPUTS]):
                if j != i:
                    prefetch(m[WORDS], load(m[WORDS], load(m[WORDS], slot + head + j)))


@nb.njit(
    nb.int64(
        Memory, nb.uint64[::1], nb.int32[::1], nb.int32[::1], _i64, _u8_ro, _u32, _i64,
        nb.int64, nb.int64, _bool_ro, _i64, _i64, nb.int64, _u32, _u32, nb.uint32[:, ::1], _i64,
    ),
    cache=True, nogil=True,
)  # fmt: skip
def advance(
    m: Any, hashes: Any, group_of: Any, order: Any, key_offsets: Any, key_data: Any,
    heap_need: Any, produced: Any, i: Any, silent: Any, ended: Any, generation: Any, unkept: Any,
    row_words: Any, rows_at: Any, heap_at: Any, out: Any, cursor: Any,
) -> Any:  # fmt: skip
    """Go on with a batch of input `i`; DONE, CHUNK_FULL or MEMORY_SHORT.

    hashes, group_of: of the batch's rows in group order; order[r]: row r's place in the batch as it
    arrived, which key_offsets (into key_data) and heap_need (words of text; empty if none) go by.
    Written: rows_at[r], heap_at[r]: where row r and its text have room, 0 if it is not kept; the
    caller copies the columns there for all rows up to cursor[ROW] (inclusive if MID_ROW).
    out[j, k]: address of input j's row in combination k; for input i its place in the batch.
    produced[g] counts combinations, unkept[g] those of them whose row is not kept; a `silent`
    batch, whose rows have met the others before, makes none. ended[j]: no row of input j will come
    (never i itself; none for a silent batch); generation[g]: 0 if nothing of g was pushed.
    After MEMORY_SHORT nothing of row cursor[ROW] has been done yet.
    """
    rows = hashes.size
    capacity = out.shape[1]
    out_at = out.ctypes.data
    cursor_at = cursor.ctypes.data
    hashes_at = hashes.ctypes.data
    group_at = group_of.ctypes.data
    words = m[WORDS]
    n = m[INPUTS]
    some_ended = False
    all_ended = True
    for j in range(n):
        some_ended |= ended[j]
        all_ended &= ended[j] or j == i
    generations = np.int64(generation.ctypes.data) if some_ended else np.int64(0)
    keys = (
        np.int64(key_data.ctypes.data),
        np.int64(key_offsets.ctypes.data),
        np.int64(order.ctypes.data),
        generations,
    )
    head = 2 + m[KEYED]
    buffer = np.empty(2 * BLOCK_ROWS, np.int64)
    here = np.int64(buffer.ctypes.data)
    ahead = here + 8 * BLOCK_ROWS
    first = cursor[ROW]
    k = cursor[EMITTED]
    resumed = cursor[MID_ROW] == 1
    _ask(m, hashes_at, group_at, first, min(first + 2 * BLOCK_ROWS, rows))
    end = min(first + BLOCK_ROWS, rows)
    growths = _locate_block(m, hashes_at, group_at, keys, i, first, end, here)
    while first < rows:
        after = min(end + BLOCK_ROWS, rows)
        _ask(m, hashes_at, group_at, after, min(after + BLOCK_ROWS, rows))
        if load_long(m[SLAB], GROWTHS) == growths:
            _follow(m, i, end - first, here)
        growths_ahead = _locate_block(m, hashes_at, group_at, keys, i, end, after, ahead)
        for r in range(first, end):
            g = np.int64(group_of[r])
            slot = load_long(here, r - first)
            if slot == 0 or load_long(m[SLAB], GROWTHS) != growths or hashes[r] == np.uint64(0):
                slot = _locate(m, hashes_at, group_at, keys, r)
            if slot == NOBODY:
                rows_at[r] = 0
                continue
            matched = True
            if not resumed:
                whole = _is_whole(generations, g)
                if whole and _lacks(words, slot + head, ended):
                    rows_at[r] = 0
                    continue
                row = np.int64(0)
                heap = np.int64(0)
                if slot != 0 and not (whole and all_ended):
                    need = np.int64(heap_need[order[r]]) if heap_need.size > 0 else np.int64(0)
                    row, heap = make_room(m, g * n + i, row_words, need)
                rows_at[r] = row
                heap_at[r] = heap
                if row == 0 and not (whole and all_ended):
                    cursor[ROW] = r
                    return MEMORY_SHORT
                matched = silent == 0 and _meets(m, i, slot + head)
                if matched:
                    for j in range(n):
                        position = load(words, slot + head + j)
                        cursor[POSITIONS + j] = position
                        cursor[POSITIONS + n + j] = position
            kept = rows_at[r] != 0
            if matched:
                before = k
                k, over = _combine(m, out_at, capacity, cursor_at, i, n, np.int64(order[r]), k)
                produced[g] += k - before
                if not kept:
                    unkept[g] += k - before
                cursor[EMITTED] = k
                if not over:
                    cursor[MID_ROW] = 1
                    cursor[ROW] = r
                    return CHUNK_FULL
            if resumed:
                resumed = False
                cursor[MID_ROW] = 0
            if kept:
                _link(m, slot + head + i, np.int64(rows_at[r]), g * n + i)
        here, ahead = ahead, here
        growths = growths_ahead
        first, end = end, after
        cursor[ROW] = first
    buffer[0] = 0  # keeps the buffer alive up to here
    return DONE
