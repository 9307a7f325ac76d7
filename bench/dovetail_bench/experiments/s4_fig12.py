"""S4 Fig. 12: which groups to push when all have join ratio 3."""

from __future__ import annotations

from pathlib import Path

from dovetail_bench.experiments.disk_runs import run_series, workload
from dovetail_bench.experiments.experiment import Claim, Experiment
from dovetail_bench.experiments.plotting import plot_lines
from dovetail_bench.experiments.s4_fig11 import HIGH, LINES, LOW

TITLE = "least against most productive victims, join ratio 3 everywhere"


def run() -> Experiment:
    """Run both choices."""
    experiment = Experiment("s4-fig12", TITLE, {"push_fraction": 0.3})
    run_series(experiment, workload((3,)), LINES)
    low, high = experiment.total(LOW)["results_run"], experiment.total(HIGH)["results_run"]
    experiment.claims.append(
        Claim(
            "pushing the less productive groups is still slightly better",
            "stated, no numbers",
            f"{low:,} against {high:,} results in the run ({100 * (low / high - 1):+.0f} %)",
            low > high,
            "more",
            difference=low / high - 1,
        )
    )
    return experiment


def plot(experiment: Experiment, path: Path) -> None:
    """Results over time."""
    plot_lines(experiment, path, column="results", label="results so far (millions)", scale=1e-6)
