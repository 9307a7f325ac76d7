"""What a clean-up will cost, from manifests and the run's counters alone: nothing is read.

If rows met their generations at random, a group's combinations of rows of one generation (which
the run produced and counted) are to all of its combinations as Σ_t ∏ᵢ r(i, t) is to ∏ᵢ Σ_t r(i, t),
r being row counts. So the owed results of each group can be foretold. Keys whose inputs came at
different times owe more than that. An estimate steers how work is shared out, never what is made.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import ceil

import numpy as np
from numpy.typing import NDArray

from dovetail_pipeline.cleanup.bins import ROW_COST, Segment
from dovetail_pipeline.cleanup.catalog import Catalog, group_ranges

SEGMENTS = 1024
"""About how many there are: few groups are cut, many are put together, so that bins can be even
and packing them costs nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class Estimate:
    """Expected work; an array element for each group that may owe results, ascending."""

    low: NDArray[np.uint64]  # hash range
    high: NDArray[np.uint64]
    group_rows: NDArray[np.int64]
    group_owed: NDArray[np.float64]
    files: int  # in all

    @property
    def rows(self) -> int:
        """Rows to be read."""
        return int(self.group_rows.sum())

    @property
    def owed(self) -> float:
        """Results."""
        return float(self.group_owed.sum())

    @property
    def group_cost(self) -> NDArray[np.float64]:
        """Of each group, in results."""
        return self.group_owed + ROW_COST * self.group_rows

    @property
    def cost(self) -> float:
        """In results."""
        return float(self.group_cost.sum())

    def segments(self, chosen: NDArray[np.bool_]) -> Iterator[Segment]:
        """The chosen groups as segments that no other group lies between."""
        numbers = np.flatnonzero(chosen)
        if numbers.size == 0:
            return
        costs = self.group_cost[numbers]
        if numbers.size >= SEGMENTS:
            bucket = np.floor(np.cumsum(costs) * (SEGMENTS / costs.sum()))
            apart = (np.diff(bucket) != 0) | (np.diff(numbers) != 1)
            first = np.flatnonzero(np.concatenate(([True], apart)))
            last = np.append(first[1:], numbers.size) - 1
            sums = np.add.reduceat(costs, first).tolist()
            low, high = self.low[numbers[first]].tolist(), self.high[numbers[last]].tolist()
            yield from (Segment(*s, None) for s in zip(low, high, sums, strict=True))
            return
        parts = ceil(SEGMENTS / self.low.size)
        for g, cost in zip(numbers, costs.tolist(), strict=True):
            low, high = int(self.low[g]), int(self.high[g])
            marks = [low + (high + 1 - low) * p // parts for p in range(parts + 1)]
            yield from (Segment(a, b - 1, cost / parts, None) for a, b in pairwise(marks))


def estimate(catalog: Catalog) -> Estimate:
    """Foretell the work of a catalog."""
    groups, pushed = catalog.groups, catalog.generations
    at = np.searchsorted(groups, pushed.group)
    total = np.ones(groups.size)
    shared = np.ones(pushed.group.size)
    rows = np.zeros(groups.size, np.int64)
    for of_input in pushed.rows:
        per_group = np.bincount(at, of_input, groups.size)
        total *= per_group
        shared *= of_input
        rows += per_group.astype(np.int64)
    met = np.bincount(at, shared, groups.size)
    ratio = np.divide(total, met, out=np.ones_like(total), where=met > 0)
    produced = np.zeros(catalog.plan.partitions)
    for record in catalog.records:
        produced[list(record.produced)] += list(record.produced.values())
    low, high = group_ranges(groups, catalog.plan.partitions)
    return Estimate(low, high, rows, produced[groups] * (ratio - 1), len(catalog.files))
