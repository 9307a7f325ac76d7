"""S4 6.1, the six-hour run: the clean-up after lazy-disk against that after pushes without moves.

Six hours at a second a minute would be six minutes a line; here six minutes of the paper pass in a
second, so a line takes a minute. In the paper every machine cleans up what is on its own disk: the
clean-up takes as long as that of the machine with most of it. That is what is measured: the store
of each processor is cleaned up by itself, in one process, best of three. Beside it stands
Dovetail's own clean-up, which shares all stores out among all cores whoever wrote them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from dovetail.generator import RangeWorkload
from dovetail.queries import Query
from dovetail_bench.experiments import cluster_runs
from dovetail_bench.experiments.cluster_runs import SEED, Line, Load, limit_for, run_lines
from dovetail_bench.experiments.experiment import Claim, Experiment
from dovetail_bench.experiments.judging import per_cent
from dovetail_bench.experiments.plotting import plot_minutes
from dovetail_pipeline.cleanup import run_local
from dovetail_pipeline.cleanup.stores import find_cleanups
from dovetail_proto.spill_format import RunRecord, SpillStore

TITLE = "six hours with far too little memory: clean-up after lazy-disk and after no moves"
HOURS = 6
MINUTES = 60
"""Of figures that run an hour: what six hours are compressed into."""

TUPLE_MS = 30 * MINUTES / (HOURS * 60)
TUPLE_RANGE = 400_000
"""With 720 000 tuples a stream about 2.3 M results in all: the paper's clean-up has 2 023 781."""

WEIGHTS = (4, 1, 1)
LIMIT_BYTES = limit_for(10_400_000)
"""A ninth of the whole state: even 1/6 of it is too much for a machine."""

CLEANUPS = 3
CLEANUP_BYTES = 256 << 20
SIMILAR = 0.25
LAZY, WITHOUT = "Lazy-Disk", "No-Distributed-Adaptation"
LINES = (
    Line(LAZY, 3, "lazy-disk", LIMIT_BYTES, WEIGHTS),
    Line(WITHOUT, 3, "disk", LIMIT_BYTES, WEIGHTS),
)
PAPER_S = {WITHOUT: 1600, LAZY: 400}
PAPER_LEFT = 2_023_781


def run() -> Experiment:
    """Run with moves and without, and clean up after each."""
    settings = {"tuple_range": TUPLE_RANGE, "join_ratios": [1], "weights": list(WEIGHTS)}
    experiment = Experiment("s4-cleanup", TITLE, settings)
    rows = cluster_runs.rows_of(MINUTES, TUPLE_MS)
    streams = RangeWorkload(rows=rows, tuple_range=TUPLE_RANGE, seed=SEED)
    run_lines(experiment, Load(streams, MINUTES, TUPLE_MS), LINES, finish=clean_up_each)
    judge(experiment)
    return experiment


class _Alone(SpillStore):
    """One processor's store, cleaned up although others of the run are elsewhere, as S4 does."""

    def run_record(self) -> RunRecord:
        """As if the run had this store alone."""
        return replace(super().run_record(), owned=None)


def clean_up_each(query: Query) -> dict[str, Any]:
    """Clean up the store of each processor by itself, and then all together."""
    (found,) = find_cleanups([query.spill_place()], query=query.name, output="none")
    left: dict[str, int] = {}
    took_ms: dict[str, float] = {}
    for one in found.stores:
        store = _Alone.open(one.root)
        name = store.root.rstrip("/").rsplit("/", 1)[-1]
        seconds = []
        for _ in range(CLEANUPS):
            cleaned = run_local(store, None, workers=1, memory_bytes=CLEANUP_BYTES)
            seconds.append(cleaned.seconds)
            store.storage.remove("cleanup")  # so that the next starts from nothing
        left[name] = cleaned.rows
        took_ms[name] = round(min(seconds) * 1e3, 1)
    together = cluster_runs.clean_up_here(query)
    assert together.rows == sum(left.values()), "a group is on the disks of two processors"
    return {
        "results_left": together.rows,
        "left_by_processor": left,
        "cleanup_ms": max(took_ms.values()),
        "cleanup_ms_by_processor": took_ms,
        "cleanup_together_ms": round(together.seconds * 1e3, 1),
    }


def judge(experiment: Experiment) -> None:
    """Results of the run alike, clean-up not."""
    lazy, without = experiment.total(LAZY), experiment.total(WITHOUT)
    share = lazy["results_run"] / max(1, without["results_run"])
    factor = without["cleanup_ms"] / max(1.0, lazy["cleanup_ms"])
    experiment.claims += [
        Claim(
            "both produce a similar number of results in the run",
            "stated, no numbers",
            f"lazy-disk {lazy['results_run']:,}, no moves {without['results_run']:,} "
            f"({per_cent(share)})",
            abs(share - 1) < SIMILAR,
            "within ±25 %",
        ),
        Claim(
            "without moves the clean-up takes far longer, as one machine has most of the work",
            f"{PAPER_S[WITHOUT]:,} s for {PAPER_LEFT:,} results against less than "
            f"{PAPER_S[LAZY]} s ({PAPER_S[WITHOUT] / PAPER_S[LAZY]:.0f} : 1)",
            f"{without['cleanup_ms']:,.0f} ms for {without['results_left']:,} results against "
            f"{lazy['cleanup_ms']:,.0f} ms for {lazy['results_left']:,} ({factor:.1f} : 1)",
            factor > 1.5,
            "over 1.5 : 1",
        ),
    ]


def plot(experiment: Experiment, path: Path) -> None:
    """Results over time."""
    plot_minutes(experiment, path)
