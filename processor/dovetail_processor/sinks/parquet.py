"""Results as Parquet files of bounded size that appear whole or not at all.

    batches ─▶ row group of ~8 MB ─▶ .results-00000.parquet.….tmp ─▶ sync ─▶ results-00000.parquet

Row groups are written as soon as they are full, so the sink holds one of them and no more. A file
is renamed to its final name only after its bytes are on the disk: a crash leaves whole files and
at most one hidden temporary one.

How columns are stored was measured on one core, on seven columns of eight bytes that a join
repeated (million bytes of Arrow per second, share of the size):

    plain, no compression   719   1.00      dictionary, Snappy            117   0.76
    plain, Snappy           355   0.76      byte stream split, Snappy     633   0.60
    plain, Zstandard        205   0.61

so fixed-width columns are plain and not compressed: a writer at half the speed would halve the
whole run's. Splitting byte streams would be better still, but Spark's vectorised reader refuses
such files. Text is stored with dictionary and Snappy: repeated words 414 and 0.11, distinct
sentences 520 and 0.34, against 449 and 1406 at full size without either. Where the first values of
a file hardly repeat, the dictionary is left out: it doubles the time to write distinct text, which
it cannot shorten.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dovetail_processor.sinks.checksum import checksum
from dovetail_processor.sinks.sink import SinkTotals
from dovetail_proto.errors import OutputError

FILE_BYTES = 256 << 20
"""Arrow bytes after which a file is finished: large enough for a scan to be sequential, small
enough that a failed run loses little and that a reader has files to share out."""

FILE_CHUNKS = 8192
"""Column chunks after which a file is finished, too: the writer keeps some 1 KB for each until
then. 250 row groups of 1 000 columns took 200 MB; eight of them, or 1 024 of eight columns, take
some ten."""

ROW_GROUP_BYTES = 8 << 20
"""Arrow bytes of a row group, all of which the sink holds: 150 000 rows of seven words. Groups of
2 MB are written as fast, but a reader pays a seek per column and group."""


SAMPLE_ROWS = 4096
"""Enough to tell text that repeats from text that does not."""


def number_of(file: Path) -> int:
    """Of a file that a sink wrote; beyond 99999 the order of names is not that of numbers."""
    return int(file.stem.rpartition("-")[2])


class ParquetSink:
    """Writes `<prefix>-00000.parquet` … under `directory`, replacing files of the same names.

    The Arrow schema is kept, also of types that Parquet has no name for. A sink that got no rows
    writes one file without rows, so that the dataset has columns. Any failure to write, a full
    disk above all, raises OutputError; then the unfinished file is removed and the finished ones
    stay.
    """

    def __init__(
        self,
        directory: str | Path,
        schema: pa.Schema,
        *,
        prefix: str,
        row_group_bytes: int = ROW_GROUP_BYTES,
        file_bytes: int | None = FILE_BYTES,
        first: int = 0,
    ) -> None:
        """`first` is the number of the first file: files before it are somebody else's.

        Without `file_bytes` a file is finished by `roll` and `close` alone: whoever calls them sees
        to it that it has not many more than `groups_max` row groups.
        """
        self._directory = Path(directory)
        self._schema = schema
        self._prefix = prefix
        self._first = first
        self._row_group_bytes = row_group_bytes
        self._file_bytes = file_bytes
        columns = _leaves(schema)
        self._options = _storage(columns)
        self.groups_max = -(-FILE_CHUNKS // max(1, len(columns)))
        """Row groups after which a file has as many column chunks as it may."""
        self._file: _OpenFile | None = None  # the unfinished file; None until it has a row group
        self._pending: list[pa.RecordBatch] = []  # rows of the next row group
        self._pending_bytes = 0  # of `_pending`
        self._rows = 0
        self._checksum = 0
        self._bytes = 0  # size of `_files`
        self._files: list[str] = []  # finished
        self._ended = False
        with _writing(self._directory):
            self._directory.mkdir(parents=True, exist_ok=True)

    @property
    def finished(self) -> tuple[str, ...]:
        """The paths of the files that are complete."""
        return tuple(self._files)

    @property
    def next_number(self) -> int:
        """The number of the file that is finished next."""
        return self._first + len(self._files)

    @property
    def rows_unfinished(self) -> int:
        """Rows in the unfinished file."""
        return 0 if self._file is None else self._file.rows

    @property
    def held_bytes(self) -> int:
        """Bytes of the row group that is being filled."""
        return self._pending_bytes

    def write(self, batch: pa.RecordBatch) -> None:
        """Take the rows of `batch`, whose schema must be the sink's."""
        if self._ended:
            raise ValueError("write to a sink that is closed")
        if batch.schema != self._schema:
            raise ValueError(f"batch of schema {batch.schema}, sink of schema {self._schema}")
        self._rows += batch.num_rows
        self._checksum = (self._checksum + checksum(batch)) % 2**64
        if batch.num_rows == 0:
            return
        self._pending.append(batch)
        self._pending_bytes += batch.nbytes
        if self._pending_bytes >= self._row_group_bytes:
            with self._dropping_on_error():
                self._write_pending()

    def show(self, batch: pa.RecordBatch) -> bool:
        """See Sink: files are read when they are finished."""
        return False

    def cut(self) -> None:
        """See Sink."""

    def roll(self) -> None:
        """Finish the file under way, if any: its rows can be read from now on."""
        with self._dropping_on_error():
            if self._pending:
                self._write_pending()
            self._finish_file()

    def trim(self) -> None:
        """See Sink: files are kept."""

    def close(self) -> SinkTotals:
        """Finish the last file and return what was written."""
        if self._ended:
            raise ValueError("close of a sink that is closed")
        with self._dropping_on_error():
            if self._pending or not self._rows:
                self._write_pending()
            self._finish_file()
        self._ended = True
        return SinkTotals(self._rows, self._checksum, self._bytes, tuple(self._files))

    def abort(self) -> None:
        """Remove the unfinished file; finished ones stay."""
        self._ended = True
        self._pending = []
        self._pending_bytes = 0
        if self._file is not None:
            self._file.discard()
            self._file = None

    def _write_pending(self) -> None:
        table = pa.Table.from_batches(self._pending, self._schema)
        if self._file is None:
            name = f"{self._prefix}-{self.next_number:05d}.parquet"
            words = [c for c in self._options["use_dictionary"] if not _is_distinct(table, c)]
            options = self._options | {"use_dictionary": words or False}
            self._file = _OpenFile(self._directory / name, self._schema, options)
        # A single batch may be much larger than a row group.
        groups = max(1, self._pending_bytes // self._row_group_bytes)
        self._file.write(table, rows_per_group=-(-table.num_rows // groups))
        self._pending = []
        self._pending_bytes = 0
        if self._file_bytes is not None and (
            self._file.arrow_bytes >= self._file_bytes or self._file.groups >= self.groups_max
        ):
            self._finish_file()

    def _finish_file(self) -> None:
        if self._file is None:
            return
        self._bytes += self._file.finish()
        self._files.append(str(self._file.path))
        self._file = None

    @contextmanager
    def _dropping_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.abort()
            raise


class _OpenFile:
    """A file under its temporary name."""

    def __init__(self, path: Path, schema: pa.Schema, options: dict[str, Any]) -> None:
        self.path = path
        self.rows = 0
        self.groups = 0
        self.arrow_bytes = 0
        # A name of its own, so that two writers of one result (tasks that a scheduler runs twice)
        # do not meet before the last step, the rename.
        self._temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
        with _writing(path), contextlib.ExitStack() as undo:
            self._stream = undo.enter_context(pa.OSFile(str(self._temporary), "wb"))
            undo.callback(self._temporary.unlink, missing_ok=True)
            self._descriptor = os.open(self._temporary, os.O_RDONLY)  # for syncing
            undo.callback(os.close, self._descriptor)
            self._writer = pq.ParquetWriter(self._stream, schema, **options)
            self._undo = undo.pop_all()

    def write(self, table: pa.Table, *, rows_per_group: int) -> None:
        with _writing(self.path):
            self._writer.write_table(table, row_group_size=max(1, rows_per_group))
        self.arrow_bytes += table.nbytes
        self.groups += -(-table.num_rows // max(1, rows_per_group))
        self.rows += table.num_rows
        _start_writeback(self._descriptor)

    def finish(self) -> int:
        """Sync and rename; the size of the file in bytes."""
        with _writing(self.path):
            self._writer.close()
            self._stream.close()
            os.fsync(self._descriptor)
            size = os.fstat(self._descriptor).st_size
            self._temporary.rename(self.path)
            sync_folder(self.path.parent)
            self._undo.close()
        return size

    def discard(self) -> None:
        # Closing may fail for the reason that writing failed; what matters is that it is gone.
        with contextlib.suppress(OSError, pa.ArrowException):
            self._writer.close()
        with contextlib.suppress(OSError, pa.ArrowException):
            self._undo.close()


def _leaves(schema: pa.Schema) -> list[pq.ColumnSchema]:
    """The columns of a file: a nested one has several. OutputError if Parquet cannot hold them."""
    try:
        probe = pa.BufferOutputStream()
        pq.ParquetWriter(probe, schema).close()
        leaves = pq.ParquetFile(probe.getvalue()).schema
    except pa.ArrowException as e:
        raise OutputError(
            f"results cannot be stored as Parquet: {e}",
            remedy="leave that column out of SELECT or cast it",
        ) from e
    return [leaves.column(i) for i in range(len(leaves.names))]


def _storage(columns: list[pq.ColumnSchema]) -> dict[str, Any]:
    """Options of the writer, by leaf column."""
    text = [c.path for c in columns if c.physical_type == "BYTE_ARRAY"]
    fixed = [c.path for c in columns if c.physical_type != "BYTE_ARRAY"]
    return {
        "use_dictionary": text,
        "compression": dict.fromkeys(text, "snappy") | dict.fromkeys(fixed, "none"),
    }


def _is_distinct(table: pa.Table, name: str) -> bool:
    """Whether the first values of a text column hardly repeat; not looked at within nested ones."""
    if name not in table.schema.names or pa.types.is_nested(table.schema.field(name).type):
        return False
    values = table.column(name).slice(0, SAMPLE_ROWS)
    return bool(2 * pc.count_distinct(values).as_py() > len(values))


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turn what the file system refuses into OutputError."""
    try:
        yield
    except OSError as e:
        full = e.errno in (errno.ENOSPC, errno.EDQUOT)
        reason = "the disk is full" if full else (e.strerror or str(e))
        raise OutputError(
            f"results cannot be written to {str(path)!r}: {reason}",
            remedy="free some space, then run again with an empty output folder"
            if full
            else "check the folder and run again with an empty output folder",
        ) from e


_SYNC_FILE_RANGE_WRITE = 2
_sync_file_range = getattr(ctypes.CDLL(None), "sync_file_range", None)  # Linux only


def _start_writeback(descriptor: int) -> None:
    """Let the disk begin on what was written, so that the sync at the end finds little left.

    Without it the writer and the disk take turns: measured 300 to 430 against 440 to 590 MB/s.
    Only a hint, so its result does not matter.
    """
    if _sync_file_range is not None:
        whole_file = ctypes.c_int64(0)
        _sync_file_range(descriptor, whole_file, whole_file, _SYNC_FILE_RANGE_WRITE)


def sync_folder(folder: Path) -> None:
    """Make a rename in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
