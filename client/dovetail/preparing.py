"""A run before it begins: what is asked for, and whether it can be done.

Nothing here needs the join's kernels. So an input that is not there, or SQL that is not understood,
is told at once, even where the kernels have to be compiled first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dovetail_manager.planner import plan_query
from dovetail_processor.sources import FileSource, open_source
from dovetail_proto.cluster_memory import check_workers, threads_by_default, workers_that_fit
from dovetail_proto.errors import ConfigError
from dovetail_proto.ids import ProcessorId, check_name, worker_names
from dovetail_proto.memory import row_bytes_of
from dovetail_proto.query import PARTITIONS_DEFAULT, QueryPlan

MEMORY_BYTES_DEFAULT = 1 << 30
"""Fits beside other programs on any machine of today, and most joins need no disk within it."""

HERE = ProcessorId("local")

ROW_BYTES_BESIDE = 24
"""What a row takes in memory beside its columns: its place in the index, and links."""

PUSH_FRACTION_DEFAULT = 0.3
"""S4 4.4: balances the number of pushes and the results found during the run."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What to join and what may be used for it."""

    sql: str
    inputs: Mapping[str, str | Path]  # stream name to file or folder
    output: Path | None  # a new or empty folder; None only counts and sums the checksum
    name: str = "query"
    memory_bytes: int = MEMORY_BYTES_DEFAULT  # state, queues and output together
    processors: int = 1  # more than one: processes of a local cluster, `memory_bytes` each
    threads: int | None = None  # workers of this process; None: one per core, if memory suffices
    policy: str | None = None  # None: disk for one processor, lazy-disk for more
    victims: str = "least-productive"
    push_fraction: float = PUSH_FRACTION_DEFAULT
    productivity_half_life_s: float = 0.0  # of P_o; 0: it is a plain sum
    partitions: int = PARTITIONS_DEFAULT
    cleanup: Literal["spark", "local", "none"] = "spark"  # "none": keep the spill store for later
    spill_dir: str | None = None  # path or URI; None: temporary, removed in the end
    read: Literal["smallest-first", "interleaved"] = "smallest-first"

    @property
    def adapts_by(self) -> str:
        """The policy, as given or by default."""
        return self.policy or ("disk" if self.processors == 1 else "lazy-disk")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that was understood: open sources, one per input of the plan."""

    plan: QueryPlan
    sources: tuple[FileSource, ...]
    workers: tuple[ProcessorId, ...]  # of this process; empty: processors run it

    @property
    def smallest_first(self) -> tuple[str, ...]:
        """The streams by what their rows take in memory, about, where all files tell how many rows
        they have, else by bytes.
        """
        held: dict[str, int] = {}
        size: dict[str, int] = {}
        known = True
        for of, source in zip(self.plan.inputs, self.sources, strict=True):
            row_bytes = ROW_BYTES_BESIDE + row_bytes_of(of.kept)
            held[of.stream] = held.get(of.stream, 0) + (source.rows_total or 0) * row_bytes
            size[of.stream] = source.bytes_total
            known = known and source.rows_total is not None
        return tuple(sorted(size, key=(held if known else size).__getitem__))


def prepare(request: RunRequest) -> Prepared:
    """Open the inputs and plan the query; nothing is written. Raises DovetailError."""
    check_name("query", request.name)
    if request.processors == 1 and request.adapts_by not in ("disk", "none"):
        raise ConfigError(
            f"policy {request.policy!r} needs several processors",
            remedy="give --processors 2, or --policy disk",
        )
    opened = {
        check_name("stream", name): open_source(path) for name, path in request.inputs.items()
    }
    plan = plan_query(
        request.sql,
        {name: source.schema for name, source in opened.items()},
        name=request.name,
        partitions=request.partitions,
    )
    workers = [] if request.processors > 1 else worker_names(HERE, _threads(request, plan))
    return Prepared(plan, tuple(opened[i.stream] for i in plan.inputs), tuple(workers))


def _threads(request: RunRequest, plan: QueryPlan) -> int:
    """As many as were asked for, or as the process may use and has memory for."""
    if request.threads is not None:
        check_workers(request.memory_bytes, request.threads, plan)
        return request.threads
    most = threads_by_default(request.memory_bytes)
    fit = workers_that_fit(request.memory_bytes, most, plan)
    return max(1, fit)  # where not even one fits, the run says so
