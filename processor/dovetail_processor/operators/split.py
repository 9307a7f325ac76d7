"""A split: the rows of one input to the owners of their groups, or held back.

    batch ─▶ hash ─▶ group ─▶ owner by the map ─┬▶ link to p1
                                 │              └▶ link to p2
                                 └▶ held back: its group is being moved

A batch is cut by owner in one vectorised pass. The workers of this process share it; what goes to
other processors, or is held back, is copied: it keeps nothing of the others.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from dovetail_processor.batches import Keyed, Stamped, keyed
from dovetail_processor.graph.arc import Arc
from dovetail_processor.graph.node import Statistics, Waiting
from dovetail_processor.join.kernels.columns import sort_by_group
from dovetail_processor.operators.links import Links
from dovetail_proto.ids import SplitId, input_of
from dovetail_proto.query import QueryPlan


class Split:
    """One input's split, fed by whatever makes its rows.

    `arcs` are on the way to it, the last one to the split itself.
    """

    def __init__(
        self,
        name: SplitId,
        plan: QueryPlan,
        depth: int,
        *,
        arcs: tuple[Arc[Stamped], ...],
        links: Links,
        piece_bytes: int,
    ) -> None:
        self.owners = (plan.name,)
        self.depth = depth
        self.statistics = Statistics()
        self.name = name
        self._plan = plan
        self._index = input_of(name)
        self._arcs = arcs
        self._source = arcs[-1]
        self._links = links
        self._piece_bytes = piece_bytes
        self.held: deque[Keyed] = deque()
        """Rows of groups that are being moved, in order."""
        self.held_bytes = 0
        """Of `held`."""

    @property
    def waiting(self) -> Waiting:
        """See Node."""
        return Waiting(len(self._source), self._source.held_bytes, self._source.since_s)

    @property
    def ready(self) -> bool:
        """Whether there is a batch, and its links have room."""
        return len(self._source) > 0 and self._links.has_room

    def step(self, now_s: float) -> None:
        """Route one batch."""
        batch = self._source.take()
        self.statistics.rows_in += batch.rows.num_rows
        rows = keyed(self._plan, self._index, batch)
        self.statistics.rows_out += rows.rows.num_rows
        if rows.rows.num_rows:
            for owner, piece in self._cut(rows):
                self._links.offer(self.name, owner, piece)
            self._links.flush(now_s)

    def _cut(self, rows: Keyed) -> list[tuple[int, Keyed]]:
        """Pieces of bounded size by owner; held rows are kept here."""
        owners, held = self._links.owners, self._links.held
        holding = bool(held.any())
        if len(self._links.processors) == 1 and not holding:
            return [(0, piece) for piece in self.bounded(rows)]
        nobody = len(self._links.processors)  # the owner of what is held back
        to = owners[rows.groups]
        if holding:
            to[held[rows.groups]] = nobody
        order, starts = sort_by_group(to, nobody + 1)
        found = np.flatnonzero(np.diff(starts)).tolist()
        near = [owner for owner in found if owner in self._links.near]
        out: list[tuple[int, Keyed]] = []
        for owner in found:
            mine = order[int(starts[owner]) : int(starts[owner + 1])]
            if owner == nobody:
                self.hold(rows.take(mine))
            elif owner in near and len(near) > 1:
                out += [(owner, piece) for piece in self.bounded(rows.share(mine, len(near)))]
            else:
                out += [(owner, piece) for piece in self.bounded(rows.take(mine))]
        return out

    def hold(self, rows: Keyed) -> None:
        """Keep rows back, behind those that are."""
        self.held.append(rows)
        self.held_bytes += rows.size_bytes

    def release(self, chosen: NDArray[np.bool_]) -> list[Keyed]:
        """Take the held rows of the chosen groups out, in order."""
        out: list[Keyed] = []
        held, self.held, self.held_bytes = self.held, deque(), 0
        for rows in held:
            free = rows.positions_in(chosen)
            if free.size == rows.count:
                out += self.bounded(rows)
            elif free.size:
                out += self.bounded(rows.take(free))
                self.hold(rows.take(rows.positions_in(~chosen)))
            else:
                self.hold(rows)
        return out

    def bounded(self, rows: Keyed) -> list[Keyed]:
        """Rows in pieces of at most so many bytes, one row at least."""
        pieces = -(-rows.size_bytes // self._piece_bytes)
        count = rows.count
        if pieces <= 1 or count == 1:
            return [rows]
        step = -(-count // pieces)
        return [rows.take(rows.positions[a : a + step]) for a in range(0, count, step)]

    @property
    def empty(self) -> bool:
        """Whether nothing is on its way to the split."""
        return not any(map(len, self._arcs))

    @property
    def queued_bytes(self) -> int:
        """Bytes on their way to the split."""
        return sum(arc.held_bytes for arc in self._arcs)

    def clear(self) -> None:
        """Drop what is on its way to the split."""
        for arc in self._arcs:
            arc.clear()

    @property
    def lowest(self) -> int | None:
        """The lowest sequence on its way to the split or held back; None: there is none."""
        waiting = [arc.first.lowest for arc in self._arcs if arc.first is not None]
        return min([*waiting, *(rows.stamped.lowest for rows in self.held)], default=None)
