"""S4 Fig. 10: memory over time for the shares of Fig. 9, of operators and queues together."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from dovetail_bench.experiments.disk_runs import LIMIT_BYTES, Series, run_series, workload
from dovetail_bench.experiments.experiment import Claim, Experiment
from dovetail_bench.experiments.plotting import plot_lines

TITLE = "memory by share of state pushed, random victims, join ratio 3"
SHARES = (0, 10, 30, 50, 100)


def run() -> Experiment:
    """Run every share."""
    experiment = Experiment("s4-fig10", TITLE, {"victims": "random"})
    lines = [Series(f"{share}%-Push", "random", share / 100) for share in SHARES]
    run_series(experiment, workload((3,)), lines)
    pushing = experiment.totals[1:]
    peak = max(t["peak_held_bytes"] for t in pushing)
    whole = experiment.totals[0]["peak_held_bytes"]
    pushes = [t["pushes"] for t in pushing]
    experiment.claims += [
        Claim(
            "memory is controlled by the adaptation",
            "stated, no numbers",
            f"peak {peak / 1e6:.1f} MB of a limit of {LIMIT_BYTES / 1e6:.1f} MB; "
            f"without pushes {whole / 1e6:.1f} MB",
            peak <= LIMIT_BYTES < whole,
            "peak within the limit, above it without pushes",
        ),
        Claim(
            "the more state a push takes, the fewer pushes are needed",
            "stated, no numbers",
            ", ".join(f"{s} %: {n}" for s, n in zip(SHARES[1:], pushes, strict=True)),
            all(a > b for a, b in pairwise(pushes)),
            "each fewer than the one before",
        ),
    ]
    return experiment


def plot(experiment: Experiment, path: Path) -> None:
    """Memory over time."""
    plot_lines(
        experiment, path, column="memory_bytes", label="state, queues and output (MB)", scale=1e-6
    )
