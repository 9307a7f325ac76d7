"""S4 Fig. 6: a small query plan on one to five processors."""

from __future__ import annotations

from pathlib import Path

from dovetail.generator import RangeWorkload
from dovetail_bench.experiments.cluster_runs import SEED, Line, Load, rows_of, run_lines
from dovetail_bench.experiments.experiment import Claim, Experiment
from dovetail_bench.experiments.judging import ALIKE, per_cent, quarters, shares_of
from dovetail_bench.experiments.plotting import plot_minutes

TITLE = "a small plan on 1 to 5 processors: range 50K, join ratio 1, a tuple every 20 ms"
MINUTES = 40
TUPLE_MS = 20
LINES = tuple(Line(f"M{n}", n, "none") for n in range(1, 6))


def run() -> Experiment:
    """Run every number of processors."""
    experiment = Experiment("s4-fig6", TITLE, {"tuple_range": 50_000, "join_ratios": [1]})
    streams = RangeWorkload(rows=rows_of(MINUTES, TUPLE_MS), tuple_range=50_000, seed=SEED)
    run_lines(experiment, Load(streams, MINUTES, TUPLE_MS), LINES)
    judge(experiment)
    return experiment


def judge(experiment: Experiment) -> None:
    """Compare all with one processor."""
    minutes = quarters(experiment.settings["paper_minutes"])
    shares = {n: shares_of(experiment, f"M{n}", "M1", minutes) for n in range(2, 6)}
    worst = {n: max(found, key=lambda s: abs(s - 1)) for n, found in shares.items()}
    last = shares[5][-1]
    experiment.claims += [
        Claim(
            "more machines have a negligible effect on the throughput of a small plan",
            "stated, no numbers",
            "results against one processor's, at the quarter where they differ most: "
            + ", ".join(f"M{n} {per_cent(s)}" for n, s in worst.items()),
            all(abs(s - 1) < ALIKE for s in worst.values()),
            "all within ±5 %",
        ),
        Claim(
            "five machines have a slightly lower throughput than one",
            "stated, no numbers",
            f"{per_cent(last)} at the end of the input",
            1 - ALIKE < last < 1,
            "fewer, by more than runs differ",
            difference=last - 1,
        ),
    ]


def plot(experiment: Experiment, path: Path) -> None:
    """Results over time."""
    plot_minutes(experiment, path)
