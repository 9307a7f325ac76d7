"""Depth first, in batches: what is nearest to the results runs first.

A batch is followed all the way down before the next one is read, so arcs stay nearly empty and
results come as early as possible. Nodes of one depth (the sources) take turns: inputs interleave.
"""

from __future__ import annotations

from collections.abc import Sequence


class DepthFirst:
    """`depths[k]`: how many arcs node k is away from the sources."""

    def __init__(self, depths: Sequence[int]) -> None:
        self._depths = depths
        self._last_run = [0] * len(depths)
        self._clock = 0

    def choose(self, ready: Sequence[int]) -> int:
        """The deepest ready node; of equals the one that waited longest."""
        chosen = min(ready, key=lambda k: (-self._depths[k], self._last_run[k], k))
        self._clock += 1
        self._last_run[chosen] = self._clock
        return chosen
