"""The inputs of a query that are hosted on this worker: from the homes of their streams to links.

home ─▶ reader's arc ─▶ evaluate ─▶ arc ─▶ split ─▶ links to every worker's join
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from dovetail_processor.batches import Stamped
from dovetail_processor.expressions import below_join
from dovetail_processor.graph.arc import Arc, QueuePool
from dovetail_processor.graph.node import Node
from dovetail_processor.operators.evaluate import Evaluate, of_input, take_merged
from dovetail_processor.operators.home import Reader
from dovetail_processor.operators.links import Links
from dovetail_processor.operators.split import Split
from dovetail_proto.ids import ProcessorId, QueryName, SplitId, StreamName, input_of
from dovetail_proto.query import QueryPlan

EVALUATE, SPLIT = 10, 20
"""Depths of the nodes: behind the join, so that what was taken is joined before more is."""

FEEDING = 30
"""More where rows go to other processors too, which would idle if the join here went first."""


class QueryInputs:
    """See the module. Splits are those of `links`."""

    def __init__(self, plan: QueryPlan, links: Links, queues: QueuePool, piece_bytes: int) -> None:
        self._plan = plan
        self._links = links
        self._queues = queues
        self._piece_bytes = piece_bytes
        self._evaluates: dict[SplitId, Evaluate[Stamped]] = {}
        self.readers: dict[SplitId, Reader] = {}
        """For the homes of their streams."""

    def host(self, splits: Iterable[SplitId]) -> None:
        """Host these splits, and no others, from now on."""
        wanted = list(splits)
        for gone in set(self.readers) - set(wanted):
            del self.readers[gone], self._evaluates[gone]
        known = self._links.splits
        self._links.host({s: known[s] if s in known else self._new(s) for s in wanted})
        self.rank()

    def _new(self, split: SplitId) -> Split:
        evaluator = below_join(self._plan.inputs[input_of(split)])
        # A batch each, and what the pool has; the query's own share has room for one that is read.
        read: Arc[Stamped] = Arc(1, self._queues, self._piece_bytes)
        kept: Arc[Stamped] = Arc(1, self._queues)
        self._evaluates[split] = Evaluate(
            self._plan.name, EVALUATE, of_input(evaluator), read, kept, take=take_merged
        )
        name = QueryName(self._plan.name)
        self.readers[split] = Reader(name, split, read, frozenset(evaluator.reads))
        return Split(
            split,
            self._plan,
            SPLIT,
            arcs=(read, kept),
            links=self._links,
            piece_bytes=self._piece_bytes,
        )

    def rank(self) -> None:
        """Have nodes come before the join if they feed others: owners may have come or gone."""
        feeding = FEEDING if len(self._links.processors) > 1 else 0
        for split, evaluate in self._evaluates.items():
            evaluate.depth = EVALUATE + feeding
            self._links.splits[split].depth = SPLIT + feeding

    @property
    def nodes(self) -> list[Node]:
        """All of them."""
        return [*self._evaluates.values(), *self._links.splits.values()]

    def stream_of(self, split: SplitId) -> StreamName:
        """The stream that a split reads."""
        return StreamName(self._plan.inputs[input_of(split)].stream)

    @property
    def rows_in(self) -> tuple[int, ...]:
        """Rows that splits here took in, per input."""
        rows = [0] * len(self._plan.inputs)
        for split, reader in self.readers.items():
            waiting = sum(batch.rows.num_rows for batch in reader.arc)
            rows[input_of(split)] = reader.rows - waiting
        return tuple(rows)

    @property
    def queued_bytes(self) -> int:
        """Bytes on their way to the splits."""
        return sum(split.queued_bytes for split in self._links.splits.values())

    def joined_below(self, split: SplitId, next_sequence: int) -> int:
        """All rows below this sequence are joined; the split's reader takes `next_sequence`."""
        lowest = self._links.lowest_open(split)
        return next_sequence if lowest is None else lowest

    def end(self, fed: Collection[SplitId], peers: Iterable[ProcessorId], now_s: float) -> bool:
        """Links end behind what the splits in `fed` were given, which is all they will be.

        Whether one ended now.
        """
        there = list(peers)
        ended = [self._links.end(split, there, now_s) for split in fed]
        return any(ended)

    def stop(self) -> None:
        """Take nothing more in, and drop what is on its way."""
        for split in self._links.splits.values():
            split.clear()
        for reader in self.readers.values():
            reader.gone = True
