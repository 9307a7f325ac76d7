"""A slice: a part of the work that needs nothing but itself, and how to cut one in two.

A slice is a range of key hashes, across as many groups as it covers. A single hash that is still
too much (a hot key) is cut by row ranges instead: the rows with this hash are numbered per input,
in the order in which they lie in the stores, and a slice takes a range of each input's numbers.
Either way every owed combination is in exactly one of the parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

RowRange = tuple[int, int]
"""From the first to before the second."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Key hashes low … high, both included; if they are one hash, perhaps only some of its rows."""

    low: int
    high: int
    rows: tuple[RowRange, ...] | None = None  # per input; None: all rows

    def cut_at(self, h: int, *, alone: bool) -> list[Slice]:
        """Two or three slices around hash `h`, which gets one of its own if `alone`.

        Never a slice as large as this one, unless this one is a single hash.
        """
        if alone:
            bounds = [(self.low, h - 1), (h, h), (h + 1, self.high)]
        elif h < self.high:
            bounds = [(self.low, h), (h + 1, self.high)]
        else:
            bounds = [(self.low, h - 1), (h, h)]
        return [Slice(low, high) for low, high in bounds if low <= high]

    def cut_rows(self, totals: Sequence[int], parts: int = 2) -> list[Slice]:
        """Slices of a single hash that take even row ranges of its largest input.

        `totals` are the rows with this hash per input; [] if there is nothing left to cut.
        """
        rows = list(self.rows or [(0, t) for t in totals])
        widest = max(range(len(rows)), key=lambda j: rows[j][1] - rows[j][0])
        begin, end = rows[widest]
        parts = min(parts, end - begin)
        if parts < 2:
            return []
        marks = [begin + (end - begin) * p // parts for p in range(parts + 1)]
        return [
            Slice(self.low, self.high, (*rows[:widest], (a, b), *rows[widest + 1 :]))
            for a, b in pairwise(marks)
        ]

    def to_json(self) -> dict[str, Any]:
        """The slice as JSON values."""
        return {
            "low": f"{self.low:016x}",
            "high": f"{self.high:016x}",
            "rows": None if self.rows is None else [list(r) for r in self.rows],
        }


def slice_from_json(raw: Mapping[str, Any]) -> Slice:
    """Read what `Slice.to_json` wrote."""
    rows = None if raw["rows"] is None else tuple((int(a), int(b)) for a, b in raw["rows"])
    return Slice(int(raw["low"], 16), int(raw["high"], 16), rows)
