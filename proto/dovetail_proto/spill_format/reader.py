"""Reading a pushed file so that no unchecked byte is ever decoded.

    manifest ──▶ size of the file, CRC of its footer ──▶ where each column chunk lies
    manifest ──▶ CRC of each column chunk            ──▶ checked when Parquet asks for the chunk

Parquet's own page checksums are there too, for other readers; they leave page headers unguarded
and cost the same as checking whole chunks, so chunks are what we check.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
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


class InputFile:
    """One input's file of a push, opened and its footer checked; SpillError names it if damaged."""

    def __init__(self, storage: Storage, entry: InputEntry, layout: InputLayout) -> None:
        self.place = f"{storage.uri}/{entry.name}"
        self._entry = entry
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
        """The rows of some row groups, in file order, with the kept types of `columns`."""
        leaves = [leaf for name in columns for leaf in self._layout.leaves[name]]
        for r in row_groups:
            row_group = self._metadata.row_group(r)
            for leaf in leaves:
                chunk = row_group.column(leaf)
                crc = int(self._entry.chunk_crc32[r * self._layout.leaf_count + leaf])
                self._chunks.expect(chunk.data_page_offset, chunk.total_compressed_size, crc)
        try:
            table = self._parquet.reader.read_row_groups(
                list(row_groups), column_indices=leaves, use_threads=False
            )
            kept = pa.schema([self._layout.kept.field(name) for name in columns])
            table = table.select(list(columns)).cast(kept)
        except (pa.ArrowException, OSError, KeyError) as e:
            refuse(self.place, f"cannot be decoded: {e}")
        expected = int(self._entry.rows[list(row_groups)].sum())
        if table.num_rows != expected:
            refuse(self.place, f"has {table.num_rows} rows where {expected} were written")
        return table

    def check_all(self) -> None:
        """Check every byte of the file against the manifest."""
        check = checker(self.place)
        check(self._raw.read_at(0, 4) == PARQUET_MAGIC, "does not start as a Parquet file")
        for r in range(self._metadata.num_row_groups):
            for leaf in range(self._layout.leaf_count):
                chunk = self._metadata.row_group(r).column(leaf)
                crc = int(self._entry.chunk_crc32[r * self._layout.leaf_count + leaf])
                self._chunks.expect(chunk.data_page_offset, chunk.total_compressed_size, crc)
                self._chunks.fetch(chunk.data_page_offset, chunk.total_compressed_size)

    def close(self) -> None:
        """Give the handle back."""
        self._raw.close()

    def _checked_footer(self) -> tuple[Any, pq.ParquetFile]:
        entry = self._entry
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
        check(metadata.num_row_groups == entry.rows.size, "has another number of row groups")
        check(metadata.num_columns == self._layout.leaf_count, "has another number of columns")
        check(names == self._layout.file_schema.names, "has columns of another query")
        check(
            entry.chunk_crc32.size == entry.rows.size * self._layout.leaf_count,
            "has another number of column chunks",
        )
        return metadata, parquet


class _CheckedChunks:
    """The file as Parquet sees it: only expected chunks can be read, and only if unaltered."""

    closed = False

    def __init__(self, raw: RandomReader, place: str) -> None:
        self._raw = raw
        self._place = place
        self._at = 0
        self._expected: dict[int, tuple[int, int]] = {}
        self.bytes_read = 0

    def expect(self, offset: int, length: int, crc32: int) -> None:
        self._expected[offset] = (length, crc32)

    def fetch(self, offset: int, length: int) -> bytes:
        expected = self._expected.pop(offset, None)
        if expected is None or expected[0] != length:
            refuse(self._place, f"bytes {offset} to {offset + length} are not a column chunk")
        data = self._raw.read_at(offset, length)
        self.bytes_read += length
        if len(data) != length or zlib.crc32(data) != expected[1]:
            refuse(
                self._place,
                f"the column chunk in bytes {offset} to {offset + length} does not match "
                "its checksum",
            )
        return data

    def read(self, length: int) -> bytes:
        data = self.fetch(self._at, length)
        self._at += length
        return data

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


def check_hash_order(
    hashes: NDArray[np.uint64], entry: InputEntry, row_groups: Sequence[int], place: str
) -> None:
    """Refuse rows (of whole row groups, in order) whose key hashes are not what was recorded.

    A changed hash function shows here, before it can make matching keys miss each other.
    """
    ends = np.cumsum(entry.rows[list(row_groups)])
    starts = np.concatenate(([0], ends[:-1]))
    ok = (hashes[starts] == entry.hash_min[list(row_groups)]).all()
    ok = ok and (hashes[ends - 1] == entry.hash_max[list(row_groups)]).all()
    falls = hashes[1:] < hashes[:-1]
    falls[ends[:-1] - 1] = False
    if not ok or falls.any():
        refuse(place, "its rows are not in the recorded order of key hashes")
