"""S4 Fig. 14: how uneven memory must be for a move, under alternating load."""

from __future__ import annotations

from pathlib import Path

from dovetail_bench.experiments import alternating
from dovetail_bench.experiments.cluster_runs import run_lines
from dovetail_bench.experiments.experiment import Claim, Experiment
from dovetail_bench.experiments.plotting import plot_minutes

TITLE = "percentage at which moves start, load alternating by 10, every 45 s at most"
LINES = (
    alternating.NO_ADAPTATION,
    alternating.moving("50%-Difference", 0.5, 45),
    alternating.moving("90%-Difference", 0.9, 45),
)


def run() -> Experiment:
    """Run every percentage."""
    experiment = Experiment("s4-fig14", TITLE, dict(alternating.SETTINGS))
    run_lines(experiment, alternating.load(), LINES)
    judge(experiment)
    return experiment


def judge(experiment: Experiment) -> None:
    """Count moves, compare throughput."""
    few, many = (experiment.total(f"{k}%-Difference")["moves"] for k in (50, 90))
    experiment.claims += [
        Claim(
            "a high percentage moves often, a low one hardly ever",
            "24 moves at 90 %, 2 at 50 %",
            f"{many} moves at 90 %, {few} at 50 %",
            many > 2 * few,
            "more than twice as many at 90 %",
        ),
        alternating.throughput_claim(experiment, alternating.NO_ADAPTATION.series),
    ]


def plot(experiment: Experiment, path: Path) -> None:
    """Results over time."""
    plot_minutes(experiment, path)
