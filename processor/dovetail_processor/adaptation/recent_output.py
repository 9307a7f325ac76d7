"""P_o with a half life: what a group produced lately counts more than what it produced long ago.

S4 4.3 counts every combination of a generation alike, so a group that was productive an hour ago
and is not any more stays in memory for its past. With a half life h, a combination counts half
after h, a quarter after 2 h:

    at a look, dt after the last one:   P_o ← P_o · ½^(dt / h) + combinations since then

What comes between two looks counts as produced at the second one; looks are `LOOKS_PER_HALF_LIFE`
to a half life, so that is off by 4 % at most. Without a half life P_o is the plain sum, and nothing
is kept here.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

LOOKS_PER_HALF_LIFE = 16
"""½^(1/16) is 0.96; a look costs a few passes over one number per group."""

Produced = npt.NDArray[np.int64] | npt.NDArray[np.float64]


class RecentOutput:
    """P_o of all groups. `produced` and `generation` are the state's own counters, which change."""

    def __init__(
        self,
        produced: npt.NDArray[np.int64],
        generation: npt.NDArray[np.int64],
        half_life_s: float,
    ) -> None:
        self._produced = produced
        self._generation = generation
        self._half_life_s = half_life_s
        self._counted = np.zeros(produced.size)  # P_o at the last look
        self._seen = np.zeros_like(produced)  # `produced` then
        self._seen_generation = np.zeros_like(generation)
        self._looked_s = float("-inf")

    def look(self, now_s: float) -> None:
        """Take in what was produced; called between batches, and does little most of the time."""
        if self._half_life_s and now_s - self._looked_s >= self._half_life_s / LOOKS_PER_HALF_LIFE:
            self._take_in(now_s)

    def counted(self, now_s: float) -> Produced:
        """P_o of every group, in its current generation, as it counts now."""
        if not self._half_life_s:
            return self._produced
        self._take_in(now_s)
        return self._counted.copy()

    def arrived(self, ids: npt.NDArray[np.int64], counted: list[float], now_s: float) -> None:
        """Groups came from elsewhere with this P_o; the counters have them already."""
        if self._half_life_s:
            self._take_in(now_s)
            self._counted[ids] = counted

    def _take_in(self, now_s: float) -> None:
        anew = self._generation != self._seen_generation
        self._counted[anew] = 0.0
        self._seen[anew] = 0
        self._counted *= 0.5 ** (max(0.0, now_s - self._looked_s) / self._half_life_s)
        self._counted += np.maximum(self._produced - self._seen, 0)
        np.copyto(self._seen, self._produced)
        np.copyto(self._seen_generation, self._generation)
        self._looked_s = now_s
