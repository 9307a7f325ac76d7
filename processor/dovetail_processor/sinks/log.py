"""A result log: whole segments in files, the rows of the newest ones in memory, for readers too.

    segment-00000.parquet  segment-00001.parquet  │ segment 2, under way: [rows 0-99][100-163]
    ───────────── finished, on disk ───────────── │ ── in memory, from `show` on ── ▲ next

Results are shown before they are written: whoever follows has them at once and makes no file. The
one who shows them also cuts: `cut` ends the segment under way, and `roll` behind it, on the lane,
gives it its file. So an offset (segment, row) is known from the first moment and never changes.

Invariant: a row is in a finished segment's file, or in memory, or in the file of a segment that is
not finished, of which more than a row group was written; who needs such rows has the segment cut.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pyarrow as pa

from dovetail_processor.sinks.parquet import ParquetSink, number_of
from dovetail_processor.sinks.sink import SinkTotals
from dovetail_proto.errors import OutputError

SEGMENT_BYTES = 64 << 20
"""Of Arrow, after which a segment is cut: read whole by one reader at a time."""

BATCHES_MAX = 8192
"""In memory, after which a segment is cut however small they are: each takes a kilobyte or two
beside its rows."""

READ_ROWS = 64 << 10
"""Rows that a reader gets at once, unless a batch has more."""


@dataclass(frozen=True, slots=True)
class Retention:
    """How much of a log is kept, by whole segments: what one of the bounds does not keep goes."""

    age_s: float = 0.0  # since a segment was finished; 0: for ever
    size_bytes: int = 0  # of the newest segments; 0: all

    def beyond(self, segments: Sequence[tuple[Path, float, int]], now_s: float) -> list[Path]:
        """Of segments (path, when it was finished, bytes), oldest first: those that go."""
        left_bytes = sum(size for _, _, size in segments)
        gone: list[Path] = []
        for path, finished_s, size in segments:
            left_bytes -= size
            old = self.age_s and now_s - finished_s > self.age_s
            enough = self.size_bytes and left_bytes >= self.size_bytes
            if not old and not enough:
                break
            gone.append(path)
        return gone


KEEP_ALL = Retention()


@dataclass(frozen=True, slots=True)
class _Shown:
    """Rows in memory; they begin at an offset."""

    segment: int
    row: int
    rows: pa.RecordBatch

    @property
    def end(self) -> tuple[int, int]:
        """The offset of the row behind them."""
        return self.segment, self.row + self.rows.num_rows


class LogSink:
    """See Sink. `show` and `cut` are called where the worker runs, readers read from any thread."""

    def __init__(
        self,
        folder: Path,
        schema: pa.Schema,
        *,
        row_group_bytes: int,
        first: int,
        segment_bytes: int = SEGMENT_BYTES,
        keep: Retention = KEEP_ALL,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`first` is the number of the first segment: those before it are there already.

        A segment is cut after `segment_bytes`, or where its file has enough row groups.
        """
        self._folder = folder
        self._keep = keep
        self._clock = clock
        self._file = ParquetSink(
            folder,
            schema,
            prefix="segment",
            row_group_bytes=row_group_bytes,
            file_bytes=None,
            first=first,
        )
        self._segment_bytes = min(segment_bytes, self._file.groups_max * row_group_bytes)
        self._changed = threading.Condition()  # of all that follows
        self._shown: list[_Shown] = []  # what is in memory, in order
        self._next = (first, 0)  # the offset of the next row
        self._cut_bytes = 0  # shown of the segment under way
        self._cut_batches = 0  # likewise
        self._lengths: dict[int, int] = {}  # rows of the segments that were cut here
        self._finished = first  # segments before it have their file
        self._ended = False

    # Where the worker runs ------------------------------------------------------------------------

    def show(self, batch: pa.RecordBatch) -> bool:
        """See Sink."""
        if not batch.num_rows:
            return False
        with self._changed:
            segment, row = self._next
            self._shown.append(_Shown(segment, row, batch))
            self._next = segment, row + batch.num_rows
            self._cut_bytes += batch.nbytes
            self._cut_batches += 1
            self._changed.notify_all()
            return self._cut_bytes >= self._segment_bytes or self._cut_batches >= BATCHES_MAX

    def cut(self) -> None:
        """See Sink."""
        with self._changed:
            segment, row = self._next
            if row:
                self._lengths[segment] = row
                self._next = segment + 1, 0
            self._cut_bytes = self._cut_batches = 0

    # On the lane ----------------------------------------------------------------------------------

    @property
    def held_bytes(self) -> int:
        """Bytes of the row group that is being filled; they are what readers have in memory."""
        return self._file.held_bytes

    def write(self, batch: pa.RecordBatch) -> None:
        """See Sink."""
        self._file.write(batch)
        if not self._file.held_bytes:
            self._forget_written()

    def roll(self) -> None:
        """See Sink."""
        self._file.roll()
        self._forget_written()
        self.trim()

    def trim(self) -> None:
        """Remove the oldest segments that need not be kept; a reader that has one open reads on."""
        if self._keep == KEEP_ALL:
            return
        try:
            there = [
                (p, p.stat()) for p in sorted(self._folder.glob("segment-*.parquet"), key=number_of)
            ]
            segments = [(path, s.st_mtime, s.st_size) for path, s in there]
            for path in self._keep.beyond(segments, self._clock()):
                path.unlink()
        except OSError as e:
            raise OutputError(
                f"old results in {str(self._folder)!r} cannot be removed: {e.strerror}",
                remedy="see whether the folder can be written",
            ) from e

    def close(self) -> SinkTotals:
        """See Sink."""
        totals = self._file.close()
        self._end()
        return totals

    def abort(self) -> None:
        """See Sink."""
        self._file.abort()
        self._end()

    def _forget_written(self) -> None:
        """What was written is in files, finished or not."""
        with self._changed:
            self._finished = self._file.next_number
            del self._shown[: self._place_of((self._finished, self._file.rows_unfinished))]
            self._changed.notify_all()

    def _place_of(self, offset: tuple[int, int]) -> int:
        """Where in memory the first rows are of which some lie at or behind an offset."""
        return bisect_right(self._shown, offset, key=lambda shown: shown.end)

    def _end(self) -> None:
        with self._changed:
            self._finished = self._file.next_number
            self._shown.clear()
            self._ended = True
            self._changed.notify_all()

    # Readers --------------------------------------------------------------------------------------

    @property
    def finished(self) -> int:
        """Segments before this one have their file."""
        return self._finished

    @property
    def next(self) -> tuple[int, int]:
        """The offset of the next row that is found."""
        return self._next

    def place(self, segment: int, row: int) -> tuple[int, int]:
        """An offset, or that of the next segment where one is at its end, kept or not."""
        with self._changed:
            return (segment + 1, 0) if self._lengths.get(segment) == row else (segment, row)

    def wait(self, segment: int, row: int, gone: Callable[[], bool]) -> None:
        """Until there is something at an offset, or nothing more will come, or nobody waits."""
        with self._changed:
            self._changed.wait_for(lambda: self._next > (segment, row) or self._ended or gone())

    def wait_finished(self, segment: int, gone: Callable[[], bool]) -> None:
        """Until a segment that was cut has its file, or never will, or nobody waits."""
        with self._changed:
            self._changed.wait_for(lambda: self._finished > segment or self._ended or gone())

    def wake(self) -> None:
        """Have whoever waits look whether it still has to."""
        with self._changed:
            self._changed.notify_all()

    @property
    def ended(self) -> bool:
        """Whether it is closed or given up: what is there now is all."""
        return self._ended

    def in_memory(self, segment: int, row: int) -> pa.RecordBatch | None:
        """Rows of a segment from one on, as many as go well at once; None if none are here."""
        parts: list[pa.RecordBatch] = []
        rows = 0
        with self._changed:
            for shown in islice(self._shown, self._place_of((segment, row)), None):
                if (shown.segment, shown.row) > (segment, row + rows):
                    break  # what is before it is not here, or it is of the next segment
                part = shown.rows.slice(row + rows - shown.row)
                if parts and rows + part.num_rows > READ_ROWS:
                    break
                parts.append(part)
                rows += part.num_rows
        return pa.concat_batches(parts) if parts else None
