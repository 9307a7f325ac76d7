"""A clean-up from its manifests to its totals, whoever does the work.

    manifests ─▶ plan (once, kept in the ledger) ─▶ jobs ─▶ workers ─▶ markers ─▶ totals

The jobs are plain JSON: measure a slice, or make the results of a bin. `local` hands them to
processes of this machine, `dovetail_pipeline.spark` to Spark. Where nothing is left to do, nobody
is called.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from dovetail_pipeline.cleanup.bins import bin_from_json
from dovetail_pipeline.cleanup.catalog import Catalog, open_catalog
from dovetail_pipeline.cleanup.checking import check_produced
from dovetail_pipeline.cleanup.estimating import Estimate, estimate
from dovetail_pipeline.cleanup.files import OpenFiles
from dovetail_pipeline.cleanup.ledger import BinResult, Ledger, output_place, result_from_json
from dovetail_pipeline.cleanup.measuring import Measured, measure, measured_from_json
from dovetail_pipeline.cleanup.planning import (
    CleanupPlan,
    counting_slices,
    heavy_groups,
    plan_from,
)
from dovetail_pipeline.cleanup.slices import Slice, slice_from_json
from dovetail_pipeline.cleanup.task import row_budget, run_bin
from dovetail_processor.allocators import keep_lean
from dovetail_proto import errors
from dovetail_proto.errors import DovetailError, Interrupted, SpillError
from dovetail_proto.spill_format import SpillStore

Json = dict[str, Any]
Work = Callable[[Json, Callable[[int, int], None]], Json]
"""`work(job, tick)` does a job; it calls `tick(results, bytes_read)` now and then."""


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


class Workers(Protocol):
    """Who does the jobs of one clean-up."""

    count: int  # jobs that are done at once

    def run(
        self,
        jobs: Sequence[Json],
        done: Callable[[Json, Json], None],
        progress: Callable[[int, int], None],
    ) -> None:
        """Do all jobs, calling `done(job, answer)` once for each, in any order.

        `progress(results, bytes_read)` tells now and then what has been done in all calls so far.
        The first error of any job is raised here.
        """


Hands = Callable[[Catalog, Estimate, str | None], AbstractContextManager[Workers]]
"""`hands(catalog, expected, place)` calls workers together, who leave when the context ends."""


def conduct(
    store: SpillStore | Sequence[SpillStore],
    output: Path | str | None,
    hands: Hands,
    progress: Callable[[Progress], None] = lambda p: None,
) -> CleanupResult:
    """Produce everything that closed stores of one query owe, as Parquet files in `output`.

    `output` is a folder of its own, a path or a URI; None counts and checksums only. Stopped at
    any point and called again with the same stores and output, it goes on with what is left;
    called after the end, it calls for no hands and returns the same result. Raises SpillError,
    OutputError, MemoryLimitError, InputError (an expression that fails on a value), what `hands`
    raise or, on Ctrl-C, Interrupted.
    """
    started = time.monotonic()
    catalog = open_catalog(store)
    place = output_place(output)
    ledger = Ledger(catalog, place)
    expected = estimate(catalog)
    run = _Run(catalog, ledger, progress)
    try:
        with ledger.locked():
            plan, finished = _so_far(ledger)
            if plan is None and catalog.groups.size == 0:
                plan = CleanupPlan((), 0)
                ledger.begin(plan, ledger.claim())
            resumed = len(finished)
            if plan is None or len(finished) < len(plan.bins) or ledger.strays(finished.values()):
                with hands(catalog, expected, place) as workers:
                    attempt = ledger.claim()
                    plan, finished = _so_far(ledger)  # by now nobody else adds to it
                    resumed = len(finished)
                    plan = plan or run.plan(expected, workers, attempt)
                    run.join(plan, finished, workers, attempt)
    except KeyboardInterrupt:
        raise Interrupted(
            "clean-up stopped",
            remedy="clean up again: that goes on with what is left",
        ) from None
    made = sum(r.combinations for r in finished.values())
    if plan.owed is not None and made != plan.owed:
        raise SpillError(
            f"the clean-up made {made} combinations where {plan.owed} are owed",
            remedy="this is a defect of Dovetail: keep the spill folder and report it",
        )
    in_order = [finished[b.index] for b in plan.bins]
    shared: Counter[int] = Counter()
    for r in in_order:
        shared.update(dict(r.shared))
    left = np.setdiff1d(catalog.groups, np.array(plan.counted, np.int64)).tolist()
    check_produced(catalog.records, left, shared)
    return CleanupResult(
        rows=sum(r.rows for r in in_order),
        checksum=sum(r.checksum for r in in_order) % (1 << 64),
        owed=made,
        files=tuple(f"{place}/{name}" for r in in_order for name, _ in r.files),
        bins=len(in_order),
        bins_resumed=resumed,
        bytes_read=run.bytes_read,
        seconds=time.monotonic() - started,
    )


def _so_far(ledger: Ledger) -> tuple[CleanupPlan | None, dict[int, BinResult]]:
    plan = ledger.plan()
    return plan, {} if plan is None else ledger.done(plan)


class _Run:
    """The two passes of a clean-up."""

    def __init__(
        self, catalog: Catalog, ledger: Ledger, progress: Callable[[Progress], None]
    ) -> None:
        self._catalog = catalog
        self._ledger = ledger
        self._progress = progress
        self.bytes_read = 0

    def plan(self, expected: Estimate, workers: Workers, attempt: str) -> CleanupPlan:
        """Share the work out, after counting where that pays, and record the plan."""
        heavy = heavy_groups(expected, workers.count)
        parts = counting_slices(self._catalog, expected, heavy, workers.count)
        plan = plan_from(self._catalog, expected, heavy, self._count(parts, workers), workers.count)
        self._ledger.begin(plan, attempt)
        return plan

    def join(
        self, plan: CleanupPlan, finished: dict[int, BinResult], workers: Workers, attempt: str
    ) -> None:
        """Work through the bins that are not in `finished`, and add them to it."""
        left = [b for b in plan.bins if b.index not in finished]
        self._ledger.sweep(finished.values(), attempt)
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

        names = {"plan": plan.id, "attempt": attempt}
        workers.run([{"bin": b.to_json(), **names} for b in left], done, tell)
        self._ledger.sweep(finished.values(), attempt)  # of an older attempt that was slow to stop

    def _count(self, parts: Sequence[Slice], workers: Workers) -> list[Measured]:
        """Measure parts of the store."""
        found: list[Measured] = []

        def tell(results: int, bytes_read: int) -> None:
            self._progress(Progress("counting", 0, 0, 0, None, bytes_read, 0))

        jobs = [{"measure": p.to_json()} for p in parts]
        workers.run(jobs, lambda _, a: found.append(measured_from_json(a)), tell)
        self.bytes_read += sum(m.bytes_read for m in found)
        return found


def worker_settings(catalog: Catalog, place: str | None, memory_bytes: int) -> Json:
    """What `worker` needs to know: the stores, the output, and the memory of one worker.

    MemoryLimitError if it is too little.
    """
    row_budget(memory_bytes)
    roots = [s.root for s in catalog.stores]
    return {"roots": roots, "output": place, "memory_bytes": memory_bytes}


def worker(settings: Json) -> Work:
    """The work of another process, which opens the stores for itself."""
    keep_lean()
    stores = [SpillStore.open(root) for root in settings["roots"]]
    catalog = open_catalog(stores)
    return work_on(catalog, OpenFiles(catalog, settings["memory_bytes"]), settings)


def work_on(catalog: Catalog, files: OpenFiles, settings: Json) -> Work:
    """The work of this process, which has the stores open."""
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
            plan_id=job["plan"],
            attempt=job["attempt"],
            output=settings["output"],
            memory_bytes=memory_bytes,
            tick=tick,
        )
        return result.to_json()

    return work


def rebuilt_error(raw: Sequence[str]) -> DovetailError:
    """The error that another process raised, from its name, message and remedy."""
    name, message, remedy = raw
    kind: type[DovetailError] = getattr(errors, name, DovetailError)
    error = kind.__new__(kind)
    DovetailError.__init__(error, message, remedy=remedy)
    return error
