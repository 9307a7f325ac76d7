"""The clean-up on Spark against Spark SQL doing the same, from the same files.

    (ours)  `conduct` with Spark's tasks doing the bins
    (a)     Spark SQL: the join of all generations where not all generations are equal, which is
            exactly what is owed, written as Parquet
    (b)     Spark SQL: the whole join from the spilled rows, as if nothing had been produced
    (c)     `--cleanup local` with as many processes

Every contestant of a case starts after Spark has: a small case goes first, so that Java is warm,
Python processes are there and kernels are loaded. Spark SQL keeps its own defaults except that
joins get as many partitions as pay here. All write Parquet and must find the same number of rows.
Ours goes to another folder each time, because a process that has a clean-up's stores open keeps
them. (a) and ours are measured in turn, the best of some counts; (b) and (c) once.
"""

from __future__ import annotations

import itertools
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dovetail.generator import HotKeyWorkload, RangeWorkload, UniformWorkload, Workload
from dovetail_bench.report import Report, parse_flags
from dovetail_manager.planner import plan_query
from dovetail_pipeline.cleanup import conduct, run_local
from dovetail_pipeline.spark.hands import SparkHands
from dovetail_pipeline.spark.session import SparkSettings
from dovetail_proto.partitioning import canonical_keys, partition_ids
from dovetail_proto.query import QueryPlan
from dovetail_proto.spill_format import RunRecord, SpillStore

MEMORY_BYTES = 1 << 30
REACH = 3.0

CONF = {
    "spark.driver.memory": "4g",
    # The Java of a clean-up needs no compiler for hot code; Spark SQL does.
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
    "spark.sql.shuffle.partitions": "8",
}


@dataclass(frozen=True, slots=True)
class Case:
    """A store to clean up."""

    name: str
    workload: Workload
    groups: int
    generations: int


