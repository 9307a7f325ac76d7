"""Arcs and the pool they share: bounded by bytes, and a burst can queue."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from dovetail_processor.graph.arc import Arc, QueuePool
from dovetail_processor.graph.loop import MEASURED_EVERY, step
from dovetail_processor.graph.node import Statistics, Waiting


@dataclass(frozen=True)
class Batch:
    """Of some bytes."""

    size_bytes: int


def test_an_arc_counts_its_bytes_and_has_no_room_beyond_what_it_is_sure_of() -> None:
    """The batch that crosses the bound is taken."""
    arc: Arc[Batch] = Arc(100)
    arc.offer(Batch(80), 1.0)
    assert (arc.held_bytes, arc.has_room, len(arc)) == (80, True, 1)
    arc.offer(Batch(81), 2.0)
    assert (arc.held_bytes, arc.has_room, len(arc)) == (161, False, 2)
    assert arc.first == Batch(80)
    assert arc.since_s == 1.0
    assert arc.take() == Batch(80)
    assert (arc.held_bytes, arc.has_room, arc.since_s) == (81, True, 2.0)
    arc.clear()
    assert (arc.held_bytes, len(arc), arc.first, arc.since_s) == (0, 0, None, float("inf"))


def test_a_burst_queues_in_the_pool_until_that_is_used_up() -> None:
    """Each arc is sure of its own, whatever the others have drawn."""
    pool = QueuePool()
    pool.limit_bytes = 100
    one: Arc[Batch] = Arc(10, pool)
    other: Arc[Batch] = Arc(10, pool)
    one.offer(Batch(10), 0.0)
    assert pool.used_bytes == 0
    for _ in range(10):
        assert one.has_room
        one.offer(Batch(10), 0.0)
    assert (pool.used_bytes, one.has_room) == (100, False)
    assert other.has_room
    other.offer(Batch(10), 0.0)
    assert not other.has_room
    one.take()
    assert other.has_room, "what one gives back another may have"
    one.clear()
    assert pool.used_bytes == 0


def test_a_pool_whose_limit_shrinks_takes_nothing_back_and_gives_nothing_more() -> None:
    """As when state needs the memory."""
    pool = QueuePool()
    pool.limit_bytes = 100
    arc: Arc[Batch] = Arc(1, pool)
    arc.offer(Batch(51), 0.0)
    pool.limit_bytes = 20
    assert (pool.used_bytes, arc.has_room) == (50, False)
    arc.take()
    assert (pool.used_bytes, arc.has_room) == (0, True)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40)), max_size=60))
def test_the_pool_has_what_every_arc_holds_beyond_its_own(moves: list[tuple[int, int]]) -> None:
    """After whatever they took in and gave out; a size of 0 stands for taking out."""
    pool = QueuePool()
    arcs: list[Arc[Batch]] = [Arc(sure, pool) for sure in (0, 7, 50)]
    for i, size in moves:
        if size:
            arcs[i].offer(Batch(size), 0.0)
        elif len(arcs[i]):
            arcs[i].take()
        beyond = [max(0, arc.held_bytes - sure) for arc, sure in zip(arcs, (0, 7, 50), strict=True)]
        assert pool.used_bytes == sum(beyond)
    for arc in arcs:
        arc.clear()
    assert pool.used_bytes == 0


class Worked:
    """A node whose step takes two seconds of computing."""

    owners = ("q",)
    depth = 0
    waiting = Waiting(1, 1, 0.0)
    ready = True

    def __init__(self) -> None:
        self.statistics = Statistics()
        self.cpu_s = 5.0

    def step(self, now_s: float) -> None:
        """Ten rows in, five out."""
        self.cpu_s += 2.0
        self.statistics.rows_in += 10
        self.statistics.rows_out += 5


def test_what_a_node_costs_and_keeps_is_learned_from_its_steps() -> None:
    """Its selectivity from all, its cost from one of some: asking for the time costs as well."""
    node, asked = Worked(), 0

    def cpu_s() -> float:
        nonlocal asked
        asked += 1
        return node.cpu_s

    assert (node.statistics.seconds_per_row, node.statistics.selectivity) == (0.0, 1.0)
    for _ in range(2 * MEASURED_EVERY):
        step(node, 0.0, cpu_s)
    assert node.statistics.steps == 2 * MEASURED_EVERY
    assert (node.statistics.seconds_per_row, node.statistics.selectivity) == (0.2, 0.5)
    assert asked == 4


def test_what_a_query_has_room_for_itself_is_not_drawn_from_the_pool() -> None:
    """A batch that is covered takes nothing away from others, and is sure all the same."""
    pool = QueuePool()
    arc: Arc[Batch] = Arc(1, pool, 100)
    assert arc.has_room
    arc.offer(Batch(60), 0.0)
    assert (pool.used_bytes, arc.has_room) == (0, False), "one batch is sure, the pool has nothing"
    pool.limit_bytes = 1
    arc.offer(Batch(60), 0.0)
    assert pool.used_bytes == 20
    arc.take()
    assert pool.used_bytes == 0
