"""Spill stores for tests: plans without a planner, pushes without a join, and DuckDB as oracle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail_proto.key_types import common_key_type
from dovetail_proto.partitioning import canonical_keys, partition_ids
from dovetail_proto.query import InputPlan, OutputColumn, QueryPlan
from dovetail_proto.spill_format import LocalStorage, PushWriter, RunRecord, SpillStore

Epochs = Sequence[NDArray[np.int64]]
"""Per input, for every row: how many pushes had been made when it arrived."""


def make_plan(
    schemas: Sequence[pa.Schema], key: Sequence[str] = ("k",), *, partitions: int = 8
) -> QueryPlan:
    """SELECT * of inputs i0 ⋈ i1 ⋈ … on `key`; result columns are named i0_k, i0_v, …"""
    inputs = tuple(
        InputPlan(
            alias=f"i{i}",
            stream=f"i{i}",
            stream_schema=schema,
            filter_sql=None,
            computed=(),
            kept=schema,
            key=tuple(key),
        )
        for i, schema in enumerate(schemas)
    )
    return QueryPlan(
        name="test",
        sql="",
        inputs=inputs,
        key_types=tuple(common_key_type([s.field(k).type for s in schemas]) for k in key),
        partitions=partitions,
        residual_sql=None,
        residual_columns=(),
        outputs=tuple(
            OutputColumn(name=f"i{i}_{f.name}", type=f.type, source=(i, f.name), sql=None)
            for i, schema in enumerate(schemas)
            for f in schema
        ),
        output_columns=(),
    )


@dataclass(frozen=True)
class Spilled:
    """A closed store and where each row went."""

    store: SpillStore
    tables: tuple[pa.Table, ...]
    generations: tuple[NDArray[np.int64], ...]  # per input and row, counted by its group


def spill(
    root: Path | LocalStorage,
    plan: QueryPlan,
    tables: Sequence[pa.Table],
    epochs: Epochs,
    *,
    rng: np.random.Generator | None = None,
    close: bool = True,
) -> Spilled:
    """Push `tables` as a run would: after epoch e come push e + 1 and the rows of epoch e + 1.

    With `rng`, each push takes about half of the groups; else all. The last push takes the rest of
    every group that was pushed before; groups that never were stay in memory and are not stored.
    """
    storage = root if isinstance(root, LocalStorage) else LocalStorage(str(root))
    store = SpillStore.create_in(storage, plan)
    keys = [
        canonical_keys(
            [table.column(k).combine_chunks() for k in plan.inputs[i].key], plan.key_types
        )
        for i, table in enumerate(tables)
    ]
    groups = [partition_ids(k.hashes, plan.partitions) for k in keys]
    pushes = 1 + max((int(e.max()) for e in epochs if e.size), default=0)
    generations = [np.zeros(t.num_rows, np.int64) for t in tables]
    pushed_until = np.zeros(plan.partitions, np.int64)  # first epoch not on disk, per group
    generation_of = np.zeros(plan.partitions, np.int64)
    for push in range(pushes):
        last = push == pushes - 1
        taken = np.ones(plan.partitions, bool) if rng is None else rng.random(plan.partitions) < 0.5
        if last:
            taken = generation_of > 0 if pushes > 1 else taken
        writer = store.begin_push()
        for g in np.flatnonzero(taken).tolist():
            parts: list[pa.Table | None] = []
            for i, table in enumerate(tables):
                mine = (groups[i] == g) & (epochs[i] >= pushed_until[g]) & (epochs[i] <= push)
                rows = np.flatnonzero(mine)
                rows = rows[np.argsort(keys[i].hashes[rows], kind="stable")]
                generations[i][rows] = generation_of[g]
                parts.append(table.take(rows) if rows.size else None)
            if any(p is not None for p in parts):
                write_group(writer, g, int(generation_of[g]), parts)
                generation_of[g] += 1
            pushed_until[g] = push + 1
        writer.commit()
        while many := store.to_merge(closing=close and last):
            store.merge(many)
        for i in range(len(tables)):  # rows that stay in memory belong to the next generation
            rest = epochs[i] >= pushed_until[groups[i]]
            generations[i][rest] = generation_of[groups[i][rest]]
    if close:
        produced = produced_combinations(plan, tables, generations, groups)
        rows_in = tuple(t.num_rows for t in tables)
        store.close_run(RunRecord(rows_in, sum(produced.values()), 0, produced))
    return Spilled(store, tuple(tables), tuple(generations))


def write_group(
    writer: PushWriter, group: int, generation: int, tables: Sequence[pa.Table | None]
) -> None:
    """Add one group to a push; None stands for no rows of an input."""
    held = [(i, t) for i, t in enumerate(tables) if t is not None]
    rows = np.array([[0 if t is None else t.num_rows for t in tables]])
    of = np.array([group]), np.array([generation])
    writer.list_generations(*of, rows)
    for i, t in held:
        marks = [pa.array(np.full(t.num_rows, x[0], np.int32)) for x in of]
        writer.write_rows(i, [*t.columns, *marks])


def produced_combinations(
    plan: QueryPlan,
    tables: Sequence[pa.Table],
    generations: Sequence[NDArray[np.int64]],
    groups: Sequence[NDArray[np.int32]],
) -> dict[int, int]:
    """What the run produced in each group, as DuckDB counts it."""
    keys = [t.select(list(p.key)) for t, p in zip(tables, plan.inputs, strict=True)]
    con = _connect(keys, generations, groups)
    same = " AND ".join(f"i{i}.__gen = i0.__gen" for i in range(1, len(tables)))
    found = con.sql(
        f"SELECT i0.__grp, count(*) FROM {_from(plan)} WHERE {same} GROUP BY 1"
    ).fetchall()
    return {int(g): int(c) for g, c in found}


def owed_results(spilled: Spilled) -> list[str]:
    """`owed_rows` as a bag."""
    return bag(owed_rows(spilled))


def owed_rows(spilled: Spilled) -> list[tuple[Any, ...]]:
    """The full join minus the join of every generation, as DuckDB computes them."""
    plan = spilled.store.plan
    con = _connect(spilled.tables, spilled.generations)
    names = ", ".join(
        f'i{i}."{f.name}" AS "i{i}_{f.name}"' for i, p in enumerate(plan.inputs) for f in p.kept
    )
    same = " AND ".join(f"i{i}.__gen = i0.__gen" for i in range(1, len(plan.inputs)))
    full = f"SELECT {names} FROM {_from(plan)}"
    rows: list[tuple[Any, ...]] = con.sql(f"{full} EXCEPT ALL {full} WHERE {same}").fetchall()
    return rows


def bag(rows: Sequence[tuple[Any, ...]]) -> list[str]:
    """Rows as texts in one order, to compare bags; NaN is NaN and −0.0 is 0.0, as in a join."""
    return sorted(repr([v + 0.0 if isinstance(v, float) else v for v in row]) for row in rows)


def read_bag(folder: Path) -> list[str]:
    """All rows of a Parquet dataset as a bag; [] if it has no files."""
    files = sorted(str(p) for p in folder.glob("*.parquet"))
    if not files:
        return []
    return bag(duckdb.connect().read_parquet(files, hive_partitioning=False).fetchall())


def _from(plan: QueryPlan) -> str:
    tables = ["i0"]
    for i in range(1, len(plan.inputs)):
        on = " AND ".join(f'i{i}."{k}" = i0."{k}"' for k in plan.inputs[0].key)
        tables.append(f"JOIN i{i} ON {on}")
    return " ".join(tables)


def _connect(
    tables: Sequence[pa.Table],
    generations: Sequence[NDArray[np.int64]],
    groups: Sequence[NDArray[np.int32]] | None = None,
) -> duckdb.DuckDBPyConnection:
    con = duckdb.connect()
    for i, table in enumerate(tables):
        marked = table.append_column("__gen", pa.array(generations[i]))
        if groups is not None:
            marked = marked.append_column("__grp", pa.array(groups[i]))
        con.register(f"i{i}", marked)
    return con
