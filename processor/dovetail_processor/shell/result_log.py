"""Reading a result log, written or kept here: Parquet segments, by stable offsets.

    segment-00000.parquet   segment-00001.parquet   …       offset = (segment, row)

A segment never changes once it has its name. Whoever reads first has the instance finish the
segment under way, so everything found before the call is seen.

Invariant: what is missing is an error, never fewer results. A log is there, be it empty, from the
moment its query starts; segments have no gaps; and of a closed query the rows are known.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow.parquet as pq

from dovetail_processor.shell.files import is_of_run, logs_folder, segment_file
from dovetail_processor.shell.threads import WorkerLoop
from dovetail_proto.arrow_bytes import to_bytes
from dovetail_proto.errors import Domain, InputError, OutputError, Refusal
from dovetail_proto.feeds import ReadResults, ResultBatch
from dovetail_proto.messages import Stage
from dovetail_proto.result_logs import READ_OTHERS

READ_ROWS = 64 << 10
FOLLOW_S = 0.5
"""How soon a follower sees new results."""

ROLL_TIMEOUT_S = 60.0


def read_log(
    loop: WorkerLoop, data_dir: Path, wanted: ReadResults, listening: Callable[[], bool]
) -> Iterator[ResultBatch]:
    """Results from the offset on; with `follow` until the query is over or nobody listens.

    The first one is empty: the log is there. The last one has `ended` set unless the query goes on.
    """
    segment, row = wanted.segment, wanted.row
    whole, rows_read = (segment, row) == (0, 0), 0
    pause = threading.Event()
    opened = False
    while True:
        folder, over = _finish_segment(loop, data_dir, wanted)
        if not opened:
            opened = True
            yield ResultBatch(segment, row, b"", False)
        while (path := segment_file(folder, segment)).exists():
            with pq.ParquetFile(path) as file:
                rows = file.metadata.num_rows
                if row > rows:
                    raise InputError(
                        f"segment {segment} of query {wanted.query!r} has {rows} rows, not {row}",
                        remedy="read from an offset that a former read gave",
                    )
                at = 0
                for batch in file.iter_batches(READ_ROWS):
                    end = at + batch.num_rows
                    if end > row:
                        part = batch.slice(max(0, row - at))
                        start = max(row, at)
                        yield ResultBatch(segment, start, to_bytes(part), False)
                    at = end
            segment, row, rows_read = segment + 1, 0, rows_read + rows
        if later := [p for p in folder.glob("segment-*.parquet") if p.name > path.name]:
            raise _missing(loop, wanted, f"{path.name} is not in {str(folder)!r}", later)
        if over and whole and rows_read < wanted.rows:
            found = f"{rows_read} of its {wanted.rows} rows are in {str(folder)!r}"
            raise _missing(loop, wanted, found)
        if over or not wanted.follow or not listening():
            yield ResultBatch(segment, row, b"", over)
            return
        pause.wait(FOLLOW_S)


def _finish_segment(loop: WorkerLoop, data_dir: Path, wanted: ReadResults) -> tuple[Path, bool]:
    """Where the segments are, complete up to now, and whether no more will come."""
    query = wanted.query

    def ask() -> tuple[bool, threading.Event | None]:
        run = loop.worker.queries.get(query)
        if run is None or run.task.run != wanted.run:
            return True, None
        if run.task.counting or run.task.results is not None:
            raise Refusal(
                Domain.QUERY,
                f"query {query!r} keeps no result log: its results "
                + ("are only counted" if run.task.counting else f"go to {run.task.results!r}"),
            )
        if run.task.log != wanted.log:
            return True, None  # its writer has left
        if run.deliver is None:
            return run.stage is not Stage.RUNNING, None  # its log is being opened
        if run.stage is not Stage.RUNNING or run.closing:
            return run.stage is not Stage.RUNNING and run.deliver.ended, None
        rolled = threading.Event()
        run.deliver.roll(lambda _: rolled.set())
        return False, rolled

    over, rolled = loop.ask(ask)
    if rolled is not None and not rolled.wait(ROLL_TIMEOUT_S):
        raise Refusal(Domain.BUSY, f"the results of query {query!r} are not written in time")
    folder = logs_folder(data_dir, query)
    log = folder / wanted.log
    if not is_of_run(folder, wanted.run) or not log.is_dir():
        raise _missing(loop, wanted, f"there is no {str(log)!r} of this query")
    return log, over


def _missing(
    loop: WorkerLoop, wanted: ReadResults, what: str, later: Sequence[Path] = ()
) -> OutputError:
    after = f", but {min(later).name} is" if later else ""
    return OutputError(
        f"processor {loop.worker.here!r} does not have log {wanted.log!r} of query "
        f"{wanted.query!r} whole: {what}{after}",
        remedy=f"start it with the data folder that it had before, or {READ_OTHERS}",
    )
