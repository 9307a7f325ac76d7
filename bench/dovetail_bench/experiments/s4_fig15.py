"""S4 Fig. 15: how often moves may start, under alternating load."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from dovetail_bench.experiments import alternating
from dovetail_bench.experiments.cluster_runs import run_lines
from dovetail_bench.experiments.experiment import Claim, Experiment
from dovetail_bench.experiments.plotting import plot_minutes

TITLE = "time between moves, load alternating by 10, below 90 %"
SPANS_S = (15, 30, 45)
LINES = tuple(alternating.moving(f"Every-{s}s", 0.9, s) for s in SPANS_S)
PAPER_MOVES = (31, 27, 24)


def run() -> Experiment:
    """Run every time-span."""
    experiment = Experiment("s4-fig15", TITLE, dict(alternating.SETTINGS))
    run_lines(experiment, alternating.load(), LINES)
    judge(experiment)
    return experiment


def judge(experiment: Experiment) -> None:
    """Count moves, compare throughput."""
    moves = [experiment.total(line.series)["moves"] for line in LINES]
    experiment.claims += [
        Claim(
            "the shorter the time-span, the more moves",
            _counts(PAPER_MOVES),
            _counts(moves),
            all(a > b for a, b in pairwise(moves)),
            "each fewer than the one before",
        ),
        alternating.throughput_claim(experiment, LINES[-1].series),
    ]


def _counts(moves: tuple[int, ...] | list[int]) -> str:
    return ", ".join(f"{n} at {s} s" for s, n in zip(SPANS_S, moves, strict=True))


def plot(experiment: Experiment, path: Path) -> None:
    """Results over time."""
    plot_minutes(experiment, path)
