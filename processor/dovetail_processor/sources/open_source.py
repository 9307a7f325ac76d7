"""From a path to a source: which files, which format, one schema."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from dovetail_processor.sources.detect import format_of
from dovetail_processor.sources.file_format import FileFormat, FileInfo, check_names, reading
from dovetail_processor.sources.file_source import FileSource, SourceFile, difference
from dovetail_proto.errors import InputError


def open_source(path: str | Path, *, check: Callable[[Path], None] | None = None) -> FileSource:
    """A source for the file at `path`, or for all files in and below the folder at `path`.

    Files are Parquet, CSV, JSON lines or Arrow IPC (file or stream), known by extension and, where
    that says nothing, by their first bytes. A folder is read in the order of its files' paths,
    without files and folders whose names begin with '.' or '_'; its files must agree in format
    and schema. Every file's schema is looked at now, no rows are read yet. `check` may refuse
    each file, a link in a folder too, before a byte of it is read.

    Raises InputError for anything that cannot be a source, naming the file and what to do.
    """
    root = Path(path)
    if check is not None:
        check(root)
    with reading(root):
        paths = _paths(root)
    for p in paths:
        if check is not None:
            check(p)
    chosen = _format_of_all(paths)
    files, infos = [], []
    for p in paths:
        with reading(p):
            status = os.stat(p)
            info = chosen.inspect(p)
            check_names(info.schema.names)
        infos.append(info)
        files.append(SourceFile(p, status.st_size, status.st_mtime_ns, info.rows))
    schema = _common_schema(chosen, paths, infos)
    with reading(paths[0]):
        source = FileSource(chosen, schema, files)
        if not source.schema.names:
            raise InputError("has no columns", remedy="check what wrote it")
        return source


def _paths(root: Path) -> list[Path]:
    if not stat.S_ISDIR(os.stat(root).st_mode):
        return [root]
    paths = sorted(_walk(root, {_identity(root)}), key=lambda p: p.relative_to(root).parts)
    if not paths:
        raise InputError("a folder without data files", remedy="check the path")
    return paths


def _walk(folder: Path, above: set[tuple[int, int]]) -> Iterator[Path]:
    """Files below `folder`, links followed; a link back to a folder above would never end."""
    for entry in os.scandir(folder):
        if entry.name.startswith((".", "_")):
            continue
        path = folder / entry.name
        if not entry.is_dir():
            yield path
        elif (here := _identity(path)) not in above:
            yield from _walk(path, above | {here})


def _identity(folder: Path) -> tuple[int, int]:
    status = os.stat(folder)
    return status.st_dev, status.st_ino


def _format_of_all(paths: Sequence[Path]) -> FileFormat:
    formats = []
    for path in paths:
        with reading(path):
            formats.append(format_of(path))
        if formats[-1] is not formats[0]:
            raise InputError(
                f"{path}: is {formats[-1].name}, while {paths[0].name} is {formats[0].name}",
                remedy="give a folder of files of one format",
            )
    return formats[0]


def _common_schema(
    chosen: FileFormat, paths: Sequence[Path], infos: Sequence[FileInfo]
) -> pa.Schema:
    """The schema that all files have; of the first file that knows its types."""
    first = next((i for i, info in enumerate(infos) if info.types_known), 0)
    schema = infos[first].schema
    for path, info in zip(paths, infos, strict=True):
        if not chosen.agree(schema, info.schema):
            raise InputError(
                f"{path}: schema is not that of {paths[first].name}: "
                f"{difference(schema, info.schema)}",
                remedy="give files of one schema",
            )
    return schema
