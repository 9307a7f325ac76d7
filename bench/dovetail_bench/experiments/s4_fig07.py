"""S4 Fig. 7: a large query plan on one to five processors, without any adaptation."""

from __future__ import annotations

from pathlib import Path

from dovetail.generator import RangeWorkload
from dovetail_bench.experiments.cluster_runs import SEED, Line, Load, rows_of, run_lines
from dovetail_bench.experiments.experiment import Claim, Experiment
from dovetail_bench.experiments.judging import ALIKE, per_cent, quarters, shares_of
from dovetail_bench.experiments.plotting import plot_minutes

TITLE = "a large plan on 1 to 5 processors: range 50K, join ratio 2, a tuple every 10 ms"
MINUTES = 40
TUPLE_MS = 10

LIMIT_BYTES = 32_000_000
"""So that one processor is full in the paper's 25th minute: 450 000 tuples of 39 bytes of state,
beside the bounds for queues and output."""

LINES = tuple(Line(f"M{n}", n, "none", LIMIT_BYTES) for n in range(1, 6))
PAPER_STOPS = {"M1": 25, "M2": 35}


def run() -> Experiment:
    """Run every number of processors."""
    experiment = Experiment("s4-fig7", TITLE, {"tuple_range": 50_000, "join_ratios": [2]})
    streams = RangeWorkload(
        rows=rows_of(MINUTES, TUPLE_MS), tuple_range=50_000, join_ratios=(2,), seed=SEED
    )
    run_lines(experiment, Load(streams, MINUTES, TUPLE_MS), LINES)
    judge(experiment)
    return experiment


def judge(experiment: Experiment) -> None:
    """When do one and two run out of memory, and do more than enough processors help?"""
    stops = {t["series"]: t["stopped_at_minute"] for t in experiment.totals}
    # A sample may come before four and five differ at all: the last three quarters count.
    shares = shares_of(experiment, "M5", "M4", quarters(experiment.settings["paper_minutes"])[1:])
    worst = max(shares, key=lambda s: abs(s - 1))
    enough = stops["M4"] is None and stops["M5"] is None
    experiment.claims += [
        Claim(
            "one machine runs out of memory and stops",
            f"after about {PAPER_STOPS['M1']} of {MINUTES} minutes",
            _stop(stops["M1"]),
            stops["M1"] is not None and abs(stops["M1"] - PAPER_STOPS["M1"]) < 3,
            "25 ± 3 minutes",
            set_by="the memory limit",
        ),
        Claim(
            "two machines run longer, and stop too",
            f"after about {PAPER_STOPS['M2']} of {MINUTES} minutes",
            _stop(stops["M2"]),
            stops["M2"] is not None and stops["M2"] > (stops["M1"] or 0),
            "stops, later than one",
        ),
        Claim(
            "once memory suffices, more machines do not help: M4 and M5 are almost the same",
            "stated, no numbers",
            f"M5 against M4 {per_cent(worst)} where they differ most"
            + ("" if enough else "; not both ran to the end"),
            enough and abs(worst - 1) < ALIKE,
            "within ±5 %",
        ),
    ]


def _stop(minute: float | None) -> str:
    return "runs to the end" if minute is None else f"after {minute:.1f} minutes"


def plot(experiment: Experiment, path: Path) -> None:
    """Results over time; lines end where the query stopped."""
    plot_minutes(experiment, path)
