"""A stream's file, read on a lane: one batch at a time, when its home asks for the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa

from dovetail_processor.jobs import Lane, Outcome
from dovetail_processor.sources.file_source import FileSource
from dovetail_proto.errors import DovetailError, InputError
from dovetail_proto.ids import StreamName
from dovetail_proto.memory import batch_bytes_max, row_bytes_of

BATCH_ROWS = 64 << 10
"""What the join's kernels are measured with."""


class FileFeed:
    """See the module. `open_file` raises InputError if the file is not as declared."""

    def __init__(
        self,
        stream: StreamName,
        lane: Lane,
        open_file: Callable[[], FileSource],
        *,
        batch_bytes: int,
    ) -> None:
        self._stream = stream
        self._lane = lane
        self._open_file = open_file
        self._batch_bytes = batch_bytes
        self._columns: frozenset[str] = frozenset()  # that readers need; more may come until begun
        self._batches: Iterator[pa.RecordBatch] | None = None  # None: not begun; the lane's
        self._begun = False
        self._reading = False  # a job is under way
        self._closed = False
        self._error: DovetailError | None = None  # why no more can be read
        self.ended = False
        """Whether all of it was read."""
        self.rows_total: int | None = None
        """Rows of the file, if it says and was opened."""

    def want(self, columns: frozenset[str]) -> None:
        """A reader needs these; InputError if the file is being read without one of them.

        Raises what has ended the reading.
        """
        if self._error is not None:
            raise self._error
        if not self._begun:
            self._columns |= columns
        elif missing := columns - self._columns:
            raise InputError(
                f"stream {self._stream!r} is being read without column {min(missing)!r}",
                remedy="submit all queries on a file before the first one has started",
            )

    def read(
        self,
        taken: Callable[[pa.RecordBatch | None], None],
        failed: Callable[[DovetailError], None],
    ) -> None:
        """Have the next batch handed to `taken`, or None at the end; one at a time."""
        if self._reading or self.ended or self._closed:
            return
        self._begun = self._reading = True

        def done(outcome: Outcome[tuple[int | None, pa.RecordBatch | None]]) -> None:
            self._reading = False
            if self._closed:
                return
            if outcome.error is not None:
                self.close()
                error = outcome.error
                if not isinstance(error, DovetailError):
                    error = InputError(str(error))
                self._error = error
                failed(error)
                return
            self.rows_total, batch = outcome.result()
            if batch is None:
                self.ended = True
                self.close()
            taken(batch)

        self._lane.run(self._next, done)

    def close(self) -> None:
        """Read nothing more."""
        if not self._closed:
            self._closed = True
            self._lane.run(self._end, lambda _: None)
            self._lane.close()

    # On the lane ----------------------------------------------------------------------------------

    def _next(self) -> tuple[int | None, pa.RecordBatch | None]:
        if self._batches is None:
            source = self._open_file()
            names = [n for n in source.schema.names if n in self._columns]
            self._total = source.rows_total
            width = row_bytes_of(pa.schema([source.schema.field(n) for n in names]))
            batch_bytes = min(self._batch_bytes, batch_bytes_max(width))
            self._batches = source.batches(names, batch_rows=BATCH_ROWS, batch_bytes=batch_bytes)
        return self._total, next(self._batches, None)

    def _end(self) -> None:
        close = getattr(self._batches, "close", None)
        if close is not None:
            close()
