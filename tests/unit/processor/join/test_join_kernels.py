"""The join's kernels beside one-line reference versions."""

from __future__ import annotations

import ctypes
import itertools
import mmap

import numpy as np
import pytest

from dovetail_processor.join.kernels import columns as kernels
from dovetail_processor.join.kernels import pages
from dovetail_processor.join.slab import Slab

NO_MASK = np.zeros(0, np.bool_)


@pytest.fixture(name="slab")
def slab_fixture() -> Slab:
    """An arena of 1 MiB."""
    return Slab(1 << 20)


def test_rows_are_sorted_by_group_and_keep_their_order_within_one() -> None:
    """order = stable argsort of the groups; starts = where each group begins."""
    group_of = np.random.default_rng(2).integers(0, 7, 500).astype(np.int32)
    order, starts = kernels.sort_by_group(group_of, 7)
    assert order.tolist() == np.argsort(group_of, kind="stable").tolist()
    assert starts.tolist() == [0, *np.cumsum(np.bincount(group_of, minlength=7))]


def test_chosen_rows_are_sorted_by_group_with_their_hashes() -> None:
    """order = chosen rows by a stable argsort of their groups; groups and hashes go along."""
    rng = np.random.default_rng(2)
    group_of = rng.integers(0, 7, 500).astype(np.int32)
    hashes = rng.integers(0, 2**63, 500).astype(np.uint64)
    for rows in (np.arange(500), np.flatnonzero(rng.random(500) < 0.8), np.arange(0)):
        chosen = rows.astype(np.int32)
        order, starts, groups, sorted_hashes = kernels.in_group_order(group_of, hashes, chosen, 7)
        expected = rows[np.argsort(group_of[rows], kind="stable")]
        assert order.tolist() == expected.tolist()
        assert starts.tolist() == [0, *np.cumsum(np.bincount(group_of[rows], minlength=7))]
        assert groups.tolist() == group_of[expected].tolist()
        assert sorted_hashes.tolist() == hashes[expected].tolist()


def test_words_scattered_into_rows_are_gathered_from_them(slab: Slab) -> None:
    """words[rows_at[r] + at] = column[order[r]], and back."""
    rng = np.random.default_rng(3)
    rows_at = (20_000 + 8 * rng.permutation(100)).astype(np.uint32)
    order = rng.permutation(100).astype(np.int32)
    columns = [rng.integers(0, 2**63, 100, dtype=np.uint64) for _ in range(2)]
    ats = np.array([1, 4], np.int64)
    addresses = np.array([c.ctypes.data for c in columns], np.int64)
    kernels.scatter_words(slab.arena, rows_at, ats, addresses, order, 10, 90)
    out = [np.zeros(80, np.uint64) for _ in range(2)]
    outs = np.array([c.ctypes.data for c in out], np.int64)
    kernels.gather_words(slab.arena, rows_at[10:90], ats, outs)
    for column, got in zip(columns, out, strict=True):
        assert (got == column[order[10:90]]).all()
    assert not slab.words[rows_at[:10] + 1].any(), "rows outside the range are untouched"


@pytest.mark.parametrize("width", [1, 2, 3, 5, 16, 32])
def test_bytes_scattered_into_rows_are_gathered_from_them(slab: Slab, width: int) -> None:
    """The same for values of any width."""
    rng = np.random.default_rng(width)
    rows_at = (20_000 + 16 * rng.permutation(50)).astype(np.uint32)
    order = rng.permutation(50).astype(np.int32)
    values = rng.integers(0, 256, 50 * width).astype(np.uint8)
    kernels.scatter_bytes(slab.raw, rows_at, 6, width, values, order, 0, 50)
    out = np.zeros(50 * width, np.uint8)
    kernels.gather_bytes(slab.raw, rows_at, 6, width, out)
    assert (out.reshape(50, width) == values.reshape(50, width)[order]).all()


def test_validity_bits_are_cleared_for_nulls_alone(slab: Slab) -> None:
    """A column's bit is 0 exactly where its row is null; other columns' bits stay."""
    rng = np.random.default_rng(4)
    rows_at = (20_000 + 4 * np.arange(64)).astype(np.uint32)
    order = rng.permutation(64).astype(np.int32)
    valid = rng.random(64) < 0.5
    kernels.fill_4(slab.words, rows_at, 1, 0xFFFFFFFF, 0, 64)
    kernels.scatter_valid(slab.words, rows_at, 1, 5, valid, order, 0, 64)
    for bit, expected in ((5, valid[order]), (6, np.ones(64, bool))):
        bitmap = np.zeros(8, np.uint8)
        nulls = kernels.gather_valid(slab.words, rows_at, 1, bit, bitmap)
        assert (np.unpackbits(bitmap, bitorder="little").astype(bool) == expected).all()
        assert nulls == (~expected).sum()


def test_pages_are_disjoint_and_use_is_known_to_the_byte(slab: Slab) -> None:
    """Random allocation and release against a set of intervals; the limit is never exceeded."""
    rng = np.random.default_rng(5)
    memory = slab.arena
    held: dict[int, int] = {}
    refused = 0
    for _ in range(4000):
        if held and rng.random() < 0.45:
            page = int(rng.choice(list(held)))
            pages.page_free(memory, page)
            del held[page]
        else:
            page_class = int(rng.integers(0, 4))
            page = int(pages.page_alloc(memory, page_class))
            if page == 0:
                refused += 1
                continue
            held[page] = pages.PAGE_WORDS[page_class]
        assert slab.used_bytes == 4 * sum(held.values()) <= 1 << 20
    edges = sorted((a, a + size) for a, size in held.items())
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(edges))
    assert min(held) >= pages.SUPERPAGE_WORDS, "address 0 means none"
    assert refused > 0, "the arena was full at times"
    for page in held:
        pages.page_free(memory, page)
    assert slab.used_bytes == 0
    whole = [pages.page_alloc(memory, 3) for _ in range(16)]
    assert all(whole), "freed pages of any class serve every other"


def test_superpages_that_are_free_again_go_back_to_the_system_when_the_limit_falls() -> None:
    """Their memory is real no more; what is in use stays as it is, and they can be used again."""
    slab = Slab(8 << 20)
    held = [int(pages.page_alloc(slab.arena, 3)) for _ in range(128)]
    for page in held:
        slab.words[page : page + pages.PAGE_WORDS[3]] = page
    slab.trim(8 << 20)
    kept, freed = held[::8], [p for p in held if p not in held[::8]]
    for page in freed:
        pages.page_free(slab.arena, page)
    slab.trim(8 << 20)
    assert _resident_bytes(slab) >= 8 << 20, "nobody else wants it"
    slab.trim(1 << 20)
    spare = slab.raw.nbytes - (8 << 20)  # real too, where the system has huge pages
    assert _resident_bytes(slab) <= len(kept) * pages.SUPERPAGE_BYTES + spare
    for page in kept:
        assert (slab.words[page : page + pages.PAGE_WORDS[3]] == page).all()
    again = [int(pages.page_alloc(slab.arena, 3)) for _ in freed]
    assert sorted(again) == sorted(freed)


def _resident_bytes(slab: Slab) -> int:
    """What of the arena is real memory, as the system says."""
    size = -(-slab.raw.nbytes // mmap.PAGESIZE)
    there = (ctypes.c_ubyte * size)()
    at = ctypes.c_void_p(slab.raw.ctypes.data)
    assert ctypes.CDLL(None).mincore(at, ctypes.c_size_t(slab.raw.nbytes), there) == 0
    return sum(v & 1 for v in there) * mmap.PAGESIZE
