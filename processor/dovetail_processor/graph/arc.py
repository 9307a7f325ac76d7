"""An arc: batches on their way from one operator to the next, bounded by bytes.

    producer ── offer ──▶ [ batch │ batch │ … ] ── take ──▶ consumer

A full arc stops its producer, not its consumer: that is how a slow sink slows a source.
"""

from __future__ import annotations

from collections import deque

import pyarrow as pa


class Arc:
    """Batches in order. Holds at most `bound_bytes` plus the batch that crossed the bound."""

    urgent = False  # its consumer may take from others first

    def __init__(self, bound_bytes: int) -> None:
        self._bound_bytes = bound_bytes
        self._batches: deque[tuple[pa.RecordBatch, int]] = deque()  # with its bytes
        self.held_bytes = 0
        """Bytes of the batches in the arc."""
        self.ended = False
        """Whether nothing will be offered any more."""

    @property
    def has_room(self) -> bool:
        """Whether the producer may offer another batch."""
        return self.held_bytes < self._bound_bytes

    @property
    def exhausted(self) -> bool:
        """Whether nothing is there and nothing will come."""
        return self.ended and not self._batches

    @property
    def first_bytes(self) -> int:
        """Bytes of the batch that `take` would remove."""
        return self._batches[0][1]

    def __len__(self) -> int:
        return len(self._batches)

    def offer(self, batch: pa.RecordBatch) -> None:
        """Put a batch at the end; one without rows is dropped."""
        assert not self.ended
        if batch.num_rows:
            size_bytes = batch.nbytes  # walks all buffers: asked for once
            self._batches.append((batch, size_bytes))
            self.held_bytes += size_bytes

    def take(self) -> pa.RecordBatch:
        """Remove the first batch."""
        batch, size_bytes = self._batches.popleft()
        self.held_bytes -= size_bytes
        return batch

    def end(self) -> None:
        """Say that nothing will be offered any more."""
        self.ended = True
