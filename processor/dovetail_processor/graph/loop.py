"""The loop: while any node can get on, ask the strategy which one, and let it do one step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from dovetail_processor.graph.node import Node


class Strategy(Protocol):
    """Decides what runs next; pure but for its own memory of earlier choices."""

    def choose(self, ready: Sequence[int]) -> int:
        """One of the ready nodes, by position in the graph's topological order."""


def run(nodes: Sequence[Node], strategy: Strategy, *, between: Callable[[], None]) -> None:
    """Run the graph to its end. `nodes` in topological order; `between` is called after each step.

    Raises whatever a node raises. The graph is acyclic and every arc is bounded, so if nodes are
    left unfinished one of them is ready: anything else is a defect.
    """
    while True:
        ready = [k for k, node in enumerate(nodes) if not node.finished and node.ready]
        if not ready:
            stuck = [type(n).__name__ for n in nodes if not n.finished]
            assert not stuck, f"no node can get on, unfinished: {stuck}"
            return
        nodes[strategy.choose(ready)].step()
        between()
