"""Depth first, in batches, by turns: what is nearest to a query's results runs first.

A batch is followed all the way down before the next one is taken, so arcs stay nearly empty and
results come as early as possible. Queries take turns, whatever they have to do, so that one with
much work does not keep the others waiting.
"""

from __future__ import annotations

from collections.abc import Sequence

from dovetail_processor.graph.node import Node


class DepthFirst:
    """See the module."""

    def __init__(self) -> None:
        self._turn = 0  # choices so far
        self._owner_ran: dict[str, int] = {}  # by owner: its last turn
        self._node_ran: dict[Node, int] = {}  # likewise

    def choose(self, ready: Sequence[Node], now_s: float) -> Node:
        """Of the owner that waited longest the deepest node; of equals the one that waited."""
        self._turn += 1
        if len(ready) == 1:
            chosen = ready[0]
        else:
            owners = {o for node in ready for o in node.owners}
            mine = ready
            if len(owners) > 1:
                owner = min(owners, key=lambda o: (self._owner_ran.get(o, 0), o))
                mine = [node for node in ready if owner in node.owners]
            chosen = min(mine, key=lambda n: (-n.depth, self._node_ran.get(n, 0)))
        for owner in chosen.owners:
            self._owner_ran[owner] = self._turn
        self._node_ran[chosen] = self._turn
        return chosen

    def forget(self, owner: str) -> None:
        """A query or a stream is gone."""
        self._owner_ran.pop(owner, None)
        self._node_ran = {n: t for n, t in self._node_ran.items() if owner not in n.owners}
