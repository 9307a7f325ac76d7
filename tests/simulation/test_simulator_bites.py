"""The simulator is only worth what it finds: each broken rule must be found in few seeds.

Most are found by ordinary seeds; what these seldom come to is sought in a scene, which the product
has to pass as well.
"""

from __future__ import annotations

import logging

import pytest
import structlog

from kit.sim_bugs import WITHIN, planted
from kit.sim_bugs_input import INPUT_BUGS
from kit.sim_bugs_moves import MOVE_BUGS
from kit.sim_bugs_state import STATE_BUGS
from kit.sim_run import run_seed
from kit.sim_scenes import ORDINARY, SCENES
from kit.sim_world import Violation

BUGS = {**INPUT_BUGS, **STATE_BUGS, **MOVE_BUGS}

SCENE_SEEDS = 2
"""Of each scene, without a bug."""


@pytest.fixture(autouse=True)
def quiet() -> None:
    """What the product logs of a bug is of no use here."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


@pytest.mark.parametrize("name", BUGS)
def test_a_broken_rule_is_found(name: str) -> None:
    """By few seeds, as they are dealt or in the scene where it is sought."""
    bug = BUGS[name]
    scene = SCENES[bug.scene] if bug.scene else ORDINARY
    with planted(bug):
        for seed in range(WITHIN):
            try:
                run_seed(seed, scene)
            except Violation:
                return
    pytest.fail(f"{WITHIN} seeds did not notice that this rule is broken: {bug.rule}")


@pytest.mark.parametrize("name", SCENES)
def test_where_no_rule_is_broken_a_scene_is_passed(name: str) -> None:
    """Scenes find bugs, not more: the same places, and nothing is wrong there."""
    assert any(bug.scene == name for bug in BUGS.values())
    for seed in range(SCENE_SEEDS):
        run_seed(seed, SCENES[name])
