"""How a clean-up is shared out: by estimate, and by counting the groups that are too heavy for it.

Bins that are even in expected cost are even as long as no group is much of one. A heavier group is
counted first, if making its results is most of its work: then a hot key matters, which the count
finds. Counting reads key columns only.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dovetail_pipeline.cleanup.bins import Bin, bin_count, pack_bins
from dovetail_pipeline.cleanup.catalog import Catalog, RowGroups
from dovetail_pipeline.cleanup.checking import check_produced
from dovetail_pipeline.cleanup.estimating import Estimate, estimate
from dovetail_pipeline.cleanup.files import OpenFiles
from dovetail_pipeline.cleanup.measuring import Measured, measure
from dovetail_pipeline.cleanup.slices import Slice

HEAVY_SHARE = 4
"""A group that takes more than a bin's cost divided by this may make bins uneven."""

COUNTING_PARTS_PER_WORKER = 4
"""Parts of the store that are counted by themselves, so that no worker waits long for another."""

COUNTING_ROWS_MIN = 1 << 18
"""Rows that make a part worth handing out: about as much work as the handing out."""


@dataclass(frozen=True, slots=True)
class CleanupPlan:
    """The bins of a clean-up."""

    bins: tuple[Bin, ...]
    owed: int | None  # what they owe together; None if not all of it was counted
    counted: tuple[int, ...] = ()  # groups of which only the keys that owe are in the bins

    @property
    def id(self) -> str:
        """A digest of the bins, in the names of their markers: plans that cut alike share them."""
        text = json.dumps([b.to_json() for b in self.bins])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def heavy_groups(expected: Estimate, workers: int) -> NDArray[np.bool_]:
    """Which groups to count before bins are packed."""
    share = expected.cost / bin_count(expected.cost, workers, expected.files)
    heavy = expected.group_cost > share / HEAVY_SHARE
    return heavy & (expected.group_owed > expected.group_rows)


def counting_slices(
    catalog: Catalog, expected: Estimate, heavy: NDArray[np.bool_], workers: int
) -> list[Slice]:
    """Slices that hold the heavy groups and no other, of about as many rows each."""
    most = max(1, int(expected.group_rows[heavy].sum()) // COUNTING_ROWS_MIN)
    count = min(COUNTING_PARTS_PER_WORKER * workers, most) if workers > 1 else 1
    edges = np.diff(heavy.astype(np.int8), prepend=0, append=0)
    starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    found = []
    for low, high in zip(
        expected.low[starts].tolist(), expected.high[ends - 1].tolist(), strict=True
    ):
        found += _cut(catalog, low, high, max(1, round(count / starts.size)))
    return found


def plan_from(
    catalog: Catalog,
    expected: Estimate,
    heavy: NDArray[np.bool_],
    measured: Sequence[Measured],
    workers: int,
) -> CleanupPlan:
    """The plan, `measured` being slices that cover the heavy groups.

    SpillError if these have produced something else than the run says.
    """
    groups = tuple(catalog.groups[heavy].tolist())
    shared: Counter[int] = Counter()
    for m in measured:
        shared.update({group: c.shared for group, c in m.counts.items()})
    check_produced(catalog.records, groups, shared)
    segments = [s for m in measured for s in m.segments]
    segments += expected.segments(~heavy)
    counted = sum(c.owed for m in measured for c in m.counts.values())
    bins = tuple(pack_bins(segments, workers, expected.files))
    return CleanupPlan(bins, counted if heavy.all() else None, groups)


def plan_bins(catalog: Catalog, workers: int, memory_bytes: int) -> list[Bin]:
    """The bins for `workers` that work at once, planned in this process."""
    expected = estimate(catalog)
    heavy = heavy_groups(expected, workers)
    with OpenFiles(catalog, memory_bytes) as files:
        measured = [
            measure(catalog, files, part, 2 * memory_bytes // 5)
            for part in counting_slices(catalog, expected, heavy, 1)
        ]
    return list(plan_from(catalog, expected, heavy, measured, workers).bins)


def _cut(catalog: Catalog, low: int, high: int, count: int) -> list[Slice]:
    """A stretch of the line of hashes in `count` slices of about as many rows, or fewer."""
    row_groups = max((r.overlapping(low, high) for r in catalog.inputs), key=_rows)
    order = np.argsort(row_groups.hash_min, kind="stable")
    rows = np.cumsum(row_groups.rows[order])
    marks = [low]
    for c in range(1, count):
        at = int(np.searchsorted(rows, rows[-1] * c // count))
        mark = int(row_groups.hash_min[order[at]])
        if mark > marks[-1]:
            marks.append(mark)
    ends = [*(m - 1 for m in marks[1:]), high]
    return [Slice(a, b) for a, b in zip(marks, ends, strict=True)]


def _rows(row_groups: RowGroups) -> int:
    return int(row_groups.rows.sum())
