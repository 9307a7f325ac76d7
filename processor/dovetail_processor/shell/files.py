"""Where a query's results and spilled state are kept on one processor, and whose they are.

    <data>/results/<query>/<log>/segment-00000.parquet …   result logs, unless files are asked for:
                                                           its own, and those kept for who has left
    <spill>/<processor>/                                   its spill store, where the query has a
                                                           place that the clean-up reaches

A processor that left, or died without a group, and came back takes part in the query anew. What it
found before is a part of the results, and what it spilled a part of what is owed: both stay, and
the new incarnation goes on beside them.
"""

from __future__ import annotations

import contextlib
import glob
import itertools
import json
import os
import secrets
import shutil
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from dovetail_processor.sinks import CountingSink, LogSink, ParquetSink, Sink, claim_output
from dovetail_processor.sinks.log import Retention
from dovetail_processor.sinks.parquet import number_of, sync_folder
from dovetail_processor.sources import FileSource, open_source
from dovetail_proto.assignment import DroppedRun, QueryTask, StreamTask
from dovetail_proto.errors import DovetailError, InputError, OutputError, SpillError
from dovetail_proto.ids import ProcessorId, QueryName
from dovetail_proto.roots import Roots
from dovetail_proto.spill_format import LocalStorage, SpillStore, open_storage, place_below, run_at
from dovetail_proto.spill_format.storage import TMP_SUFFIX, Storage

RUN_FILE = ".run"
"""Beside a query's logs: of which run they are. One of the same name may have been here before."""

LEFT_OVER = "left-over"
"""Below a processor's data: logs of dropped queries that were to be kept, by run."""

TRASH = "trash"
"""Below a processor's data: logs of dropped queries that are being deleted, and for each of the
queries a note until all it spilled is deleted too."""

log = structlog.get_logger("processor")

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


Logs = weakref.WeakValueDictionary[tuple[str, str], LogSink]
"""The logs that are being written, by run and name of the log, for readers in other threads."""


class ProcessorFiles:
    """See `interface.Files`: of one processor, below its data folder and the given roots."""

    def __init__(self, here: ProcessorId, data_dir: Path, roots: Roots) -> None:
        self._here = here
        self._data_dir = data_dir
        self._roots = roots
        self.logs: Logs = weakref.WeakValueDictionary()
        self._remover = Remover(data_dir)

    def open_stream(self, task: StreamTask) -> FileSource:
        """See Files."""
        assert task.path is not None
        source = open_source(task.path, check=lambda file: self._roots.check("path", str(file)))
        if not source.schema.equals(task.schema):
            raise InputError(f"{task.path!r} does not have the declared schema any more")
        return source

    def open_sink(self, task: QueryTask, row_group_bytes: int) -> Sink:
        """See Files."""
        if task.results is not None:
            self._roots.check("results", task.results)
        sink = open_sink(self._data_dir, self._here, task, row_group_bytes)
        if isinstance(sink, LogSink):
            self.logs[task.run, task.log] = sink
        return sink

    def open_store(self, task: QueryTask) -> SpillStore | None:
        """See Files."""
        if task.spill is not None:
            self._roots.check("spill", task.spill)
        return open_store(self._here, task)

    def remove(self, dropped: Sequence[DroppedRun]) -> None:
        """See Files."""
        self._remover.remove(dropped)


def open_sink(data_dir: Path, here: ProcessorId, task: QueryTask, row_group_bytes: int) -> Sink:
    """Where the results go; files of the run that are there already are not touched."""
    schema = task.plan.output_schema
    if task.counting:
        return CountingSink(schema)
    folder = results_folder(data_dir, task)
    prefix = "segment" if task.results is None else f"{task.name}-{here}"
    try:
        if task.results is None:
            (claim(data_dir, task.name, task.run) / task.log).mkdir(exist_ok=True)
        else:
            claim_output(folder, task.run)
        first = max(map(number_of, folder.glob(f"{prefix}-*.parquet")), default=-1) + 1
    except OSError as e:
        raise OutputError(
            f"results folder {str(folder)!r} cannot be used: {e.strerror}",
            remedy="name a folder that every processor can write",
        ) from e
    if task.results is None:
        keep = Retention(task.keep_s, task.keep_bytes)
        return LogSink(folder, schema, row_group_bytes=row_group_bytes, first=first, keep=keep)
    return ParquetSink(folder, schema, prefix=prefix, row_group_bytes=row_group_bytes, first=first)


