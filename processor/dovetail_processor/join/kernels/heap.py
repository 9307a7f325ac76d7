"""Bytes of any length, in chains of pages: the text of a group's rows, and its keys.

A value starts at a word and runs on; where its page ends it goes on behind the header of the next:

    page [previous│next│ …value A…│ …value B   ]──next──▶[previous│next│ rest of B│ free     ]
                                                                                   ▲ `at`
A value is found by the address of its first word and its length; nothing else is kept of it.
"""

from __future__ import annotations

from typing import Any

import numba as nb

from dovetail_processor.join.kernels.pages import page_alloc, page_end, page_start
from dovetail_processor.join.kernels.raw import WORDS, copy, load, load_byte, store

PREVIOUS_PAGE = 0
NEXT_PAGE = 1
HEADER_WORDS = 2


@nb.njit(cache=True, nogil=True)
def heap_next(m: Any, at: Any) -> Any:
    """`at` itself, or if it is just behind a page, where the chain goes on; 0 if it does not."""
    if at != page_end(m, at - 1):
        return at
    after = load(m[WORDS], page_start(m, at - 1) + NEXT_PAGE)
    return after + HEADER_WORDS if after != 0 else 0


@nb.njit(cache=True, nogil=True)
def heap_reserve(
    m: Any, cells: Any, at_field: Any, pages_field: Any, need: Any, page_class: Any
) -> Any:
    """Make room for `need` > 0 words and return where they start, 0 if memory is short.

    `at_field` of `cells` is where the next value goes, `pages_field` the newest page; both are 0 at
    first. Pages taken before memory ran short stay in the chain and serve the next attempt.
    """
    at = load(cells, at_field)
    newest = load(cells, pages_field)
    if at != 0:
        at = heap_next(m, at)
    room = 0
    if at != 0:
        room = page_end(m, at) - at
        page = load(m[WORDS], page_start(m, at) + NEXT_PAGE)
        while page != 0:
            room += page_end(m, page) - page - HEADER_WORDS
            page = load(m[WORDS], page + NEXT_PAGE)
    while room < need:
        page = page_alloc(m, page_class)
        if page == 0:
            return 0
        store(m[WORDS], page + PREVIOUS_PAGE, newest)
        store(m[WORDS], page + NEXT_PAGE, 0)
        if newest != 0:
            store(m[WORDS], newest + NEXT_PAGE, page)
        newest = page
        store(cells, pages_field, page)
        room += page_end(m, page) - page - HEADER_WORDS
        if at == 0:
            at = page + HEADER_WORDS
            store(cells, at_field, at)
    start = at
    while True:  # step over the value
        here = min(need, page_end(m, at) - at)
        at += here
        need -= here
        if need == 0:
            break
        at = heap_next(m, at)
    store(cells, at_field, at)
    return start


@nb.njit(cache=True, nogil=True)
def heap_write(m: Any, at: Any, source: Any, size: Any) -> Any:
    """Copy `size` bytes from address `source` to the heap at word `at`; the word behind them."""
    while True:
        run = min(size, 4 * (page_end(m, at) - at))
        copy(m[WORDS] + 4 * at, source, run)
        source += run
        size -= run
        at += (run + 3) // 4
        if size == 0:
            return at
        at = heap_next(m, at)


@nb.njit(cache=True, nogil=True)
def heap_read(m: Any, at: Any, to: Any, size: Any) -> None:
    """Copy `size` > 0 bytes from the heap at word `at` to address `to`."""
    while True:
        run = min(size, 4 * (page_end(m, at) - at))
        copy(to, m[WORDS] + 4 * at, run)
        to += run
        size -= run
        if size == 0:
            return
        at = heap_next(m, at + run // 4)


@nb.njit(cache=True, nogil=True)
def heap_equals(m: Any, at: Any, other: Any, size: Any) -> Any:
    """Whether the `size` bytes at word `at` of the heap equal those at address `other`."""
    done = 0
    while done < size:
        run = min(size - done, 4 * (page_end(m, at) - at))
        for b in range(run):
            if load_byte(m[WORDS] + 4 * at, b) != load_byte(other, done + b):
                return False
        done += run
        if done < size:
            at = heap_next(m, at + run // 4)
    return True
