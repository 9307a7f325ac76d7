"""Run plus clean-up against DuckDB: random schemas, keys, limits, push points and kill points."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dovetail_manager.planner import plan_query
from dovetail_pipeline.cleanup import run_local, verify
from dovetail_processor.batches import keyed, stamped
from dovetail_processor.join.state import JoinState
from dovetail_processor.shell import local
from dovetail_processor.shell.local import LocalRun, WorkerPlaces
from dovetail_processor.sinks import ParquetSink
from dovetail_processor.sources import open_source
from dovetail_proto.assignment import DiskSettings
from dovetail_proto.cluster_memory import ClusterShares
from dovetail_proto.errors import MemoryLimitError
from dovetail_proto.ids import ProcessorId, worker_names
from dovetail_proto.memory import Shares
from dovetail_proto.messages import QueryLoad
from dovetail_proto.spill_format import SpillStore
from kit import join_cases as cases

# DuckDB has no such types or reads them as others, so its rows could not be compared.
UNKNOWN_TO_DUCKDB = {pa.decimal256(50, 2), pa.null(), pa.binary(5)}


class KilledError(Exception):
    """Stands for a crash."""


@pytest.mark.parametrize("seed", range(16))
def test_run_and_cleanup_together_are_the_join(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is pushed when, and wherever the clean-up is killed, each result comes once."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 5))
    kind = sorted(cases.KEY_KINDS)[seed % len(cases.KEY_KINDS)]
    tables = {f"s{i}": table(rng, kind, n) for i in range(n)}
    for name, content in tables.items():
        pq.write_table(content, tmp_path / f"{name}.parquet", row_group_size=97)
    sql = join_sql(tables, kind)
    memory_bytes = squeeze(monkeypatch, rng)
    stores, summary, partitions = run(sql, tables, tmp_path, rng, memory_bytes)
    assert summary.pushes
    report = verify(*stores)
    assert all(g.agrees for g in report.groups), "produced + owed = total, counted three ways"

    bins = int(rng.integers(0, 4))

    def kill(*_: object) -> None:
        nonlocal bins
        bins -= 1
        if bins < 0:
            raise KilledError

    clean = tmp_path / "out" / "phase=cleanup"
    try:
        run_local(stores, clean, workers=1, memory_bytes=8 << 20, progress=kill)
    except KilledError:
        again = [SpillStore.open(s.root) for s in stores]
        run_local(again, clean, workers=1, memory_bytes=8 << 20, progress=lambda *_: None)
    found: Counter[cases.Row] = Counter()
    for file in sorted((tmp_path / "out").rglob("*.parquet")):
        found += Counter(cases.rows_of(pq.ParquetFile(file).read()))
    expected = Counter(cases.rows_of(oracle(sql, tables)))
    assert found == expected, (summary, partitions)


def table(rng: np.random.Generator, kind: str, n: int) -> pa.Table:
    """A stream of some hundred rows with random payload."""
    rows = int(rng.integers(200, 400)) // {2: 1, 3: 3, 4: 6}[n]  # results stay some thousand
    distinct = int(rng.choice([30, 200]))
    arrays = cases.keys(rng, kind, rows, distinct)
    names = [f"k{p}" for p in range(len(arrays))]
    known = [t for t in cases.PAYLOADS if t not in UNKNOWN_TO_DUCKDB]
    for c, t in enumerate(rng.choice(len(known), 2, replace=False)):
        arrays.append(cases.values(rng, known[t], rows))
        names.append(f"p{c}")
    return pa.table(arrays, names=names)


def join_sql(tables: dict[str, pa.Table], kind: str) -> str:
    """All columns of all streams, joined on every part of the key."""
    parts = [f"k{p}" for p in range(len(cases.KEY_KINDS[kind]))]
    columns = [f"{s}.{c} AS {s}_{c}" for s, t in tables.items() for c in t.column_names]
    first, *others = tables
    joins = [
        f"JOIN {s} ON " + " AND ".join(f"{s}.{p} = {first}.{p}" for p in parts) for s in others
    ]
    return f"SELECT {', '.join(columns)} FROM {first} {' '.join(joins)}"


def squeeze(monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> int:
    """Give the state next to no memory, however many groups there are; the limit that does it.

    Pushes come all the time.
    """
    state_bytes = int(rng.choice([160, 256, 512])) << 10
    memory_bytes = (16 << 20) + state_bytes
    little = Shares(
        limit=memory_bytes, batch=8 << 10, output=16 << 10, spill=16 << 10, state=state_bytes
    )
    shares = ClusterShares(little, window=16 << 10, minimum=state_bytes)
    pool = "dovetail_processor.memory_pool"
    monkeypatch.setattr(f"{pool}.newcomer_shares", lambda *_, **__: shares)
    rows = int(rng.choice([7, 40, 90]))
    monkeypatch.setattr("dovetail_processor.operators.file_feed.BATCH_ROWS", rows)
    merged = {7: 2, 40: 3, 90: 32}[rows]  # small pushes become one, or there are too few
    monkeypatch.setattr("dovetail_proto.spill_format.merging.MERGED_MAX", merged)
    monkeypatch.setattr("dovetail_proto.spill_format.merging.MERGED_AT", 2 * merged)
    return memory_bytes


def run(
    sql: str,
    tables: dict[str, pa.Table],
    folder: Path,
    rng: np.random.Generator,
    memory_bytes: int,
) -> tuple[list[SpillStore], QueryLoad, int]:
    """Run the query with random settings: files at once or in turn, pushes all the time."""
    partitions = int(rng.choice([1, 5, 12]))
    sources = {name: open_source(folder / f"{name}.parquet") for name in tables}
    schemas = {name: s.schema for name, s in sources.items()}
    plan = plan_query(sql, schemas, name="case", partitions=partitions)
    (folder / "out").mkdir()
    places = {
        name: WorkerPlaces(
            ParquetSink(folder / "out" / "phase=run", plan.output_schema, prefix=name),
            SpillStore.create(str(folder / "spill" / name), plan, run="case"),
        )
        for name in worker_names(ProcessorId("w"), int(rng.choice([1, 2, 3])))
    }
    disk = DiskSettings(
        allowed=True,
        victims=str(rng.choice(["least-productive", "most-productive", "least-recent", "random"])),
        push_fraction=float(rng.choice([0.1, 0.3, 1.0])),
        spill_above_ratio=float(rng.choice([0.001, 0.01])),
    )
    memory_bytes *= len(places)
    in_turn = tuple(rng.permutation(sorted(tables)).tolist()) if rng.random() < 0.5 else ()
    settings = LocalRun(plan, sources, places, memory_bytes, disk, in_turn=in_turn)
    done, _ = local.run_local(settings)
    stores = [p.store for p in places.values() if p.store is not None]
    return stores, done, partitions


def oracle(sql: str, tables: dict[str, pa.Table]) -> pa.Table:
    """What DuckDB says."""
    with duckdb.connect() as session:
        session.execute("SET TimeZone = 'UTC'")
        for name, content in tables.items():
            session.register(name, content)
        return session.sql(sql).to_arrow_table()


def test_a_row_that_fits_no_page_is_refused_with_the_limit(tmp_path: Path) -> None:
    """A value larger than all of the state's memory is an error that names both."""
    schema = pa.schema([("k0", pa.int64()), ("p", pa.string())])
    plan = cases.plan_of([schema, schema], "int", 1)
    state = JoinState(plan, 128 << 10, chunk_rows=8)
    batch = pa.record_batch([pa.array([1]), pa.array(["x" * (1 << 20)])], schema=schema)
    state.begin(0, keyed(plan, 0, stamped(batch, 0)), 0.0)
    assert not isinstance(state.advance(), np.ndarray)
    tables = {"s0": pa.table(batch.to_pydict(), schema), "s1": pa.table(batch.to_pydict(), schema)}
    for name, content in tables.items():
        pq.write_table(content, tmp_path / f"{name}.parquet")
    sources = {f"s{i}": open_source(tmp_path / f"s{i}.parquet") for i in range(2)}
    plan = plan_query(
        join_sql(tables, "int"),
        {name: s.schema for name, s in sources.items()},
        name="case",
        partitions=1,
    )
    sink = ParquetSink(tmp_path / "out", plan.output_schema, prefix="case")
    store = SpillStore.create(str(tmp_path / "spill"), plan)
    places = {ProcessorId("w"): WorkerPlaces(sink, store)}
    with pytest.raises(MemoryLimitError, match="a row does not fit into the"):
        local.run_local(LocalRun(plan, sources, places, 1 << 20, DiskSettings(allowed=True)))
