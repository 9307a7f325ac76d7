"""Workers of a process share its memory: what one does not need, another may use."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from dovetail_processor.process_memory import ProcessMemory
from dovetail_proto.ids import ProcessorId

A, B = ProcessorId("p1.0"), ProcessorId("p1.1")


def shared(limit_bytes: int, *workers: ProcessorId) -> tuple[ProcessMemory, Counter[ProcessorId]]:
    """Memory of these workers, and how often each was woken."""
    memory, woken = ProcessMemory(limit_bytes, len(workers)), Counter[ProcessorId]()
    for worker in workers:
        memory.join(worker, lambda worker=worker: woken.update([worker]))  # type: ignore[misc]
    return memory, woken


def test_each_worker_begins_with_an_equal_part() -> None:
    """And keeps it while nobody is short."""
    memory, woken = shared(1000, A, B)
    assert [memory.grant(w, 50, 50) for w in (A, B, A, B)] == [500] * 4
    assert not woken


def test_a_worker_that_is_short_gets_what_its_neighbour_does_not_need() -> None:
    """The neighbour is woken, lets go, and keeps half of its part; then the short one is woken."""
    memory, woken = shared(1000, A, B)
    assert memory.grant(A, 0, 400) == 500  # nothing is free yet
    assert memory.may_grow(A)
    assert woken == {B: 1}
    assert memory.grant(B, 0, 0) == 250
    assert woken == {A: 1, B: 1}
    assert memory.grant(A, 0, 400) == 400 + 100 + 62
    assert memory.grant(A, 0, 500) == 500 + 125 + 62
    assert memory.grant(A, 0, 640) == 750
    memory.grant(B, 0, 200)  # short too
    assert memory.grant(A, 0, 740) == 750
    assert not memory.may_grow(A), "everyone has been asked"


def test_what_a_worker_has_for_good_is_no_reason_for_a_reserve() -> None:
    """Only what it holds may grow."""
    memory, _ = shared(1000, A, B)
    memory.grant(A, 0, 400)
    assert memory.grant(B, 290, 0) == 290 + 62


def test_what_was_lent_comes_back_when_it_is_not_needed() -> None:
    """The one that had more has its equal part again, and so has the other."""
    memory, _ = shared(1000, A, B)
    memory.grant(A, 0, 400)
    memory.grant(B, 0, 0)
    assert memory.grant(A, 0, 500) == 500 + 125 + 62
    assert memory.grant(A, 0, 100) == 500
    assert memory.grant(B, 0, 0) == 500


def test_nobody_waits_for_a_worker_that_has_ended() -> None:
    """What it had is free."""
    memory, woken = shared(1000, A, B)
    memory.grant(A, 0, 400)
    memory.leave(B)
    assert woken == {A: 1, B: 1}
    assert not memory.may_grow(A)
    assert memory.grant(A, 0, 480) == 480 + 120 + 62


def test_a_worker_keeps_what_its_queries_are_sure_of() -> None:
    """However little they hold now: the one that is short may never give it back."""
    memory, _ = shared(1000, A, B)
    memory.grant(A, 0, 400)
    assert memory.grant(B, 150, 0, 300) == 450
    memory.grant(A, 0, 540)
    assert memory.grant(B, 150, 300, 300) == 450


@pytest.mark.parametrize("seed", range(20))
def test_grants_are_never_more_than_the_limit_nor_less_than_what_is_used(seed: int) -> None:
    """Whatever workers use, within what they were granted."""
    rng = np.random.default_rng(seed)
    workers = [ProcessorId(f"p.{n}") for n in range(int(rng.integers(2, 6)))]
    limit = int(rng.integers(10, 100_000))
    memory, _ = shared(limit, *workers)
    granted = dict.fromkeys(workers, memory.part_bytes)
    for _ in range(300):
        worker = workers[int(rng.integers(len(workers)))]
        used = int(rng.integers(granted[worker] + 1))
        fixed = int(rng.integers(min(used, memory.part_bytes) + 1))
        sure = (
            int(rng.integers(memory.part_bytes - fixed + 1))
            if granted[worker] >= memory.part_bytes
            else 0
        )
        granted[worker] = memory.grant(worker, fixed, used - fixed, sure)
        assert granted[worker] >= max(used, fixed + sure)
        assert sum(granted.values()) <= limit
