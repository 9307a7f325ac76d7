"""One bin of a clean-up, from the spilled files to its results: what any scheduler calls.

`run_bin` needs nothing but the stores, and leaves files under names that depend on the bin and the
attempt alone, then a marker. Run twice by one attempt, even at once, it leaves the same files.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from dovetail_pipeline.cleanup.bins import Bin
from dovetail_pipeline.cleanup.catalog import Catalog
from dovetail_pipeline.cleanup.combinations import owed_batches
from dovetail_pipeline.cleanup.delivery import Delivery
from dovetail_pipeline.cleanup.files import OpenFiles
from dovetail_pipeline.cleanup.ledger import BinResult, Ledger
from dovetail_pipeline.cleanup.reading import SliceReader
from dovetail_pipeline.cleanup.terms import delta_terms
from dovetail_pipeline.cleanup.walking import read_in_parts
from dovetail_processor.expressions import above_join
from dovetail_proto.errors import MemoryLimitError

Tick = Callable[[int, int], None]
"""`tick(results, bytes_read)`: what has been done since the last call."""

MEMORY_BYTES_MIN = 8 << 20
"""Eight row groups of the spill format: less would read the same bytes again and again."""

ROW_GROUP_BYTES_MAX = 8 << 20
"""Rows that the sink gathers before it writes; less if memory is short."""


def row_budget(memory_bytes: int) -> int:
    """How much of a task's memory the rows of a part may take; MemoryLimitError if too little.

    Two fifths: a quarter is for footers, a fifth for results on their way (a batch as gathered, as
    evaluated, and the sink's row group as held and as encoded), the rest for decoding.
    """
    if memory_bytes < MEMORY_BYTES_MIN:
        raise MemoryLimitError(
            f"clean-up with {memory_bytes} bytes per worker: too little to work with",
            remedy=f"give at least {MEMORY_BYTES_MIN >> 20} MB for each worker",
        )
    return min(2 * memory_bytes // 5, 1 << 30)  # Arrow text columns end at 2 GB


def run_bin(
    catalog: Catalog,
    files: OpenFiles,
    b: Bin,
    *,
    plan_id: str,
    attempt: str,
    output: str | None,
    memory_bytes: int,
    tick: Tick = lambda results, bytes_read: None,
) -> BinResult:
    """Produce the results of a bin and mark it done; `output` None only counts them.

    SpillError if a later attempt than `attempt` has taken the clean-up over.
    """
    started = time.monotonic()
    plan = catalog.plan
    terms = delta_terms(len(plan.inputs))
    budget_bytes = row_budget(memory_bytes)
    batch_bytes = max(memory_bytes // 16, 64 << 10)
    names = [[name for i, name in plan.joined_columns() if i == j] for j in range(len(plan.inputs))]
    reader = SliceReader(catalog, files, names)
    evaluator = above_join(plan)
    ledger = Ledger(catalog, output)
    row_group_bytes = min(batch_bytes, ROW_GROUP_BYTES_MAX)
    sink = Delivery(plan.output_schema, f"{b.name}-{attempt}", ledger.output, row_group_bytes)
    combinations = 0
    bytes_read = 0
    shared: Counter[int] = Counter()
    try:
        for part in b.slices:
            for found in read_in_parts(catalog, reader, part, budget_bytes):
                tick(0, reader.bytes_read - bytes_read)
                bytes_read = reader.bytes_read
                for batch in owed_batches(plan, found, terms, batch_bytes, shared):
                    combinations += batch.num_rows
                    sink.write(evaluator.run(batch))
                    tick(batch.num_rows, 0)
        rows, checksum, names_and_sizes = sink.close()
    except BaseException:
        sink.abort()
        raise
    result = BinResult(
        index=b.index,
        combinations=combinations,
        rows=rows,
        checksum=checksum,
        files=names_and_sizes,
        shared=tuple(sorted(shared.items())),
        bytes_read=reader.bytes_read,
        seconds=time.monotonic() - started,
    )
    ledger.finish(b, result, plan_id, attempt)
    return result
