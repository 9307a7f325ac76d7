"""Arrow IPC files and streams, mapped into memory and read in slices.

A record batch of the file may be the whole file: as a mapping it costs address space, not memory,
and pages that were read are given back as the reader goes on. Only compressed batches have to be
decompressed whole. What the file claims is not to be trusted: slices are checked before any
value is looked at (by `FileSource`), here only the sizes of buffers.

A file that is cut short by someone else while it is mapped ends the process with SIGBUS, as any
program that maps files; replace files by renaming, not by writing into them.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from dovetail_processor.sources.bounds import Bounds
from dovetail_processor.sources.file_format import FileFormat, FileInfo

FILE_MAGIC = b"ARROW1"
STREAM_MAGIC = b"\xff\xff\xff\xff"

_RESIDENT_BYTES_MAX = 4 << 20
"""Bytes read from a mapping after which its pages are given back: about a batch."""

_STREAM_END_BYTES = 4
"""At least so many bytes end a stream: a length of 0, in newer ones after a marker."""


class IpcFiles(FileFormat):
    """See `FileFormat`."""

    name = "Arrow IPC"
    extensions = (".arrow", ".arrows", ".feather", ".ipc")

    def inspect(self, path: Path) -> FileInfo:
        """Read the schema, and in a file the number of rows."""
        mapped = _Mapped(path)
        if mapped.is_file:
            file = pa.ipc.open_file(mapped.buffer)
            return FileInfo(file.schema, file.count_rows())
        return FileInfo(pa.ipc.open_stream(mapped.buffer).schema, None)

    def read(
        self, path: Path, schema: pa.Schema, columns: Sequence[str], bounds: Bounds
    ) -> Iterator[pa.RecordBatch]:
        """Batch by batch, each in slices."""
        mapped = _Mapped(path)
        wanted = sorted(schema.get_field_index(c) for c in columns)
        batches = _file_batches if mapped.is_file else _stream_batches
        for batch in batches(mapped, wanted):
            batch.validate()  # that each buffer is large enough, not yet what is in it
            yield from mapped.slices(batch.select(list(columns)), bounds)


def _file_batches(mapped: _Mapped, wanted: list[int]) -> Iterator[pa.RecordBatch]:
    """Batches that have at least the wanted columns.

    Asked for some columns only, pyarrow copies them; as a whole, a batch that is not compressed
    lies in the mapping. So columns are chosen where batches have to be copied anyway.
    """
    file = pa.ipc.open_file(mapped.buffer)
    for i in range(file.num_record_batches):
        batch = file.get_batch(i)
        if i == 0 and not mapped.holds(batch):
            file = pa.ipc.open_file(mapped.buffer, options=_options(wanted))
        yield batch


def _stream_batches(mapped: _Mapped, wanted: list[int]) -> Iterator[pa.RecordBatch]:
    source = pa.BufferReader(mapped.buffer)
    stream = pa.ipc.open_stream(source, options=_options(wanted))
    at = source.tell()
    for batch in stream:
        at = source.tell()
        yield batch
    # A stream may end with its connection; a file that has no end mark was cut short.
    if source.tell() - at < _STREAM_END_BYTES:
        raise pa.ArrowInvalid("the stream has no end mark")


def _options(wanted: list[int]) -> pa.ipc.IpcReadOptions:
    return pa.ipc.IpcReadOptions(included_fields=wanted, use_threads=False)


class _Mapped:
    """A file in memory, as pages that the system may take back."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.buffer = pa.py_buffer(self._mapping)
        self.is_file = self._mapping[: len(FILE_MAGIC)] == FILE_MAGIC
        self._resident_bytes = 0  # of slices handed out since pages were last given back

    def holds(self, batch: pa.RecordBatch) -> bool:
        """Whether the buffers of `batch` are in the mapping, not copies."""
        start, end = self.buffer.address, self.buffer.address + self.buffer.size
        buffers = (b for column in batch.columns for b in column.buffers() if b and b.size)
        return all(start <= b.address < end for b in buffers)

    def slices(self, batch: pa.RecordBatch, bounds: Bounds) -> Iterator[pa.RecordBatch]:
        """`batch` in slices of at most `bounds.rows`, of about `bounds.bytes` on average."""
        size = sum(_own_bytes(column) for column in batch.columns)
        row_bytes = max(1, size // max(1, batch.num_rows))
        rows = max(1, min(bounds.rows, bounds.bytes // row_bytes))
        for at in range(0, batch.num_rows, rows):
            yield batch.slice(at, rows)
            self._resident_bytes += rows * row_bytes
            if self._resident_bytes >= _RESIDENT_BYTES_MAX and hasattr(mmap, "MADV_DONTNEED"):
                # Slices that are still in use are read from the file again where touched.
                self._mapping.madvise(mmap.MADV_DONTNEED)
                self._resident_bytes = 0


def _own_bytes(column: pa.Array) -> int:
    """Bytes of a column's buffers, without a dictionary that all batches share."""
    own = column.indices if pa.types.is_dictionary(column.type) else column
    return int(own.get_total_buffer_size())
