"""The simulator is only worth what it finds: each broken rule must be found in few seeds."""

from __future__ import annotations

import logging

import pytest
import structlog

from kit.sim_bugs import planted
from kit.sim_bugs_input import INPUT_BUGS
from kit.sim_bugs_moves import MOVE_BUGS
from kit.sim_bugs_state import STATE_BUGS
from kit.sim_run import run_seed
from kit.sim_world import Violation

BUGS = {**INPUT_BUGS, **STATE_BUGS, **MOVE_BUGS}


@pytest.mark.parametrize("name", BUGS)
def test_a_broken_rule_is_found(name: str) -> None:
    """Within the number of seeds that the list states."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    bug = BUGS[name]
    with planted(bug):
        for seed in range(bug.first, bug.first + bug.within):
            try:
                run_seed(seed)
            except Violation:
                return
    pytest.fail(f"{bug.within} seeds did not notice that this rule is broken: {bug.rule}")
