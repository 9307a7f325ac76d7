"""S4's disk experiments (section 4.4): one processor, three paced streams, a memory limit.

The paper's streams deliver a tuple every 30 ms for more than 50 minutes. Ours deliver at a thousand
times that rate for a thousandth of the time, so that the same number of tuples arrives; the tuple
range of 30 000, the join ratios, the 300 partitions and θ_t of half the run are the paper's. Its
threshold of 200 MB is for its tuples and its engine; ours is a limit that the whole state exceeds
twice, and it is the same for all series of an experiment.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from dovetail.generator import RangeWorkload
from dovetail_bench.experiments.experiment import Experiment
from dovetail_bench.experiments.owned_workload import OwnedWorkload
from dovetail_manager.planner import plan_query
from dovetail_pipeline.cleanup import run_local
from dovetail_processor.shell.local import LocalRun, WorkerPlaces
from dovetail_processor.shell.local import run_local as run_query
from dovetail_processor.sinks import CountingSink
from dovetail_processor.sources import FileSource
from dovetail_processor.sources.file_source import Part
from dovetail_proto.assignment import DiskSettings
from dovetail_proto.ids import ProcessorId
from dovetail_proto.messages import QueryLoad
from dovetail_proto.spill_format import SpillStore

SPEED_UP = 1000
"""Ours against the paper's rate, and the paper's time against ours."""

PAPER_TUPLE_S = 0.030
PAPER_RUN_MINUTES = 50
ROWS_PER_S = SPEED_UP / PAPER_TUPLE_S
RUN_S = PAPER_RUN_MINUTES * 60 / SPEED_UP
ROWS = int(ROWS_PER_S * RUN_S)

TICK_S = 0.02
"""Rows arrive in batches of 666: less than a per cent of what a stream delivers in all."""

LIMIT_BYTES = 12 << 20
SPILL_ABOVE_RATIO = 0.8
ROOMY_BYTES = 1 << 30
CLEANUPS = 3
"""The best of so many is told: a clean-up takes a fraction of a second, any disturbance as much."""

SEED = 4

Streams = RangeWorkload | OwnedWorkload


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a plot."""

    name: str
    victims: str
    push_fraction: float  # 0: all state is kept in memory
    half_life_s: float = 0.0  # of P_o; 0: it is the paper's plain sum


def workload(join_ratios: tuple[int, ...]) -> RangeWorkload:
    """The paper's streams."""
    return RangeWorkload(rows=ROWS, tuple_range=30_000, join_ratios=join_ratios, seed=SEED)


def run_series(
    experiment: Experiment, streams: Streams, lines: Sequence[Series], *, input_time: bool = False
) -> None:
    """Run each line, and add its points and totals to the experiment.

    With `input_time` the engine's clock is that of the input: a machine that does not keep up
    makes the run longer, but not θ_t or a half life shorter.
    """
    experiment.settings |= {
        "tuples_per_s_and_stream": round(ROWS_PER_S),
        "times_the_papers_rate": SPEED_UP,
        "run_s": RUN_S,
        "tuples_per_stream": ROWS,
        "tuple_range": streams.tuple_range,
        "join_ratios": list(streams.join_ratios),
        "partitions": streams.partitions,
        "memory_limit_bytes": LIMIT_BYTES,
        "spill_above_ratio": SPILL_ABOVE_RATIO,
        "inactive_after_s": RUN_S / 2,
    }
    tables = [streams.table(i) for i in range(streams.streams)]
    # Warm up.
    _run(streams, [t.slice(0, 2000) for t in tables], lines[0], Experiment("", "", {}), False)
    for line in lines:
        _run(streams, tables, line, experiment, input_time)


