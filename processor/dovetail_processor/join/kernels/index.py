"""The key index of one group, shared by all n inputs: one look-up finds every input's rows.

A slot holds the key's hash, for keys that need it the address of their canonical bytes, and one
chain head per input. Slots live in index pages; a directory of 2^depth page addresses, selected
by the top bits of the hash's low half, makes it an extendible hash table:

    directory, depth 2        index pages (a page of depth 1 is listed twice)
      00 ──┐
      01 ──┴──────────▶ page, depth 1   [count │ depth │ overflow │ –][slot][slot]…
      10 ─────────────▶ page, depth 2    slot: [hash low│hash high│(key)│head 0│…│head n−1]
      11 ─────────────▶ page, depth 2    head = address of the newest row, 0 = none

Growth splits one page at a time, so there is no pause in which a whole table is rehashed, and all
memory comes in pages. A group starts with one page of 1 KiB, grows it to 4 KiB, then splits. When
the directory is as deep as it gets, a full page gets an overflow page instead.

A directory entry is a page's address with bit 0 set if the page has 4 KiB, not 1 KiB.
"""

from __future__ import annotations

from typing import Any

import numba as nb

from dovetail_processor.join.kernels.heap import heap_equals, heap_next, heap_reserve, heap_write
from dovetail_processor.join.kernels.pages import GROWTHS, page_alloc, page_free, page_words
from dovetail_processor.join.kernels.raw import (
    GROUPS,
    KEYED,
    LARGE_SLOTS,
    SLAB,
    SLOT_WORDS,
    SMALL_SLOTS,
    WORDS,
    load,
    load_long,
    store,
    store_long,
)

# Columns of `groups`.
DIRECTORY = 0  # address of the directory; at depth 0 the one entry itself; 0: the group is empty
DEPTH = 1
KEY_AT = 2  # where the next key's bytes go
KEY_PAGES = 3  # newest page of key bytes
GROUP_FIELDS = 4

# Words of an index page's header.
COUNT = 0
PAGE_DEPTH = 1
OVERFLOW = 2  # entry of the page that goes on here, 0 = none
HEADER_WORDS = 4

DEPTH_MAX = 14  # a directory of 2^14 entries of 4 bytes fills the largest page
HOME_BITS = 18  # the bits of a hash's low half that the directory never looks at
LOAD_NUMERATOR, LOAD_DENOMINATOR = 3, 4  # a fuller page splits: searches stay short


@nb.njit(cache=True, nogil=True, forceinline=True)
def slots_of(m: Any, entry: Any) -> Any:
    """How many slots the index page behind a directory entry has."""
    return m[LARGE_SLOTS] if entry & 1 == 1 else m[SMALL_SLOTS]


@nb.njit(cache=True, nogil=True, forceinline=True)
def entry_of(m: Any, g: Any, low: Any) -> Any:
    """The directory entry for a hash with low half `low`, 0 if the group is empty."""
    depth = load(m[GROUPS], g * GROUP_FIELDS + DEPTH)
    directory = load(m[GROUPS], g * GROUP_FIELDS + DIRECTORY)
    if depth == 0:
        return directory
    return load(m[WORDS], directory + (low >> (32 - depth)))


@nb.njit(cache=True, nogil=True, forceinline=True)
def home_of(m: Any, entry: Any, low: Any) -> Any:
    """Address of the slot where the search for a hash begins."""
    home = ((low & ((1 << HOME_BITS) - 1)) * slots_of(m, entry)) >> HOME_BITS
    return (entry & ~1) + HEADER_WORDS + home * m[SLOT_WORDS]


@nb.njit(cache=True, nogil=True, forceinline=True)
def _is_free(m: Any, at: Any, first: Any) -> Any:
    """Whether a slot is all zero from word `first` on: free, if its hash is zero too."""
    for w in range(first, m[SLOT_WORDS]):
        if load(m[WORDS], at + w) != 0:
            return False
    return True


