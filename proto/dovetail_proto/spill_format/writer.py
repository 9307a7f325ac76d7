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
from dataclasses import replace
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
    ROW_GROUP_BYTES_MIN,
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
        self._groups: list[tuple[int, int]] = []  # with their generations; those that have rows
        self._last = -1  # the group written last
        self._ended = ended
        self._open = True

    def write_group(
        self,
        group: int,
        generation: int,
        tables: Sequence[pa.Table | None],
        hash_ranges: Sequence[HashRange | None],
    ) -> int:
        """Add a group; return the bytes of its rows as Arrow.

        `tables` hold the kept columns of each input, in key-hash order, and `hash_ranges` their
        smallest and largest key hash; None stands for no rows. Tables must stay as they are until
        the push has ended. Groups must ascend: small ones share row groups with those written
        next, and so a file is in hash order throughout. SpillError ends the push.
        """
        if not self._open or group <= self._last:
            raise ValueError(
                f"group {group}: the push is over, has it already, or has group {self._last}, "
                "which must come later"
            )
        if len(tables) != len(self._files) or len(hash_ranges) != len(self._files):
            raise ValueError(f"group {group}: expected {len(self._files)} tables and hash ranges")
        self._last = group
        size = 0
        try:
            for file, table, bounds in zip(self._files, tables, hash_ranges, strict=True):
                if table is not None and table.num_rows:
                    if bounds is None:
                        raise ValueError(f"group {group}: rows without a hash range")
                    size += file.write(group, table, bounds, generation)
                    if not self._groups or self._groups[-1][0] != group:
                        self._groups.append((group, generation))
        except OSError as e:
            self._fail(e)
        except BaseException:
            self.abort()
            raise
        return size

    def commit(self) -> PushManifest:
        """Make the push exist, durably; SpillError if that fails, and then it does not."""
        if not self._open:
            raise ValueError("the push is over")
        try:
            groups = np.array(self._groups, np.int64).reshape(-1, 2)
            manifest = PushManifest(
                store_id=self._store_id,
                push=self.push,
                group=groups[:, 0],
                generation=groups[:, 1],
                inputs=tuple(f.finish(groups[:, 0]) for f in self._files),
                crc32=0,
            )
            data = seal("manifest", manifest.body())
            manifest = replace(manifest, crc32=zlib.crc32(data))
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
        self._group_rows: dict[int, int] = {}
        self._row_groups: list[tuple[int, int, int, int]] = []  # rows, bytes, hash range; written
        self._pending: list[tuple[pa.Table, int, int]] = []  # with group and generation
        self._pending_bytes = 0
        self._pending_range: HashRange = (0, 0)

    def write(self, group: int, table: pa.Table, bounds: HashRange, generation: int) -> int:
        size = int(table.nbytes)
        self._group_rows[group] = table.num_rows
        if size >= ROW_GROUP_BYTES_MIN:
            self._flush()
        for part, part_bytes, low, high in self._parts(table, size, bounds):
            self._pending_range = (self._pending_range[0] if self._pending else low, high)
            self._pending.append((part, group, generation))
            self._pending_bytes += part_bytes
            if self._pending_bytes >= ROW_GROUP_BYTES_MIN:
                self._flush()
        return size

    def _parts(
        self, table: pa.Table, size: int, bounds: HashRange
    ) -> Iterator[tuple[pa.Table, int, int, int]]:
        """The table cut into pieces of bounded size, each with its size and hash range."""
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

    def _flush(self) -> None:
        """Write what is pending as one row group."""
        if not self._pending:
            return
        if self._writer is None:
            self._scratch = self._storage.scratch(self._name)
            raw = pa.OSFile(self._scratch, "wb")
            self._sink = pa.BufferedOutputStream(raw, WRITE_BUFFER_BYTES)
            schema = self._layout.file_schema.with_metadata(self._identity)
            self._writer = pq.ParquetWriter(self._sink, schema, **self._layout.options)
        rows = pa.concat_tables([p[0] for p in self._pending])
        counts = [p[0].num_rows for p in self._pending]
        constants = [
            np.repeat(np.array([p[c] for p in self._pending], np.int32), counts) for c in (1, 2)
        ]
        arrays = [*rows.columns, *(pa.array(c) for c in constants)]
        table = pa.Table.from_arrays(arrays, schema=self._layout.file_schema)
        self._writer.write_table(table, rows.num_rows)
        self._row_groups.append((rows.num_rows, self._pending_bytes, *self._pending_range))
        self._pending.clear()
        self._pending_bytes = 0

    def finish(self, groups: NDArray[np.int64]) -> InputEntry | None:
        """Close the file, take its checksums and publish it; None if no rows came.

        `groups` are those of the push.
        """
        self._flush()
        if self._scratch is None:
            return None
        self._writer.close()
        self._sink.close()
        chunks, footer_bytes, footer_crc32 = _checksums(self._scratch)
        size = os.path.getsize(self._scratch)
        self._storage.publish(self._scratch, self._name)
        rows, memory_bytes, hash_min, hash_max = zip(*self._row_groups, strict=True)
        return InputEntry(
            name=self._name,
            bytes=size,
            footer_bytes=footer_bytes,
            footer_crc32=footer_crc32,
            chunk_crc32=chunks,
            group_rows=np.array([self._group_rows.get(g, 0) for g in groups.tolist()], np.int64),
            rows=np.array(rows, np.int64),
            memory_bytes=np.array(memory_bytes, np.int64),
            hash_min=np.array(hash_min, np.uint64),
            hash_max=np.array(hash_max, np.uint64),
        )

    def drop(self) -> None:
        self._pending.clear()
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