def _run(
    streams: Streams,
    tables: Sequence[pa.Table],
    line: Series,
    experiment: Experiment,
    input_time: bool,
) -> None:
    plan = plan_query(
        streams.sql,
        dict.fromkeys(streams.names, streams.schema),
        name="experiment",
        partitions=streams.partitions,
    )
    pushes = line.push_fraction > 0
    disk = DiskSettings(
        allowed=pushes,
        victims=line.victims,
        push_fraction=line.push_fraction or 1.0,  # of no account where nothing is pushed
        spill_above_ratio=SPILL_ABOVE_RATIO,
        inactive_after_s=RUN_S / 2,
        productivity_half_life_s=line.half_life_s,
    )
    pace = _Pace()
    sources = {
        name: _PacedSource(table, pace) for name, table in zip(streams.names, tables, strict=True)
    }

    def arrived_s() -> float:
        return min(source.arrived_s for source in sources.values())

    points: list[dict[str, Any]] = []

    def note(load: QueryLoad, used_bytes: int) -> None:
        seconds = arrived_s() if input_time else pace.seconds()
        points.append(
            {
                "series": line.name,
                "seconds": round(seconds, 3),
                "paper_minutes": round(seconds * SPEED_UP / 60, 2),
                "results": load.results,
                "memory_bytes": used_bytes,
                "pushes": load.pushes,
            }
        )

    with tempfile.TemporaryDirectory(prefix="dovetail-experiment-") as folder:
        store = SpillStore.create(folder, plan) if pushes else None
        clock = arrived_s if input_time else time.monotonic
        places = {ProcessorId("local"): WorkerPlaces(CountingSink(plan.output_schema), store)}
        memory_bytes = LIMIT_BYTES if pushes else ROOMY_BYTES
        run = LocalRun(plan, sources, places, memory_bytes, disk)
        done, _ = run_query(run, look=note, clock=clock)
        total: dict[str, Any] = {
            "series": line.name,
            "results_run": done.results,
            "pushes": done.pushes,
            "peak_held_bytes": max(p["memory_bytes"] for p in points),
            "run_s": round(pace.seconds(), 3),
            "results_left": 0,
            "cleanup_ms": 0.0,
        }
        if store is not None:
            seconds = []
            for _ in range(CLEANUPS):
                cleaned = run_local(store, None, workers=1, memory_bytes=64 << 20)
                seconds.append(cleaned.seconds)
                store.storage.remove("cleanup")  # so that the next starts from nothing
            total |= {
                "results_left": cleaned.rows,
                "cleanup_ms": round(min(seconds) * 1000, 1),
            }
    experiment.rows += points
    experiment.totals.append(total)


class _Pace:
    """A clock that all streams of a run share; it starts when the first of them is read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._began: float | None = None

    def seconds(self) -> float:
        """Since the start."""
        with self._lock:
            if self._began is None:
                self._began = time.monotonic()
            return time.monotonic() - self._began

    def wait_until(self, seconds: float) -> None:
        """Return at once if it is later than that already."""
        left = seconds - self.seconds()
        if left > 0:
            time.sleep(left)


class _PacedSource(FileSource):
    """A table that arrives row by row at the experiment's rate."""

    def __init__(self, table: pa.Table, pace: _Pace) -> None:
        self._table = table
        self._pace = pace
        self.arrived_s = 0.0  # all before it has arrived, in the time of the input
        self.schema = table.schema
        self.rows_total = table.num_rows
        self.bytes_total = table.nbytes
        self.files = ()

    def parts(self, columns: Sequence[str], *, batch_rows: int, batch_bytes: int) -> list[Part]:
        """One: rows arrive in order."""
        return [lambda: self._due(columns)]

    def _due(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The rows that are due, tick by tick, whatever larger batches would be allowed."""
        rows = max(1, int(ROWS_PER_S * TICK_S))
        table = self._table.select(list(columns))
        for first in range(0, table.num_rows, rows):
            self._pace.wait_until((first + rows) / ROWS_PER_S)
            self.arrived_s = first / ROWS_PER_S
            yield from table.slice(first, rows).combine_chunks().to_batches()
