"""How many results are owed, by counting keys: no combination is made.

For a key with c(i, g) rows of input i in generation g, all combinations are ∏ᵢ Σ_g c(i, g); those
that share a generation, which the run produced, are Σ_g ∏ᵢ c(i, g); the delta terms hold the rest.
Each is counted in its own way. Counts are exact at any size: a kernel counts in 64 bits what fits
and Python's integers take the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from dovetail_pipeline.cleanup.matching import KeyRanges
from dovetail_pipeline.cleanup.terms import Rows, Term
from dovetail_processor.join.kernels import products


@dataclass(frozen=True, slots=True)
class Counts:
    """Combinations of some keys."""

    total: int = 0  # all
    shared: int = 0  # of rows of one generation: what the run produced
    owed: int = 0  # in the delta terms: what the clean-up must produce

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.total + other.total, self.shared + other.shared, self.owed + other.owed)

    def check(self, what: str) -> None:
        """Assert produced + owed = total."""
        assert self.shared + self.owed == self.total, f"{what}: {self}"


@dataclass(frozen=True, slots=True, eq=False)
class KeyCounts:
    """Counts of each key: total, shared, owed."""

    counts: NDArray[np.uint64]  # [key, 3]; zero where `large` has the key
    large: dict[int, Counts]  # by index: keys whose counts 64 bits may not hold

    def owed(self) -> NDArray[np.float64]:
        """Roughly what each key owes, at any size."""
        found = self.counts[:, 2].astype(np.float64)
        for k, c in self.large.items():
            found[k] = float(c.owed)
        return found

    def sum(self) -> Counts:
        """The counts of all keys together."""
        return self.sum_by(np.zeros(self.counts.shape[0], np.int32)).get(0, Counts())

    def sum_by(self, labels: NDArray[np.int32]) -> dict[int, Counts]:
        """The counts of keys with equal labels, added without overflow."""
        sums: dict[int, Counts] = {}
        if labels.size:
            order = np.argsort(labels, kind="stable")
            begins = np.flatnonzero(np.diff(labels[order], prepend=labels[order[0]] - 1))
            low, high = (
                np.add.reduceat(half[order], begins).tolist()
                for half in (self.counts & np.uint64(0xFFFFFFFF), self.counts >> np.uint64(32))
            )
            for i, label in enumerate(labels[order[begins]].tolist()):
                halves = zip(low[i], high[i], strict=True)
                sums[label] = Counts(*(lo + (hi << 32) for lo, hi in halves))
        for k, c in self.large.items():
            sums[int(labels[k])] += c
        return sums


def count_keys(
    keys: KeyRanges, generations: NDArray[np.int32], terms: tuple[Term, ...]
) -> KeyCounts:
    """Count the combinations of every key."""
    counts = np.zeros((keys.ranges.shape[0], 3), np.uint64)
    exact = np.empty(keys.ranges.shape[0], np.bool_)
    products.count_combinations(generations, keys.ranges, np.array(terms, np.int8), counts, exact)
    large = {
        k: count_exactly(generation_counts(keys.ranges[k], generations), terms)
        for k in np.flatnonzero(~exact).tolist()
    }
    return KeyCounts(counts, large)


def count_exactly(by_generation: list[dict[int, int]], terms: tuple[Term, ...]) -> Counts:
    """The counts of a key with these rows per input and generation, at any size."""
    every = set().union(*by_generation)
    owed = 0
    for t in every:
        sizes = [
            {
                Rows.OLDER: sum(n for g, n in c.items() if g < t),
                Rows.NEW: c.get(t, 0),
                Rows.ALL: sum(n for g, n in c.items() if g <= t),
            }
            for c in by_generation
        ]
        owed += sum(prod(s[r] for s, r in zip(sizes, term, strict=True)) for term in terms)
    return Counts(
        total=prod(sum(c.values()) for c in by_generation),
        shared=sum(prod(c.get(g, 0) for c in by_generation) for g in every),
        owed=owed,
    )


def generation_counts(
    ranges: NDArray[np.int64], generations: NDArray[np.int32]
) -> list[dict[int, int]]:
    """For one key: per input, rows by generation."""
    found = []
    for j in range(ranges.size // 2):
        of = generations[ranges[2 * j] : ranges[2 * j + 1]]
        values, numbers = np.unique(of, return_counts=True)
        found.append(dict(zip(values.tolist(), numbers.tolist(), strict=True)))
    return found