def open_store(here: ProcessorId, task: QueryTask) -> SpillStore | None:
    """A store for what this incarnation spills, None if the query has no place for one.

    It is there under every policy: another one may be set, and groups that were pushed elsewhere
    may come here. SpillError if it cannot be made.
    """
    if task.spill is None:
        return None
    for number in itertools.count(1):
        name = here if number == 1 else f"{here}.{number}"
        place = place_below(task.spill, name)
        own = uuid.uuid5(uuid.NAMESPACE_OID, f"{task.run}/{name}").hex  # none else makes this one
        try:
            return SpillStore.create(place, task.plan, run=task.run, store_id=own)
        except SpillError as e:
            if not e.details.get("taken"):
                raise
            found = SpillStore.open(place)
            if found.id != own or (found.pushes() and not found.closed):
                raise  # another's, or one that died with the run: then the query has failed
            if not found.closed:
                return found  # it died without a group: nothing was ever in it
    raise AssertionError("numbers do not end")


def claim(data_dir: Path, query: QueryName, run: str) -> Path:
    """The folder for a run's logs; what is of another run of that name is put aside."""
    folder = logs_folder(data_dir, query)
    with _CLAIMING:
        if not is_of_run(folder, run):
            if folder.exists():
                _put_aside(data_dir, folder)
            folder.mkdir(parents=True)
            with (folder / RUN_FILE).open("w", encoding="utf-8") as f:
                f.write(run)
                f.flush()
                os.fsync(f.fileno())
            sync_folder(folder)
            sync_folder(folder.parent)
    return folder


def _put_aside(data_dir: Path, folder: Path) -> None:
    """Results of a query that was dropped without them: nobody but a person may delete these."""
    kept = data_dir / LEFT_OVER
    kept.mkdir(exist_ok=True)
    mark = folder / RUN_FILE
    name = mark.read_text(encoding="utf-8") if mark.is_file() else ""
    name = name or f"{folder.name}-{time.time_ns()}"
    log.warning("results of a dropped query are put aside", place=str(kept / name))
    folder.rename(kept / name)


class Remover:
    """Removes what dropped queries wrote: at once from where it was, then from the disk.

    A rename takes no time, so the names are free for the next query; deleting takes as long as it
    takes, in threads. What a process does not get to or cannot reach, its next incarnation deletes.
    """

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._begun: set[DroppedRun] = set()  # of those that the assignment names
        if (data_dir / TRASH).exists():
            threading.Thread(target=_go_on, args=(data_dir,)).start()

    def remove(self, dropped: Sequence[DroppedRun]) -> None:
        """Begin with those that are new."""
        for gone in dropped:
            if gone not in self._begun:
                put_in_trash(self._data_dir, gone)
                threading.Thread(target=delete_run, args=(self._data_dir, gone)).start()
        self._begun = set(dropped)


def put_in_trash(data_dir: Path, dropped: DroppedRun) -> None:
    """Rename what a dropped query wrote: its logs here, its spill stores on mounted folders.

    What is of another run stays. All processors do this at once, so what is gone is no error.
    """
    folder, trash = logs_folder(data_dir, dropped.query), data_dir / TRASH
    try:
        with _CLAIMING:
            trash.mkdir(parents=True, exist_ok=True)
            _write_note(data_dir, dropped)
            if is_of_run(folder, dropped.run):
                folder.rename(trash / secrets.token_hex(8))
    except (OSError, ValueError) as e:
        log.warning("results of a dropped query stay", query=dropped.query, cause=str(e))
    if (spill := _mounted(dropped)) is not None:
        _for_stores(dropped, lambda _, name: (spill / name).rename(spill / _trashed(name, dropped)))


