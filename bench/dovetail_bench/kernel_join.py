"""Our join without sources, sinks and graph: batches of Arrow in, batches of Arrow out.

Drives `dovetail_processor.join.state` the way a worker does, with memory for everything.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from dovetail.generator import Workload
from dovetail_processor.batches import keyed, stamped
from dovetail_processor.join.state import JoinState, Short
from dovetail_proto.query import PARTITIONS_DEFAULT, InputPlan, OutputColumn, QueryPlan

BATCH_ROWS = 1 << 16
CHUNK_ROWS = 1 << 16


def join_plan(workload: Workload, partitions: int = PARTITIONS_DEFAULT) -> QueryPlan:
    """The plan of the workload's query, made without the planner."""
    schema = workload.schema
    wanted = [(0, "k")]
    wanted += [(i, c) for i in range(workload.streams) for c in schema.names if c != "k"]
    return QueryPlan(
        name="kernel",
        sql=workload.sql,
        inputs=tuple(
            InputPlan(name, name, schema, None, (), schema, ("k",)) for name in workload.names
        ),
        key_types=(pa.int64(),),
        partitions=partitions,
        residual_sql=None,
        residual_columns=(),
        outputs=tuple(
            OutputColumn(f"s{i}_{c}", schema.field(c).type, (i, c), None) for i, c in wanted
        ),
        output_columns=(),
    )


def interleaved(tables: list[pa.Table], batch_rows: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Batches of all streams in turn, as if all arrived at the same rate."""
    streams = [t.to_batches(max_chunksize=batch_rows) for t in tables]
    for turn in range(max(len(batches) for batches in streams)):
        for i, batches in enumerate(streams):
            if turn < len(batches):
                yield i, batches[turn]


def join_all(
    plan: QueryPlan, tables: list[pa.Table], *, state_bytes: int, keep: bool = False
) -> tuple[int, int]:
    """Join everything; return the number of results and the bytes held at the end.

    Every column of every result is made; `keep` also holds them all until the end.
    """
    state = JoinState(plan, state_bytes, chunk_rows=CHUNK_ROWS)
    columns = plan.joined_columns()
    kept: list[list[pa.Array]] = []
    results = 0
    rows = [0] * len(tables)
    for i, batch in interleaved(tables, BATCH_ROWS):
        state.begin(i, keyed(plan, i, stamped(batch, rows[i])), 0.0)
        rows[i] += batch.num_rows
        while not state.idle:
            chunk = state.advance()
            if isinstance(chunk, Short):
                raise RuntimeError(f"{state_bytes} bytes are too few for the whole state")
            if chunk is None or chunk.shape[1] == 0:
                continue
            arrays = state.materialise(chunk, columns)
            results += chunk.shape[1]
            if keep:
                kept.append(arrays)
    return results, state.held_bytes
