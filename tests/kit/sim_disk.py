"""Virtual disks and lanes: jobs that end some time later, places that are full or broken.

Spill stores are the real ones, in a folder in memory, and so are the files of result logs. What a
sink did not make durable is gone when its process dies.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from dovetail_processor.jobs import Outcome, outcome_of
from dovetail_processor.shell.files import claim, open_store, segment_file
from dovetail_processor.sinks import SinkTotals
from dovetail_processor.sinks.checksum import checksum
from dovetail_processor.sources.file_source import FileSource
from dovetail_proto.assignment import DroppedRun, QueryTask, StreamTask
from dovetail_proto.errors import OutputError
from dovetail_proto.ids import ProcessorId
from dovetail_proto.spill_format import LocalStorage, SpillStore
from dovetail_proto.spill_format.records import QUERY_FILE
from kit.sim_world import World

if TYPE_CHECKING:
    from kit.sim_processor import SimProcessor

T = TypeVar("T")

NOTICED_S = 0.002
"""Between the end of a job and its event: a process may die in between."""


class SimLane:
    """See Lane. A job takes a random time, and is done at one moment of it."""

    def __init__(self, world: World, node: SimProcessor, name: str) -> None:
        self._world, self._node, self._name = world, node, name
        self._jobs: deque[tuple[Callable[[], Any], Callable[[Outcome[Any]], None]]] = deque()
        self._closed = False

    def run(self, work: Callable[[], T], done: Callable[[Outcome[T]], None]) -> None:
        """See Lane."""
        assert not self._closed, f"a job on lane {self._name}, which is closed"
        self._jobs.append((work, done))
        if len(self._jobs) == 1:
            self._begin()

    def close(self) -> None:
        """See Lane."""
        self._closed = True

    def _begin(self) -> None:
        faults, now_s = self._world.faults, self._world.now_s
        job_s = faults.job_s * (0.1 + 2 * self._world.random.random())
        for since_s, until_s, whose in faults.blocked_sinks:
            if self._name.endswith("-results") and whose == self._node.id and since_s <= now_s:
                job_s = max(job_s, until_s - now_s)
        self._world.at(job_s, self._node, self._do)

    def _do(self) -> None:
        kind = self._name.rpartition("-")[2]
        self._world.step_hook(self._node, kind, True)
        if self._node.crashed:
            return
        work, done = self._jobs[0]
        outcome = outcome_of(work)
        self._world.step_hook(self._node, kind, False)
        self._world.at(NOTICED_S, self._node, self._node.event, lambda: done(outcome))
        self._jobs.popleft()
        if self._jobs:
            self._begin()


class SimDisk:
    """Where everybody's spill stores are: a place that may be full, or fail, for some of them."""

    def __init__(self, world: World, root: Path) -> None:
        self._world = world
        self.root = root

    def data_dir(self, name: str) -> Path:
        """Where a processor has its result logs, also when it is started again."""
        return self.root / f"data-{name}"

    def hand_logs(self, mine: Path, successor: str) -> None:
        """Somebody else keeps the result logs that are here, under the same names."""
        if (mine / "results").exists():
            there = self.data_dir(successor) / "results"
            shutil.copytree(mine / "results", there, dirs_exist_ok=True)

    def storage(self, uri: str) -> LocalStorage:
        """Instead of `open_storage`."""
        return _Storage(uri, self)

    def check(self, owner: str, *, grows: bool) -> None:
        """OSError if the disk of a processor is full or broken now; full: if it `grows` by much."""
        faults, now_s = self._world.faults, self._world.now_s
        for since_s, until_s, whose in faults.full_disks if grows else ():
            if whose == owner and since_s <= now_s < until_s:
                self._world.happened.add("disk full")
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        for since_s, until_s, whose in faults.bad_disks:
            if whose == owner and since_s <= now_s < until_s:
                self._world.happened.add("disk broken")
                raise OSError(errno.EIO, os.strerror(errno.EIO))


class _Storage(LocalStorage):
    def __init__(self, root: str, disk: SimDisk) -> None:
        super().__init__(root)
        self._disk = disk
        self._owner = self.root.name.partition(".")[0]

    def scratch(self, name: str) -> str:
        """A file that may find no room: of a push, or of how the run ended."""
        self._disk.check(self._owner, grows=name != QUERY_FILE)
        return super().scratch(name)

    def rename(self, old: str, new: str) -> None:
        """Nor may its name."""
        self._disk.check(self._owner, grows=not new.endswith(QUERY_FILE))
        super().rename(old, new)

    def sync(self, fd: int) -> None:
        """Memory is as durable as it gets."""


class SimSink:
    """See Sink. `rows` are those that outlive the process; they are in its log, too."""

    def __init__(
        self, schema: pa.Schema, row_group_bytes: int, log: Path, disk: SimDisk, owner: str
    ) -> None:
        self.schema = schema
        self._log = log
        self._segments = len(list(log.glob("segment-*.parquet")))
        self.rows: list[pa.RecordBatch] = []
        self._fresh: list[pa.RecordBatch] = []
        self._row_group_bytes = row_group_bytes
        self._held_bytes = 0
        self._disk, self._owner = disk, owner

    @property
    def held_bytes(self) -> int:
        """See Sink."""
        return self._held_bytes

    def show(self, batch: pa.RecordBatch) -> bool:
        """See Sink."""
        return False

    def cut(self) -> None:
        """See Sink."""

    def write(self, batch: pa.RecordBatch) -> None:
        """See Sink."""
        self._fresh.append(batch)
        self._held_bytes += batch.nbytes
        if self._held_bytes >= self._row_group_bytes:
            self._check()
            self._held_bytes = 0

    def roll(self) -> None:
        """See Sink."""
        self._check()
        if self._fresh:
            table = pa.Table.from_batches(self._fresh, schema=self.schema)
            pq.write_table(table, segment_file(self._log, self._segments))
            self._segments += 1
        self.rows += self._fresh
        self._fresh, self._held_bytes = [], 0

    def trim(self) -> None:
        """See Sink."""

    def close(self) -> SinkTotals:
        """See Sink."""
        self.roll()
        total = sum(checksum(batch) for batch in self.rows) % 2**64
        return SinkTotals(sum(b.num_rows for b in self.rows), total, 0, ())

    def abort(self) -> None:
        """See Sink."""
        self._fresh, self._held_bytes = [], 0

    def _check(self) -> None:
        try:
            self._disk.check(self._owner, grows=False)
        except OSError as e:
            raise OutputError(f"results cannot be written: {e}") from e


class SimFiles:
    """See Files. Sinks are handed to `opened`, with the run that they are of."""

    def __init__(
        self,
        disk: SimDisk,
        here: ProcessorId,
        data_dir: Path,
        opened: Callable[[str, SimSink], None],
    ) -> None:
        self._disk, self._here, self._opened = disk, here, opened
        self._data_dir = data_dir

    def open_stream(self, task: StreamTask) -> FileSource:
        """No stream is read from a file."""
        raise NotImplementedError

    def open_sink(self, task: QueryTask, row_group_bytes: int) -> SimSink:
        """See Files."""
        log = claim(self._data_dir, task.name, task.run) / task.log
        log.mkdir(exist_ok=True)
        sink = SimSink(task.plan.output_schema, row_group_bytes, log, self._disk, self._here)
        self._opened(task.run, sink)
        return sink

    def open_store(self, task: QueryTask) -> SpillStore | None:
        """See Files."""
        return open_store(self._here, task)

    def remove(self, dropped: Sequence[DroppedRun]) -> None:
        """What is there stays, to be judged."""
