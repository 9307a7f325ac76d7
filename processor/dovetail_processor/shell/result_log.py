"""Reading a result log, written or kept here: by stable offsets, from files and then from memory.

    segment-00000.parquet   segment-00001.parquet   │ rows in memory ◀─ the instance shows more
    ──────── finished segments, from files ──────── │ a follower waits here and is woken

A segment never changes once it has its name, and rows keep their offset (segment, row) when they
go from memory to a file. Reading makes no files: only of rows that have left memory before their
segment was finished, a row group at least, does a reader have the segment cut.

Invariant: what is missing is an error, never fewer results. A log is there, be it empty, from the
moment its query starts; segments have no gaps; and of a closed query the rows are known.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq

from dovetail_processor.query import Query
from dovetail_processor.shell.files import (
    Logs,
    is_of_run,
    logs_folder,
    segment_file,
)
from dovetail_processor.shell.threads import WorkerLoop
from dovetail_processor.sinks.log import READ_ROWS, LogSink
from dovetail_processor.sinks.parquet import number_of
from dovetail_proto.arrow_bytes import to_bytes
from dovetail_proto.errors import Domain, InputError, OutputError, Refusal
from dovetail_proto.feeds import ReadResults, ResultBatch
from dovetail_proto.messages import Stage
from dovetail_proto.result_logs import READ_OTHERS

OPENING_S = 0.1
"""Between two looks whether a log that is being opened is there."""


class Listener:
    """Whoever reads a log. `leave`, from any thread, has it end and wakes it if it waits."""

    def __init__(self) -> None:
        self._left = threading.Event()
        self._waits_at: LogSink | None = None  # set before it waits there

    @property
    def left(self) -> bool:
        """Whether nobody reads any more."""
        return self._left.is_set()

    def at(self, log: LogSink) -> None:
        """It will wait at a log."""
        self._waits_at = log

    def pause(self) -> None:
        """Wait for a moment, if it is still there."""
        self._left.wait(OPENING_S)

    def leave(self) -> None:
        """Nobody reads any more."""
        self._left.set()
        if (log := self._waits_at) is not None:
            log.wake()


class LogRead:
    """One reading of a log, from an offset on."""

    def __init__(
        self,
        loop: WorkerLoop,
        data_dir: Path,
        logs: Logs,
        wanted: ReadResults,
        listener: Listener,
    ) -> None:
        self._loop = loop
        self._folder = logs_folder(data_dir, wanted.query)
        self._log = self._folder / wanted.log
        self._logs = logs
        self._wanted = wanted
        self._listener = listener
        self._at = wanted.segment, wanted.row  # the next row
        self._rows_read = 0

    def batches(self) -> Iterator[ResultBatch]:
        """Results from the offset on; with `follow` until the log has ended or nobody listens.

        The first one is empty: the log is there. The last one has `ended` set unless more may
        come.
        """
        writer = self._writer()
        self._check_there()
        self._skip_trimmed(writer)
        yield ResultBatch(*self._at, b"", False)
        if writer is None:
            yield from self._files(None)
            self._check_whole()
            yield ResultBatch(*self._at, b"", True)
            return
        self._listener.at(writer)
        until = None if self._wanted.follow else writer.next
        while not self._listener.left:
            ended = writer.ended  # then all of it is in files
            yield from self._files(writer)
            yield from self._memory(writer)
            if ended or (until is not None and self._at >= until):
                break
            writer.wait(*self._at, lambda: self._listener.left)
        if writer.ended and not self._listener.left:
            self._check_whole()
        yield ResultBatch(*self._at, b"", writer.ended)

    # Parts ----------------------------------------------------------------------------------------

    def _writer(self) -> LogSink | None:
        """Who writes the log now; None if nothing is added to it any more."""
        while True:
            opening = self._loop.ask(self._is_opening)
            log = self._logs.get((self._wanted.run, self._wanted.log))
            if log is not None and not log.ended:
                return log
            if not opening or not self._wanted.follow or self._listener.left:
                return None
            self._listener.pause()

    def _query(self) -> Query | None:
        """The query, if it writes the log; in the worker's thread."""
        query = self._loop.worker.queries.get(self._wanted.query)
        ours = query is not None and query.task.run == self._wanted.run
        return query if ours else None

    def _is_opening(self) -> bool:
        query = self._query()
        if query is None:
            return False
        if not query.task.has_log:
            raise Refusal(
                Domain.QUERY,
                f"query {self._wanted.query!r} keeps no result log: its results "
                + ("are only counted" if query.task.counting else f"go to {query.task.results!r}"),
            )
        return query.task.log == self._wanted.log and query.opening

    def _cut(self, writer: LogSink, segment: int) -> None:
        """Have a segment finished unless it was cut meanwhile; in the worker's thread."""
        query = self._query()
        if query is None or query.deliver is None or query.stage is not Stage.RUNNING:
            return
        if segment == writer.next[0]:
            query.deliver.roll()

    def _files(self, writer: LogSink | None) -> Iterator[ResultBatch]:
        """Segments that have their file; those that the writer has finished must have it.

        One that was read to its end in memory is not looked for: it may be gone by now.
        """
        before = None
        if writer is not None:
            before, self._at = writer.finished, writer.place(*self._at)
        segment, row = self._at
        while before is None or segment < before:
            path = segment_file(self._log, segment)
            try:
                opened = path.open("rb")
            except FileNotFoundError:
                there = sorted(self._log.glob("segment-*.parquet"), key=number_of)
                later = [p for p in there if number_of(p) > segment]
                if self._wanted.trimmed and (later or before is not None):
                    raise self._gone(number_of(later[0]) if later else before) from None
                if before is not None or later:
                    found = f"{path.name} is not in {str(self._log)!r}"
                    raise self._missing(found, later) from None
                return
            with opened, pq.ParquetFile(opened) as file:
                self._check_row(row, file.metadata.num_rows)
                at = 0
                for batch in file.iter_batches(READ_ROWS):
                    end = at + batch.num_rows
                    if end > row:
                        part = batch.slice(max(0, row - at))
                        self._rows_read += part.num_rows
                        yield ResultBatch(segment, max(row, at), to_bytes(part), False)
                    at = end
            segment, row = self._at = segment + 1, 0

    def _memory(self, writer: LogSink) -> Iterator[ResultBatch]:
        """What the newest segments have in memory, up to what there is now."""
        until = writer.next
        while not writer.ended and not self._listener.left:
            yield from self._files(writer)
            segment, row = self._at
            if self._at >= until:
                newest, rows = writer.next  # `until` may have been cut since
                if segment == newest:
                    self._check_row(row, rows)
                return
            if (part := writer.in_memory(segment, row)) is not None:
                self._rows_read += part.num_rows
                yield ResultBatch(segment, row, to_bytes(part), False)
                self._at = segment, row + part.num_rows
            else:  # it was written: into a file that is finished, or will be when it is cut
                if segment == writer.next[0]:
                    self._loop.post(partial(self._cut, writer, segment))
                writer.wait_finished(segment, lambda: self._listener.left)

    def _skip_trimmed(self, writer: LogSink | None) -> None:
        """Begin with the oldest there is, if the beginning was asked for; else it must be there."""
        if not self._wanted.trimmed:
            return
        there = [number_of(p) for p in self._log.glob("segment-*.parquet")]
        oldest = min(there, default=0 if writer is None else writer.finished)
        if self._at == (0, 0):
            self._at = oldest, 0
            return
        if writer is not None:
            self._at = writer.place(*self._at)
        if self._at[0] < oldest:
            raise self._gone(oldest)

    # What cannot be read --------------------------------------------------------------------------

    def _check_row(self, row: int, rows: int) -> None:
        if row > rows:
            raise InputError(
                f"segment {self._at[0]} of query {self._wanted.query!r} has {rows} rows, not {row}",
                remedy="read from an offset that a former read gave",
            )

    def _gone(self, oldest: int | None) -> Refusal:
        return Refusal(
            Domain.QUERY,
            f"segment {self._at[0]} of log {self._wanted.log!r} of query {self._wanted.query!r} is "
            f"not kept any more: the oldest is segment {oldest}",
            remedy=f"read on from segment {oldest}, row 0; or submit the query so that it keeps "
            "more (keep_results_s, keep_results_bytes)",
            reason="gone",
            oldest=oldest,
        )

    def _check_there(self) -> None:
        if not is_of_run(self._folder, self._wanted.run) or not self._log.is_dir():
            raise self._missing(f"there is no {str(self._log)!r} of this query")

    def _check_whole(self) -> None:
        wanted = self._wanted
        whole = (wanted.segment, wanted.row) == (0, 0) and not wanted.trimmed
        if whole and self._rows_read < wanted.rows:
            raise self._missing(
                f"{self._rows_read} of its {wanted.rows} rows are in {str(self._log)!r}"
            )

    def _missing(self, what: str, later: Sequence[Path] = ()) -> OutputError:
        after = f", but {later[0].name} is" if later else ""
        return OutputError(
            f"processor {self._loop.worker.here!r} does not have log {self._wanted.log!r} of query "
            f"{self._wanted.query!r} whole: {what}{after}",
            remedy=f"start it with the data folder that it had before, or {READ_OTHERS}",
        )
