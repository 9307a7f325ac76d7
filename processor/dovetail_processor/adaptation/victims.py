"""Which groups a processor gives up: to disk the least productive, to another machine the most.

Productivity is P_s / P_o (S4 4.3): bytes held per combination produced in the group's current
generation, so a *large* value means *unproductive*. Both choices walk one ranking:

    least-productive  inactive longer than θ_t (oldest first) │ P_o = 0 (largest first) │ P_s/P_o ↓
    most-productive   P_s/P_o ↑, P_o = 0 last                  also the order of groups to move
    least-recent      oldest insertion first
    random            a shuffle by the caller's generator

Equal groups are ranked by their id, so that the same statistics always give the same choice.
Everything is arrays over all P groups: choosing among 500 000 takes tens of milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from dovetail_processor.adaptation.recent_output import Produced

IntArray = npt.NDArray[np.int64]


class VictimOrder(StrEnum):
    """In which order groups are given up; all but the first exist to be compared with it."""

    LEAST_PRODUCTIVE = "least-productive"
    MOST_PRODUCTIVE = "most-productive"
    LEAST_RECENT = "least-recent"
    RANDOM = "random"


@dataclass(frozen=True, slots=True)
class GroupStats:
    """What a processor knows of its groups; index = group id, all arrays of length P."""

    bytes: IntArray  # P_s: held in memory now; 0 = nothing held or not owned
    produced: Produced  # P_o: combinations produced in the current generation, see `recent_output`
    last_insert_s: npt.NDArray[np.float64]  # T_u: when a tuple was last inserted

    def __post_init__(self) -> None:
        assert self.bytes.shape == self.produced.shape == self.last_insert_s.shape


def choose_victims(
    stats: GroupStats,
    want_bytes: int,
    *,
    order: VictimOrder,
    now_s: float,
    inactive_after_s: float,
    rng: np.random.Generator,
) -> IntArray:
    """Ids of the groups to push, first victim first: the shortest prefix of `order` that frees
    `want_bytes`, or every group that holds anything if all together hold less.

    A group of 0 bytes is never chosen. `rng` is drawn from only for `random`.
    """
    held = np.flatnonzero(stats.bytes > 0)
    if want_bytes <= 0 or held.size == 0:
        return np.empty(0, dtype=np.int64)
    ranked = held[_rank(stats, held, order, now_s - inactive_after_s, rng)]
    freed = np.cumsum(stats.bytes[ranked])
    return ranked[: int(np.searchsorted(freed, want_bytes, side="left")) + 1]


def choose_groups_to_move(
    stats: GroupStats,
    want_bytes: int,
    *,
    movable: npt.NDArray[np.bool_] | None = None,
    spilled: npt.NDArray[np.bool_] | None = None,
    paper_restrictions: bool = False,
) -> IntArray:
    """Ids of the groups to move, most productive first, whose bytes come nearest to `want_bytes`.

    The sum exceeds `want_bytes` by less than its last group. A group of 2 × `want_bytes` or more
    stays: moving it would only swap the sides of the imbalance (S4 5.1 wants (M_m − M_l) / 2).
    `movable` masks groups that may not move now (pinned, or still settling after a move);
    `paper_restrictions` also leaves groups that have generations on disk (`spilled`), as S4 6
    does.
    """
    candidate = (stats.bytes > 0) & (stats.bytes < 2 * want_bytes)
    if movable is not None:
        candidate &= movable
    if paper_restrictions:
        assert spilled is not None, "paper_restrictions needs to know which groups are on disk"
        candidate &= ~spilled
    groups = np.flatnonzero(candidate)
    if groups.size == 0:
        return groups
    ranked = groups[np.lexsort((groups, _bytes_per_combination(stats, groups)))]
    total = np.cumsum(stats.bytes[ranked])
    return ranked[: int(np.argmin(np.abs(total - want_bytes))) + 1]


def _rank(
    stats: GroupStats,
    groups: IntArray,
    order: VictimOrder,
    inactive_before_s: float,
    rng: np.random.Generator,
) -> npt.NDArray[np.intp]:
    """Positions in `groups` (ascending ids), first victim first."""
    last = stats.last_insert_s[groups]
    match order:
        case VictimOrder.RANDOM:
            return rng.permutation(groups.size)
        case VictimOrder.LEAST_RECENT:
            return np.lexsort((groups, last))
        case VictimOrder.MOST_PRODUCTIVE:
            return np.lexsort((groups, _bytes_per_combination(stats, groups)))
        case VictimOrder.LEAST_PRODUCTIVE:
            inactive = last < inactive_before_s
            # Among inactive groups age decides; among the others age must not.
            age_key = np.where(inactive, last, 0.0)
            held = stats.bytes[groups]
            barren = stats.produced[groups] == 0
            per_combination = _bytes_per_combination(stats, groups)
            size_key = np.where(barren, -held, 0)
            return np.lexsort((groups, size_key, -per_combination, age_key, ~inactive))


def _bytes_per_combination(stats: GroupStats, groups: IntArray) -> npt.NDArray[np.float64]:
    """P_s / P_o; infinite where nothing was produced yet."""
    produced = stats.produced[groups]
    ratio = np.full(groups.size, np.inf)
    np.divide(stats.bytes[groups], produced, out=ratio, where=produced > 0)
    return ratio
