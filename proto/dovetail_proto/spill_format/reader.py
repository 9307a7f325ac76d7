"""Reading a pushed file so that no unchecked byte is ever decoded.

    manifest ──▶ size of the file, CRC of its footer ──▶ where each column chunk lies
    manifest ──▶ CRC of each column chunk            ──▶ checked when Parquet asks for the chunk

Parquet's own page checksums are there too, for other readers; they leave page headers unguarded
and cost the same as checking whole chunks, so chunks are what we check.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dovetail_proto.errors import SpillError
from dovetail_proto.spill_format.layout import PARQUET_MAGIC, InputLayout
from dovetail_proto.spill_format.records import InputEntry
from dovetail_proto.spill_format.sealed import checker, refuse
from dovetail_proto.spill_format.storage import RandomReader, Storage

GAP_BYTES_MAX = 16 << 10
"""Bytes between two wanted chunks that are cheaper to read along than to skip by another call."""

Chunk = tuple[int, int, int]
"""A column chunk: offset and length in the file, CRC-32."""


class InputFile:
    """One input's file of a push, opened and its footer checked; SpillError names it if damaged."""

    def __init__(self, storage: Storage, entry: InputEntry, layout: InputLayout) -> None:
        self.place = f"{storage.uri}/{entry.name}"
        self.entry = entry
        self._layout = layout
        self._raw = _open(storage, entry.name, self.place)
        try:
            self._chunks = _CheckedChunks(self._raw, self.place)
            self._metadata, self._parquet = self._checked_footer()
        except BaseException:
            self._raw.close()
            raise

    @property
    def bytes_read(self) -> int:
        """Bytes of column chunks read so far."""
        return self._chunks.bytes_read

    def read(self, row_groups: Sequence[int], columns: Sequence[str]) -> pa.Table:
        """The rows of some row groups, in file order, with the kept types of `columns`.

        `__group` and `__generation` are columns too.
        """
        leaves = [leaf for name in columns for leaf in self._layout.leaves[name]]
        self._chunks.load(c for r in row_groups for c in self._chunks_of(r, leaves))
        try:
            table = self._parquet.reader.read_row_groups(
                list(row_groups), column_indices=leaves, use_threads=False
            )
            table = table.select(list(columns)).cast(self._layout.schema_of(columns))
        except (pa.ArrowException, OSError, KeyError) as e:
            refuse(self.place, f"cannot be decoded: {e}")
        expected = int(self.entry.rows[list(row_groups)].sum())
        if table.num_rows != expected:
            refuse(self.place, f"has {table.num_rows} rows where {expected} were written")
        return table

    def check_hashes(self, hashes: NDArray[np.uint64], row_groups: Sequence[int]) -> None:
        """Refuse rows of whole row groups, in order, whose key hashes are not what was recorded.

        A changed hash function shows here, before it can make matching keys miss each other.
        """
        numbers = list(row_groups)
        ends = np.cumsum(self.entry.rows[numbers])
        starts = ends - self.entry.rows[numbers]
        ok = (hashes[starts] == self.entry.hash_min[numbers]).all()
        ok = ok and (hashes[ends - 1] == self.entry.hash_max[numbers]).all()
        if not ok or (hashes[1:] < hashes[:-1]).any():
            refuse(self.place, "its rows are not in the recorded order of key hashes")

    def check_all(self) -> None:
        """Check every byte of the file against the manifest."""
        check = checker(self.place)
        check(self._raw.read_at(0, 4) == PARQUET_MAGIC, "does not start as a Parquet file")
        for r in range(self._metadata.num_row_groups):
            self._chunks.load(self._chunks_of(r, range(self._layout.leaf_count)))

    def close(self) -> None:
        """Give the handle back."""
        self._raw.close()

    def _chunks_of(self, r: int, leaves: Sequence[int]) -> Iterator[Chunk]:
        row_group = self._metadata.row_group(r)
        crcs = self.entry.chunk_crc32[r * self._layout.leaf_count :]
        for leaf in leaves:
            chunk = row_group.column(leaf)
            yield chunk.data_page_offset, chunk.total_compressed_size, int(crcs[leaf])

    def _checked_footer(self) -> tuple[Any, pq.ParquetFile]:
        entry = self.entry
        check = checker(self.place)
        check(self._raw.size == entry.bytes, f"has {self._raw.size} bytes, not {entry.bytes}")
        footer = self._raw.read_at(entry.bytes - entry.footer_bytes, entry.footer_bytes)
        check(zlib.crc32(footer) == entry.footer_crc32, "its footer does not match its checksum")
        try:
            metadata = pq.read_metadata(pa.BufferReader(footer))
            parquet = pq.ParquetFile(self._chunks, metadata=metadata, pre_buffer=False)
            # Not `metadata.schema`: it and the metadata hold each other until the next collection.
            names = parquet.schema_arrow.names
        except (pa.ArrowException, OSError) as e:
            refuse(self.place, f"its footer cannot be read: {e}")
        check(metadata.num_row_groups == entry.row_groups, "has another number of row groups")
        check(metadata.num_columns == self._layout.leaf_count, "has another number of columns")
        check(names == self._layout.file_schema.names, "has columns of another query")
        check(
            entry.chunk_crc32.size == entry.row_groups * self._layout.leaf_count,
            "has another number of column chunks",
        )
        return metadata, parquet


class _CheckedChunks:
    """The file as Parquet sees it: only what was loaded can be read, and that is unaltered."""

    closed = False

    def __init__(self, raw: RandomReader, place: str) -> None:
        self._raw = raw
        self._place = place
        self._at = 0
        self._loaded: dict[int, memoryview] = {}  # by offset, until Parquet takes them
        self.bytes_read = 0

    def load(self, chunks: Iterable[Chunk]) -> None:
        """Read these chunks, neighbours together, and check each; forget those before."""
        self._loaded.clear()
        wanted = sorted(chunks)
        first = 0
        for i in range(1, len(wanted) + 1):
            end = wanted[i - 1][0] + wanted[i - 1][1]
            if i == len(wanted) or wanted[i][0] - end > GAP_BYTES_MAX:
                self._load_run(wanted[first:i])
                first = i

    def _load_run(self, run: Sequence[Chunk]) -> None:
        start = run[0][0]
        data = memoryview(self._raw.read_at(start, run[-1][0] + run[-1][1] - start))
        self.bytes_read += len(data)
        for offset, length, crc32 in run:
            part = data[offset - start : offset - start + length]
            if len(part) != length or zlib.crc32(part) != crc32:
                refuse(
                    self._place,
                    f"the column chunk in bytes {offset} to {offset + length} does not match "
                    "its checksum",
                )
            self._loaded[offset] = part

    def read(self, length: int) -> memoryview:
        part = self._loaded.pop(self._at, None)
        if part is None or len(part) != length:
            refuse(self._place, f"bytes from {self._at} are not one of its column chunks")
        self._at += length
        return part

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset if whence == 0 else self._raw.size + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def close(self) -> None:
        """The handle is closed by its owner."""


def _open(storage: Storage, name: str, place: str) -> RandomReader:
    try:
        return storage.open(name)
    except FileNotFoundError:
        refuse(place, "is missing, though the manifest of its push names it")
    except OSError as e:
        raise SpillError(f"{place}: cannot be read: {e}", remedy="check the disk") from e
