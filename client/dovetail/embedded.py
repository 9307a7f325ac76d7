"""A whole query in this process: what `dovetail run` does, for Python programs too.

    request = RunRequest(sql=…, inputs={"trades": "trades.parquet", …}, output=Path("results"))
    report = run_query(request)

    sources ─▶ plan ─▶ output and spill store claimed ─▶ engine ─▶ clean-up ─▶ totals

A run ends in one of three ways. *Done*: every result is in the output, once. *Interrupted*: the
state is closed, output and spill store stay, and `dovetail cleanup` produces what is owed for the
rows that were read. *Refused or failed*: output and spill store are as they were before; only a
clean-up that fails leaves both, because it can be resumed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from dovetail.cleaning import CleanupMeans, On, clean_up, cleanup_command
from dovetail.memory import PeakMemory
from dovetail.places import Places
from dovetail.preparing import Prepared, RunRequest, prepare
from dovetail.progress import Watcher
from dovetail_pipeline.cleanup import CleanupResult
from dovetail_pipeline.cleanup.stores import RunCleanup
from dovetail_pipeline.spark.session import why_unavailable
from dovetail_processor.engine import Engine, EngineSettings
from dovetail_processor.sinks import CountingSink, ParquetSink
from dovetail_proto.errors import DovetailError, Interrupted
from dovetail_proto.memory import shares
from dovetail_proto.query import QueryPlan

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

    @property
    def next_step(self) -> str:
        """The command that produces what is still owed."""
        return cleanup_command(self.spill_dir, self.output)

    def to_dict(self) -> dict[str, Any]:
        """The report as `--json` prints it."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the processors did; lists hold one entry per processor."""

    rows_in: list[int]
    results: int
    checksum: int
    combinations: int
    pushes: int
    moves: int
    spilled_bytes: int
    peak_state_bytes: list[int]
    peak_rss_bytes: list[int]  # empty: this process's own
    interrupted: bool
    seconds: float


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
        processors=request.processors,
    )
    with PeakMemory() as memory:
        try:
            run = _run_here if request.processors == 1 else _run_on_cluster
            summary = run(request, prepared, places, watcher, stop)
        except BaseException:
            places.give_back()
            raise
        pushed = [p for store in places.stores() for p in store.pushes()] if summary.pushes else []
        spilled_groups = len({group for push in pushed for group in push.groups})
        cleaned, start = None, 0.0
        if summary.pushes == 0:
            places.drop_temporary_store()
        elif summary.interrupted or request.cleanup == "none":
            pass
        else:
            cleaned, start = _clean_up(request, request.cleanup, places, watcher, stop)
            places.drop_temporary_store()
    report = _report(
        request,
        prepared.plan,
        places,
        summary,
        cleaned=cleaned,
        seconds_spark_start=start,
        spilled_groups=spilled_groups,
        peak_rss_bytes=summary.peak_rss_bytes or [memory.peak_bytes],
    )
    if summary.interrupted:
        raise Interrupted(
            f"stopped after {sum(summary.rows_in):,} rows; {summary.results:,} results are written",
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
    stop: Callable[[], bool] | None,
) -> Outcome:
    plan = prepared.plan
    schema = plan.output_schema
    sink: ParquetSink | CountingSink
    if places.run_results is None:
        sink = CountingSink(schema)
    else:
        # The row group that the sink fills is a part of the memory for output.
        bounds = shares(request.memory_bytes, inputs=len(plan.inputs), partitions=plan.partitions)
        sink = ParquetSink(
            places.run_results, schema, prefix=request.name, row_group_bytes=bounds.output
        )
    engine = Engine(
        plan,
        prepared.sources,
        sink,
        places.store,
        EngineSettings(
            memory_bytes=request.memory_bytes,
            policy=request.adapts_by,
            victims=request.victims,
            push_fraction=request.push_fraction,
            productivity_half_life_s=request.productivity_half_life_s,
            output=None if request.output is None else str(request.output.absolute()),
        ),
    )
    summary = engine.run(progress=watcher.running, stop=stop)
    return Outcome(
        rows_in=summary.rows_in,
        results=summary.results,
        checksum=summary.checksum,
        combinations=summary.combinations,
        pushes=summary.pushes,
        moves=0,
        spilled_bytes=summary.spilled_bytes,
        peak_state_bytes=[summary.peak_state_bytes],
        peak_rss_bytes=[],
        interrupted=summary.interrupted,
        seconds=summary.seconds,
    )


def _run_on_cluster(
    request: RunRequest,
    prepared: Prepared,
    places: Places,
    watcher: Watcher,
    stop: Callable[[], bool] | None,
) -> Outcome:
    from dovetail.clustered import ClusterRun, run_on_cluster

    plan = prepared.plan
    run = ClusterRun(
        sql=request.sql,
        plan=plan,
        paths=request.inputs,
        rows_expected=[s.rows_total for s in prepared.sources],
        schemas={i.stream: i.stream_schema for i in plan.inputs},
        processors=request.processors,
        memory_bytes=request.memory_bytes,
        policy=request.adapts_by,
        victims=request.victims,
        push_fraction=request.push_fraction,
        productivity_half_life_s=request.productivity_half_life_s,
        places=places,
    )
    done = run_on_cluster(run, watcher, stop)
    status = done.status
    return Outcome(
        rows_in=done.rows_in,
        results=status.results,
        checksum=status.checksum,
        combinations=status.produced,
        pushes=status.pushes,
        moves=done.moves,
        spilled_bytes=status.spilled_bytes,
        peak_state_bytes=done.peak_state_bytes,
        peak_rss_bytes=done.peak_rss_bytes,
        interrupted=done.interrupted,
        seconds=done.seconds,
    )


def _clean_up(
    request: RunRequest,
    on: On,
    places: Places,
    watcher: Watcher,
    stop: Callable[[], bool] | None,
) -> tuple[CleanupResult, float]:
    """What it produced, and the seconds that Spark took to start."""
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


def _report(
    request: RunRequest,
    plan: QueryPlan,
    places: Places,
    summary: Outcome,
    *,
    cleaned: CleanupResult | None,
    seconds_spark_start: float,
    spilled_groups: int,
    peak_rss_bytes: list[int],
) -> RunReport:
    uses = Counter(i.stream for i in plan.inputs)
    names = [i.stream if uses[i.stream] == 1 else i.alias for i in plan.inputs]
    return RunReport(
        query=request.name,
        rows_in=dict(zip(names, summary.rows_in, strict=True)),
        results_run=summary.results,
        results_cleanup=cleaned.rows if cleaned else 0,
        checksum=(summary.checksum + (cleaned.checksum if cleaned else 0)) % 2**64,
        combinations_run=summary.combinations,
        pushes=summary.pushes,
        moves=summary.moves,
        spilled_bytes=summary.spilled_bytes,
        spilled_groups=spilled_groups,
        peak_state_bytes=summary.peak_state_bytes,
        peak_rss_bytes=peak_rss_bytes,
        memory_limit_bytes=[request.memory_bytes] * request.processors,
        seconds_run=summary.seconds,
        seconds_cleanup=cleaned.seconds if cleaned else 0.0,
        seconds_spark_start=seconds_spark_start,
        output="none" if request.output is None else str(request.output),
        cleanup=request.cleanup,
        spill_dir=places.spill_dir,
    )
