"""The policies at scale: what the model of a loaded cluster must show."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dovetail.cli import run_command
from dovetail.load_model import LIMIT_BYTES, WORKLOADS, LoadModel, ModelSettings, Trace


def run(workload: str, policy: str, state_ratio: float = 1.5, intervals: int = 30) -> Trace:
    """A cluster of 60 processors and 6000 groups."""
    settings = ModelSettings(
        processors=60,
        groups=6000,
        intervals=intervals,
        workload=workload,
        policy=policy,
        state_ratio=state_ratio,
    )
    return LoadModel(settings).run()


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("policy", ["distributed", "lazy-disk", "active-disk"])
def test_no_group_moves_twice_within_five_intervals(workload: str, policy: str) -> None:
    """Also under load that alternates by a factor of ten; and things do move."""
    trace = run(workload, policy, state_ratio=0.8 if policy == "distributed" else 1.5)
    assert trace.moved_again == 0
    assert trace.groups_moved > 0


@pytest.mark.parametrize("workload", WORKLOADS)
def test_memory_stays_within_the_limit(workload: str) -> None:
    """Whatever the policy: spilling, moving or holding input up."""
    for policy in ("none", "disk", "lazy-disk"):
        assert max(run(workload, policy).used_max) <= 1.0


@pytest.mark.parametrize("workload", ["skewed", "drifting", "bursty"])
def test_moving_evens_memory_out(workload: str) -> None:
    """The spread over processors in the second half is less than half of that without moves."""
    still = run(workload, "none", state_ratio=0.8).used_spread[15:]
    moving = run(workload, "distributed", state_ratio=0.8).used_spread[15:]
    assert np.mean(moving) < 0.5 * np.mean(still)


def test_alternating_load_does_not_send_groups_back_and_forth() -> None:
    """It evens itself out: moving must not make it worse, nor move all groups again and again."""
    still = run("alternating", "none", state_ratio=0.8)
    moving = run("alternating", "distributed", state_ratio=0.8)
    assert np.mean(moving.used_spread) < 1.1 * np.mean(still.used_spread)
    assert moving.groups_moved < 6000


def test_adapting_beats_not_adapting_when_memory_is_short() -> None:
    """With `none` full processors hold input up and produce less; lazy-disk takes all input."""
    none, lazy = run("skewed", "none"), run("skewed", "lazy-disk")
    assert sum(none.held_up_bytes) > 0
    assert sum(lazy.held_up_bytes) == 0
    assert sum(lazy.produced) > sum(none.produced)


def test_active_disk_forces_pushes_within_its_bound() -> None:
    """At most M_query − M_cluster in all; none if the cluster holds the query."""
    active = run("skewed", "active-disk", state_ratio=1.5)
    assert 0 < sum(active.forced_bytes) <= (1.5 - 0.8) * 60 * LIMIT_BYTES * 1.05
    assert sum(run("skewed", "active-disk", state_ratio=0.75).forced_bytes) == 0


def test_a_seed_is_a_run() -> None:
    """The same settings give the same trace, the time that decisions took aside."""
    first, second = run("bursty", "lazy-disk"), run("bursty", "lazy-disk")
    first.decision_cpu_s = second.decision_cpu_s = []
    assert first == second


def test_a_thousand_processors_are_decided_for_within_a_second() -> None:
    """Policy, choice of groups and new owners for 500 000 groups, in each interval."""
    settings = ModelSettings(processors=1000, groups=500_000, intervals=3, state_ratio=0.3)
    trace = LoadModel(settings).run()
    assert sum(trace.moves) > 100
    assert max(trace.decision_cpu_s) < 1.0


def test_the_command_compares_policies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A table for people, one object for programs, a plot for both."""
    plot = tmp_path / "plot.png"
    common = ["simulate", "--processors", "20", "--groups", "400", "--intervals", "8"]
    assert run_command([*common, "--workload", "drifting", "--plot", str(plot)]) == 0
    shown = capsys.readouterr().out
    assert "20 processors, 400 groups, drifting load" in shown
    assert all(name in shown for name in ("none", "lazy-disk", "active-disk", "again"))
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert run_command([*common, "--policy", "distributed", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [p["policy"] for p in told["policies"]] == ["distributed"]
    assert len(told["policies"][0]["used_max"]) == 8


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--policy", "lazy"], "policy 'lazy' does not exist"),
        (["--workload", "calm"], "workload 'calm' does not exist"),
        (["--groups", "5", "--processors", "9"], "5 groups for 9 processors"),
        (["--policy", "none", "--policy", "none"], "repeat one"),
        (["--plot", "/nowhere/x.png"], "folder /nowhere does not exist"),
    ],
)
def test_what_cannot_be_modelled_is_refused(
    flags: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With one line that names it, before anything is computed."""
    assert run_command(["simulate", *flags]) != 0
    assert named in capsys.readouterr().err
