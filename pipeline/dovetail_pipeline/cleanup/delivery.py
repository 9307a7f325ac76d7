"""Where a bin's results go: nowhere, into a local folder, or to a file system elsewhere.

    local      ParquetSink ─▶ temporary name ─▶ rename
    elsewhere  ParquetSink ─▶ file in a private temporary folder ─▶ upload, as soon as it is whole

Either way a file has its name only when it is whole, and two attempts at once never share a name.
"""

from __future__ import annotations

import os
import shutil
import tempfile

import pyarrow as pa

from dovetail_processor.sinks import CountingSink, ParquetSink, Sink
from dovetail_proto.errors import OutputError
from dovetail_proto.spill_format import LocalStorage, Storage


class Delivery:
    """A sink for one bin that is made when results come: a bin without any leaves no file."""

    def __init__(
        self, schema: pa.Schema, name: str, place: Storage | None, row_group_bytes: int
    ) -> None:
        self._schema = schema
        self._name = name
        self._place = place
        self._row_group_bytes = row_group_bytes
        self._sink: Sink | None = None
        self._folder: str | None = None  # temporary; None unless files are uploaded
        self._files: list[tuple[str, int]] = []  # delivered: name and size

    def write(self, batch: pa.RecordBatch) -> None:
        """Take rows. Raises OutputError."""
        if batch.num_rows == 0:
            return
        if self._sink is None:
            self._sink = self._made()
        self._sink.write(batch)
        if self._folder is not None and isinstance(self._sink, ParquetSink):
            self._upload(self._sink.finished)

    def close(self) -> tuple[int, int, tuple[tuple[str, int], ...]]:
        """Rows, checksum, and files with their sizes, all of them in place."""
        if self._sink is None:
            return 0, 0, ()
        totals = self._sink.close()
        if self._folder is not None:
            self._upload(totals.files)
            shutil.rmtree(self._folder, ignore_errors=True)
        else:
            self._files = [(os.path.basename(f), os.path.getsize(f)) for f in totals.files]
        return totals.rows, totals.checksum, tuple(self._files)

    def abort(self) -> None:
        """Drop what is not finished."""
        if self._sink is not None:
            self._sink.abort()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _made(self) -> Sink:
        if self._place is None:
            return CountingSink(self._schema)
        if isinstance(self._place, LocalStorage):
            folder = str(self._place.root)
        else:
            folder = self._folder = tempfile.mkdtemp(prefix="dovetail-results-")
        return ParquetSink(
            folder, self._schema, prefix=self._name, row_group_bytes=self._row_group_bytes
        )

    def _upload(self, finished: tuple[str, ...]) -> None:
        assert self._place is not None
        for path in finished[len(self._files) :]:
            name, size = os.path.basename(path), os.path.getsize(path)
            try:
                self._place.publish(path, name)
            except OSError as e:
                raise OutputError(
                    f"results cannot be written to {self._place.uri}/{name}: {e}",
                    remedy="check the place and its space, then clean up again; "
                    "what is finished is kept",
                ) from e
            self._files.append((name, size))