def delete_run(data_dir: Path, dropped: DroppedRun) -> None:
    """Delete what `put_in_trash` put there, also elsewhere, and what cannot be renamed."""
    _empty_trash(data_dir)
    done = _for_stores(dropped, lambda place, name: place.remove(name))
    if (spill := _mounted(dropped)) is not None:
        trashed = list(spill.glob(f"*{glob.escape(_trashed('', dropped))}"))
        for path in trashed:
            shutil.rmtree(path, ignore_errors=True)
        done = done and not any(path.exists() for path in trashed)
        if spill.name == dropped.run:
            with contextlib.suppress(OSError):  # gone already, or something else is in it
                spill.rmdir()
    if done:
        _note(data_dir, dropped).unlink(missing_ok=True)


def _empty_trash(data_dir: Path) -> None:
    for path in (data_dir / TRASH).glob("*"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)


def _go_on(data_dir: Path) -> None:
    """Delete what a former incarnation did not get to."""
    _empty_trash(data_dir)
    for note in list((data_dir / TRASH).glob("*.json")):
        try:
            gone = DroppedRun(*json.loads(note.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as e:
            log.warning("a note of a dropped query cannot be read", place=str(note), cause=str(e))
            continue
        put_in_trash(data_dir, gone)
        delete_run(data_dir, gone)


def _note(data_dir: Path, dropped: DroppedRun) -> Path:
    """Tells the next incarnation what is to be deleted, if this one does not get to it."""
    return data_dir / TRASH / f"{uuid.uuid5(uuid.NAMESPACE_OID, dropped.run).hex}.json"


def _write_note(data_dir: Path, dropped: DroppedRun) -> None:
    note = _note(data_dir, dropped)
    written = note.with_suffix(TMP_SUFFIX)
    written.touch(mode=0o600)  # the place may be a URI with credentials
    written.write_text(json.dumps([dropped.query, dropped.run, dropped.spill]), encoding="utf-8")
    written.rename(note)


def _mounted(dropped: DroppedRun) -> Path | None:
    """The folder of a run's spill stores; None if it has none or they are in a remote service."""
    if dropped.spill is None or ("://" in dropped.spill and not dropped.spill.startswith("file:")):
        return None
    try:
        place = open_storage(dropped.spill)
    except SpillError:  # which is told where its stores are looked for
        return None
    return place.root if isinstance(place, LocalStorage) else None


def _trashed(name: str, dropped: DroppedRun) -> str:
    """What a store is called until it is deleted: nobody reads it, and any processor knows it."""
    return f"{name}.{dropped.run}{TMP_SUFFIX}"


def _for_stores(dropped: DroppedRun, act: Callable[[Storage, str], object]) -> bool:
    """Have `act` done to each spill store of a run; one that cannot be read or removed stays.

    Whether there is nothing to try again: a damaged store, whosever it is, is left to people.
    """
    if dropped.spill is None:
        return True
    try:
        place = open_storage(dropped.spill)
        names = place.names("")
    except (OSError, DovetailError) as e:
        log.warning("spilled state of a dropped query stays", query=dropped.query, cause=str(e))
        return False
    done = True
    for name in names:
        try:
            if run_at(open_storage(place_below(dropped.spill, name))) == dropped.run:
                act(place, name)
        except FileNotFoundError:
            pass  # another processor was here before
        except (OSError, DovetailError) as e:
            log.warning("a spill store stays", query=dropped.query, name=name, cause=str(e))
            done = done and not isinstance(e, OSError)
    return done


def is_of_run(folder: Path, run: str) -> bool:
    """Whether the logs in a folder are a run's."""
    mark = folder / RUN_FILE
    return mark.is_file() and mark.read_text(encoding="utf-8") == run
