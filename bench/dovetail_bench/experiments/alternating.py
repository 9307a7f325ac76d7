"""The load of S4's figures 14 to 16: two machines whose partitions get ten times more by turns.

"Partitions assigned to machine 1 get 10 times more tuples than that of machine 2 for the first
five minutes. After that, the machine 2 will get 10 times more … for the next 10 minutes, and so
on." Rate, range and join ratio are not stated for it; they are those of S4 4.4.
"""

from __future__ import annotations

from itertools import pairwise

from dovetail_bench.experiments.cluster_runs import SEED, Line, Load, rows_of
from dovetail_bench.experiments.experiment import Claim, Experiment
from dovetail_bench.experiments.judging import ALIKE, per_cent, quarters, shares_of
from dovetail_bench.experiments.owned_workload import OwnedWorkload

MINUTES = 60
TUPLE_MS = 30
PHASES = (0, 5, 15, 25, 35, 45, 55, 60)
FACTOR = 10
NO_ADAPTATION = Line("No-Distributed-Adapt", 2, "none")
SETTINGS = {"tuple_range": 30_000, "join_ratios": [3], "factor": FACTOR, "phases": list(PHASES)}


def load() -> Load:
    """Three streams that favour each machine's first partitions by turns."""
    per_minute = round(60_000 / TUPLE_MS)
    favoured = ((FACTOR, 1.0), (1.0, FACTOR))
    streams = OwnedWorkload(
        rows=rows_of(MINUTES, TUPLE_MS),
        seed=SEED,
        shares=(1, 1),
        join_ratios=(3, 3),
        loads=tuple(
            ((b - a) * per_minute, favoured[i % 2]) for i, (a, b) in enumerate(pairwise(PHASES))
        ),
    )
    return Load(streams, MINUTES, TUPLE_MS)


def moving(series: str, below: float, every_s: float) -> Line:
    """A line that moves groups below this ratio, at most once in so many seconds of the paper."""
    return Line(series, 2, "distributed", move_below=below, move_every_s=every_s)


def throughput_claim(experiment: Experiment, reference: str) -> Claim:
    """That no line falls behind `reference` by more than a little."""
    minutes = quarters(experiment.settings["paper_minutes"])
    worst = {
        t["series"]: max(
            shares_of(experiment, t["series"], reference, minutes), key=lambda s: abs(s - 1)
        )
        for t in experiment.totals
        if t["series"] != reference
    }
    return Claim(
        f"the throughput of all lines is almost the same as that of {reference}",
        "stated, no numbers",
        "at the quarter where they differ most: "
        + ", ".join(f"{series} {per_cent(s)}" for series, s in worst.items()),
        all(abs(s - 1) < ALIKE for s in worst.values()),
        "all within ±5 %",
    )
