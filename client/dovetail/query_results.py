"""The results of a query as Python reads them: batches, or one table or frame."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from dovetail.quantities import format_count
from dovetail_proto.admin import QueryStatus
from dovetail_proto.channels import Channels
from dovetail_proto.errors import ConfigError
from dovetail_proto.log_reader import START, LogReader, Offset
from dovetail_proto.result_logs import Logs


class LostResultsWarning(UserWarning):
    """A query that failed had found more than could be read: it died with a processor."""


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
        whole: Callable[[], QueryStatus] | None = None,
    ) -> None:
        """`look` finds the logs there are by then, to follow them. Unreachable if one is away.

        `whole` asks how the query stands, if everything is read and losses can be counted.
        """
        self.schema = schema
        self.offsets = {log.name: offsets.get(log.name, START) for log in found[0]}
        self.lost = 0
        self._rows = 0
        self._whole = whole
        self._reader = LogReader(query, schema, found, channels, starts=offsets, look=look)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        piece = self._reader.take()
        if piece is None:
            self._count_losses()
            raise StopIteration
        self._rows += piece.batch.num_rows
        self.offsets[piece.log] = piece.end
        return piece.batch

    def _count_losses(self) -> None:
        """Once, at the end of all that can be read."""
        whole, self._whole = self._whole, None
        if whole is None or self._reader.stopped:
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
        for thread in self._reader.stop():
            thread.join()

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
