"""What the loop and its strategies know of an operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(slots=True)
class Statistics:
    """What a node did so far: its cost and its selectivity are learned from this."""

    steps: int = 0
    rows_in: int = 0
    rows_out: int = 0
    measured_s: float = 0.0  # of computing, in the steps that were measured
    measured_rows: int = 0  # that these took in

    @property
    def seconds_per_row(self) -> float:
        """Measured cost; 0 before the first row."""
        return self.measured_s / self.measured_rows if self.measured_rows else 0.0

    @property
    def selectivity(self) -> float:
        """Rows out per row in; 1 before the first row."""
        return self.rows_out / self.rows_in if self.rows_in else 1.0


@dataclass(frozen=True, slots=True)
class Waiting:
    """What lies before a node."""

    batches: int
    bytes: int
    since_s: float  # when the oldest of it came; infinite if there is none


class Node(Protocol):
    """An operator in the graph. A step is a bounded piece of work: a batch in, or a chunk out."""

    @property
    def owners(self) -> tuple[str, ...]:
        """The queries that it works for, or the stream that nobody reads: who share the worker."""

    @property
    def depth(self) -> int:
        """How near to the results it is: more is nearer."""

    @property
    def statistics(self) -> Statistics:
        """What it did so far."""

    @property
    def waiting(self) -> Waiting:
        """What lies before it."""

    @property
    def ready(self) -> bool:
        """Whether a step would get on: there is input, and room for output."""

    def step(self, now_s: float) -> None:
        """Do one piece of work. Called only when `ready`. Raises what ends the query."""
