"""Whole groups: how much they hold, which rows they hold in key-hash order, and giving them back.

These take detached groups too: copies of a group's rows of `groups` and `parts`, taken when it was
pushed. Nothing writes to a detached group's pages, so `collect` and `rows_of` may run beside the
join.
"""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np

from dovetail_processor.join.kernels.index import (
    COUNT,
    DEPTH,
    DIRECTORY,
    GROUP_FIELDS,
    HEADER_WORDS,
    KEY_PAGES,
    OVERFLOW,
    slots_of,
)
from dovetail_processor.join.kernels.pages import class_of, page_free, page_words
from dovetail_processor.join.kernels.parts import (
    HEAP_PAGES,
    PAGE_HEADER_WORDS,
    PAGES,
    PART_FIELDS,
    ROWS,
    ROWS_LEFT,
)
from dovetail_processor.join.kernels.raw import (
    GROUPS,
    INPUTS,
    KEYED,
    PARTS,
    SLOT_WORDS,
    WORDS,
    Memory,
    load,
    load_long,
)


@nb.njit(cache=True, nogil=True)
def _index_pages(m: Any, g: Any) -> Any:
    """Entries of all index pages of group g, and the slots they have in use, at least."""
    depth = load(m[GROUPS], g * GROUP_FIELDS + DEPTH)
    directory = load(m[GROUPS], g * GROUP_FIELDS + DIRECTORY)
    entries = np.empty((1 << depth) + 4, np.int64)
    found = 0
    keys = 0
    last = np.int64(0)
    for d in range(1 << depth):
        entry = load(m[WORDS], directory + d) if depth > 0 else directory
        if entry == last:
            continue
        last = entry
        while entry != 0:
            if found == entries.size:
                entries = np.append(entries, np.empty(found, np.int64))
            entries[found] = entry
            found += 1
            keys += load(m[WORDS], (entry & ~1) + COUNT) + 1
            entry = load(m[WORDS], (entry & ~1) + OVERFLOW)
    return entries[:found], keys


@nb.njit(cache=True, nogil=True)
def _list_bytes(m: Any, page: Any) -> Any:
    total = 0
    while page != 0:
        total += 4 * page_words(class_of(m, page))
        page = load(m[WORDS], page)
    return total


@nb.njit(cache=True, nogil=True)
def _free_list(m: Any, page: Any) -> None:
    while page != 0:
        before = load(m[WORDS], page)
        page_free(m, page)
        page = before


@nb.njit(cache=True, nogil=True)
def _has_rows(m: Any, heads: Any) -> Any:
    for j in range(m[INPUTS]):
        if load(m[WORDS], heads + j) != 0:
            return True
    return False


@nb.njit(nb.void(Memory, nb.int64[::1]), cache=True, nogil=True)
def group_bytes(m: Any, out: Any) -> None:
    """out[g] = bytes of all pages that group g holds."""
    n = m[INPUTS]
    for g in range(out.size):
        total = 0
        if load(m[GROUPS], g * GROUP_FIELDS + DEPTH) > 0:
            directory = load(m[GROUPS], g * GROUP_FIELDS + DIRECTORY)
            total += 4 * page_words(class_of(m, directory))
        entries, _ = _index_pages(m, g)
        for e in range(entries.size):
            total += 4 * page_words(entries[e] & 1)
        total += _list_bytes(m, load(m[GROUPS], g * GROUP_FIELDS + KEY_PAGES))
        for part in range(g * n, g * n + n):
            total += _list_bytes(m, load(m[PARTS], part * PART_FIELDS + PAGES))
            total += _list_bytes(m, load(m[PARTS], part * PART_FIELDS + HEAP_PAGES))
        out[g] = total


@nb.njit(nb.void(Memory, nb.int64), cache=True, nogil=True)
def release(m: Any, groups: Any) -> None:
    """Give back every page of the (detached) groups."""
    n = m[INPUTS]
    for g in range(groups):
        entries, _ = _index_pages(m, g)
        for e in range(entries.size):
            page_free(m, entries[e] & ~1)
        if load(m[GROUPS], g * GROUP_FIELDS + DEPTH) > 0:
            page_free(m, load(m[GROUPS], g * GROUP_FIELDS + DIRECTORY))
        _free_list(m, load(m[GROUPS], g * GROUP_FIELDS + KEY_PAGES))
        for part in range(g * n, g * n + n):
            _free_list(m, load(m[PARTS], part * PART_FIELDS + PAGES))
            _free_list(m, load(m[PARTS], part * PART_FIELDS + HEAP_PAGES))


@nb.njit(nb.void(Memory, nb.int64, nb.int64[::1], nb.uint32[::1]), cache=True, nogil=True)
def collect(m: Any, groups: Any, starts: Any, rows_at: Any) -> None:
    """Addresses of all rows, input after input and group after group, each in key-hash order.

    rows_at[starts[j]:] are input j's. A group's keys are sorted once for all inputs.
    """
    n = m[INPUTS]
    head = 2 + m[KEYED]
    at_row = starts[:n].copy()
    for g in range(groups):
        entries, keys = _index_pages(m, g)
        slots = np.empty(keys, np.int64)
        hashes = np.empty(keys, np.uint64)
        found = 0
        for e in range(entries.size):
            for s in range(slots_of(m, entries[e])):
                at = (entries[e] & ~1) + HEADER_WORDS + s * m[SLOT_WORDS]
                if _has_rows(m, at + head):
                    slots[found] = at
                    hashes[found] = np.uint64(load_long(m[WORDS] + 4 * at, 0))
                    found += 1
        for s in np.argsort(hashes[:found]):
            for j in range(n):
                row = load(m[WORDS], slots[s] + head + j)
                while row != 0:
                    rows_at[at_row[j]] = row
                    at_row[j] += 1
                    row = load(m[WORDS], row)


@nb.njit(
    nb.void(Memory, nb.int64, nb.int64[::1], nb.int64[:, ::1], nb.int64[::1], nb.uint32[::1]),
    cache=True, nogil=True,
)  # fmt: skip
def rows_of(m: Any, groups: Any, row_words: Any, since: Any, starts: Any, rows_at: Any) -> None:
    """Addresses of rows as in `collect`, but page after page, the newest first: quicker.

    Of input j in group g all but the since[g, j] rows that came first.
    """
    n = m[INPUTS]
    for j in range(n):
        at = starts[j]
        for g in range(groups):
            part = (g * n + j) * PART_FIELDS
            page = load(m[PARTS], part + PAGES)
            left = load(m[PARTS], part + ROWS_LEFT)
            wanted = load(m[PARTS], part + ROWS) - since[g, j]
            while page != 0 and wanted > 0:
                fit = (page_words(class_of(m, page)) - PAGE_HEADER_WORDS) // row_words[j]
                here = fit - left
                taken = min(here, wanted)
                row = page + PAGE_HEADER_WORDS + (here - taken) * row_words[j]
                for _ in range(taken):
                    rows_at[at] = row
                    at += 1
                    row += row_words[j]
                wanted -= taken
                left = 0
                page = load(m[WORDS], page)
