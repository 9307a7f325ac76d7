"""The clean-up on this machine: plan, lock, work through the bins, add up."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dovetail_pipeline.cleanup.bins import bin_from_json
from dovetail_pipeline.cleanup.catalog import Catalog, open_catalog
from dovetail_pipeline.cleanup.crew import Crew, Work
from dovetail_pipeline.cleanup.estimating import estimate
from dovetail_pipeline.cleanup.files import OpenFiles
from dovetail_pipeline.cleanup.ledger import BinResult, Ledger, output_place, result_from_json
from dovetail_pipeline.cleanup.measuring import Measured, measure, measured_from_json
from dovetail_pipeline.cleanup.planning import (
    CleanupPlan,
    counting_pays,
    counting_slices,
    plan_from_counts,
    plan_from_estimate,
)
from dovetail_pipeline.cleanup.slices import slice_from_json
from dovetail_pipeline.cleanup.task import row_budget, run_bin
from dovetail_proto.errors import Interrupted, SpillError
from dovetail_proto.spill_format import SpillStore

COST_PER_PROCESS = 1 << 24
"""In results, about half a second's work: what makes it worth starting one more process."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a clean-up is. Counts include what earlier, interrupted attempts finished."""

    stage: str  # "counting", then "joining"
    bins_done: int
    bins: int  # 0 while counting
    results: int  # owed combinations made
    owed: int | None  # None if it was not counted (yet)
    bytes_read: int  # in this stage
    bytes: int  # to be read, about; 0 while counting


@dataclass(frozen=True, slots=True)
class CleanupResult:
    """What a finished clean-up produced, over all attempts."""

    rows: int
    checksum: int  # order-free, uint64
    owed: int  # combinations before residual conditions
    files: tuple[str, ...]  # paths
    bins: int
    bins_resumed: int  # finished by earlier attempts
    bytes_read: int  # by this attempt
    seconds: float  # of this attempt


def run_local(
    store: SpillStore | Sequence[SpillStore],
    output: Path | str | None,
    *,
    workers: int,
    memory_bytes: int,
    progress: Callable[[Progress], None] = lambda p: None,
) -> CleanupResult:
    """Produce everything that closed stores of one query owe, as Parquet files in `output`.

    `output` is a folder of its own; None counts and checksums only. `memory_bytes` is for all
    workers together, their empty processes aside. Stopped at any point and called again with the
    same stores and output, it goes on with what is left; called after the end, it does nothing and
    returns the same result. Raises SpillError, OutputError, MemoryLimitError, InputError (an
    expression that fails on a value) or, on Ctrl-C, Interrupted.
    """
    started = time.monotonic()
    catalog = open_catalog(store)
    place = output_place(output)
    ledger = Ledger(catalog, place)
    expected = estimate(catalog)
    workers = max(1, min(workers, 1 + int(expected.cost // COST_PER_PROCESS)))
    settings: Json = {
        "roots": [s.root for s in catalog.stores],
        "output": place,
        "memory_bytes": memory_bytes // workers,
    }
    row_budget(memory_bytes // workers)
    try:
        with (
            ledger.locked(),
            OpenFiles(catalog) as files,
            Crew(workers, _work_on(catalog, files, settings), _worker, settings) as crew,
        ):
            run = _Run(catalog, ledger, crew, progress)
            plan = ledger.plan()
            if plan is None:
                counted = run.count(workers) if counting_pays(expected) else None
                plan = counted or plan_from_estimate(expected, workers)
                ledger.begin(plan)
            finished, resumed = run.join(plan)
    except KeyboardInterrupt:
        raise Interrupted(
            "clean-up stopped",
            remedy=f"`dovetail cleanup {catalog.stores[0].root}` goes on with what is left",
        ) from None
    made = sum(r.combinations for r in finished)
    if plan.owed is not None and made != plan.owed:
        raise SpillError(
            f"the clean-up made {made} combinations where {plan.owed} are owed",
            remedy="this is a defect of Dovetail: keep the spill folder and report it",
        )
    return CleanupResult(
        rows=sum(r.rows for r in finished),
        checksum=sum(r.checksum for r in finished) % (1 << 64),
        owed=made,
        files=tuple(str(Path(place or "") / name) for r in finished for name, _ in r.files),
        bins=len(finished),
        bins_resumed=resumed,
        bytes_read=run.bytes_read,
        seconds=time.monotonic() - started,
    )


class _Run:
    """The two passes of a clean-up."""

    def __init__(
        self,
        catalog: Catalog,
        ledger: Ledger,
        crew: Crew,
        progress: Callable[[Progress], None],
    ) -> None:
        self._catalog = catalog
        self._ledger = ledger
        self._crew = crew
        self._progress = progress
        self.bytes_read = 0

    def count(self, workers: int) -> CleanupPlan:
        """Measure the store and plan the bins."""
        found: list[Measured] = []

        def tell(results: int, bytes_read: int) -> None:
            self._progress(Progress("counting", 0, 0, 0, 0, bytes_read, self._catalog.stored_bytes))

        parts = counting_slices(self._catalog, workers)
        jobs = [{"measure": p.to_json()} for p in parts]
        self._crew.run(jobs, lambda _, a: found.append(measured_from_json(a)), tell)
        self.bytes_read += sum(m.bytes_read for m in found)
        return plan_from_counts(found, workers)

    def join(self, plan: CleanupPlan) -> tuple[list[BinResult], int]:
        """Work through the bins; return their results in order, and how many were there before."""
        finished = self._ledger.done(plan.bins)
        left = [b for b in plan.bins if b.index not in finished]
        self._ledger.clear(left)
        resumed = len(finished)
        before = sum(r.combinations for r in finished.values())
        counted_bytes = self.bytes_read

        def tell(results: int, bytes_read: int) -> None:
            self._progress(
                Progress(
                    "joining",
                    len(finished),
                    len(plan.bins),
                    before + results,
                    plan.owed,
                    bytes_read - counted_bytes,
                    self._catalog.stored_bytes,
                )
            )

        def done(job: Json, answer: Json) -> None:
            result = result_from_json(answer, "answer of a clean-up process")
            finished[result.index] = result
            self.bytes_read += result.bytes_read

        self._crew.run([{"bin": b.to_json()} for b in left], done, tell)
        return [finished[b.index] for b in plan.bins], resumed


def _worker(settings: Json) -> Work:
    """The work of another process, which opens the stores for itself."""
    stores = [SpillStore.open(root) for root in settings["roots"]]
    catalog = open_catalog(stores)
    return _work_on(catalog, OpenFiles(catalog), settings)


def _work_on(catalog: Catalog, files: OpenFiles, settings: Json) -> Work:
    memory_bytes = settings["memory_bytes"]

    def work(job: Json, tick: Callable[[int, int], None]) -> Json:
        if "measure" in job:
            part = slice_from_json(job["measure"])
            found = measure(catalog, files, part, row_budget(memory_bytes))
            tick(0, found.bytes_read)
            return found.to_json()
        b = bin_from_json(job["bin"])
        result = run_bin(
            catalog,
            files,
            b,
            output=settings["output"],
            memory_bytes=memory_bytes,
            tick=tick,
        )
        return result.to_json()

    return work
