"""Where a query's results and spilled state are kept on one processor, and whose they are.

    <data>/results/<query>/<log>/segment-00000.parquet …   result logs, unless files are asked for:
                                                           its own, and those kept for who has left
    <spill>/<processor>/                                   its spill store

A processor that left, or died without a group, and came back takes part in the query anew. What it
found before is a part of the results, and what it spilled a part of what is owed: both stay, and
the new incarnation goes on beside them.
"""

from __future__ import annotations

import itertools
import shutil
import threading
from pathlib import Path

from dovetail_processor.sinks import CountingSink, ParquetSink, Sink
from dovetail_proto.assignment import QueryTask
from dovetail_proto.errors import SpillError
from dovetail_proto.ids import ProcessorId, QueryName
from dovetail_proto.spill_format import SpillStore, place_below

RUN_FILE = ".run"
"""Beside a query's logs: of which run they are. One of the same name may have been here before."""

RESULT_FILE_BYTES = 64 << 20
"""A segment of the result log: read whole by one reader at a time."""

_CLAIMING = threading.Lock()
"""A query may start here while logs of a leaver arrive."""


def results_folder(data_dir: Path, task: QueryTask) -> Path:
    """Where a query's results are on this processor."""
    if task.results is not None:
        return Path(task.results)
    return logs_folder(data_dir, task.name) / task.log


def logs_folder(data_dir: Path, query: QueryName) -> Path:
    """Where the logs of a query are: its own, and those kept for others."""
    return data_dir / "results" / query


def segment_file(log: Path, number: int) -> Path:
    """A file of a log."""
    return log / f"segment-{number:05d}.parquet"


def open_sink(data_dir: Path, here: ProcessorId, task: QueryTask, row_group_bytes: int) -> Sink:
    """Where the results go; files that are there already are not touched."""
    schema = task.plan.output_schema
    if task.counting:
        return CountingSink(schema)
    folder = results_folder(data_dir, task)
    if task.results is not None:
        prefix, bounds = f"{task.name}-{here}", {}
    else:
        prefix, bounds = "segment", {"file_bytes": RESULT_FILE_BYTES}
        claim(data_dir, task.name, task.run)
    first = len(list(folder.glob(f"{prefix}-*.parquet")))
    return ParquetSink(
        folder, schema, prefix=prefix, row_group_bytes=row_group_bytes, first=first, **bounds
    )


def open_store(data_dir: Path, here: ProcessorId, task: QueryTask) -> SpillStore:
    """A store for what this incarnation spills; SpillError if there can be none."""
    if task.spill is None:
        folder = data_dir / "spill" / task.name / here
        shutil.rmtree(folder, ignore_errors=True)
        return SpillStore.create(str(folder), task.plan, run=task.run)
    for number in itertools.count(1):
        place = place_below(task.spill, here if number == 1 else f"{here}.{number}")
        try:
            return SpillStore.create(place, task.plan, run=task.run)
        except SpillError:
            found = SpillStore.open(place)
            if found.run != task.run or (found.pushes() and not found.closed):
                raise  # another run's, or one that died with it: then the query has failed
            if not found.closed:
                return found  # it died without a group: nothing was ever in it
    raise AssertionError("numbers do not end")


def claim(data_dir: Path, query: QueryName, run: str) -> Path:
    """The folder for a run's logs; what is of another run goes."""
    folder = logs_folder(data_dir, query)
    with _CLAIMING:
        if not is_of_run(folder, run):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            (folder / RUN_FILE).write_text(run, encoding="utf-8")
    return folder


def is_of_run(folder: Path, run: str) -> bool:
    """Whether the logs in a folder are a run's."""
    mark = folder / RUN_FILE
    return mark.is_file() and mark.read_text(encoding="utf-8") == run
