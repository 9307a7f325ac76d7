"""How a clean-up is shared out: by counting what is owed, or, where that would not pay, by size.

Counting reads the key columns, a third of the reading. It pays when making results is much of the
work, because then hot keys matter and it finds them; where reading is most of the work, bins that
are even in rows are even.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dovetail_pipeline.cleanup.bins import Bin, pack_bins
from dovetail_pipeline.cleanup.catalog import HASH_MAX, Catalog
from dovetail_pipeline.cleanup.estimating import Estimate, estimate
from dovetail_pipeline.cleanup.files import OpenFiles
from dovetail_pipeline.cleanup.measuring import Measured, measure
from dovetail_pipeline.cleanup.slices import Slice

COUNTING_PARTS_PER_WORKER = 4
"""Parts of the store that are counted by themselves, so that no worker waits long for another."""

COUNTING_ROWS_MIN = 1 << 18
"""Rows that make a part worth handing out: about as much work as the handing out."""


@dataclass(frozen=True, slots=True)
class CleanupPlan:
    """The bins of a clean-up."""

    bins: tuple[Bin, ...]
    owed: int | None  # what they owe together; None if it was not counted


def counting_pays(expected: Estimate) -> bool:
    """Whether to count before packing bins."""
    return expected.owed > expected.rows


def counting_slices(catalog: Catalog, workers: int) -> list[Slice]:
    """The line of hashes in slices of about as many rows each, to be measured in any order."""
    most = max(1, catalog.rows // COUNTING_ROWS_MIN)
    count = min(COUNTING_PARTS_PER_WORKER * workers, most) if workers > 1 else 1
    pieces = max(catalog.inputs, key=lambda p: int(p.rows.sum()))
    order = np.argsort(pieces.hash_min, kind="stable")
    rows = np.cumsum(pieces.rows[order])
    marks = [0]
    for c in range(1, count):
        at = int(np.searchsorted(rows, rows[-1] * c // count))
        mark = int(pieces.hash_min[order[at]])
        if mark > marks[-1]:
            marks.append(mark)
    ends = [*(m - 1 for m in marks[1:]), HASH_MAX]
    return [Slice(low, high) for low, high in zip(marks, ends, strict=True)]


def plan_from_counts(measured: Sequence[Measured], workers: int) -> CleanupPlan:
    """The plan for measured slices that cover everything."""
    segments = [s for m in measured for s in m.segments]
    owed = sum(c.owed for m in measured for c in m.counts.values())
    return CleanupPlan(tuple(pack_bins(segments, workers)), owed)


def plan_from_estimate(expected: Estimate, workers: int) -> CleanupPlan:
    """The plan for an estimate."""
    return CleanupPlan(tuple(pack_bins(expected.segments, workers)), None)


def plan_bins(catalog: Catalog, workers: int, memory_bytes: int) -> list[Bin]:
    """The bins for `workers` that work at once, planned in this process."""
    expected = estimate(catalog)
    if not counting_pays(expected):
        return list(plan_from_estimate(expected, workers).bins)
    with OpenFiles(catalog, memory_bytes) as files:
        measured = measure(catalog, files, Slice(0, HASH_MAX), 2 * memory_bytes // 5)
    return list(plan_from_counts([measured], workers).bins)
