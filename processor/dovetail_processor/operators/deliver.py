"""The end of the graph: results into a sink."""

from __future__ import annotations

from dovetail_processor.graph.arc import Arc
from dovetail_processor.sinks import BackgroundSink


class Deliver:
    """Writes batches from `source` to `sink`; a sink that is behind makes the whole graph wait.

    `waits` in the sink, or is not ready while the sink has no room: then others can get on.
    """

    def __init__(self, source: Arc, sink: BackgroundSink, *, waits: bool = True) -> None:
        self._source = source
        self._sink = sink
        self._waits = waits
        self.rows = 0
        """Results handed to the sink."""

    @property
    def ready(self) -> bool:
        """Whether there is a batch, and room for it."""
        if not len(self._source):
            return False
        return self._waits or self._sink.has_room(self._source.first_bytes)

    @property
    def finished(self) -> bool:
        """Whether all results are handed over."""
        return self._source.exhausted

    @property
    def held_bytes(self) -> int:
        """Bytes that the sink still holds."""
        return self._sink.held_bytes

    def step(self) -> None:
        """Hand over one batch."""
        batch = self._source.take()
        self.rows += batch.num_rows
        self._sink.write(batch)
