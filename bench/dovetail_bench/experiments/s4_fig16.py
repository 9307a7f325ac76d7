"""S4 Fig. 16: memory of two machines under alternating load, with moves and without."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from statistics import median

from dovetail_bench.experiments import alternating
from dovetail_bench.experiments.cluster_runs import run_lines
from dovetail_bench.experiments.experiment import Claim, Experiment
from dovetail_bench.experiments.plotting import plot_minutes

TITLE = "memory of two machines, load alternating by 10, below 90 %, every 15 s"
WITHOUT = alternating.NO_ADAPTATION.series
WITH = "Distributed-Adapt-15s"
SETTLED = 0.8
"""Memory counts as balanced if the least used has this share of the most used: θ_d's default."""


def run() -> Experiment:
    """Run with moves and without; each machine becomes a line."""
    experiment = Experiment("s4-fig16", TITLE, dict(alternating.SETTINGS))
    lines = (alternating.NO_ADAPTATION, alternating.moving(WITH, 0.9, 15))
    run_lines(experiment, alternating.load(), lines)
    experiment.rows = [
        {
            "series": f"{row['series']}-M{machine}",
            "paper_minutes": row["paper_minutes"],
            "memory_bytes": row["memory_by_processor"][f"p{machine}"],
        }
        for row in experiment.rows
        for machine in (1, 2)
    ]
    judge(experiment)
    return experiment


def judge(experiment: Experiment) -> None:
    """How even memory is, and how often the two machines change places without moves."""
    even = {s: median(min(a, b) / max(a, b, 1) for a, b in _pairs(experiment, s)) for s in _SERIES}
    leads = [a > b for a, b in _pairs(experiment, WITHOUT)]
    changes = sum(a != b for a, b in pairwise(leads))
    experiment.claims += [
        Claim(
            "without moves the memory of the two machines changes alternately",
            "stated, no numbers",
            f"the larger of the two changes {changes} times in {len(alternating.PHASES) - 1} "
            "phases",
            changes >= 2,
            "2 times or more",
        ),
        Claim(
            "with moves it is balanced",
            "stated, no numbers",
            f"the smaller has {100 * even[WITH]:.0f} % of the larger, without moves "
            f"{100 * even[WITHOUT]:.0f} % (medians)",
            even[WITH] > max(SETTLED, even[WITHOUT]),
            "over 80 %, and over that without moves",
        ),
    ]


_SERIES = (WITHOUT, WITH)


def _pairs(experiment: Experiment, series: str) -> list[tuple[int, int]]:
    """Memory of both machines, moment by moment."""
    first, second = (
        [r["memory_bytes"] for r in experiment.rows if r["series"] == f"{series}-M{machine}"]
        for machine in (1, 2)
    )
    return list(zip(first, second, strict=True))


def plot(experiment: Experiment, path: Path) -> None:
    """Memory over time."""
    plot_minutes(experiment, path, column="memory_bytes", label="state and queues (MB)")
