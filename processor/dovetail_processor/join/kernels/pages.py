"""Pages of one arena: allocation and release, by the byte and without searching.

The arena is an array of 4-byte words. It is handed out in superpages of 64 KiB, each either one
page of 64 KiB or carved into pages of 16, 4 or 1 KiB. A superpage's free pages are the set bits of
one 64-bit word, so a superpage that is wholly free again can serve another class:

    class 0: 64 pages of  1 KiB      bits = 0b…0111   three pages are free
    class 1: 16 pages of  4 KiB      partly free superpages of a class form a doubly linked list
    class 2:  4 pages of 16 KiB      wholly free ones a stack
    class 3:  1 page  of 64 KiB

Address 0 means "none": superpage 0 is never handed out. Numba compiles a kernel where it is
defined, so in these modules helpers stand before what uses them.
"""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np

from dovetail_processor.join.kernels.raw import (
    BITS,
    LINKS,
    SLAB,
    load_int,
    load_long,
    store,
    store_long,
)

PAGE_CLASSES = 4
SUPERPAGE_BYTES = 64 * 1024
SUPERPAGE_WORDS = SUPERPAGE_BYTES // 4
PAGE_WORDS = (256, 1024, 4096, 16384)  # by class

# Fields of the slab's header.
PARTIAL = 0  # … 3: first superpage of class c with a free page, −1 if none
FREE = 4  # first wholly free superpage that was used before, −1 if none
BUMP = 5  # first superpage never used
SUPERPAGES = 6  # superpages in the arena
USED = 7  # bytes in pages handed out
LIMIT = 8  # USED never exceeds this many bytes
GROWTHS = 9  # how often an index page moved: slot addresses from before are stale
SLAB_FIELDS = 10

# Columns of `links`.
CLASS = 0
PREVIOUS = 1
NEXT = 2
LINK_FIELDS = 3


@nb.njit(cache=True, nogil=True, forceinline=True)
def page_words(page_class: Any) -> Any:
    """Words in a page of a class."""
    return 256 << (2 * page_class)


@nb.njit(cache=True, nogil=True, forceinline=True)
def class_of(m: Any, address: Any) -> Any:
    """Class of the page that holds the word at `address`."""
    return load_int(m[LINKS], (address // SUPERPAGE_WORDS) * LINK_FIELDS + CLASS)


@nb.njit(cache=True, nogil=True, forceinline=True)
def page_start(m: Any, address: Any) -> Any:
    """Address of the first word of the page that holds the word at `address`."""
    return address & ~(page_words(class_of(m, address)) - 1)


@nb.njit(cache=True, nogil=True, forceinline=True)
def page_end(m: Any, address: Any) -> Any:
    """Address just behind the page that holds the word at `address`."""
    return page_start(m, address) + page_words(class_of(m, address))


@nb.njit(cache=True, nogil=True)
def _push_partial(m: Any, s: Any, page_class: Any) -> None:
    head = load_long(m[SLAB], PARTIAL + page_class)
    store(m[LINKS], s * LINK_FIELDS + PREVIOUS, -1)
    store(m[LINKS], s * LINK_FIELDS + NEXT, head)
    if head >= 0:
        store(m[LINKS], head * LINK_FIELDS + PREVIOUS, s)
    store_long(m[SLAB], PARTIAL + page_class, s)


@nb.njit(cache=True, nogil=True)
def _drop_partial(m: Any, s: Any, page_class: Any) -> None:
    before = load_int(m[LINKS], s * LINK_FIELDS + PREVIOUS)
    after = load_int(m[LINKS], s * LINK_FIELDS + NEXT)
    if before >= 0:
        store(m[LINKS], before * LINK_FIELDS + NEXT, after)
    else:
        store_long(m[SLAB], PARTIAL + page_class, after)
    if after >= 0:
        store(m[LINKS], after * LINK_FIELDS + PREVIOUS, before)


@nb.njit(cache=True, nogil=True, forceinline=True)
def _all_free(page_class: Any) -> Any:
    """The free bits of a superpage that is wholly free."""
    pages = SUPERPAGE_WORDS // page_words(page_class)
    return np.int64(-1) if pages == 64 else (np.int64(1) << pages) - 1


@nb.njit(cache=True, nogil=True)
def page_alloc(m: Any, page_class: Any) -> Any:
    """Address of a free page of `page_class`, or 0 if the limit forbids one."""
    slab = m[SLAB]
    size = 4 * page_words(page_class)
    used = load_long(slab, USED) + size
    if used > load_long(slab, LIMIT):
        return 0
    s = load_long(slab, PARTIAL + page_class)
    if s < 0:
        s = load_long(slab, FREE)
        if s >= 0:
            store_long(slab, FREE, load_int(m[LINKS], s * LINK_FIELDS + NEXT))
        else:
            s = load_long(slab, BUMP)
            if s == load_long(slab, SUPERPAGES):
                return 0
            store_long(slab, BUMP, s + 1)
        store_long(m[BITS], s, _all_free(page_class))
        store(m[LINKS], s * LINK_FIELDS + CLASS, page_class)
        _push_partial(m, s, page_class)
    free = load_long(m[BITS], s)
    at = 0
    while (free >> at) & 1 == 0:
        at += 1
    free &= ~(np.int64(1) << at)
    store_long(m[BITS], s, free)
    if free == 0:
        _drop_partial(m, s, page_class)
    store_long(slab, USED, used)
    return s * SUPERPAGE_WORDS + at * page_words(page_class)


@nb.njit(cache=True, nogil=True)
def page_free(m: Any, page: Any) -> None:
    """Give back a page that `page_alloc` returned."""
    slab = m[SLAB]
    s = page // SUPERPAGE_WORDS
    page_class = class_of(m, page)
    free = load_long(m[BITS], s)
    if free == 0:
        _push_partial(m, s, page_class)
    free |= np.int64(1) << ((page - s * SUPERPAGE_WORDS) // page_words(page_class))
    store_long(m[BITS], s, free)
    store_long(slab, USED, load_long(slab, USED) - 4 * page_words(page_class))
    if free == _all_free(page_class):
        _drop_partial(m, s, page_class)
        store(m[LINKS], s * LINK_FIELDS + NEXT, load_long(slab, FREE))
        store_long(slab, FREE, s)
