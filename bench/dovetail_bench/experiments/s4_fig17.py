"""S4 Fig. 17: moves against pushes, when the memory of all machines together suffices."""

from __future__ import annotations

from pathlib import Path

from dovetail.generator import RangeWorkload
from dovetail_bench.experiments.cluster_runs import SEED, Line, Load, limit_for, rows_of, run_lines
from dovetail_bench.experiments.experiment import Claim, Experiment
from dovetail_bench.experiments.judging import first_push_minute, per_cent
from dovetail_bench.experiments.plotting import plot_minutes

TITLE = "three machines, 2/3 of the groups on one: moving against pushing to disk"
MINUTES = 60
TUPLE_MS = 30
WEIGHTS = (4, 1, 1)
PAPER_DROP_MINUTE = 40

LIMIT_BYTES = limit_for(6_450_000)
"""The state of the machine with 2/3 of the groups in the paper's 40th minute. A third of what all
tuples take in the end is 4.8 MB."""

WITHOUT, WITH = "No-Distributed-Adaptation", "Distributed-Adaptation"
LINES = (
    Line(WITHOUT, 3, "disk", LIMIT_BYTES, WEIGHTS),
    Line(WITH, 3, "lazy-disk", LIMIT_BYTES, WEIGHTS),
)


def even_load() -> Load:
    """The streams of S4 4.4, for the hour that figures 14 to 17 run."""
    streams = RangeWorkload(
        rows=rows_of(MINUTES, TUPLE_MS), tuple_range=30_000, join_ratios=(3,), seed=SEED
    )
    return Load(streams, MINUTES, TUPLE_MS)


def run() -> Experiment:
    """Run with moves and without."""
    settings = {"tuple_range": 30_000, "join_ratios": [3], "weights": list(WEIGHTS)}
    experiment = Experiment("s4-fig17", TITLE, settings)
    run_lines(experiment, even_load(), LINES)
    judge(experiment)
    return experiment


def judge(experiment: Experiment) -> None:
    """When pushes begin, and what they cost."""
    begun = first_push_minute(experiment, WITHOUT)
    without, with_moves = experiment.total(WITHOUT), experiment.total(WITH)
    share = with_moves["results_run"] / max(1, without["results_run"])
    experiment.claims += [
        Claim(
            "without moves the throughput drops when the fullest machine starts to push",
            f"after {PAPER_DROP_MINUTE} minutes",
            "no push" if begun is None else f"first push after {begun:.1f} minutes",
            begun is not None and abs(begun - PAPER_DROP_MINUTE) < 4,
            "40 ± 4 minutes",
            set_by="the threshold",
        ),
        Claim(
            "with moves all state stays in memory",
            "stated, no numbers",
            f"{with_moves['pushes']} pushes, {with_moves['moves']} moves; without moves "
            f"{without['pushes']} pushes",
            with_moves["pushes"] == 0 < with_moves["moves"],
            "no push, a move or more",
        ),
        Claim(
            "and more results come in the run",
            "stated, no numbers",
            f"{with_moves['results_run']:,} against {without['results_run']:,} ({per_cent(share)})",
            share > 1,
            "more",
            difference=share - 1,
        ),
    ]


def plot(experiment: Experiment, path: Path) -> None:
    """Results over time."""
    plot_minutes(experiment, path)
