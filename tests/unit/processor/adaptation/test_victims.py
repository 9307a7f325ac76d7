"""Which groups are given up, checked against plain sorts."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail_processor.adaptation.recent_output import LOOKS_PER_HALF_LIFE, RecentOutput
from dovetail_processor.adaptation.victims import (
    GroupStats,
    VictimOrder,
    choose_groups_to_move,
    choose_victims,
)

GROUPS = st.lists(
    st.tuples(st.integers(0, 50), st.integers(0, 5), st.integers(0, 100)), min_size=1, max_size=30
)


def stats_of(rows: list[tuple[int, int, int]]) -> GroupStats:
    """Rows of (bytes, produced, last insert) as arrays."""
    columns = list(zip(*rows, strict=True))
    return GroupStats(
        np.array(columns[0], dtype=np.int64),
        np.array(columns[1], dtype=np.int64),
        np.array(columns[2], dtype=np.float64),
    )


def victims(stats: GroupStats, want: int, order: VictimOrder, seed: int = 0) -> list[int]:
    """The choice at second 100 with groups inactive after 40 s."""
    rng = np.random.default_rng(seed)
    chosen = choose_victims(stats, want, order=order, now_s=100.0, inactive_after_s=40.0, rng=rng)
    return chosen.tolist()


def reference(rows: list[tuple[int, int, int]], want: int, order: VictimOrder) -> list[int]:
    """The same choice, one group at a time."""

    def ratio(group: int) -> float:
        held, produced, _ = rows[group]
        return held / produced if produced else math.inf

    def key(group: int) -> tuple[float, ...]:
        held, produced, last = rows[group]
        if order is VictimOrder.LEAST_RECENT:
            return (last, group)
        if order is VictimOrder.MOST_PRODUCTIVE:
            return (ratio(group), group)
        if last < 60:
            # Equal ages fall back to the ranking of active groups.
            return (0, last, -ratio(group), -held if not produced else 0, group)
        return (1, 0, -ratio(group), -held if not produced else 0, group)

    chosen: list[int] = []
    freed = 0
    for group in sorted((g for g, row in enumerate(rows) if row[0] > 0), key=key):
        if freed >= want:
            break
        chosen.append(group)
        freed += rows[group][0]
    return chosen


@given(GROUPS, st.integers(0, 600), st.sampled_from([o for o in VictimOrder if o != "random"]))
def test_every_order_agrees_with_a_plain_sort(
    rows: list[tuple[int, int, int]], want: int, order: VictimOrder
) -> None:
    """The vectorised ranking picks exactly what a sort with the written rule picks."""
    assert victims(stats_of(rows), want, order) == reference(rows, want, order)


def test_least_productive_takes_inactive_then_barren_then_large_ratios() -> None:
    """Inactive oldest first, then P_o = 0 largest first, then P_s/P_o falling; 0 bytes never."""
    rows = [
        (10, 5, 90),  # 0: ratio 2
        (30, 0, 90),  # 1: barren
        (40, 0, 90),  # 2: barren, larger
        (10, 9, 30),  # 3: inactive
        (10, 9, 20),  # 4: inactive, older
        (0, 0, 0),  # 5: empty
        (50, 5, 90),  # 6: ratio 10
    ]
    assert victims(stats_of(rows), 10_000, VictimOrder.LEAST_PRODUCTIVE) == [4, 3, 2, 1, 6, 0]


def test_a_random_order_is_the_callers_seed_alone() -> None:
    """The same seed gives the same victims, another seed others; every group can be reached."""
    stats = stats_of([(1, 1, 99)] * 40)
    first = victims(stats, 20, VictimOrder.RANDOM, seed=1)
    assert first == victims(stats, 20, VictimOrder.RANDOM, seed=1)
    assert first != victims(stats, 20, VictimOrder.RANDOM, seed=2)
    assert sorted(victims(stats, 10**6, VictimOrder.RANDOM)) == list(range(40))


@given(GROUPS, st.integers(1, 600))
def test_groups_to_move_come_nearest_to_what_is_wanted(
    rows: list[tuple[int, int, int]], want: int
) -> None:
    """Most productive first, at most one group beyond the wanted bytes, never half over it."""
    stats = stats_of(rows)
    chosen = choose_groups_to_move(stats, want).tolist()
    sizes = [rows[g][0] for g in chosen]
    assert all(0 < size < 2 * want for size in sizes)
    if chosen:
        assert sum(sizes[:-1]) < want or sum(sizes) == sum(sizes[:-1])
        assert abs(sum(sizes) - want) < want
        ranked = reference(rows, 10**6, VictimOrder.MOST_PRODUCTIVE)
        assert chosen == [g for g in ranked if rows[g][0] < 2 * want][: len(chosen)]
    else:
        assert all(not 0 < row[0] < 2 * want for row in rows)


def test_the_papers_rule_leaves_groups_with_generations_on_disk() -> None:
    """With `paper_restrictions` a spilled group stays, without it moves; a mask always holds."""
    stats = stats_of([(10, 10, 0), (10, 5, 0), (10, 1, 0)])
    spilled = np.array([True, False, False])
    assert choose_groups_to_move(stats, 10, spilled=spilled).tolist() == [0]
    restricted = choose_groups_to_move(stats, 10, spilled=spilled, paper_restrictions=True)
    assert restricted.tolist() == [1]
    movable = np.array([True, False, True])
    assert choose_groups_to_move(stats, 20, movable=movable).tolist() == [0, 2]


@pytest.mark.parametrize("order", list(VictimOrder))
def test_half_a_million_groups_are_ranked_in_under_a_second(order: VictimOrder) -> None:
    """One processor of a thousand would hold 500 groups; even all 500 000 at once are quick."""
    rng = np.random.default_rng(7)
    size = 500_000
    stats = GroupStats(
        rng.integers(0, 4 << 20, size), rng.integers(0, 1000, size), rng.uniform(0, 100, size)
    )
    start = time.thread_time()
    chosen = victims(stats, int(stats.bytes.sum()) // 3, order)
    assert time.thread_time() - start < 1.0
    assert len(chosen) > 1000


HALF_LIFE_S = 10.0


@given(
    st.lists(st.tuples(st.floats(0, 5), st.integers(0, 2), st.integers(0, 1000)), max_size=40),
    st.integers(0, 39),
)
def test_with_a_half_life_old_combinations_count_less(
    made: list[tuple[float, int, int]], pushed_at: int
) -> None:
    """Against the sum of each combination's own weight; a push starts the group anew."""
    produced, generation = np.zeros(3, np.int64), np.zeros(3, np.int64)
    recent = RecentOutput(produced, generation, HALF_LIFE_S)
    plain = RecentOutput(produced, generation, 0.0)
    now_s, weighed = 0.0, np.zeros(3)

    def pass_time(until_s: float) -> float:
        for at_s in np.arange(now_s, until_s, HALF_LIFE_S / 100):
            recent.look(float(at_s))
        weighed[:] *= 0.5 ** ((until_s - now_s) / HALF_LIFE_S)
        return until_s

    for step, (passed_s, group, count) in enumerate(made):
        now_s = pass_time(now_s + passed_s)
        produced[group] += count
        weighed[group] += count
        if step == pushed_at:
            generation[0] += 1
            produced[0] = weighed[0] = 0
    now_s = pass_time(now_s + HALF_LIFE_S)
    error = 2 ** (1.2 / LOOKS_PER_HALF_LIFE)  # looks of this test are not more exact
    counted = recent.counted(now_s)
    assert (counted >= weighed - 1e-6).all()
    assert (counted <= weighed * error + 1e-6).all()
    assert plain.counted(now_s) is produced


def test_a_group_that_was_productive_once_goes_when_only_lately_counts() -> None:
    """And stays when every combination counts alike."""
    produced, generation = np.array([0, 0]), np.zeros(2, np.int64)
    recent = RecentOutput(produced, generation, HALF_LIFE_S)
    recent.look(0.0)
    produced[0] = 1000
    recent.look(1.0)
    produced[1] = 100
    held, last = np.array([10, 10]), np.array([100.0, 100.0])
    now = recent.counted(100.0)
    assert victims(GroupStats(held, now, last), 1, VictimOrder.LEAST_PRODUCTIVE) == [0]
    assert victims(GroupStats(held, produced, last), 1, VictimOrder.LEAST_PRODUCTIVE) == [1]
