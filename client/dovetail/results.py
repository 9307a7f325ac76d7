"""The results of a query, read from the logs of all processors at once.

Each processor keeps the results that it found in a log of its own; an offset (processor, segment,
row) names a place in it for good. Batches come in the order of each log; between processors there
is none.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import grpc
import pyarrow as pa

from dovetail.channels import READ_RESULTS, Channels, told
from dovetail_proto.arrow_bytes import from_bytes
from dovetail_proto.errors import ConfigError, DovetailError
from dovetail_proto.feeds import ReadResults, ResultBatch
from dovetail_proto.ids import QueryName
from dovetail_proto.wire.data import decode, encode

AHEAD_BATCHES = 4
"""Batches that wait for the reader, of all processors together; what comes after waits there."""


@dataclass(frozen=True, slots=True, order=True)
class Offset:
    """A place in one processor's log: the row of a segment."""

    segment: int
    row: int


START = Offset(0, 0)


class Results:
    """Iterates over Arrow batches, once; a context manager that ends the reading.

    `offsets` tells, per processor, where the next read would go on: give it to `Query.results` to
    read on later, in another process too. With `follow` the iteration goes on with what comes and
    ends when the query has ended; without, it ends with what had been found when it began.
    """

    def __init__(
        self,
        query: str,
        schema: pa.Schema,
        processors: Mapping[str, str],
        channels: Channels,
        *,
        offsets: Mapping[str, Offset],
        follow: bool,
    ) -> None:
        """`processors` are the ones to read from, by name, with their addresses."""
        self.schema = schema
        self.offsets = {p: offsets.get(p, START) for p in processors}
        self._batches: queue.Queue[tuple[str, Offset, pa.RecordBatch]] = queue.Queue(AHEAD_BATCHES)
        self._stopped = threading.Event()
        self._failure: DovetailError | None = None
        self._lock = threading.Lock()
        self._readers = len(processors)
        self._calls = {
            name: channels.unary_stream(
                address,
                READ_RESULTS,
                encode(ReadResults(QueryName(query), at.segment, at.row, follow)),
            )
            for name, address in processors.items()
            for at in (self.offsets[name],)
        }
        for name in self._calls:
            threading.Thread(target=self._read, args=(name,), name="results", daemon=True).start()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        while True:
            with self._lock:
                over = self._readers == 0 or self._failure is not None
            try:
                processor, offset, batch = self._batches.get(timeout=0 if over else 0.1)
            except queue.Empty:
                if not over:
                    continue
                if self._failure is not None:
                    raise self._failure from None
                raise StopIteration from None
            self.offsets[processor] = Offset(offset.segment, offset.row + batch.num_rows)
            return batch

    def close(self) -> None:
        """End the reading; the iteration then ends too."""
        self._stopped.set()
        for call in self._calls.values():
            call.cancel()

    def to_arrow(self) -> pa.Table:
        """Everything that is left, as a table."""
        with self:
            return pa.Table.from_batches(list(self), schema=self.schema)

    def to_pandas(self) -> Any:
        """Everything that is left, as a pandas frame; needs pandas."""
        table = self.to_arrow()
        try:
            return table.to_pandas()
        except ImportError as e:
            raise _absent("pandas") from e

    def to_polars(self) -> Any:
        """Everything that is left, as a Polars frame; needs Polars."""
        try:
            import polars
        except ImportError as e:
            raise _absent("polars") from e
        return polars.from_arrow(self.to_arrow())

    def _read(self, processor: str) -> None:
        failure: DovetailError | None = None
        try:
            for data in self._calls[processor]:
                sent = decode(ResultBatch, data)
                if sent.payload:
                    what = f"a batch of results of processor {processor!r}"
                    batch = from_bytes(sent.payload, self.schema, what)
                    self._hand_over(processor, Offset(sent.segment, sent.row), batch)
                if self._stopped.is_set():
                    break
        except grpc.RpcError as e:
            if not self._stopped.is_set():
                failure = told(e, f"reading the results of processor {processor!r}")
        except DovetailError as e:
            failure = e
        with self._lock:
            self._readers -= 1
            self._failure = self._failure or failure

    def _hand_over(self, processor: str, at: Offset, batch: pa.RecordBatch) -> None:
        while not self._stopped.is_set():
            try:
                self._batches.put((processor, at, batch), timeout=0.1)
                return
            except queue.Full:
                continue

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _absent(package: str) -> ConfigError:
    return ConfigError(f"{package} is not installed", remedy=f"run `pip install {package}`")
