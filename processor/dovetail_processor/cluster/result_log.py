"""Reading a result log, written or kept here: Parquet segments, by stable offsets.

    segment-00000.parquet   segment-00001.parquet   …       offset = (segment, row)

A segment never changes once it has its name. Whoever reads first has the instance finish the
segment under way, so everything found before the call is seen.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq

from dovetail_processor.cluster.keeping import logs_folder, segment_file
from dovetail_processor.cluster.worker import Worker
from dovetail_proto.arrow_bytes import to_bytes
from dovetail_proto.errors import Domain, InputError, Refusal
from dovetail_proto.feeds import ReadResults, ResultBatch
from dovetail_proto.messages import Stage

READ_ROWS = 64 << 10
FOLLOW_S = 0.5
"""How soon a follower sees new results."""

ROLL_TIMEOUT_S = 60.0


def read_log(
    worker: Worker, data_dir: Path, wanted: ReadResults, listening: Callable[[], bool]
) -> Iterator[ResultBatch]:
    """Results from the offset on; with `follow` until the query is over or nobody listens.

    The last one has `ended` set unless the query goes on.
    """
    segment, row = wanted.segment, wanted.row
    pause = threading.Event()
    while True:
        folder, over = _finish_segment(worker, data_dir, wanted)
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
            segment, row = segment + 1, 0
        if over or not wanted.follow or not listening():
            yield ResultBatch(segment, row, b"", over)
            return
        pause.wait(FOLLOW_S)


def _finish_segment(worker: Worker, data_dir: Path, wanted: ReadResults) -> tuple[Path, bool]:
    """Where the segments are, complete up to now, and whether no more will come."""
    query = wanted.query

    def ask() -> tuple[bool, threading.Event | None]:
        run = worker.runs.get(query)
        if run is None:
            return True, None
        if run.task.counting or run.task.results is not None:
            raise Refusal(
                Domain.QUERY,
                f"query {query!r} keeps no result log: its results "
                + ("are only counted" if run.task.counting else f"go to {run.task.results!r}"),
            )
        if run.task.log != wanted.log:
            return True, None  # its writer has left
        if run.stage is not Stage.RUNNING or run.closing:
            return run.stage is not Stage.RUNNING, None
        return False, run.instance.sink.roll()

    over, rolled = worker.ask(ask)
    if rolled is not None and not rolled.wait(ROLL_TIMEOUT_S):
        raise Refusal(Domain.BUSY, f"the results of query {query!r} are not written in time")
    log = logs_folder(data_dir, query) / wanted.log
    writer = wanted.log.partition(".")[0]
    if writer != worker.here and not log.is_dir():  # whereas our own may be empty yet
        raise Refusal(Domain.QUERY, f"log {wanted.log!r} of query {query!r} is not kept here")
    return log, over
