"""Writing a push: groups go in, and either all of them are in the store afterwards or none.

    begin ──▶ write_group … ──▶ commit:  close files, take checksums, publish each file,
                    │                    publish the manifest   ◀── this is the commit
                    └──▶ abort, or any failure: temporary files are deleted, nothing was pushed

A failure leaves the caller's rows untouched: they are still in memory and may be pushed again.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dovetail_proto.errors import SpillError
from dovetail_proto.partitioning import canonical_keys
from dovetail_proto.spill_format.layout import (
    PARQUET_MAGIC,
    ROW_GROUP_BYTES_MAX,
    InputLayout,
)
from dovetail_proto.spill_format.records import (
    MANIFEST_FILE,
    InputEntry,
    PushManifest,
    input_file,
    push_folder,
)
from dovetail_proto.spill_format.sealed import seal
from dovetail_proto.spill_format.storage import Storage

WRITE_BUFFER_BYTES = 1 << 20
"""Pages of small groups are a few KB; gathered to 1 MB, writing takes a third less time."""

HashRange = tuple[int, int]


class PushWriter:
    """One push in the making. Use it from one thread at a time; one per store at a time."""

    def __init__(
        self,
        storage: Storage,
        layouts: Sequence[InputLayout],
        *,
        key_types: Sequence[pa.DataType],
        store_id: str,
        push: int,
        ended: Callable[[PushManifest | None], None],
    ) -> None:
        """`ended` is called once: with the manifest after a commit, with None after an abort."""
        self._storage = storage
        self._store_id = store_id
        self.push = push
        self._folder = push_folder(push)
        self._files = [
            _InputWriter(
                storage,
                layout,
                f"{self._folder}/{input_file(i)}",
                key_types=key_types,
                store_id=store_id,
            )
            for i, layout in enumerate(layouts)
        ]
        self._groups: set[int] = set()
        self._ended = ended
        self._open = True

    def write_group(
        self,
        group: int,
        generation: int,
        tables: Sequence[pa.Table | None],
        hash_ranges: Sequence[HashRange | None],
    ) -> int:
        """Add a group; return the bytes that it takes in the files, compression included.

        `tables` hold the kept columns of each input, in key-hash order, and `hash_ranges` their
        smallest and largest key hash; None stands for no rows. SpillError ends the push.
        """
        if not self._open or group in self._groups:
            raise ValueError(f"group {group}: the push is over or has it already")
        if len(tables) != len(self._files) or len(hash_ranges) != len(self._files):
            raise ValueError(f"group {group}: expected {len(self._files)} tables and hash ranges")
        self._groups.add(group)
        written = 0
        longest = max((t.num_rows for t in tables if t is not None), default=0)
        constants = [pa.array(np.full(longest, v, np.int32)) for v in (group, generation)]
        try:
            for file, table, bounds in zip(self._files, tables, hash_ranges, strict=True):
                if table is not None and table.num_rows:
                    if bounds is None:
                        raise ValueError(f"group {group}: rows without a hash range")
                    written += file.write(group, generation, table, bounds, constants)
        except OSError as e:
            self._fail(e)
        except BaseException:
            self.abort()
            raise
        return written

    def commit(self) -> PushManifest:
        """Make the push exist, durably; SpillError if that fails, and then it does not."""
        if not self._open:
            raise ValueError("the push is over")
        try:
            entries = tuple(f.finish() for f in self._files)
            body = PushManifest(self._store_id, self.push, entries, 0).body()
            data = seal("manifest", body)
            manifest = PushManifest(self._store_id, self.push, entries, zlib.crc32(data))
            self._storage.write(f"{self._folder}/{MANIFEST_FILE}", data)
        except OSError as e:
            self._fail(e)
        except BaseException:
            self.abort()
            raise
        self._open = False
        self._ended(manifest)
        return manifest

    def abort(self) -> None:
        """Drop the push and what it wrote. Safe to call at any time, also twice."""
        if not self._open:
            return
        self._open = False
        for file in self._files:
            file.drop()
        # The manifest first: what cannot be deleted after it is never read.
        for name in (f"{self._folder}/{MANIFEST_FILE}", self._folder):
            with contextlib.suppress(OSError):
                self._storage.remove(name)
        self._ended(None)

    def _fail(self, error: OSError) -> NoReturn:
        self.abort()
        raise SpillError(
            f"spill store {self._storage.uri}: push {self.push} cannot be written: {error}",
            remedy="free space there, or spill to another place with --spill-dir",
            errno=error.errno,
        ) from error


class _InputWriter:
    """One input's file; made when the first rows come."""

    def __init__(
        self,
        storage: Storage,
        layout: InputLayout,
        name: str,
        *,
        key_types: Sequence[pa.DataType],
        store_id: str,
    ) -> None:
        self._storage = storage
        self._layout = layout
        self._name = name
        self._key_types = key_types
        # The footer tells whose file this is: one that was swapped for another cannot pass.
        self._identity = {"dovetail.store": store_id, "dovetail.file": name}
        self._scratch: str | None = None
        self._sink: Any = None
        self._writer: Any = None
        self._row_groups: list[tuple[int, int, int, int, int, int, int]] = []

    def write(
        self,
        group: int,
        generation: int,
        table: pa.Table,
        bounds: HashRange,
        constants: Sequence[pa.Array],
    ) -> int:
        if self._writer is None:
            self._scratch = self._storage.scratch(self._name)
            raw = pa.OSFile(self._scratch, "wb")
            self._sink = pa.BufferedOutputStream(raw, WRITE_BUFFER_BYTES)
            schema = self._layout.file_schema.with_metadata(self._identity)
            self._writer = pq.ParquetWriter(self._sink, schema, **self._layout.options)
        before = start = self._sink.tell()
        for part, size, low, high in self._parts(table, bounds):
            rows = part.num_rows
            arrays = [*part.columns, *(c.slice(0, rows) for c in constants)]
            whole = pa.Table.from_arrays(arrays, schema=self._layout.file_schema)
            self._writer.write_table(whole, rows)
            end = self._sink.tell()
            self._row_groups.append((group, generation, rows, end - start, size, low, high))
            start = end
        return int(start - before)

    def _parts(
        self, table: pa.Table, bounds: HashRange
    ) -> Iterator[tuple[pa.Table, int, int, int]]:
        """The table cut into row groups of bounded size, each with its size and hash range."""
        size = table.nbytes
        if size <= ROW_GROUP_BYTES_MAX or table.num_rows == 1:
            yield table, size, *bounds
            return
        rows = max(1, table.num_rows * ROW_GROUP_BYTES_MAX // size)
        for start in range(0, table.num_rows, rows):
            part = table.slice(start, rows)
            ends = part.select(list(self._layout.key)).take([0, part.num_rows - 1])
            keys = [c.combine_chunks() for c in ends.columns]
            low, high = canonical_keys(keys, self._key_types).hashes.tolist()
            yield part, part.nbytes, low, high

    def finish(self) -> InputEntry | None:
        """Close the file, take its checksums and publish it; None if no rows came."""
        if self._scratch is None:
            return None
        self._writer.close()
        self._sink.close()
        chunks, footer_bytes, footer_crc32 = _checksums(self._scratch)
        size = os.path.getsize(self._scratch)
        self._storage.publish(self._scratch, self._name)
        columns = list(zip(*self._row_groups, strict=True))
        return InputEntry(
            name=self._name,
            bytes=size,
            footer_bytes=footer_bytes,
            footer_crc32=footer_crc32,
            chunk_crc32=chunks,
            group=np.array(columns[0], np.int64),
            generation=np.array(columns[1], np.int64),
            rows=np.array(columns[2], np.int64),
            stored_bytes=np.array(columns[3], np.int64),
            memory_bytes=np.array(columns[4], np.int64),
            hash_min=np.array(columns[5], np.uint64),
            hash_max=np.array(columns[6], np.uint64),
        )

    def drop(self) -> None:
        for part in (self._writer, self._sink):
            if part is not None:
                with contextlib.suppress(OSError, pa.ArrowException):
                    part.close()
        if self._scratch is not None:
            with contextlib.suppress(OSError):
                self._storage.discard(self._scratch)


def _checksums(path: str) -> tuple[NDArray[np.uint32], int, int]:
    """CRC-32 of every column chunk of a Parquet file, and size and CRC-32 of its footer."""
    metadata = pq.read_metadata(path)
    with open(path, "rb") as f:
        at = f.seek(len(PARQUET_MAGIC))
        crcs = []
        for r in range(metadata.num_row_groups):
            row_group = metadata.row_group(r)
            for c in range(metadata.num_columns):
                chunk = row_group.column(c)
                if chunk.data_page_offset != at:
                    raise ValueError(f"{path}: column chunks are not laid end to end")
                crcs.append(zlib.crc32(f.read(chunk.total_compressed_size)))
                at += chunk.total_compressed_size
        footer = f.read()
    return np.array(crcs, np.uint32), len(footer), zlib.crc32(footer)
