"""The whole cluster under faults: whatever happens, every result once and none missing.

The workers and the manager are the product's; time, net, disk and threads are virtual.
"""

from __future__ import annotations

from collections import Counter

import pytest

from kit.sim_main import run_range
from kit.sim_run import run_seed

SEEDS = 500
BATCH = 10


@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_every_result_comes_once_whatever_the_seed_breaks(first: int) -> None:
    """Random clusters, queries, operators, faults and healings; a failure prints its story."""
    passed, _, failures = run_range(range(first, first + BATCH))
    assert not failures, "\n\n".join(failures.values())
    assert passed == BATCH


def test_a_seed_is_a_run() -> None:
    """The same seed gives the same events, moves and results."""
    assert run_seed(7) == run_seed(7)


def test_the_seeds_reach_what_they_are_for() -> None:
    """Moves that complete and roll back, pushes, forced ones too, ends of all kinds."""
    kinds: set[str] = set()
    happened: Counter[str] = Counter()
    for seed in range(60):
        verdict = run_seed(seed)
        kinds |= verdict.kinds
        happened.update(verdict.moves)
        happened.update(verdict.ends)
        happened.update(pushes=verdict.pushes, forced=verdict.forced, owed=verdict.owed)
    for what in ("completed", "rolled back", "closed", "failed", "pushes", "forced", "owed"):
        assert happened[what], f"{what}: {happened}"
    assert len(kinds) > 12, kinds
