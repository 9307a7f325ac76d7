"""A source: batches of one input's stream, as they are read, onto an arc."""

from __future__ import annotations

from dovetail_processor.graph.arc import Arc
from dovetail_processor.sources import ReadAhead


class Source:
    """Offers what `reader` reads. `rows` counts rows read so far."""

    def __init__(self, reader: ReadAhead, out: Arc) -> None:
        self._reader = reader
        self._out = out
        self.rows = 0

    @property
    def ready(self) -> bool:
        """Whether the arc takes another batch; reading may have to wait for the file."""
        return self._out.has_room

    @property
    def finished(self) -> bool:
        """Whether the stream has ended or was stopped."""
        return self._out.ended

    @property
    def held_bytes(self) -> int:
        """Bytes read ahead."""
        return self._reader.held_bytes

    def step(self) -> None:
        """Offer the next batch, or end the arc."""
        batch = next(self._reader, None)
        if batch is None:
            self._out.end()
        else:
            self.rows += batch.num_rows
            self._out.offer(batch)

    def stop(self) -> None:
        """End the stream here: rows that were not offered yet are as if they never came."""
        self._reader.close()
        if not self._out.ended:
            self._out.end()
