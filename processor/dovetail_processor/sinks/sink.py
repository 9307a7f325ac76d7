"""What every sink promises."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class SinkTotals:
    """What a sink took. Totals of several sinks add up, the checksum modulo 2**64."""

    rows: int
    checksum: int  # `sinks.checksum` of all rows
    bytes: int  # size of `files`
    files: tuple[str, ...]  # paths, in the order in which they were finished


class Sink(Protocol):
    """Takes the rows of results. Calls come from one thread at a time, but `show` and `cut`.

    A batch that was written belongs to the sink: its buffers must not change any more. After an
    error, `close` or `abort`, only `abort` may be called. `show` and `cut` never wait: they are
    called where the worker runs, in the order of the `write` and `roll` that follow each of them.
    """

    def show(self, batch: pa.RecordBatch) -> bool:
        """Let readers have what will be written next; whether it is time to `cut`."""

    def cut(self) -> None:
        """What is shown from now on is behind the next `roll`."""

    @property
    def held_bytes(self) -> int:
        """Bytes of rows that were written to the sink and that it still keeps in memory."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Take the rows of `batch`. Raises OutputError."""

    def roll(self) -> None:
        """Make what was written so far durable and readable, then go on. Raises OutputError."""

    def trim(self) -> None:
        """Remove what is so old that it need not be kept. Raises OutputError."""

    def close(self) -> SinkTotals:
        """Make everything written durable. Raises OutputError."""

    def abort(self) -> None:
        """Drop what is not finished; what is stays. Does nothing after `close`."""