def cases(full: bool) -> list[Case]:
    """What is measured."""
    rows = 500_000 if full else 300_000
    many = RangeWorkload(rows=rows // 4, tuple_range=rows // 20, partitions=300)
    few = UniformWorkload(rows=rows, distinct=rows // 2)
    hot = HotKeyWorkload(rows=rows, distinct=rows, hot_elsewhere=8)
    some = [
        Case("many results", many, 300, 10),
        Case("few results", few, 300, 10),
        Case("few results", few, 10_000, 10),
        Case("one hot group", hot, 300, 10),
    ]
    more = [
        Case("many results", many, 300, 2),
        Case("many results", many, 300, 50),
        Case("few results", few, 300, 2),
        Case("few results", few, 300, 50),
        Case("few results", few, 10_000, 2),
        Case("few results", few, 10_000, 50),
    ]
    return [*some, *more] if full else some


def main() -> None:
    """All cases on two cores, and with `--full` on one as well."""
    flags = parse_flags(__doc__ or "")
    report = Report("cleanup_bench", "clean-up after Spark's start, to Parquet", flags.full)
    with tempfile.TemporaryDirectory(prefix="dovetail-bench-") as name:
        folder = Path(name)
        warm = Case("warm-up", UniformWorkload(rows=20_000, distinct=10_000), 300, 3)
        stores = [
            (case, _spilled(case, folder / str(i)))
            for i, case in enumerate([warm, *cases(flags.full)])
        ]
        for cores in (2, 1) if flags.full else (2,):
            settings = SparkSettings(f"local[{cores}]", CONF)
            least = float("inf")
            with SparkHands(settings, memory_bytes=MEMORY_BYTES) as hands:
                for case, store in stores:
                    found = _measure(case, store, folder, hands, cores=cores, repeats=flags.repeats)
                    if case is not warm:
                        _tell(cores, case, found)
                        report.add(cores=cores, case=case.name, groups=case.groups, **found)
                        least = min(least, found["a_over_ours"])
            report.goal(f"least of (a) / ours, {cores} cores", least, REACH)
    report.finish(as_json=flags.json)


def _tell(cores: int, case: Case, found: dict[str, Any]) -> None:
    """One line as soon as a case is measured: all of them take minutes."""
    ratios = "  ".join(f"{x} / ours {found[f'{x}_over_ours']:5.2f}" for x in "abc")
    print(
        f"{cores} cores  {case.name:<14}{case.groups:>6} groups  {case.generations:>2} generations"
        f"  ours {found['ours_s']:6.3f} s  {ratios}",
        file=sys.stderr,
        flush=True,
    )


def _measure(
    case: Case, store: SpillStore, folder: Path, hands: SparkHands, *, cores: int, repeats: int
) -> dict[str, Any]:
    def local(place: Path) -> None:
        run_local(store, place, workers=cores, memory_bytes=MEMORY_BYTES)

    contestants: dict[str, Callable[[Path], object]] = {
        "ours": lambda place: conduct([store], place, hands),
        "a": lambda place: _spark_sql(hands, store, place, owed=True),
        "b": lambda place: _spark_sql(hands, store, place, owed=False),
        "c": local,
    }
    seconds = dict.fromkeys(contestants, float("inf"))
    rows = {}
    for name in [*itertools.chain(*[("ours", "a")] * repeats), "b", "c"]:
        out = folder / f"out-{next(_numbers)}"
        with _emptied(out):
            began = time.perf_counter()
            contestants[name](out)
            seconds[name] = min(seconds[name], time.perf_counter() - began)
            files = [pq.read_metadata(p) for p in out.glob("*.parquet")]
            rows[name] = sum(f.num_rows for f in files)
        store.storage.remove("cleanup")
    assert rows["ours"] == rows["a"] == rows["c"], rows
    return {
        "generations": case.generations,
        "rows_spilled": case.workload.rows * case.workload.streams,
        "owed": rows["ours"],
        "ours_s": seconds["ours"],
        "sql_owed_s": seconds["a"],
        "sql_whole_s": seconds["b"],
        "local_s": seconds["c"],
        "a_over_ours": seconds["a"] / seconds["ours"],
        "b_over_ours": seconds["b"] / seconds["ours"],
        "c_over_ours": seconds["c"] / seconds["ours"],
    }


_numbers = itertools.count()
"""Of output folders."""


@contextmanager
def _emptied(folder: Path) -> Iterator[None]:
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _spilled(case: Case, root: Path) -> SpillStore:
    """A store whose every group was pushed as often as the case says, rows in order of arrival."""
    streams = case.workload
    plan = plan_query(
        streams.sql,
        dict.fromkeys(streams.names, streams.schema),
        name="bench",
        partitions=case.groups,
    )
    store = SpillStore.create(str(root), plan)
    tables = [_by_hash(streams.table(i), case.groups) for i in range(streams.streams)]
    produced = dict.fromkeys(range(case.groups), 0)
    for generation in range(case.generations):
        parts = [_part(t, generation, case, streams.rows) for t in tables]
        groups = np.arange(case.groups)
        rows = np.stack([np.bincount(p.groups, minlength=case.groups) for p in parts], axis=1)
        writer = store.begin_push()
        tables = [p.table for p in parts]
        writer.write_groups(groups, np.full(case.groups, generation), rows, tables)
        writer.commit()
        for group, count in _combinations(parts).items():
            produced[group] += count
    rows_in = (streams.rows,) * streams.streams
    store.close_run(RunRecord(rows_in, sum(produced.values()), 0, produced))
    return SpillStore.open(str(root))


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """Rows in hash order, with where each group begins and ends."""

    table: pa.Table
    hashes: np.ndarray[Any, Any]
    groups: np.ndarray[Any, Any]
    arrival: np.ndarray[Any, Any]


def _by_hash(table: pa.Table, groups: int) -> _Rows:
    hashes = canonical_keys([table.column("k").combine_chunks()], [pa.int64()]).hashes
    order = np.argsort(hashes, kind="stable")
    return _Rows(table.take(order), hashes[order], partition_ids(hashes[order], groups), order)


def _part(rows: _Rows, generation: int, case: Case, total: int) -> _Rows:
    chosen = np.flatnonzero(rows.arrival * case.generations // total == generation)
    return _Rows(
        rows.table.take(chosen), rows.hashes[chosen], rows.groups[chosen], rows.arrival[chosen]
    )


def _combinations(parts: list[_Rows]) -> dict[int, int]:
    """What a run would have produced in one generation, per group."""
    every = np.unique(np.concatenate([p.hashes for p in parts]))
    counts = np.ones(every.size, np.int64)
    group = np.zeros(every.size, np.int64)
    for p in parts:
        at = np.searchsorted(every, p.hashes)
        counts *= np.bincount(at, minlength=every.size)
        group[at] = p.groups
    found = np.flatnonzero(counts)
    # Exact: a generation's combinations are far fewer than 2⁵³.
    sums = np.bincount(group[found], counts[found]).astype(np.int64)
    return {g: int(sums[g]) for g in np.flatnonzero(sums).tolist()}


def _spark_sql(hands: SparkHands, store: SpillStore, out: Path, *, owed: bool) -> None:
    """The same results by Spark SQL, from the spilled files."""
    from pyspark.sql import SparkSession

    session = SparkSession(hands._started())
    plan: QueryPlan = store.plan
    for i, source in enumerate(plan.inputs):
        files = [f"{store.root}/{p.inputs[i].name}" for p in store.pushes() if p.inputs[i]]  # type: ignore[union-attr]
        session.read.parquet(*files).createOrReplaceTempView(source.alias)
    first, *others = [i.alias for i in plan.inputs]
    columns = ", ".join(
        f"{plan.inputs[o.source[0]].alias}.{o.source[1]} AS {o.name}"
        for o in plan.outputs
        if o.source is not None
    )
    joins = " ".join(f"JOIN {a} ON {a}.k = {first}.k" for a in others)
    same = " AND ".join(f"{a}.__generation = {first}.__generation" for a in others)
    where = f" WHERE NOT ({same})" if owed else ""
    result = session.sql(f"SELECT {columns} FROM {first} {joins}{where}")
    result.write.mode("overwrite").parquet(str(out))


if __name__ == "__main__":
    main()
