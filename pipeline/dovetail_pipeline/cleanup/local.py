"""The clean-up on this machine: as many processes as pay, this one among them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dovetail_pipeline.cleanup.catalog import Catalog
from dovetail_pipeline.cleanup.conducting import (
    CleanupResult,
    Progress,
    Workers,
    conduct,
    work_on,
    worker,
    worker_settings,
)
from dovetail_pipeline.cleanup.crew import Crew
from dovetail_pipeline.cleanup.estimating import Estimate
from dovetail_pipeline.cleanup.files import OpenFiles
from dovetail_pipeline.cleanup.task import MEMORY_BYTES_MIN
from dovetail_processor.allocators import keep_lean
from dovetail_proto.cores import usable_cores
from dovetail_proto.spill_format import SpillStore

COST_PER_PROCESS = 1 << 24
"""In results, about half a second's work: what makes it worth starting one more process."""


def run_here(
    store: SpillStore | Sequence[SpillStore],
    output: Path | str | None,
    memory_bytes: int,
    progress: Callable[[Progress], None] = lambda p: None,
) -> CleanupResult:
    """`run_local` with a process per core, as far as memory reaches.

    A run works with less memory than a clean-up can; one process then takes the least it needs.
    """
    memory_bytes = max(memory_bytes, MEMORY_BYTES_MIN)
    workers = min(usable_cores(), memory_bytes // MEMORY_BYTES_MIN)
    return run_local(store, output, workers=workers, memory_bytes=memory_bytes, progress=progress)


def run_local(
    store: SpillStore | Sequence[SpillStore],
    output: Path | str | None,
    *,
    workers: int,
    memory_bytes: int,
    progress: Callable[[Progress], None] = lambda p: None,
) -> CleanupResult:
    """Produce everything that closed stores of one query owe: `conduct`, on this machine.

    At most `workers` processes; `memory_bytes` is for all of them together, their empty processes
    aside. To keep to it, the allocators of this process are set (`allocators.keep_lean`).
    """
    keep_lean()

    @contextmanager
    def hands(catalog: Catalog, expected: Estimate, place: str | None) -> Iterator[Workers]:
        count = max(1, min(workers, 1 + int(expected.cost // COST_PER_PROCESS)))
        settings = worker_settings(catalog, place, memory_bytes // count)
        with (
            OpenFiles(catalog, settings["memory_bytes"]) as files,
            Crew(count, work_on(catalog, files, settings), worker, settings) as crew,
        ):
            yield crew

    return conduct(store, output, hands, progress)
