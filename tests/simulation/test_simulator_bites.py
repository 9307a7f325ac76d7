"""The simulator is only worth what it finds: each broken rule must be found in few seeds."""

from __future__ import annotations

import pytest

from kit.sim_bugs import BUGS, planted
from kit.sim_run import run_seed
from kit.sim_world import Violation


@pytest.mark.parametrize("name", BUGS)
def test_a_broken_rule_is_found(name: str) -> None:
    """Within the number of seeds that the list states."""
    bug = BUGS[name]
    with planted(bug):
        for seed in range(bug.first, bug.first + bug.within):
            try:
                run_seed(seed)
            except Violation:
                return
    pytest.fail(f"{bug.within} seeds did not notice that this rule is broken: {bug.rule}")
