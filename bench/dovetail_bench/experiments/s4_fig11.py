"""S4 Fig. 11: which groups to push when a third each has join ratio 4, 2 and 1."""

from __future__ import annotations

from pathlib import Path

from dovetail_bench.experiments.disk_runs import Series, run_series, workload
from dovetail_bench.experiments.experiment import Claim, Experiment
from dovetail_bench.experiments.plotting import plot_lines

TITLE = "least against most productive victims, join ratios 4, 2, 1"
LOW, HIGH = "30%-Low-OutputRate", "30%-High-OutputRate"
LINES = (Series(LOW, "least-productive", 0.3), Series(HIGH, "most-productive", 0.3))

PAPER_LEFT = {LOW: 194_308, HIGH: 992_893}
PAPER_MS = {LOW: 26_879, HIGH: 359_396}


def run() -> Experiment:
    """Run both choices."""
    experiment = Experiment("s4-fig11", TITLE, {"push_fraction": 0.3})
    run_series(experiment, workload((4, 2, 1)), LINES)
    low, high = experiment.total(LOW), experiment.total(HIGH)
    experiment.claims += [
        Claim(
            "pushing the less productive groups gives a much higher throughput",
            "stated, no numbers",
            f"{low['results_run']:,} against {high['results_run']:,} results in the run",
            low["results_run"] > 1.5 * high["results_run"],
            "1.5 times as many or more",
        ),
        Claim(
            "and leaves fewer results to the clean-up",
            f"{PAPER_LEFT[LOW]:,} against {PAPER_LEFT[HIGH]:,} "
            f"(1 : {PAPER_LEFT[HIGH] / PAPER_LEFT[LOW]:.1f})",
            f"{low['results_left']:,} against {high['results_left']:,} "
            f"(1 : {high['results_left'] / max(1, low['results_left']):.1f})",
            low["results_left"] < high["results_left"],
            "fewer",
        ),
        Claim(
            "which takes less time",
            f"{PAPER_MS[LOW]:,} ms against {PAPER_MS[HIGH]:,} ms "
            f"(1 : {PAPER_MS[HIGH] / PAPER_MS[LOW]:.1f})",
            f"{low['cleanup_ms']:,.0f} ms against {high['cleanup_ms']:,.0f} ms "
            f"(1 : {high['cleanup_ms'] / max(1, low['cleanup_ms']):.1f})",
            low["cleanup_ms"] < high["cleanup_ms"],
            "less",
        ),
    ]
    return experiment


def plot(experiment: Experiment, path: Path) -> None:
    """Results over time."""
    plot_lines(experiment, path, column="results", label="results so far (millions)", scale=1e-6)
