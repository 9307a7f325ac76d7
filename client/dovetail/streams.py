"""A stream of a cluster: a named, typed input that programs send rows to."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pyarrow as pa

from dovetail.admin_calls import AdminCalls
from dovetail.feeding import Feed
from dovetail.html import facts
from dovetail.rows import batches_of
from dovetail_proto.admin import StreamStatus
from dovetail_proto.channels import Channels
from dovetail_proto.errors import DovetailError, InputError
from dovetail_proto.transport import Unreachable


class UnreadWarning(UserWarning):
    """Rows were sent that a query did not take in: none listens, or one has failed."""


class Stream:
    """One stream. Made by `Cluster.stream`; for one thread at a time.

    Queries see what is sent after they were submitted. What is sent while none listens goes
    nowhere; `send` warns of it.
    """

    def __init__(self, status: StreamStatus, admin: AdminCalls, channels: Channels) -> None:
        self.name = status.name
        self.schema: pa.Schema = pa.ipc.read_schema(pa.py_buffer(status.schema))
        self._admin = admin
        self._channels = channels
        self._address = ""  # of the home, as last heard; empty: never
        self._trusted = False  # whether the last send found the home there
        self._feed: Feed | None = None  # what the last send was done with, if it went well

    def send(
        self,
        data: Any,
        progress: Callable[[int], None] | None = None,
        *,
        rows: int | None = None,
    ) -> int:
        """Send rows; returns their number when all are routed to every query that listens.

        `data` is an Arrow table, batch or reader, a pandas or Polars frame, or whatever else
        speaks Arrow's C stream interface; it is read once, batch by batch, so a reader may be
        larger than memory. Its columns are those of `schema`, in any order. Small batches of a
        reader are sent as they come, and merged where they come faster than the home answers. A
        query without room for more makes this wait. `progress` is called with the rows routed so
        far. `rows` says how many a reader will give: policy `active-disk` asks how much state will
        come. Tables and frames say it themselves.

        Every row is taken in once: batches are numbered, and after a broken connection those that
        were not acknowledged are sent again. In what order queries see the rows of several
        senders is not promised, nor that they are joined when this returns: see `Query.wait`.

        UnreadWarning if no query listens, or if one that did has failed meanwhile.

        InputError if the rows do not fit or the stream has ended; Unreachable if its home stays
        away; Refusal if its home died and with it what was taken in before.
        `details["rows_routed"]` then tells how many rows, from the beginning of `data`, are
        certainly taken in; up to eight batches after them may be, small ones merged.
        """
        feed, self._feed = self._feed or Feed(self.name, self._find_home(), self._channels), None
        try:
            total = len(data) if rows is None and hasattr(data, "__len__") else rows
            sent = feed.send(batches_of(data, self.schema, self.name), progress, total)
        except DovetailError as e:
            if isinstance(e, Unreachable) or e.details.get("reason") == "source":
                e.message += "".join(f"; {cause}" for cause in self._failures())
            raise
        self._trusted, self._feed = True, feed
        if feed.rows_unread or feed.readers.now < feed.readers.most:
            self._warn(feed)
        return sent

    def _warn(self, feed: Feed) -> None:
        said = self._failures()
        if feed.rows_unread:
            said.insert(
                0,
                f"no query reads stream {self.name!r}: {feed.rows_unread:,} rows went nowhere "
                "(queries see what is sent after they were submitted)",
            )
        if said:
            warnings.warn("; ".join(said), UnreadWarning, stacklevel=3)

    def _failures(self) -> list[str]:
        """What became of the queries on this stream that have failed, as far as can be learnt."""
        with suppress(DovetailError):
            return [
                f"query {q.name!r}, which reads it, has failed: {q.cause}"
                for q in self._admin.list_queries().queries
                if q.state == "failed" and self.name in {i.stream for i in q.inputs}
            ]
        return []

    def end(self) -> StreamStatus:
        """Say that nothing more will be sent; twice is no error. Queries go on."""
        self.stop_sending()
        self._trusted = False
        return self._admin.end_stream(self.name)

    def drop(self) -> StreamStatus:
        """Forget it, so that its name is free; its last status. Refusal if a query reads it."""
        self.stop_sending()
        self._trusted = False
        return self._admin.drop_stream(self.name)

    def status(self) -> StreamStatus:
        """How far it has come."""
        return self._admin.get_stream(self.name)

    def stop_sending(self) -> None:
        """Let the connection go that `send` keeps for the next one, for some seconds."""
        feed, self._feed = self._feed, None
        if feed is not None:
            feed.close()

    def __del__(self) -> None:
        """A program may make a stream for every row: none must leave a connection behind."""
        feed = getattr(self, "_feed", None)
        if feed is not None:
            with suppress(RuntimeError):  # collected in the connection's own thread, which ends
                feed.close(waits=False)

    def _find_home(self) -> Callable[[], str]:
        """`_home` for a feed, which sends only for us, and must not keep us alive beyond that."""
        ours = weakref.WeakMethod(self._home)

        def find() -> str:
            home = ours()
            assert home is not None
            return home()

        return find

    def _home(self) -> str:
        """Where to send: the manager is asked the first time, and again when a call broke.

        While it is away, the home is where it was.
        """
        if self._trusted:
            self._trusted = False
            return self._address
        try:
            status = self.status()
        except Unreachable:
            if not self._address:
                raise
            return self._address
        self._address = _address(status)
        return self._address

    def __repr__(self) -> str:
        return f"Stream({self.name!r})"

    def _repr_html_(self) -> str:
        s = self.status()
        columns = ", ".join(f"{f.name} {f.type}" for f in self.schema)
        return facts(
            f"stream {s.name}",
            {
                "columns": columns,
                "rows": f"{s.rows:,}",
                "ended": "yes" if s.ended else "no",
                "home": s.home,
                **({"read from": s.path} if s.path else {}),
            },
        )


def _address(status: StreamStatus) -> str:
    """Where its rows are taken in; an error if they are not."""
    if status.path:
        raise InputError(
            f"stream {status.name!r} is read from {status.path!r}",
            remedy="declare another stream to send rows to",
        )
    if status.ended:
        raise InputError(
            f"stream {status.name!r} has ended", remedy="create another stream, or do not end it"
        )
    if not status.address:
        raise Unreachable(
            f"stream {status.name!r}: its home, processor {status.home!r}, is away",
            remedy="start it again, then send the rows again",
        )
    return status.address
