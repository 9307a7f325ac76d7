"""The results of a query, read from all its logs at once.

Each processor keeps the results that it finds in a log of its own; when it leaves, another one
keeps the log. An offset (log, segment, row) names a place for good. Batches come in the order of
each log; between logs there is none.
"""

from __future__ import annotations

import queue
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import grpc
import pyarrow as pa

from dovetail.channels import Channels, told
from dovetail.quantities import format_count
from dovetail_proto.admin import LogStatus, QueryStatus
from dovetail_proto.arrow_bytes import from_bytes
from dovetail_proto.errors import ConfigError, DovetailError
from dovetail_proto.feeds import ReadResults, ResultBatch
from dovetail_proto.ids import LogName, QueryName
from dovetail_proto.result_logs import Logs, away
from dovetail_proto.transport import Unreachable
from dovetail_proto.wire.data import decode, encode
from dovetail_proto.wire.methods import READ_RESULTS

AHEAD_BATCHES = 4
"""Batches that wait for the reader, of all logs together; what comes after waits there."""

LOOK_S = 1.0
"""How soon a follower sees the log of a processor that is new."""


class LostResultsWarning(UserWarning):
    """A query that failed had found more than could be read: it died with a processor."""


@dataclass(frozen=True, slots=True, order=True)
class Offset:
    """A place in one log: the row of a segment."""

    segment: int
    row: int


START = Offset(0, 0)


class Results:
    """Iterates over Arrow batches, once; a context manager that ends the reading.

    `offsets` tells, per log, where the next read would go on: give it to `Query.results` to read on
    later, in another process too. With `follow` the iteration goes on with what comes, also from
    processors that join meanwhile or hand their log to another one, and ends when the query has
    ended; without, it ends with what had been found when it began.

    `lost` tells at the end how many results a query that failed had found beyond what was read: a
    processor died before it had written them. LostResultsWarning says so too.
    """

    def __init__(
        self,
        query: str,
        schema: pa.Schema,
        found: Logs,
        channels: Channels,
        *,
        offsets: Mapping[str, Offset],
        look: Callable[[], Logs] | None,
        whole: Callable[[], QueryStatus] | None,
    ) -> None:
        """`look` finds the logs there are by then, to follow them. Unreachable if one is away.

        `whole` asks how the query stands, if everything is read and losses can be counted.
        """
        self.schema = schema
        self.lost = 0
        self._rows = 0
        self._whole = whole
        logs, self._over = found
        self.offsets = {log.name: offsets.get(log.name, START) for log in logs}
        self._query = query
        self._channels = channels
        self._given = offsets
        self._follow = look is not None
        self._next = dict(self.offsets)  # where the reader of a log is
        self._batches: queue.Queue[tuple[str, Offset, pa.RecordBatch]] = queue.Queue(AHEAD_BATCHES)
        self._stopped = threading.Event()
        self._failure: DovetailError | None = None
        self._lock = threading.Lock()
        self._threads = 0  # that may still bring something
        self._calls: dict[str, Any] = {}  # of logs that are being read
        self._readers: dict[str, threading.Thread] = {}  # the last of each log
        for log in logs:
            if not log.address:
                raise away(query, log)
        for log in logs:
            self._begin(log)
        if look is not None and not self._over:
            self._start(self._watch, look)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        while True:
            with self._lock:
                over = self._threads == 0 or self._failure is not None
            try:
                log, offset, batch = self._batches.get(timeout=0 if over else 0.1)
            except queue.Empty:
                if not over:
                    continue
                if self._failure is not None:
                    raise self._failure from None
                self._count_losses()
                raise StopIteration from None
            self._rows += batch.num_rows
            self.offsets[log] = Offset(offset.segment, offset.row + batch.num_rows)
            return batch

    def _count_losses(self) -> None:
        """Once, at the end of all that can be read."""
        whole, self._whole = self._whole, None
        if whole is None or self._stopped.is_set():
            return
        status = whole()
        if status.state == "failed" and self._rows < status.results:
            self.lost = status.results - self._rows
            warnings.warn(
                f"query {status.name!r} has failed ({status.cause}): {format_count(self.lost)} of "
                f"the {format_count(status.results)} results that it had found were not written "
                "yet and are lost",
                LostResultsWarning,
                stacklevel=3,
            )

    def close(self) -> None:
        """End the reading; the iteration then ends too."""
        self._stopped.set()
        with self._lock:
            calls, readers = list(self._calls.values()), list(self._readers.values())
        for call in calls:
            call.cancel()
        for reader in readers:
            reader.join()

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

    # Threads: one for each log, and one that looks for new logs -----------------------------------

    def _start(self, work: Callable[..., DovetailError | None], *args: object) -> threading.Thread:
        def run() -> None:
            failure = work(*args)
            with self._lock:
                self._threads -= 1
                self._failure = self._failure or failure

        with self._lock:
            self._threads += 1
        thread = threading.Thread(target=run, name="results", daemon=True)
        thread.start()
        return thread

    def _begin(self, log: LogStatus) -> None:
        at = self._next.setdefault(log.name, self._given.get(log.name, START))
        asked = ReadResults(
            QueryName(self._query),
            LogName(log.name),
            at.segment,
            at.row,
            self._follow,
            log.run,
            log.rows,
        )
        call = self._channels.unary_stream(log.address, READ_RESULTS, encode(asked))
        with self._lock:
            self._calls[log.name] = call
        if self._stopped.is_set():
            call.cancel()  # `close` may not have seen it
        reader = self._start(self._read, log.name, call)
        with self._lock:
            self._readers[log.name] = reader

    def _read(self, log: str, call: Any) -> DovetailError | None:
        """Hand over what a log has; the error that ended it."""
        failure: DovetailError | None = None
        try:
            for data in call:
                sent = decode(ResultBatch, data)
                if sent.payload:
                    batch = from_bytes(sent.payload, self.schema, f"a batch of log {log!r}")
                    self._hand_over(log, Offset(sent.segment, sent.row), batch)
                if self._stopped.is_set():
                    break
        except grpc.RpcError as e:
            failure = told(e, f"reading the log {log!r}")
        except DovetailError as e:
            failure = e
        with self._lock:
            del self._calls[log]
            if self._stopped.is_set():
                return None
            if isinstance(failure, Unreachable) and self._follow and not self._over:
                return None  # it may have been handed to another processor: `_watch` sees
        return failure

    def _watch(self, look: Callable[[], Logs]) -> DovetailError | None:
        """Begin to read logs that are new or somewhere else; all once more when it is over.

        What a log had when its reading ended need not be all: its writer may have begun just then.
        """
        while not self._stopped.wait(LOOK_S):
            try:
                logs, over = look()
            except Unreachable:
                continue  # the manager: it will be back
            except DovetailError as e:
                return e
            with self._lock:
                self._over = over
                idle = [log for log in logs if log.name not in self._calls]
            for log in idle:
                if log.address:
                    self._begin(log)
                elif over:
                    return away(self._query, log)
            if over:
                return None
        return None

    def _hand_over(self, log: str, at: Offset, batch: pa.RecordBatch) -> None:
        while not self._stopped.is_set():
            try:
                self._batches.put((log, at, batch), timeout=0.1)
                self._next[log] = Offset(at.segment, at.row + batch.num_rows)
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
