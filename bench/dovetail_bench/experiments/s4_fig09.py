"""S4 Fig. 9: results over time when 0 … 100 % of the state is pushed at each overflow."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from dovetail_bench.experiments.disk_runs import Series, run_series, workload
from dovetail_bench.experiments.experiment import Claim, Experiment
from dovetail_bench.experiments.plotting import plot_lines

TITLE = "results by share of state pushed, random victims, join ratio 3"
SHARES = (0, 10, 30, 50, 100)


def run() -> Experiment:
    """Run every share."""
    experiment = Experiment("s4-fig9", TITLE, {"victims": "random"})
    lines = [Series(f"{share}%-Push", "random", share / 100) for share in SHARES]
    run_series(experiment, workload((3,)), lines)
    found = [t["results_run"] for t in experiment.totals]
    falls = all(a > b for a, b in pairwise(found))
    experiment.claims.append(
        Claim(
            "the more state is pushed, the smaller the throughput",
            "stated, no numbers",
            ", ".join(f"{share} %: {n:,}" for share, n in zip(SHARES, found, strict=True)),
            falls,
            "each fewer than the one before",
        )
    )
    return experiment


def plot(experiment: Experiment, path: Path) -> None:
    """Results over time."""
    plot_lines(experiment, path, column="results", label="results so far (millions)", scale=1e-6)
