"""A result log with a lane that works when told, and whoever reads it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from dovetail_processor.shell.files import RUN_FILE, Logs, logs_folder
from dovetail_processor.shell.result_log import Listener, LogRead
from dovetail_processor.shell.threads import WorkerLoop
from dovetail_processor.sinks import LogSink
from dovetail_processor.sinks.log import KEEP_ALL, Retention
from dovetail_proto.arrow_bytes import from_bytes
from dovetail_proto.feeds import ReadResults
from dovetail_proto.ids import LogName, QueryName
from dovetail_proto.messages import Stage

SCHEMA = pa.schema([("n", pa.int64())])
QUERY, RUN, LOG = QueryName("q"), "q-1", LogName("p1")


class Case:
    """A log, its lane, and whoever reads it; jobs are done when a test says so."""

    def __init__(
        self,
        folder: Path,
        *,
        row_group_rows: int = 1 << 20,
        segment_rows: int = 1 << 20,
        keep: Retention = KEEP_ALL,
    ) -> None:
        self.folder = logs_folder(folder, QUERY) / LOG
        self.folder.mkdir(parents=True)
        (self.folder.parent / RUN_FILE).write_text(RUN)
        self.sink = _WorkedSink(
            self,
            self.folder,
            SCHEMA,
            row_group_bytes=8 * row_group_rows,
            segment_bytes=8 * segment_rows,
            first=0,
            keep=keep,
            clock=lambda: self.now_s,
        )
        self.now_s = time.time()
        self._trims = keep != KEEP_ALL
        self.rows = 0
        self.jobs: list[Any] = []
        self.cuts_for_readers = 0
        self._data_dir = folder
        query = SimpleNamespace(
            task=SimpleNamespace(run=RUN, log=LOG, has_log=True),
            opening=False,
            stage=Stage.RUNNING,
            deliver=SimpleNamespace(roll=self._roll_for_reader),
        )
        worker = SimpleNamespace(here="p1", queries={QUERY: query})
        self._loop = cast(
            WorkerLoop,
            SimpleNamespace(worker=worker, ask=lambda work: work(), post=lambda work: work()),
        )
        self._logs: Any = {(RUN, LOG): self.sink}

    def find(self, rows: int) -> None:
        """Results that count up: shown, and to be written."""
        batch = pa.record_batch([pa.array(range(self.rows, self.rows + rows), pa.int64())], SCHEMA)
        self.rows += rows
        full = self.sink.show(batch)
        self.jobs.append(lambda: self.sink.write(batch))
        if full:
            self.roll()

    def roll(self) -> None:
        """Cut a segment; its file is to be made."""
        self.sink.cut()
        self.jobs.append(self.sink.roll)

    def _roll_for_reader(self) -> None:
        self.cuts_for_readers += 1
        self.roll()

    def work(self, jobs: int) -> None:
        """Do some of the jobs."""
        for _ in range(min(jobs, len(self.jobs))):
            self.jobs.pop(0)()

    def read(
        self,
        at: tuple[int, int] = (0, 0),
        listener: Listener | None = None,
        *,
        follow: bool = False,
    ) -> Iterator[tuple[tuple[int, int], list[int]]]:
        """Offsets and the numbers there."""
        wanted = ReadResults(QUERY, LOG, *at, follow, RUN, 0, self._trims)
        logs = cast(Logs, self._logs)
        for m in LogRead(
            self._loop, self._data_dir, logs, wanted, listener or Listener()
        ).batches():
            if m.payload:
                batch = from_bytes(m.payload, SCHEMA, "results")
                yield (m.segment, m.row), batch["n"].to_pylist()

    @property
    def files(self) -> list[Path]:
        """Finished segments."""
        return sorted(self.folder.glob("segment-*.parquet"))

    def close(self) -> dict[tuple[int, int], int]:
        """Write everything; what is at each offset."""
        self.work(len(self.jobs))
        self.sink.close()
        return {
            (segment, row): n
            for segment, path in enumerate(self.files)
            for row, n in enumerate(pq.read_table(path)["n"].to_pylist())
        }


class _WorkedSink(LogSink):
    """Whoever waits for a segment's file has the lane get on."""

    def __init__(self, case: Case, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._case = case

    def wait_finished(self, segment: int, gone: Callable[[], bool]) -> None:
        """See LogSink."""
        self._case.work(len(self._case.jobs))
        super().wait_finished(segment, gone)


def finished(case: Case, segments: int) -> None:
    """Segments of two rows each."""
    for _ in range(segments):
        case.find(2)
        case.roll()
    case.work(len(case.jobs))
