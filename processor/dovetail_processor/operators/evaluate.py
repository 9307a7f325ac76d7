"""Filter and projection: below the join on each input, above it on the combinations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import pyarrow as pa

from dovetail_processor.batches import Stamped, stamped
from dovetail_processor.expressions import Evaluator
from dovetail_processor.graph.arc import Arc
from dovetail_processor.graph.node import Statistics, Waiting

MERGED_BYTES = 64 << 10
"""Up to this size small batches are evaluated as one: what a batch costs on its way hardly depends
on its rows below that, and copying them takes some microseconds."""


@dataclass(frozen=True, slots=True)
class Results:
    """Combinations or results on their way out."""

    rows: pa.RecordBatch
    size_bytes: int


class _Rows(Protocol):
    @property
    def rows(self) -> pa.RecordBatch: ...

    @property
    def size_bytes(self) -> int: ...


Item = TypeVar("Item", bound=_Rows)


class Evaluate(Generic[Item]):
    """Does `evaluate` to each batch from `source` to `out`; what has no row left goes no further.

    `of_input` and `of_results` are the two kinds there are.
    """

    def __init__(
        self,
        query: str,
        depth: int,
        evaluate: Callable[[Item], Item],
        source: Arc[Item],
        out: Arc[Item],
        *,
        take: Callable[[Arc[Item]], Item] = Arc.take,
    ) -> None:
        """`take` takes what is evaluated at once from `source`."""
        self.owners = (query,)
        self.depth = depth
        self.statistics = Statistics()
        self._evaluate = evaluate
        self._source = source
        self._out = out
        self._take = take

    @property
    def waiting(self) -> Waiting:
        """See Node."""
        return Waiting(len(self._source), self._source.held_bytes, self._source.since_s)

    @property
    def ready(self) -> bool:
        """Whether there is a batch and room for it."""
        return len(self._source) > 0 and self._out.has_room

    def step(self, now_s: float) -> None:
        """Evaluate one batch."""
        batch = self._take(self._source)
        made = self._evaluate(batch)
        self.statistics.rows_in += batch.rows.num_rows
        self.statistics.rows_out += made.rows.num_rows
        if made.rows.num_rows:
            self._out.offer(made, now_s)


def take_merged(source: Arc[Stamped]) -> Stamped:
    """The first batch, with the small ones that wait right behind it, as one.

    Many senders of a few rows each would otherwise pay a batch's way through the graph each.
    """
    parts = [source.take()]
    size_bytes = parts[0].size_bytes
    while (more := source.first) is not None and more.follows(parts[-1]):
        size_bytes += more.size_bytes
        if size_bytes > MERGED_BYTES:
            break
        parts.append(source.take())
    if len(parts) == 1:
        return parts[0]
    return stamped(pa.concat_batches([p.rows for p in parts]), parts[0].first)


def of_input(evaluator: Evaluator) -> Callable[[Stamped], Stamped]:
    """An input's filter and computed columns; rows keep their sequences."""
    return lambda batch: batch.evaluated(*evaluator.run_rows(batch.rows))


def of_results(evaluator: Evaluator) -> Callable[[Results], Results]:
    """The conditions that span inputs, and the columns of the results."""

    def evaluate(batch: Results) -> Results:
        made = evaluator.run(batch.rows)
        return Results(made, int(made.nbytes))

    return evaluate
