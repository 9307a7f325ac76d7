"""A whole query in this process: what `dovetail run` does, for Python programs too.

    request = RunRequest(sql=…, inputs={"trades": "trades.parquet", …}, output=Path("results"))
    report = run_query(request)

    sources ─▶ plan ─▶ output and spill store claimed ─▶ run ─▶ clean-up ─▶ report

A run ends in one of three ways. *Done*: every result is in the output, once. *Interrupted*: the
state is closed, output and spill store stay, and `dovetail cleanup` produces what is owed for the
rows that were read. *Refused or failed*: output and spill store are as they were before; only a
clean-up that fails leaves both, because it can be resumed.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Protocol

from dovetail.cleaning import CleanupMeans, On, clean_up, cleanup_command
from dovetail.memory import PeakMemory
from dovetail.places import Places
from dovetail.preparing import Prepared, RunRequest, prepare
from dovetail.progress import RunProgress, Watcher
from dovetail_pipeline.spark.session import why_unavailable
from dovetail_proto.assignment import DiskSettings
from dovetail_proto.cluster_memory import cluster_shares, worker_asks
from dovetail_proto.errors import DovetailError, Interrupted
from dovetail_proto.messages import QueryLoad
from dovetail_proto.query import QueryPlan

if TYPE_CHECKING:
    from dovetail_pipeline.cleanup import CleanupResult
    from dovetail_processor.sinks import Sink

__all__ = ["RunReport", "RunRequest", "run_query"]


@dataclass(frozen=True, slots=True)
class RunReport:
    """What was read, found and used; lists hold one entry per processor."""

    query: str
    rows_in: dict[str, int]  # by stream; by alias where a stream is joined with itself
    results_run: int
    results_cleanup: int
    checksum: int  # order-free, of run and clean-up together, mod 2**64
    combinations_run: int  # key combinations produced, before conditions that span inputs
    pushes: int
    moves: int
    spilled_bytes: int
    spilled_groups: int  # groups that were pushed at least once
    peak_state_bytes: list[int]
    peak_rss_bytes: list[int]
    memory_limit_bytes: list[int]
    seconds_run: float
    seconds_cleanup: float
    seconds_spark_start: float  # a part of seconds_cleanup; 0 where Spark was not needed
    output: str  # the folder, or "none"
    cleanup: str
    spill_dir: str | None  # None once it is removed
    interrupted: bool = False  # the inputs were not read to their end

    @property
    def next_step(self) -> str:
        """The command that produces what is still owed."""
        return cleanup_command(self.spill_dir, self.output)

    def to_dict(self) -> dict[str, Any]:
        """The report as `--json` prints it."""
        return asdict(self)


def run_query(
    request: RunRequest,
    *,
    prepared: Prepared | None = None,
    watcher: Watcher | None = None,
    stop: Callable[[], bool] | None = None,
) -> RunReport:
    """Run the query to its end and return what was done; `prepared` is what `prepare` made of it.

    `stop` is asked often; once it is true the state is closed and Interrupted is raised, whose
    `details` say what was done. Other DovetailErrors leave nothing behind, except those of the
    clean-up, which can be resumed with `dovetail cleanup`.
    """
    watcher = watcher or Watcher()
    if request.cleanup == "spark" and (problem := why_unavailable()):
        raise problem  # now, not after hours
    prepared = prepared or prepare(request)
    watcher.planned(prepared.plan)
    places = Places.claim(
        request.output,
        request.spill_dir,
        prepared.plan,
        may_push=request.adapts_by not in ("none", "distributed"),
        workers=prepared.workers,
    )
    with PeakMemory() as memory:
        try:
            run = _run_here if request.processors == 1 else _run_on_cluster
            report = run(request, prepared, places, watcher, stop or (lambda: False))
        except BaseException:
            places.give_back()
            raise
        pushed = [p for store in places.stores() for p in store.pushes()] if report.pushes else []
        groups = {g for p in pushed for g in p.group.tolist()}
        report = replace(report, spilled_groups=len(groups))
        if report.pushes == 0:
            places.drop_temporary_store()
        elif not report.interrupted and request.cleanup != "none":
            cleaned, start_s = _clean_up(request, request.cleanup, places, watcher, stop)
            report = replace(
                report,
                results_cleanup=cleaned.rows,
                checksum=(report.checksum + cleaned.checksum) % 2**64,
                seconds_cleanup=cleaned.seconds,
                seconds_spark_start=start_s,
            )
            places.drop_temporary_store()
    report = replace(
        report,
        peak_rss_bytes=report.peak_rss_bytes or [memory.peak_bytes],
        spill_dir=places.spill_dir,
    )
    if report.interrupted:
        rows = sum(report.rows_in.values())
        raise Interrupted(
            f"stopped after {rows:,} rows; {report.results_run:,} results are written",
            remedy=f"produce the results that these rows still owe with `{report.next_step}`"
            if report.spill_dir
            else "nothing is owed for these rows",
            **report.to_dict(),
        )
    return report


def _run_here(
    request: RunRequest,
    prepared: Prepared,
    places: Places,
    watcher: Watcher,
    stop: Callable[[], bool],
) -> RunReport:
    from dovetail_processor.shell.local import LocalRun, WorkerPlaces, run_local

    plan, workers = prepared.plan, prepared.workers
    began = time.monotonic()
    expected = [source.rows_total for source in prepared.sources]

    def look(load: QueryLoad, used_bytes: int) -> None:
        watcher.running(
            RunProgress(
                list(load.rows_in),
                expected,
                load.results,
                used_bytes,
                load.pushes,
                load.spilled_bytes,
                load.cause,
            )
        )

    load, interrupted = run_local(
        LocalRun(
            plan,
            {i.stream: s for i, s in zip(plan.inputs, prepared.sources, strict=True)},
            {
                worker: WorkerPlaces(_open_sink(request, prepared, places, n), store)
                for n, (worker, store) in enumerate(zip_longest(workers, places.worker_stores))
            },
            request.memory_bytes,
            DiskSettings(
                allowed=request.adapts_by != "none",
                victims=request.victims,
                push_fraction=request.push_fraction,
                productivity_half_life_s=request.productivity_half_life_s,
            ),
            None if request.output is None else str(request.output.absolute()),
            prepared.smallest_first if request.read == "smallest-first" else (),
        ),
        look=look,
        stop=stop,
    )
    return new_report(
        request,
        plan,
        list(load.rows_in),
        load,
        peak_state_bytes=[load.peak_state_bytes],
        interrupted=interrupted,
        seconds_run=time.monotonic() - began,
    )


def _open_sink(request: RunRequest, prepared: Prepared, places: Places, worker: int) -> Sink:
    from dovetail_processor.sinks import CountingSink, ParquetSink

    plan, workers = prepared.plan, prepared.workers
    if places.run_results is None:
        return CountingSink(plan.output_schema)
    # The row group that the sink fills is a part of the memory for output.
    bounds = cluster_shares(
        request.memory_bytes // len(workers),
        **worker_asks(plan, len(workers)),
        row_bytes=plan.row_bytes,
    )
    number = "" if len(workers) == 1 else f"-{worker}"
    return ParquetSink(
        places.run_results,
        plan.output_schema,
        prefix=f"{request.name}{number}",
        row_group_bytes=bounds.shares.output,
    )


def _run_on_cluster(
    request: RunRequest,
    prepared: Prepared,
    places: Places,
    watcher: Watcher,
    stop: Callable[[], bool],
) -> RunReport:
    from dovetail.clustered import run_on_cluster

    return run_on_cluster(request, prepared, places, watcher, stop)


def _clean_up(
    request: RunRequest,
    on: On,
    places: Places,
    watcher: Watcher,
    stop: Callable[[], bool] | None,
) -> tuple[CleanupResult, float]:
    """What it produced, and the seconds that Spark took to start."""
    from dovetail_pipeline.cleanup.stores import RunCleanup

    results = None if places.cleanup_results is None else str(places.cleanup_results)
    try:
        cleaned = clean_up(
            [RunCleanup(places.stores(), results)],
            CleanupMeans(on, request.memory_bytes),
            watcher=watcher,
            stop=stop,
        )
        return cleaned.results[0], cleaned.seconds_spark_start
    except Interrupted:
        raise  # it says how to go on
    except DovetailError as e:
        output = "none" if request.output is None else str(request.output)
        again = f"run `{cleanup_command(places.spill_dir, output)}` to go on where it stopped"
        e.remedy = f"{e.remedy}; then {again}" if e.remedy else again
        raise


class Found(Protocol):
    """What the processors report of a run, all together."""

    @property
    def results(self) -> int: ...

    @property
    def checksum(self) -> int: ...

    @property
    def produced(self) -> int: ...

    @property
    def pushes(self) -> int: ...

    @property
    def spilled_bytes(self) -> int: ...


def new_report(
    request: RunRequest,
    plan: QueryPlan,
    rows_in: list[int],
    found: Found,
    *,
    peak_state_bytes: list[int],
    interrupted: bool,
    seconds_run: float,
    moves: int = 0,
    peak_rss_bytes: Sequence[int] = (),  # empty: this process's own
) -> RunReport:
    """The report of a run before its clean-up."""
    uses = Counter(i.stream for i in plan.inputs)
    names = [i.stream if uses[i.stream] == 1 else i.alias for i in plan.inputs]
    return RunReport(
        query=request.name,
        rows_in=dict(zip(names, rows_in, strict=True)),
        results_run=found.results,
        results_cleanup=0,
        checksum=found.checksum,
        combinations_run=found.produced,
        pushes=found.pushes,
        moves=moves,
        spilled_bytes=found.spilled_bytes,
        spilled_groups=0,
        peak_state_bytes=peak_state_bytes,
        peak_rss_bytes=list(peak_rss_bytes),
        memory_limit_bytes=[request.memory_bytes] * request.processors,
        seconds_run=seconds_run,
        seconds_cleanup=0.0,
        seconds_spark_start=0.0,
        output="none" if request.output is None else str(request.output),
        cleanup=request.cleanup,
        spill_dir=None,
        interrupted=interrupted,
    )
