"""An arc: batches on their way from one operator to the next, bounded by bytes.

    producer ── offer ──▶ [ batch │ batch │ … ] ── take ──▶ consumer

A full arc stops its producer, not its consumer: that is how a slow sink slows a source. Every arc
is sure of `sure_bytes` plus the batch that crosses them; what it holds beyond is drawn from the
pool that all arcs of a worker share, so that a burst can queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar


class Sized(Protocol):
    """What an arc carries."""

    @property
    def size_bytes(self) -> int:
        """What it takes."""


Item = TypeVar("Item", bound=Sized)


class QueuePool:
    """Bytes that arcs may hold beyond what each is sure of; `limit_bytes` may change."""

    def __init__(self) -> None:
        self.limit_bytes = 0
        self.used_bytes = 0

    @property
    def has_room(self) -> bool:
        """Whether an arc may draw on it."""
        return self.used_bytes < self.limit_bytes


class Arc(Generic[Item]):
    """Batches in order, each with the time at which it came."""

    def __init__(
        self, sure_bytes: int, pool: QueuePool | None = None, covered_bytes: int = 0
    ) -> None:
        self._sure_bytes = sure_bytes
        self._covered_bytes = max(sure_bytes, covered_bytes)  # not drawn from the pool
        self._pool = pool
        self._items: deque[tuple[Item, float]] = deque()
        self.held_bytes = 0
        """Bytes of the batches in the arc."""

    @property
    def has_room(self) -> bool:
        """Whether the producer may offer another batch."""
        if self.held_bytes < self._sure_bytes:
            return True
        return self._pool is not None and self._pool.has_room

    @property
    def first(self) -> Item | None:
        """The batch that `take` would remove."""
        return self._items[0][0] if self._items else None

    @property
    def since_s(self) -> float:
        """When the first batch came; infinite if there is none."""
        return self._items[0][1] if self._items else float("inf")

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Item]:
        return (item for item, _ in self._items)

    def offer(self, item: Item, now_s: float) -> None:
        """Put a batch at the end."""
        self._items.append((item, now_s))
        self._hold(item.size_bytes)

    def take(self) -> Item:
        """Remove the first batch."""
        item, _ = self._items.popleft()
        self._hold(-item.size_bytes)
        return item

    def clear(self) -> None:
        """Drop everything."""
        self._items.clear()
        self._hold(-self.held_bytes)

    def _hold(self, more_bytes: int) -> None:
        before = max(0, self.held_bytes - self._covered_bytes)
        self.held_bytes += more_bytes
        if self._pool is not None:
            self._pool.used_bytes += max(0, self.held_bytes - self._covered_bytes) - before
