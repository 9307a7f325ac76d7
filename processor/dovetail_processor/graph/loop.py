"""One step of the graph: the strategy says which of the ready nodes works next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from dovetail_processor.graph.node import Node


class Strategy(Protocol):
    """Decides what runs next; pure but for its own memory of earlier choices."""

    def choose(self, ready: Sequence[Node], now_s: float) -> Node:
        """One of the ready nodes, of which there is at least one."""

    def forget(self, owner: str) -> None:
        """A query or a stream is gone."""


MEASURED_EVERY = 16
"""Steps of a node of which one is measured: to ask how long a thread has computed is a call into
the kernel, which took a third of a run when every step did."""


def step(node: Node, now_s: float, cpu_s: Callable[[], float]) -> None:
    """Let a node do one step and, now and then, learn what it costs; raises what it raises."""
    known = node.statistics
    known.steps += 1
    if known.steps % MEASURED_EVERY != 1:
        node.step(now_s)
        return
    began_s, rows = cpu_s(), known.rows_in
    node.step(now_s)
    known.measured_s += cpu_s() - began_s
    known.measured_rows += known.rows_in - rows
