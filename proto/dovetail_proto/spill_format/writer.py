"""Writing a push: groups go in, and either all of them are in the store afterwards or none.

    begin ──▶ write_groups … ──▶ commit:  close files, take checksums, publish each file,
                    │                     publish the manifest   ◀── this is the commit
                    └──▶ abort, or any failure: temporary files are deleted, nothing was pushed

A failure leaves the caller's rows untouched: they are still in memory and may be pushed again. What
is published here is on the disk only when the store is closed: until then nobody could use it after
the machine has died.
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
    ROW_GROUP_BYTES,
    ROW_GROUP_BYTES_MAX,
    WIDE_COLUMNS,
    WIDE_TIMES_MAX,
    InputLayout,
)
from dovetail_proto.spill_format.records import (
    GENERATIONS_MAX,
    MANIFEST_FILE,
    InputEntry,
    PushManifest,
    input_file,
    push_folder,
)
from dovetail_proto.spill_format.sealed import seal
from dovetail_proto.spill_format.storage import Storage

WRITE_BUFFER_BYTES = 256 << 10
"""Pages of small columns are a few KB; gathered, writing takes a third less time."""

_CONSTANT_BYTES = 8
"""Of each row: its group and generation, which are not its own columns."""

_Part = tuple[int, pa.Table, int]
"""Rows that become a row group: at which row they begin, they, and their bytes."""

_NONE_REPLACED = np.empty(0, np.int64)


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
        self._groups: list[NDArray[np.int64]] = []
        self._generations: list[NDArray[np.int64]] = []
        self._rows: list[NDArray[np.int64]] = []  # [generation of a group, input]
        self._last = -1  # group and generation that were listed last, as one number
        self._ended = ended
        self._open = True

    def write_groups(
        self,
        group: NDArray[np.int64],
        generation: NDArray[np.int64],
        rows: NDArray[np.int64],
        tables: Sequence[pa.Table],
    ) -> None:
        """Add groups, which ascend: group[k] as generation[k], with rows[k, i] rows of input i.

        `tables` hold the kept columns of each input, group after group, in key-hash order. They
        must stay as they are until the push has ended. SpillError ends the push.
        """
        self.list_generations(group, generation, rows)
        for i, table in enumerate(tables):
            if table.num_rows:
                of = [np.repeat(c.astype(np.int32), rows[:, i]) for c in (group, generation)]
                self.write_rows(i, [*table.columns, *(pa.array(c) for c in of)])

    def list_generations(
        self, group: NDArray[np.int64], generation: NDArray[np.int64], rows: NDArray[np.int64]
    ) -> None:
        """Say which generations of groups the push holds, and rows[k, i] of each; they ascend."""
        if not self._open:
            raise ValueError("the push is over")
        held = rows.any(axis=1)
        pairs = group[held] * (GENERATIONS_MAX + 1) + generation[held]
        if pairs.size == 0:
            return
        if pairs[0] <= self._last or (pairs[1:] <= pairs[:-1]).any():
            raise ValueError("groups and generations of a push must ascend")
        self._last = int(pairs[-1])
        self._groups.append(group[held])
        self._generations.append(generation[held])
        self._rows.append(rows[held])

    def write_rows(self, i: int, columns: Sequence[pa.Array | pa.ChunkedArray]) -> None:
        """Add rows of input i, in key-hash order: kept columns, group and generation."""
        if not self._open:
            raise ValueError("the push is over")
        try:
            self._files[i].write(columns)
        except OSError as e:
            self._fail(e)
        except BaseException:
            self.abort()
            raise

    def commit(self, replaces: NDArray[np.int64] = _NONE_REPLACED) -> PushManifest:
        """Make the push exist, and those that it `replaces` not; SpillError if that fails, and
        then everything is as it was.
        """
        if not self._open:
            raise ValueError("the push is over")
        empty = np.empty(0, np.int64)
        try:
            rows = np.concatenate([np.empty((0, len(self._files)), np.int64), *self._rows])
            manifest = PushManifest(
                store_id=self._store_id,
                push=self.push,
                group=np.concatenate([empty, *self._groups]),
                generation=np.concatenate([empty, *self._generations]),
                inputs=tuple(f.finish(rows[:, i]) for i, f in enumerate(self._files)),
                crc32=0,
                replaces=replaces,
            )
            data = seal("manifest", manifest.body())
            manifest = replace(manifest, crc32=zlib.crc32(data))
            self._storage.write(f"{self._folder}/{MANIFEST_FILE}", data, durable=False)
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
        self._footer: list[pq.FileMetaData] = []  # one, once the writer is closed
        times = min(max(1, layout.leaf_count // WIDE_COLUMNS), WIDE_TIMES_MAX)
        self._row_group_bytes = times * ROW_GROUP_BYTES
        self._pending: list[pa.Table] = []
        self._pending_bytes = 0
        self._rows: list[int] = []  # this and those below: of each row group that is written
        self._bytes: list[int] = []
        self._bounds: list[NDArray[np.uint64]] = []  # least and greatest hash

    def write(self, columns: Sequence[pa.Array | pa.ChunkedArray]) -> None:
        table = pa.Table.from_arrays(list(columns), schema=self._layout.file_schema)
        self._pending.append(table)
        self._pending_bytes += table.nbytes
        if self._pending_bytes >= self._row_group_bytes:
            self._flush(all_of_it=False)

    def _flush(self, *, all_of_it: bool) -> None:
        """Write what is pending as row groups; what does not fill one waits, unless all must go."""
        if not self._pending:
            return
        rows = pa.concat_tables(self._pending)
        self._pending.clear()
        each = max(1, rows.num_rows * self._row_group_bytes // max(1, self._pending_bytes))
        parts = [p for p in _cut(rows, each) if all_of_it or p[0] + each <= rows.num_rows]
        written = parts[-1][0] + parts[-1][1].num_rows if parts else 0
        if parts:
            self._bounds.append(self._hashes(rows, parts))
        for _, part, size in parts:
            self._file().write_table(part, part.num_rows)
            self._rows.append(part.num_rows)
            self._bytes.append(size - _CONSTANT_BYTES * part.num_rows)
        if written < rows.num_rows:
            rest = rows.slice(written)
            self._pending.append(rest)
            self._pending_bytes = rest.nbytes
        else:
            self._pending_bytes = 0

    def _file(self) -> Any:
        if self._writer is None:
            self._scratch = self._storage.scratch(self._name)
            raw = pa.OSFile(self._scratch, "wb")
            self._sink = pa.BufferedOutputStream(raw, WRITE_BUFFER_BYTES)
            schema = self._layout.file_schema.with_metadata(self._identity)
            self._writer = pq.ParquetWriter(
                self._sink, schema, metadata_collector=self._footer, **self._layout.options
            )
        return self._writer

    def _hashes(self, rows: pa.Table, parts: Sequence[_Part]) -> NDArray[np.uint64]:
        """The key hashes of the first and the last row of each part."""
        ends = np.array([(at, at + part.num_rows - 1) for at, part, _ in parts]).ravel()
        taken = rows.select(list(self._layout.key)).take(ends)
        keys = canonical_keys([c.combine_chunks() for c in taken.columns], self._key_types)
        return keys.hashes.reshape(-1, 2)

    def finish(self, group_rows: NDArray[np.int64]) -> InputEntry | None:
        """Close the file, take its checksums and publish it; None if no rows came."""
        self._flush(all_of_it=True)
        if self._scratch is None:
            return None
        self._writer.close()
        self._writer = None
        self._sink.close()
        chunks, footer_bytes, footer_crc32 = _checksums(self._scratch, self._footer.pop())
        size = os.path.getsize(self._scratch)
        self._storage.publish(self._scratch, self._name, durable=False)
        bounds = np.concatenate(self._bounds)
        return InputEntry(
            name=self._name,
            bytes=size,
            footer_bytes=footer_bytes,
            footer_crc32=footer_crc32,
            chunk_crc32=chunks,
            group_rows=group_rows,
            rows=np.array(self._rows, np.int64),
            memory_bytes=np.array(self._bytes, np.int64),
            hash_min=bounds[:, 0].copy(),
            hash_max=bounds[:, 1].copy(),
        )

    def drop(self) -> None:
        self._pending.clear()
        for part in (self._writer, self._sink):
            if part is not None:
                # RuntimeError: there is no footer to collect after a write has failed.
                with contextlib.suppress(OSError, RuntimeError, pa.ArrowException):
                    part.close()
        if self._scratch is not None:
            with contextlib.suppress(OSError):
                self._storage.discard(self._scratch)


def _cut(rows: pa.Table, each: int, at: int = 0) -> Iterator[_Part]:
    """The table in parts of so many rows, smaller ones where they are large."""
    for start in range(0, rows.num_rows, each):
        part = rows.slice(start, each)
        size = part.nbytes
        if part.num_rows > 1 and size > ROW_GROUP_BYTES_MAX:
            yield from _cut(part, (part.num_rows + 1) // 2, at + start)
        else:
            yield at + start, part, size


def _checksums(path: str, metadata: pq.FileMetaData) -> tuple[NDArray[np.uint32], int, int]:
    """CRC-32 of every column chunk of a Parquet file, and size and CRC-32 of its footer."""
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
