"""Bins: the work of a clean-up in even parts, as plain data that any scheduler can hand out.

Segments lie along the line of hashes; a bin takes a stretch of it with an even share of the cost.
Nothing in a bin depends on another bin. A key that costs more than a share is cut by rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from dovetail_pipeline.cleanup.slices import Slice, slice_from_json

BINS_PER_WORKER = 4
"""So that the slowest bin delays the end by little."""

BIN_COST_MIN = 1 << 18
"""In results: about what it costs to hand a bin out and to make its files durable."""

FILE_COST = 1 << 15
"""In results: what reading from one more file costs, whatever is read, about a millisecond."""

FILES_SHARE = 4
"""Going to the files costs at most one part in so many of a bin, if each worker has one."""

BIN_COST_MAX = 1 << 27
"""In results: a clean-up that is stopped loses at most some seconds of each worker's work."""


ROW_COST = 4
"""What reading a row costs, in results: about 120 ns against 30 ns to make and sum one."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A hash range, and what it costs to clean it up."""

    low: int
    high: int
    cost: float  # in results
    rows: tuple[int, ...] | None  # of a key that is alone in it: its rows per input


@dataclass(frozen=True, slots=True)
class Bin:
    """Slices for one task."""

    index: int
    slices: tuple[Slice, ...]
    cost: float  # in results

    @property
    def name(self) -> str:
        """What its files and its marker are called."""
        return f"part-{self.index:05d}"

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "index": self.index,
            "slices": [s.to_json() for s in self.slices],
            "cost": self.cost,
        }


def bin_from_json(raw: Mapping[str, Any]) -> Bin:
    """Read what `Bin.to_json` wrote."""
    return Bin(raw["index"], tuple(slice_from_json(s) for s in raw["slices"]), raw["cost"])


def bin_count(cost: float, workers: int, files: int) -> int:
    """How many bins to cut work of this cost into, whose rows lie in so many files."""
    most = max(1, int(cost // BIN_COST_MIN))
    paying = max(workers, int(cost // max(1, FILES_SHARE * FILE_COST * files)))
    return max(min(BINS_PER_WORKER * workers, paying, most), ceil(cost / BIN_COST_MAX))


def pack_bins(segments: Sequence[Segment], workers: int, files: int = 0) -> list[Bin]:
    """Bins of even cost; [] if nothing is owed. The same input gives the same bins."""
    segments = sorted(segments, key=lambda s: s.low)
    total = sum(s.cost for s in segments)
    if not segments:
        return []
    share = total / bin_count(total, workers, files)
    packed: list[list[Slice]] = [[]]
    costs = [0.0]
    before = 0.0
    for part, cost in (p for s in segments for p in _cut(s, share)):
        # A part goes where its middle falls, so that bins end near the even marks.
        if before + cost / 2 > share * len(packed) and packed[-1]:
            packed.append([])
            costs.append(0.0)
        _append(packed[-1], part)
        costs[-1] += cost
        before += cost
    return [Bin(i, tuple(s), c) for i, (s, c) in enumerate(zip(packed, costs, strict=True))]


def _cut(segment: Segment, share: float) -> list[tuple[Slice, float]]:
    whole = Slice(segment.low, segment.high)
    if segment.rows is None or segment.cost <= share:
        return [(whole, segment.cost)]
    parts = whole.cut_rows(segment.rows, 2 * ceil(segment.cost / share)) or [whole]
    return [(p, segment.cost / len(parts)) for p in parts]


def _append(slices: list[Slice], part: Slice) -> None:
    """Add a slice; neighbours by hash become one, since nothing between them owes anything."""
    if slices and slices[-1].rows is None and part.rows is None:
        slices[-1] = Slice(slices[-1].low, part.high)
    else:
        slices.append(part)
