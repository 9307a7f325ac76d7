"""What a clean-up will cost, from manifests and the run's counters alone: nothing is read.

If rows met their generations at random, a group's combinations of rows of one generation (which
the run produced and counted) are to all of its combinations as Σ_t ∏ᵢ r(i, t) is to ∏ᵢ Σ_t r(i, t),
r being row counts. So the owed results of each group can be foretold. Keys whose inputs came at
different times owe more than that. An estimate steers how work is shared out, never what is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import ceil

import numpy as np

from dovetail_pipeline.cleanup.bins import ROW_COST, Segment
from dovetail_pipeline.cleanup.catalog import Catalog

SEGMENTS_MIN = 1024
"""Groups are cut until there are so many segments, so that few groups can still be even bins."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Expected work, with groups as segments."""

    rows: int  # to be read
    owed: float  # results
    segments: tuple[Segment, ...]

    @property
    def cost(self) -> float:
        """In results."""
        return self.owed + ROW_COST * self.rows


def estimate(catalog: Catalog) -> Estimate:
    """Foretell the work of a catalog."""
    groups = np.array(catalog.groups, np.int64)
    if groups.size == 0:
        return Estimate(0, 0.0, ())
    pairs = [p.group * (1 << 31) + p.generation for p in catalog.inputs]
    every = np.unique(np.concatenate(pairs))  # (group, generation)
    group_of = np.searchsorted(groups, every >> 31)
    total = np.ones(groups.size)
    shared = np.ones(every.size)
    rows = np.zeros(groups.size, np.int64)
    for pieces, pair in zip(catalog.inputs, pairs, strict=True):
        counts = np.bincount(np.searchsorted(every, pair), pieces.rows, every.size)
        per_group = np.bincount(group_of, counts, groups.size)
        total *= per_group
        shared *= counts
        rows += per_group.astype(np.int64)
    met = np.bincount(group_of, shared, groups.size)
    ratio = np.divide(total, met, out=np.ones_like(total), where=met > 0)
    produced = np.array(
        [sum(r.produced.get(g, 0) for r in catalog.records) for g in catalog.groups], np.float64
    )
    owed = produced * (ratio - 1)
    low = np.full(groups.size, np.iinfo(np.uint64).max, np.uint64)
    high = np.zeros(groups.size, np.uint64)
    for pieces in catalog.inputs:
        at = np.searchsorted(groups, pieces.group)
        np.minimum.at(low, at, pieces.hash_min)
        np.maximum.at(high, at, pieces.hash_max)
    parts = ceil(SEGMENTS_MIN / groups.size)
    segments = []
    for g, cost in enumerate((owed + ROW_COST * rows).tolist()):
        segments.extend(_even(int(low[g]), int(high[g]), cost, parts))
    return Estimate(int(rows.sum()), float(owed.sum()), tuple(segments))


def _even(low: int, high: int, cost: float, parts: int) -> list[Segment]:
    parts = min(parts, high - low + 1)
    marks = [low + (high + 1 - low) * p // parts for p in range(parts + 1)]
    return [Segment(a, b - 1, cost / parts, None) for a, b in pairwise(marks)]