@nb.njit(cache=True, nogil=True, forceinline=True)
def find(m: Any, depth: Any, entry: Any, digest: Any, key: Any, key_size: Any) -> Any:
    """Address of the key's slot; if it has none, minus the address of the free slot for it.

    Only a directory of the greatest depth has overflow pages: the page headers of others, each a
    cache miss, are not looked at.
    """
    keyed = m[KEYED]
    slot_words = m[SLOT_WORDS]
    words = m[WORDS]
    while True:
        first = (entry & ~1) + HEADER_WORDS
        end = first + slots_of(m, entry) * slot_words
        at = home_of(m, entry, digest & 0xFFFFFFFF)
        while True:
            slot = load_long(words + 4 * at, 0)
            if slot == digest and (digest != 0 or not _is_free(m, at, 2 + keyed)):
                if keyed == 0:
                    return at
                stored = load(words, at + 2)
                if load(words, stored) == key_size and (
                    key_size == 0 or heap_equals(m, heap_next(m, stored + 1), key, key_size)
                ):
                    return at
            elif slot == 0 and _is_free(m, at, 2 + keyed):
                break
            at += slot_words
            if at == end:
                at = first
        if depth < DEPTH_MAX:
            return -at
        entry = load(words, (entry & ~1) + OVERFLOW)
        if entry == 0:
            return -at


@nb.njit(cache=True, nogil=True)
def _clear(m: Any, page: Any, page_class: Any) -> None:
    for w in range(page_words(page_class)):
        store(m[WORDS], page + w, 0)


@nb.njit(cache=True, nogil=True)
def _last_entry(m: Any, entry: Any) -> Any:
    """The entry of the last page in a page's overflow chain."""
    while True:
        after = load(m[WORDS], (entry & ~1) + OVERFLOW)
        if after == 0:
            return entry
        entry = after


@nb.njit(cache=True, nogil=True)
def _rehash(m: Any, entry: Any, to0: Any, bit: Any, to1: Any) -> None:
    """Copy a page's slots to `to0` or `to1`, by bit `bit` of the hash's low half."""
    slot_words = m[SLOT_WORDS]
    words = m[WORDS]
    for s in range(slots_of(m, entry)):
        at = (entry & ~1) + HEADER_WORDS + s * slot_words
        if _is_free(m, at, 0):
            continue
        low = load(words, at)
        to = to1 if (low >> bit) & 1 == 1 else to0
        first = (to & ~1) + HEADER_WORDS
        end = first + slots_of(m, to) * slot_words
        into = home_of(m, to, low)
        while not _is_free(m, into, 0):
            into += slot_words
            if into == end:
                into = first
        for w in range(slot_words):
            store(words, into + w, load(words, at + w))
        store(words, (to & ~1) + COUNT, load(words, (to & ~1) + COUNT) + 1)


@nb.njit(cache=True, nogil=True)
def _double(m: Any, g: Any) -> Any:
    """Make the directory one bit deeper; False if memory is short."""
    depth = load(m[GROUPS], g * GROUP_FIELDS + DEPTH)
    old = load(m[GROUPS], g * GROUP_FIELDS + DIRECTORY)
    new_class = 0
    while page_words(new_class) < (2 << depth):
        new_class += 1
    new = page_alloc(m, new_class)
    if new == 0:
        return False
    for k in range(1 << depth):
        entry = old if depth == 0 else load(m[WORDS], old + k)
        store(m[WORDS], new + 2 * k, entry)
        store(m[WORDS], new + 2 * k + 1, entry)
    if depth > 0:
        page_free(m, old)
    store(m[GROUPS], g * GROUP_FIELDS + DIRECTORY, new)
    store(m[GROUPS], g * GROUP_FIELDS + DEPTH, depth + 1)
    return True


