"""Groups out of the state: what must be known to read them in another thread, and to free them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dovetail_processor.join.kernels.parts import ROWS
from dovetail_processor.join.nested import GroupNested


@dataclass(slots=True)
class Detached:
    """Groups taken out of the state, immutable until released."""

    ids: NDArray[np.int64]
    generations: NDArray[np.int64]
    groups: NDArray[np.uint32]
    parts: NDArray[np.uint32]
    nested: list[list[GroupNested]]  # per input

    def rows(self, n: int) -> NDArray[np.int64]:
        """Rows per group (row) and input (column)."""
        return self.parts[:, ROWS].reshape(-1, n).astype(np.int64)

    def part(self, first: int, end: int, n: int) -> Detached:
        """The groups at positions first … end − 1 alone, to be read and released on their own."""
        return Detached(
            ids=self.ids[first:end],
            generations=self.generations[first:end],
            groups=self.groups[first:end].copy(),
            parts=self.parts[first * n : end * n].copy(),
            nested=[groups[first:end] for groups in self.nested],
        )
