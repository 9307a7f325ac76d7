"""The whole cluster under faults: whatever happens, every result once and none missing.

The workers and the manager are the product's; time, net, disk and threads are virtual.
"""

from __future__ import annotations

import pytest

from kit.sim_main import run_range
from kit.sim_run import run_seed

SEEDS = 500
BATCH = 20


@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_every_result_comes_once_whatever_the_seed_breaks(first: int) -> None:
    """Twenty random clusters, faults and healings each; a failure prints its story."""
    _, _, failures = run_range(range(first, first + BATCH))
    assert not failures, "\n\n".join(failures.values())


def test_a_seed_is_a_run() -> None:
    """The same seed gives the same events, moves and results."""
    for seed in (7, 19):
        assert run_seed(seed) == run_seed(seed)


def test_the_seeds_reach_what_they_are_for() -> None:
    """Moves of every outcome, pushes, forced pushes, what is owed, failed queries, every fault."""
    _, happened, failures = run_range(range(1040, 1100))
    assert not failures
    for what in ("completed", "rolled back", "partly", "failed"):
        assert happened[f"moves {what}"]
    assert happened["pushes"] > 100
    assert happened["bytes forced"]
    assert happened["results owed"] > 1000
    assert happened["queries closed"] > 2 * happened["queries failed"] > 0
