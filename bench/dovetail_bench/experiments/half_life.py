"""P_o as S4's plain sum against P_o with a half life, when the productive groups change.

Not in the paper. Half of the partitions get nine of ten tuples in the first half of the run, the
other half in the second; everything else is as in Fig. 11. What was productive until the change has
a large sum, so the plain sum keeps it and pushes what is productive now. θ_t does not help: groups
that are no longer productive still get a tuple now and then. Time is that of the input.
"""

from __future__ import annotations

from pathlib import Path

from dovetail_bench.experiments import disk_runs
from dovetail_bench.experiments.disk_runs import RUN_S, Series, run_series
from dovetail_bench.experiments.experiment import Claim, Experiment
from dovetail_bench.experiments.owned_workload import OwnedWorkload
from dovetail_bench.experiments.plotting import plot_lines

TITLE = "P_o as a sum against P_o with a half life, productive groups change half-way"
FACTOR = 9.0
PHASE_S = RUN_S / 2
SUM, SHORT, LONG = "Plain-Sum", "Half-Life-1/30-Phase", "Half-Life-1/6-Phase"
LINES = (
    Series(SUM, "least-productive", 0.3),
    Series(SHORT, "least-productive", 0.3, PHASE_S / 30),
    Series(LONG, "least-productive", 0.3, PHASE_S / 6),
)
MORE = 1.1
"""Times the results of the plain sum; the sum itself hardly differs from run to run."""


def workload() -> OwnedWorkload:
    """Three streams that favour one half of the partitions, then the other."""
    phase = disk_runs.ROWS // 2
    return OwnedWorkload(
        rows=2 * phase,
        seed=disk_runs.SEED,
        shares=(1, 1),
        join_ratios=(3, 3),
        loads=((phase, (FACTOR, 1.0)), (phase, (1.0, FACTOR))),
    )


def run() -> Experiment:
    """Run the sum and both half lives."""
    half_lives = {line.name: line.half_life_s for line in LINES}
    settings = {"push_fraction": 0.3, "factor": FACTOR, "phase_s": PHASE_S}
    experiment = Experiment("half-life", TITLE, {**settings, "half_life_s": half_lives})
    run_series(experiment, workload(), LINES, input_time=True)
    plain, short = experiment.total(SUM), experiment.total(SHORT)
    experiment.claims += [
        _more_results(experiment, SHORT, "a thirtieth"),
        Claim(
            "and leaves fewer results to the clean-up",
            "not in it",
            f"{short['results_left']:,} against {plain['results_left']:,}",
            short["results_left"] < plain["results_left"],
            "fewer",
        ),
        _more_results(experiment, LONG, "a sixth"),
    ]
    return experiment


def _more_results(experiment: Experiment, series: str, length: str) -> Claim:
    ours, plain = (experiment.total(s)["results_run"] for s in (series, SUM))
    share = ours / max(1, plain)
    return Claim(
        f"a half life of {length} of a phase finds more results in the run than the plain sum",
        "not in it",
        f"{ours:,} against {plain:,} results in the run ({share:.2f} times)",
        share >= MORE,
        f"{MORE:g} times as many or more",
        difference=share - 1,
    )


def plot(experiment: Experiment, path: Path) -> None:
    """Results over time."""
    plot_lines(experiment, path, column="results", label="results so far (millions)", scale=1e-6)
