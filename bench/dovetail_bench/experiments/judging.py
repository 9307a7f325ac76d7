"""What the lines of a distributed experiment say about each other."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from dovetail_bench.experiments.experiment import Experiment

ALIKE = 0.05
"""Lines that differ by less than this share are almost the same, in the paper's words."""


def results_at(experiment: Experiment, series: str, minute: float) -> float:
    """Results of a line by a minute of the paper, between its points along a straight line."""
    points = [r for r in experiment.rows if r["series"] == series]
    return float(
        np.interp(minute, [p["paper_minutes"] for p in points], [p["results"] for p in points])
    )


def shares_of(
    experiment: Experiment, series: str, other: str, minutes: Iterable[float]
) -> list[float]:
    """Results of a line as shares of another's, at each of the minutes."""
    return [
        results_at(experiment, series, m) / max(1.0, results_at(experiment, other, m))
        for m in minutes
    ]


def quarters(minutes: float) -> list[float]:
    """A quarter, half and three quarters of a run, and its end."""
    return [minutes * q / 4 for q in (1, 2, 3, 4)]


def first_push_minute(experiment: Experiment, series: str) -> float | None:
    """The first point of a line at which something had been pushed."""
    pushed = [r for r in experiment.rows if r["series"] == series and r["pushes"]]
    return float(pushed[0]["paper_minutes"]) if pushed else None


def per_cent(share: float) -> str:
    """A share that is near 1, as a difference."""
    return f"{100 * (share - 1):+.1f} %"
