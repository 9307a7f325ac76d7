"""The clean-up's kernels beside plain versions of themselves."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from dovetail_pipeline.cleanup.counting import count_exactly, count_keys, generation_counts
from dovetail_pipeline.cleanup.matching import KeyRanges
from dovetail_pipeline.cleanup.terms import delta_terms
from dovetail_processor.join.kernels import products

Rows = list[list[tuple[int, int]]]
"""Per input, (hash, generation) of each row, in the order of row numbers."""


def laid_out(rows: Rows) -> tuple[NDArray[np.uint64], NDArray[np.int32], NDArray, NDArray]:
    """Hashes, generations, row numbers by position, and where inputs start."""
    orders = [sorted(range(len(r)), key=lambda i, r=r: r[i]) for r in rows]
    hashes = [r[i][0] for r, o in zip(rows, orders, strict=True) for i in o]
    generations = [r[i][1] for r, o in zip(rows, orders, strict=True) for i in o]
    starts = np.cumsum([0, *(len(r) for r in rows)]).astype(np.int64)
    numbers = np.array([i for o in orders for i in o], np.int32)
    return np.array(hashes, np.uint64), np.array(generations, np.int32), numbers, starts


def matched(rows: Rows) -> NDArray[np.int64]:
    """The ranges that the kernel finds."""
    hashes, _, _, starts = laid_out(rows)
    ranges = np.empty((min(len(r) for r in rows), 2 * len(rows)), np.int64)
    return ranges[: products.match_keys(hashes, starts, ranges)].copy()


def emitted(rows: Rows, chunk: int) -> list[tuple[int, ...]]:
    """The combinations that the kernel writes, in chunks of `chunk`."""
    _, generations, numbers, _ = laid_out(rows)
    ranges = matched(rows)
    cursor = np.zeros(products.cursor_size(len(rows)), np.int64)
    terms = np.array(delta_terms(len(rows)), np.int8)
    out = np.empty((len(rows), chunk), np.int32)
    found: list[tuple[int, ...]] = []
    while True:
        written = products.emit_owed(numbers, generations, ranges, terms, cursor, out)
        found += [tuple(c) for c in out[:, :written].T.tolist()]
        if written < chunk:
            return found


def emitted_plainly(rows: Rows) -> list[tuple[int, ...]]:
    """The reference: all combinations with one hash and more than one generation."""
    return [
        numbers
        for numbers in product(*(range(len(r)) for r in rows))
        if len({rows[i][n][0] for i, n in enumerate(numbers)}) == 1
        and len({rows[i][n][1] for i, n in enumerate(numbers)}) > 1
    ]


def some_rows(seed: int, inputs: int) -> Rows:
    """Up to eleven rows per input, with few keys and generations."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 12, inputs)
    keys, generations = rng.integers(1, 6), rng.integers(1, 5)
    return [
        [(int(rng.integers(keys)) * 7, int(rng.integers(generations))) for _ in range(size)]
        for size in sizes
    ]


@pytest.mark.parametrize("inputs", [2, 3, 4])
@pytest.mark.parametrize("seed", range(12))
def test_emitted_combinations_are_the_owed_ones(seed: int, inputs: int):
    """As bags, whatever the chunk's size."""
    rows = some_rows(seed, inputs)
    expected = sorted(emitted_plainly(rows))
    for chunk in (1, 3, 1000):
        assert sorted(emitted(rows, chunk)) == expected


@pytest.mark.parametrize("seed", range(20))
def test_matched_hashes_are_those_of_all_inputs(seed: int):
    """Each range holds exactly the rows with that hash."""
    rows = some_rows(seed, 3)
    hashes, _, _, starts = laid_out(rows)
    expected = []
    for h in sorted(set(hashes.tolist())):
        parts = [np.flatnonzero(hashes[starts[i] : starts[i + 1]] == h) for i in range(3)]
        if all(p.size for p in parts):
            edges = [(p[0] + starts[i], p[-1] + 1 + starts[i]) for i, p in enumerate(parts)]
            expected.append([int(e) for pair in edges for e in pair])
    assert matched(rows).tolist() == expected


@pytest.mark.parametrize("seed", range(20))
def test_counts_agree_with_pythons_integers(seed: int):
    """Kernel and exact version, and produced + owed = total."""
    rows = some_rows(seed, 3)
    _, generations, _, _ = laid_out(rows)
    ranges = matched(rows)
    terms = delta_terms(3)
    counted = count_keys(KeyRanges(ranges, np.zeros(len(ranges), np.uint64)), generations, terms)
    assert not counted.large
    for k, of_key in enumerate(ranges):
        exact = count_exactly(generation_counts(of_key, generations), terms)
        exact.check("key")
        assert counted.counts[k].tolist() == [exact.total, exact.shared, exact.owed]
    assert counted.sum().owed == len(emitted_plainly(rows))


def test_counts_beyond_64_bits_are_exact():
    """Five inputs of 2¹⁴ rows with one key make 2⁷⁰ combinations."""
    size, inputs = 1 << 14, 5
    edges = [e for i in range(inputs) for e in (i * size, (i + 1) * size)]
    ranges = np.array([edges], np.int64)
    generations = np.tile(np.repeat(np.arange(2, dtype=np.int32), size // 2), inputs)
    counted = count_keys(
        KeyRanges(ranges, np.zeros(1, np.uint64)), generations, delta_terms(inputs)
    )
    total, shared = size**inputs, 2 * (size // 2) ** inputs
    assert counted.sum().total == total > 2**64
    assert counted.sum().shared == shared
    assert counted.sum().owed == total - shared


def test_clashes_are_hashes_of_different_keys():
    """A hash clashes if any two of its rows, of any inputs, have different bytes."""
    keys = [[b"aa", b"b"], [b"aa", b"", b""], [b"aa", b"bb"]]
    offsets = np.cumsum([0, *(len(k) for of in keys for k in of)]).astype(np.int64)
    data = np.frombuffer(b"".join(k for of in keys for k in of), np.uint8)
    starts = np.array([0, 2, 5, 7], np.int64)
    rows = np.array([0, 1, 0, 1, 2, 0, 1], np.int32)
    ranges = np.array([[0, 1, 2, 3, 5, 6], [1, 2, 3, 5, 6, 7]], np.int64)
    clashes = np.empty(2, np.bool_)
    products.find_clashes(rows, starts, ranges, offsets, data, clashes)
    assert clashes.tolist() == [False, True]