@nb.njit(cache=True, nogil=True)
def _grow(m: Any, g: Any, low: Any) -> Any:
    """Give the page that holds `low` more room; False if memory is short."""
    words = m[WORDS]
    entry = entry_of(m, g, low)
    old = entry & ~1
    page_depth = load(words, old + PAGE_DEPTH)
    if entry & 1 == 0:
        page = page_alloc(m, 1)
        if page == 0:
            return False
        _clear(m, page, 1)
        _rehash(m, entry, page | 1, 0, page | 1)
        store(m[GROUPS], g * GROUP_FIELDS + DIRECTORY, page | 1)
    elif page_depth == DEPTH_MAX:
        page = page_alloc(m, 1)
        if page == 0:
            return False
        _clear(m, page, 1)
        store(words, page + PAGE_DEPTH, DEPTH_MAX)
        store(words, (_last_entry(m, entry) & ~1) + OVERFLOW, page | 1)
        return True
    else:
        page0 = page_alloc(m, 1)
        page1 = page_alloc(m, 1) if page0 != 0 else 0
        ready = page1 != 0
        if ready and page_depth == load(m[GROUPS], g * GROUP_FIELDS + DEPTH):
            ready = _double(m, g)
        if not ready:
            if page0 != 0:
                page_free(m, page0)
            if page1 != 0:
                page_free(m, page1)
            return False
        _clear(m, page0, 1)
        _clear(m, page1, 1)
        store(words, page0 + PAGE_DEPTH, page_depth + 1)
        store(words, page1 + PAGE_DEPTH, page_depth + 1)
        _rehash(m, entry, page0 | 1, 31 - page_depth, page1 | 1)
        depth = load(m[GROUPS], g * GROUP_FIELDS + DEPTH)
        directory = load(m[GROUPS], g * GROUP_FIELDS + DIRECTORY)
        span = 1 << (depth - page_depth)
        first = directory + ((low >> (32 - depth)) // span) * span
        for k in range(span):
            store(words, first + k, page0 | 1 if k < span // 2 else page1 | 1)
    page_free(m, old)
    store_long(m[SLAB], GROWTHS, load_long(m[SLAB], GROWTHS) + 1)
    return True


@nb.njit(cache=True, nogil=True, forceinline=True)
def find_or_insert(m: Any, g: Any, digest: Any, key: Any, key_size: Any) -> Any:
    """Address of the key's slot, made if it was missing; 0 if memory is short.

    `key` is the address of the key's canonical bytes, if `keyed`.
    """
    words = m[WORDS]
    low = digest & 0xFFFFFFFF
    if load(m[GROUPS], g * GROUP_FIELDS + DIRECTORY) == 0:
        page = page_alloc(m, 0)
        if page == 0:
            return 0
        _clear(m, page, 0)
        store(m[GROUPS], g * GROUP_FIELDS + DIRECTORY, page)
    while True:
        entry = entry_of(m, g, low)
        depth = load(m[GROUPS], g * GROUP_FIELDS + DEPTH)
        at = find(m, depth, entry, digest, key, key_size)
        if at > 0:
            return at
        at = -at
        last = entry if depth < DEPTH_MAX else _last_entry(m, entry)
        slots = slots_of(m, last)
        count = load(words, (last & ~1) + COUNT) + 1
        if count * LOAD_DENOMINATOR > slots * LOAD_NUMERATOR:
            if _grow(m, g, low):
                continue
            if count >= slots:  # one free slot must remain: it ends every search
                return 0
        if m[KEYED] != 0:
            cells = m[GROUPS] + 4 * g * GROUP_FIELDS
            stored = heap_reserve(m, cells, KEY_AT, KEY_PAGES, 1 + (key_size + 3) // 4, 0)
            if stored == 0:
                return 0
            store(words, stored, key_size)
            if key_size > 0:
                heap_write(m, heap_next(m, stored + 1), key, key_size)
            store(words, at + 2, stored)
        store(words, (last & ~1) + COUNT, count)
        store_long(words + 4 * at, 0, digest)
        return at
