"""What a slice owes, per group, and where in it the work lies: the first pass of a clean-up.

Only key columns are read. The work is told as segments: hash ranges between keys that owe, small
enough to be packed into even bins, a heavy key always alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dovetail_pipeline.cleanup.bins import ROW_COST, Segment
from dovetail_pipeline.cleanup.catalog import Catalog
from dovetail_pipeline.cleanup.counting import Counts, KeyCounts, count_keys
from dovetail_pipeline.cleanup.files import OpenFiles
from dovetail_pipeline.cleanup.matching import KeyRanges, match_keys
from dovetail_pipeline.cleanup.reading import SliceReader, SliceRows
from dovetail_pipeline.cleanup.slices import Slice
from dovetail_pipeline.cleanup.terms import delta_terms
from dovetail_pipeline.cleanup.walking import read_in_parts
from dovetail_proto.partitioning import partition_ids

SEGMENTS_PER_PART = 64
"""Segments of each part that is read at once: bins are even to a small share of a part."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What a slice owes."""

    counts: Mapping[int, Counts]  # per group; groups without a matching key lack
    segments: tuple[Segment, ...]  # in hash order
    bytes_read: int

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "counts": [[g, c.total, c.shared, c.owed] for g, c in self.counts.items()],
            "segments": [[s.low, s.high, s.cost, s.rows] for s in self.segments],
            "bytes_read": self.bytes_read,
        }


def measured_from_json(raw: Mapping[str, Any]) -> Measured:
    """Read what `Measured.to_json` wrote."""
    return Measured(
        counts={g: Counts(*c) for g, *c in raw["counts"]},
        segments=tuple(
            Segment(low, high, cost, None if rows is None else tuple(rows))
            for low, high, cost, rows in raw["segments"]
        ),
        bytes_read=raw["bytes_read"],
    )


def measure(catalog: Catalog, files: OpenFiles, whole: Slice, budget_bytes: int) -> Measured:
    """Count what a slice owes, with at most about `budget_bytes` of rows in memory.

    A hot key that does not fit is counted in parts, which add up: every combination is in one.
    """
    terms = delta_terms(len(catalog.plan.inputs))
    reader = SliceReader(catalog, files, [()] * len(catalog.plan.inputs))
    counts: dict[int, Counts] = {}
    segments: list[Segment] = []
    in_parts: set[int] = set()  # hashes of hot keys that came in parts
    for found in read_in_parts(catalog, reader, whole, budget_bytes):
        keys = match_keys(found)
        counted = count_keys(keys, found.generations, terms)
        groups = partition_ids(keys.hashes, catalog.plan.partitions)
        for group, c in counted.sum_by(groups).items():
            counts[group] = counts.get(group, Counts()) + c
        for s in _segments(found, keys, counted):
            if segments and segments[-1].low == s.low:
                in_parts.add(s.low)
                s = replace(s, cost=s.cost + segments.pop().cost)  # noqa: PLW2901
            segments.append(s)
    for i, s in enumerate(segments):
        if s.low in in_parts:
            segments[i] = replace(s, rows=tuple(reader.count_rows(Slice(s.low, s.low))))
    for group, c in counts.items():
        c.check(f"group {group}")
    return Measured(counts, tuple(segments), reader.bytes_read)


def _segments(found: SliceRows, keys: KeyRanges, counted: KeyCounts) -> list[Segment]:
    """The part's owing keys in hash order, in runs of even cost."""
    owed = counted.owed()
    order = np.flatnonzero(owed > 0)
    order = order[np.argsort(keys.hashes[order], kind="stable")]
    if order.size == 0:
        return []
    owed = owed[order]
    hashes = keys.hashes[order]
    target = owed.sum() / SEGMENTS_PER_PART
    bucket = np.floor((np.cumsum(owed) - owed) / target)
    heavy = owed >= target
    starts = np.ones(order.size, np.bool_)
    starts[1:] = (bucket[1:] != bucket[:-1]) | heavy[1:] | heavy[:-1]
    starts[1:] &= hashes[1:] != hashes[:-1]  # keys that share a hash cannot be parted
    first = np.flatnonzero(starts)
    last = np.append(first[1:], order.size) - 1
    low, high = hashes[first], hashes[last]
    rows = np.zeros(first.size, np.int64)
    widths = []
    for j in range(len(found.columns)):
        of = found.hashes[found.starts[j] : found.starts[j + 1]]
        width = np.searchsorted(of, high, "right") - np.searchsorted(of, low, "left")
        widths.append(width)
        rows += width
    cost = np.add.reduceat(owed, first) + ROW_COST * rows
    return [
        Segment(
            low=int(low[s]),
            high=int(high[s]),
            cost=float(cost[s]),
            rows=tuple(int(w[s]) for w in widths) if low[s] == high[s] else None,
        )
        for s in range(first.size)
    ]
