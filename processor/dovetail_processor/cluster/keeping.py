"""Where a query's results and spilled state are kept on one processor, and whose they are.

    <data>/results/<query>/segment-00000.parquet …     the result log, unless files are asked for
    <spill>/<processor>/                               its spill store

A processor that left, or died without a group, and came back takes part in the query anew. What it
found before is a part of the results, and what it spilled a part of what is owed: both stay, and
the new incarnation goes on beside them.
"""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

from dovetail_processor.sinks import CountingSink, ParquetSink, Sink
from dovetail_proto.assignment import QueryTask
from dovetail_proto.errors import SpillError
from dovetail_proto.ids import ProcessorId
from dovetail_proto.spill_format import SpillStore, place_below

RUN_FILE = ".run"
"""In a result log: whose it is. A query of the same name may have been here before."""

RESULT_FILE_BYTES = 64 << 20
"""A segment of the result log: read whole by one reader at a time."""


def results_folder(data_dir: Path, task: QueryTask) -> Path:
    """Where a query's results are on this processor."""
    if task.results is not None:
        return Path(task.results)
    return data_dir / "results" / task.name


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
        _claim(folder, task.run)
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


def _claim(log: Path, run: str) -> None:
    """Keep what was found in this run; what is of another run goes."""
    mark = log / RUN_FILE
    if not mark.is_file() or mark.read_text(encoding="utf-8") != run:
        shutil.rmtree(log, ignore_errors=True)
        log.mkdir(parents=True)
        mark.write_text(run, encoding="utf-8")
