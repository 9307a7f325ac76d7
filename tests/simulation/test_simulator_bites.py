"""The simulator is only worth what it finds: each broken rule must be found in few seeds.

`make test` plants the bugs that a few seeds find; `DOVETAIL_BUGS=all` plants all of them, which
takes some ten minutes.
"""

from __future__ import annotations

import logging
import os

import pytest
import structlog

from kit.sim_bugs import planted
from kit.sim_bugs_input import INPUT_BUGS
from kit.sim_bugs_moves import MOVE_BUGS
from kit.sim_bugs_state import STATE_BUGS
from kit.sim_run import run_seed
from kit.sim_world import Violation

BUGS = {**INPUT_BUGS, **STATE_BUGS, **MOVE_BUGS}

WITHIN_MAX = 30
"""Seeds, of what `make test` plants: most are found by the first."""

CHOSEN = [
    name
    for name, bug in BUGS.items()
    if bug.within <= WITHIN_MAX or os.environ.get("DOVETAIL_BUGS") == "all"
]


@pytest.mark.parametrize("name", CHOSEN)
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
