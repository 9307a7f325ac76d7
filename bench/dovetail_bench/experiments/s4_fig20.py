"""S4 Fig. 20: lazy-disk against pushes without moves, when all memory together is too little."""

from __future__ import annotations

from pathlib import Path

from dovetail_bench.experiments.cluster_runs import Line, limit_for, run_lines
from dovetail_bench.experiments.experiment import Claim, Experiment
from dovetail_bench.experiments.judging import per_cent
from dovetail_bench.experiments.plotting import plot_minutes
from dovetail_bench.experiments.s4_fig17 import even_load

TITLE = "lazy-disk against no moves, 2/3 of the groups on one of three machines"
WEIGHTS = (4, 1, 1)

LIMIT_BYTES = limit_for(3_600_000)
"""A quarter of the whole state: 2/3 of it are too much for one machine, 1/6 is not, 1/3 is."""

MUCH = 1.2
"""A "much higher" throughput has at least a fifth more results."""

LAZY, WITHOUT = "Lazy-Disk", "No-Distributed-Adaptation"
LINES = (
    Line(LAZY, 3, "lazy-disk", LIMIT_BYTES, WEIGHTS),
    Line(WITHOUT, 3, "disk", LIMIT_BYTES, WEIGHTS),
)


def run() -> Experiment:
    """Run with moves and without."""
    settings = {"tuple_range": 30_000, "join_ratios": [3], "weights": list(WEIGHTS)}
    experiment = Experiment("s4-fig20", TITLE, settings)
    run_lines(experiment, even_load(), LINES)
    judge(experiment)
    return experiment


def judge(experiment: Experiment) -> None:
    """Who pushes, and what moves bring."""
    lazy, without = experiment.total(LAZY), experiment.total(WITHOUT)
    pushing = {t["series"]: _pushing(t["pushes_by_processor"]) for t in (lazy, without)}
    share = lazy["results_run"] / max(1, without["results_run"])
    experiment.claims += [
        Claim(
            "without moves only one machine is overloaded, with lazy-disk all three in the end",
            "stated, no numbers",
            f"pushes without moves on {', '.join(pushing[WITHOUT])}, with lazy-disk on "
            f"{', '.join(pushing[LAZY])}",
            len(pushing[WITHOUT]) == 1 and len(pushing[LAZY]) == 3,
            "one without moves, three with",
        ),
        Claim(
            "lazy-disk has a much higher throughput",
            "stated, no numbers",
            f"{lazy['results_run']:,} against {without['results_run']:,} results in the run "
            f"({per_cent(share)})",
            share >= MUCH,
            "+20 % or more",
            difference=share - 1,
        ),
    ]


def _pushing(pushes: dict[str, int]) -> list[str]:
    return [p for p, n in sorted(pushes.items()) if n] or ["none"]


def plot(experiment: Experiment, path: Path) -> None:
    """Results over time."""
    plot_minutes(experiment, path)
