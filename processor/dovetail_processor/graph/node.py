"""What the loop and its strategies know of an operator."""

from __future__ import annotations

from typing import Protocol


class Node(Protocol):
    """An operator in the graph. A step is a bounded piece of work: a batch in, or a chunk out."""

    @property
    def ready(self) -> bool:
        """Whether a step would get on: there is input, and room for output."""

    @property
    def finished(self) -> bool:
        """Whether no step is left to do."""

    def step(self) -> None:
        """Do one piece of work. Called only when `ready`."""
