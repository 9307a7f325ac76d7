"""A sink that keeps nothing: counts the rows and sums their checksum."""

from __future__ import annotations

import pyarrow as pa

from dovetail_processor.sinks.checksum import checksum
from dovetail_processor.sinks.sink import SinkTotals


class CountingSink:
    """Counts; `files` of its totals is empty."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._rows = 0
        self._checksum = 0

    @property
    def held_bytes(self) -> int:
        """Always 0."""
        return 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Count the rows of `batch`."""
        self._rows += batch.num_rows
        self._checksum = (self._checksum + checksum(batch)) % 2**64

    def show(self, batch: pa.RecordBatch) -> bool:
        """See Sink: nobody reads it."""
        return False

    def cut(self) -> None:
        """See Sink."""

    def roll(self) -> None:
        """Nothing to make durable."""

    def trim(self) -> None:
        """See Sink: there is nothing."""

    def close(self) -> SinkTotals:
        """The counts."""
        return SinkTotals(self._rows, self._checksum, 0, ())

    def abort(self) -> None:
        """Nothing to drop."""
