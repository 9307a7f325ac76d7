"""Room for rows and their text: the pages of one input's part of a group.

    part   [next row │ rows left │ pages │ next text │ text pages │ rows]
                                   ▼                   ▼
                                   newest page ─▶ …    newest page ─▶ …

Rows lie one behind the other in their pages, text likewise in pages of its own (`heap`).
"""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np

from dovetail_processor.join.kernels.heap import heap_reserve
from dovetail_processor.join.kernels.pages import page_alloc, page_words
from dovetail_processor.join.kernels.raw import PARTS, WORDS, load, store

# Columns of `parts`: one row per group and input.
ROW_AT = 0  # address of the next row
ROWS_LEFT = 1  # rows that still fit the newest page
PAGES = 2  # newest page of rows, 0 = none; word 0 of a page is the page before it
HEAP_AT = 3  # where the next text value goes
HEAP_PAGES = 4  # newest page of text
ROWS = 5  # rows linked in this generation
PART_FIELDS = 8

PAGE_HEADER_WORDS = 2


@nb.njit(cache=True, nogil=True)
def _page_class(held_words: Any, row_words: Any) -> Any:
    """Pages grow with what a part holds: its unfilled last page stays a small share of it."""
    page_class = 0
    if held_words >= 256 << 10:
        page_class = 3
    elif held_words >= 16 << 10:
        page_class = 2
    elif held_words >= 2 << 10:
        page_class = 1
    while page_words(page_class) - PAGE_HEADER_WORDS < row_words:
        page_class += 1
    return page_class


@nb.njit(cache=True, nogil=True)
def _new_page(m: Any, cells: Any, row_words: Any) -> Any:
    """Put a page for rows at the head of a part's list, of the wanted class or a smaller one."""
    page_class = _page_class(load(cells, ROWS) * row_words, row_words)
    page = page_alloc(m, page_class)
    while page == 0:
        page_class -= 1
        if page_class < 0 or page_words(page_class) - PAGE_HEADER_WORDS < row_words:
            return False
        page = page_alloc(m, page_class)
    store(m[WORDS], page, load(cells, PAGES))
    store(cells, PAGES, page)
    store(cells, ROW_AT, page + PAGE_HEADER_WORDS)
    store(cells, ROWS_LEFT, (page_words(page_class) - PAGE_HEADER_WORDS) // row_words)
    return True


@nb.njit(cache=True, nogil=True, forceinline=True)
def make_room(m: Any, part: Any, row_words: Any, heap_words: Any) -> Any:
    """Addresses of room for a row and its text; row address 0 if memory is short."""
    cells = m[PARTS] + 4 * part * PART_FIELDS
    if load(cells, ROWS_LEFT) == 0 and not _new_page(m, cells, row_words):
        return np.int64(0), np.int64(0)
    heap = np.int64(0)
    if heap_words > 0:
        page_class = _page_class(load(cells, ROWS) * row_words, 0)
        heap = heap_reserve(m, cells, HEAP_AT, HEAP_PAGES, heap_words, page_class)
        while heap == 0 and page_class > 0:
            page_class -= 1
            heap = heap_reserve(m, cells, HEAP_AT, HEAP_PAGES, heap_words, page_class)
        if heap == 0:
            return np.int64(0), np.int64(0)
    row = load(cells, ROW_AT)
    store(cells, ROW_AT, row + row_words)
    store(cells, ROWS_LEFT, load(cells, ROWS_LEFT) - 1)
    return row, heap
