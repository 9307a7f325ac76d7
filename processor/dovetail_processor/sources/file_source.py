"""A declared stream backed by files: one file, or a folder of files of one format.

    files ─▶ FileFormat.read ─▶ checked ─▶ plain layout ─▶ batches within bounds

Whatever a file claims is checked before a value is looked at: a forged offset would otherwise
crash the process. Memory is that of one batch and of a few pages of one file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat
from pathlib import Path

import pyarrow as pa

from dovetail_processor.sources.bounds import Bounds, rebatch
from dovetail_processor.sources.file_format import PART_ROWS, FileFormat, FilePart, reading
from dovetail_processor.sources.plain import plain_batches, plain_schema
from dovetail_proto.errors import InputError
from dovetail_proto.memory import BATCH_BYTES_MAX

PART_BYTES = BATCH_BYTES_MAX
"""On disk, of files whose rows are not known or are wide: about a batch of text."""

Part = Callable[[], Iterator[pa.RecordBatch]]
"""Begins to read a part of a source."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file as it was when the source was opened."""

    path: Path
    size_bytes: int
    modified_ns: int
    rows: int | None  # None where only reading all of it would tell


class FileSource:
    """Rows of files that agree in schema, in the order of the files. Use `open_source`.

    `batches` may be called any number of times; each reads the files from the start.
    """

    schema: pa.Schema  # plain: no dictionaries, views or extension types, no metadata
    rows_total: int | None  # None unless every file says
    bytes_total: int  # of the files
    files: tuple[SourceFile, ...]

    def __init__(
        self, file_format: FileFormat, stored_schema: pa.Schema, files: Sequence[SourceFile]
    ) -> None:
        self._format = file_format
        self._stored_schema = stored_schema
        self.schema = plain_schema(stored_schema)
        self.files = tuple(files)
        self.bytes_total = sum(f.size_bytes for f in files)
        rows = [f.rows for f in files if f.rows is not None]
        self.rows_total = sum(rows) if len(rows) == len(files) else None

    def batches(
        self, columns: Sequence[str], *, batch_rows: int, batch_bytes: int
    ) -> Iterator[pa.RecordBatch]:
        """All rows, with `columns` in that order, in batches of at most so many rows and bytes.

        A row larger than `batch_bytes` comes alone; no batch is empty. Batches are valid
        (`validate(full=True)`) and of exactly the types of `schema`. Raises InputError, which
        names the file and, where the format has them, the row; ValueError for unknown columns.
        """
        return self._wholes(self.files, columns, self._bounds(columns, batch_rows, batch_bytes))

    def parts(self, columns: Sequence[str], *, batch_rows: int, batch_bytes: int) -> list[Part]:
        """As `batches`, in parts that may be read at the same time; in order they are all rows.

        One at least. Small files that follow each other are one part, or each would be a batch of
        its own; they are not opened before it is read.
        """
        bounds = self._bounds(columns, batch_rows, batch_bytes)
        found: list[Part] = []
        for files in _together(self.files):
            if len(files) > 1:
                found.append(partial(self._wholes, files, columns, bounds))
                continue
            [file] = files
            with reading(file.path):
                _check_unchanged(file)
                parts = self._format.parts(file.path, self._stored_schema, columns, bounds)
            found += [partial(self._part, file, part, columns, bounds) for part in parts]
        return found or [lambda: iter(())]

    def _bounds(self, columns: Sequence[str], batch_rows: int, batch_bytes: int) -> Bounds:
        unknown = [c for c in columns if c not in self.schema.names]
        if unknown or not columns:
            raise ValueError(f"columns {columns} of a source that has {self.schema.names}")
        return Bounds(rows=batch_rows, bytes=batch_bytes)

    def _wholes(
        self, files: Sequence[SourceFile], columns: Sequence[str], bounds: Bounds
    ) -> Iterator[pa.RecordBatch]:
        """All rows of some files."""
        wholes = (
            FilePart(0, partial(self._format.read, f.path, self._stored_schema, columns, bounds))
            for f in files
        )
        pieces = map(self._pieces, files, wholes, repeat(columns), repeat(bounds))
        return rebatch(chain.from_iterable(pieces), bounds)

    def _part(
        self, file: SourceFile, part: FilePart, columns: Sequence[str], bounds: Bounds
    ) -> Iterator[pa.RecordBatch]:
        return rebatch(self._pieces(file, part, columns, bounds), bounds)

    def _pieces(
        self, file: SourceFile, part: FilePart, columns: Sequence[str], bounds: Bounds
    ) -> Iterator[pa.RecordBatch]:
        stored = pa.schema([self._stored_schema.field(c) for c in columns])
        plain = pa.schema([self.schema.field(c) for c in columns])
        with reading(file.path):
            _check_unchanged(file)
            rows = part.first_row
            for piece in part.read():
                _check(piece, stored, rows)
                rows += piece.num_rows
                yield from plain_batches(piece, plain, bounds)


def _together(files: Sequence[SourceFile]) -> Iterator[list[SourceFile]]:
    """The files in order: large ones alone, small ones together until they are worth a part."""
    found: list[SourceFile] = []
    share = 0.0  # of a part, that they are
    for file in files:
        more = max((file.rows or 0) / PART_ROWS, file.size_bytes / PART_BYTES)
        if found and (share >= 1 or more >= 1):
            yield found
            found, share = [], 0.0
        found.append(file)
        share += more
    if found:
        yield found


def _check_unchanged(file: SourceFile) -> None:
    now = os.stat(file.path)
    if (now.st_size, now.st_mtime_ns) != (file.size_bytes, file.modified_ns):
        raise InputError("changed since it was opened", remedy="run again")


def _check(piece: pa.RecordBatch, stored: pa.Schema, first_row: int) -> None:
    """Refuse a piece that is not what the schema says. Nothing may look into it before."""
    place = f"rows {first_row + 1} to {first_row + piece.num_rows}"
    if not piece.schema.equals(stored):
        raise InputError(
            f"the schema changes at {place}: {difference(stored, piece.schema)}",
            remedy="give files of one schema",
        )
    try:
        piece.validate(full=True)
    except pa.ArrowException as e:
        raise InputError(
            f"damaged at {place}: {e}", remedy="restore the file from where it came"
        ) from e
    for field, column in zip(stored, piece.columns, strict=True):
        if not field.nullable and column.null_count:
            raise InputError(
                f"damaged at {place}: column {field.name!r} has nulls but says that it has none",
                remedy="restore the file from where it came",
            )


def difference(expected: pa.Schema, found: pa.Schema) -> str:
    """What differs, in a few words."""
    if expected.names != found.names:
        return f"columns {', '.join(found.names)} instead of {', '.join(expected.names)}"
    pairs = zip(expected, found, strict=True)
    return "; ".join(
        f"column {a.name!r} is {b.type} instead of {a.type}"
        if a.type != b.type
        else f"column {a.name!r} {'may' if b.nullable else 'may not'} be null"
        for a, b in pairs
        if not a.equals(b)
    )
