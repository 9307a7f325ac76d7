"""Sends batches to a stream's home, each taken in once, however often the call breaks.

    batches ─▶ waiting ─▶ numbered ─▶ window ─▶ Ingest ─▶ home of the stream
               merged                    ▲────── acknowledged: routed to every query

A batch is sent at once while the window has room; those that wait for room are merged, so that
thousands of small ones a second travel as a few. Batches stay in the window until they are
acknowledged. When a call breaks, a new one sends the window again, to wherever the home is now; the
home drops what it has taken before.

The call stays open for the next sending, until nothing was sent for a while. What is sent on it is
of one source; before it ends, the home is told that it need not know the source any longer.
"""

from __future__ import annotations

import atexit
import queue
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from weakref import WeakSet

import grpc
import pyarrow as pa

from dovetail.rows import CUT_BYTES, CUT_ROWS
from dovetail_proto.arrow_bytes import to_bytes
from dovetail_proto.channels import Channels, told
from dovetail_proto.errors import DovetailError
from dovetail_proto.feeds import IngestAck, IngestBatch
from dovetail_proto.ids import StreamName
from dovetail_proto.transport import Unreachable
from dovetail_proto.wire.data import decode, encode
from dovetail_proto.wire.methods import INGEST

WINDOW_BATCHES = 8
"""A home keeps four batches of a feed; as many again are on their way."""

WINDOW_BYTES = 16 << 20
"""Eight batches of the size that rows are cut to; one alone may be larger."""

WAITING_BATCHES_MAX = 4096
"""That wait for room in the window: a few milliseconds of the smallest ones."""

IDLE_S = 3.0
"""How long a call stays open without rows: a home has room for some hundred calls, and making one
takes a millisecond or two."""

GOODBYE_S = 1.0
"""How long a home may take to end a call that is closed: a round trip, and some patience."""

RETRY_S = 0.2
PATIENCE_S = 30.0
"""How long a home may give no sign, or have no room, before sending is given up."""

Tell = Callable[[int], None]
Requests = queue.SimpleQueue[bytes | None]
"""Messages of a call; None ends it."""


@dataclass(frozen=True, slots=True)
class _Sent:
    sequence: int
    rows: int
    message: bytes


@dataclass(frozen=True, slots=True)
class Readers:
    """How many queries took in what was sent: at most, and last."""

    most: int = 0
    now: int = 0

    def then(self, readers: int) -> Readers:
        """With the next answer."""
        return Readers(max(self.most, readers), readers)


@dataclass(frozen=True, slots=True)
class _Waiting:
    batch: pa.RecordBatch
    rows_left: int | None  # that follow, in the same sending


class Feed:
    """Sends to one stream. Not for several threads at once; `close` it.

    After an error the feed is over, since what became of its window is not known: make another.
    """

    def __init__(
        self,
        stream: str,
        home: Callable[[], str],
        channels: Channels,
        *,
        patience_s: float = PATIENCE_S,
        idle_s: float = IDLE_S,
    ) -> None:
        """`home` looks up where the stream is at home now; Unreachable if it is away."""
        self.rows = 0  # of the sending: routed so far
        self.rows_unread = 0  # of these, rows that no query took in
        self.readers = Readers()
        self._stream = StreamName(stream)
        self._home = home
        self._channels = channels
        self._patience_s = patience_s
        self._idle_s = idle_s
        self._source = ""  # of the call that is open, or was last
        self._sequence = 0  # of its last batch
        self._waiting: deque[_Waiting] = deque()  # for room in the window
        self._waiting_bytes = 0
        self._window: deque[_Sent] = deque()  # not acknowledged, by sequence
        self._window_bytes = 0
        self._changed = threading.Condition()  # of everything above, and of the call's end
        self._call: _Call | None = None
        self._heard_s = 0.0  # when the home last gave a sign
        self._tell: Callable[[], None] = lambda: None  # how far the sending is

    def send(
        self, batches: Iterable[pa.RecordBatch], tell: Tell | None = None, rows: int | None = None
    ) -> int:
        """Send all; returns, with their rows, when every one is routed to the stream's queries.

        `rows` is how many there are in all, if that is known. `tell` hears of the rows routed so
        far. Errors carry them as `details["rows_routed"]`.
        """
        self.rows = self.rows_unread = 0
        self.readers = Readers()
        self._heard_s = time.monotonic()
        self._tell = (lambda: tell(self.rows)) if tell is not None else lambda: None
        try:
            for batch in batches:
                rows = None if rows is None else max(0, rows - batch.num_rows)
                with self._changed:
                    self._waiting.append(_Waiting(batch, rows))
                    self._waiting_bytes += batch.nbytes
                self._wait(self._has_room)  # on its way before the next, which may be long to come
            self._wait(lambda: not self._window and not self._waiting)
        except BaseException as e:
            if isinstance(e, DovetailError):
                e.details["rows_routed"] = self.rows
            self.close()
            raise
        return self.rows

    def close(self, *, waits: bool = True) -> None:
        """End the call, if one is open; twice is no error.

        If all is acknowledged, the home hears that it may forget the source; unless nobody `waits`
        for it, when this returns it has, or had a second for it.
        """
        with self._changed:
            call = self._call
            last = self.goodbye(call.requests) if call is not None else None
            self._call = None
        if call is None:
            return
        if waits or last is None:
            call.close(last)
        else:
            call.let_go(last)

    def _has_room(self) -> bool:
        """Whether another batch may wait."""
        return self._waiting_bytes < CUT_BYTES and len(self._waiting) < WAITING_BATCHES_MAX

    def _wait(self, done: Callable[[], bool]) -> None:
        """Until `done`, keeping a call open as long as something has to be sent."""
        while True:
            with self._changed:
                if self._call is not None and (failure := self._call.failure):
                    self._call.close()
                    self._call = None
                    if self._window:
                        self._bear(failure)
                self._put_waiting()
                pressing = bool(self._window or self._waiting)
                over = done() and (self._call is not None or not pressing)
                if not over and self._call is not None:
                    self._changed.wait(RETRY_S)
            self._tell()
            if over:
                return
            if self._call is None:
                self._dial()

    def _put_waiting(self) -> None:
        """Send what waits, merged, as far as the window has room and a call is open."""
        while self._waiting and self._call is not None:
            merged = [self._waiting[0]]
            size_bytes = merged[0].batch.nbytes
            if self._window and (
                len(self._window) >= WINDOW_BATCHES
                or self._window_bytes + size_bytes > WINDOW_BYTES
            ):
                return
            rows = merged[0].batch.num_rows
            for other in islice(self._waiting, 1, None):
                size_bytes += other.batch.nbytes
                rows += other.batch.num_rows
                if size_bytes > CUT_BYTES or rows > CUT_ROWS:
                    break
                merged.append(other)
            self._put([self._waiting.popleft() for _ in merged])

    def _put(self, merged: list[_Waiting]) -> None:
        assert self._call is not None
        self._waiting_bytes -= sum(w.batch.nbytes for w in merged)
        batch = pa.concat_batches([w.batch for w in merged]) if merged[1:] else merged[0].batch
        self._sequence += 1
        m = IngestBatch(
            self._stream, self._source, self._sequence, to_bytes(batch), merged[-1].rows_left
        )
        sent = _Sent(self._sequence, batch.num_rows, encode(m))
        self._window.append(sent)
        self._window_bytes += len(sent.message)
        self._call.put(sent.message)

    def _bear(self, failure: DovetailError) -> None:
        """Raise what ended a call, unless another call may do better."""
        reason = failure.details.get("reason")
        if reason == "home":  # it is elsewhere, or was not told of the stream yet
            self._heard_s = time.monotonic()
        hopeless = time.monotonic() - self._heard_s > self._patience_s
        if hopeless or not (reason in ("home", "busy") or isinstance(failure, Unreachable)):
            raise failure
        self._changed.wait(RETRY_S)

    def _dial(self) -> None:
        try:
            address = self._home()
        except Unreachable as e:
            with self._changed:
                self._bear(e)
            return
        with self._changed:
            if not self._window:  # else the home may have had some of it
                self._source, self._sequence = f"feed-{secrets.token_hex(8)}", 0
            self._call = _Call(self._channels, address, self, self._idle_s)
            for sent in self._window:
                self._call.put(sent.message)

    # From a call's threads ------------------------------------------------------------------------

    def acknowledged(self, ack: IngestAck) -> None:
        """The home has routed everything up to the answer's sequence."""
        with self._changed:
            self._heard_s = time.monotonic()
            self.readers = self.readers.then(ack.readers)
            while self._window and self._window[0].sequence <= ack.sequence:
                sent = self._window.popleft()
                self._window_bytes -= len(sent.message)
                self.rows += sent.rows
                self.rows_unread += 0 if ack.readers else sent.rows
            self._put_waiting()
            self._changed.notify_all()

    def goodbye(self, requests: Requests) -> bytes | None:
        """The last message of a call that is to end; None if not everything on it is answered.

        Everything is acknowledged then: the home may forget the source.
        """
        with self._changed:
            if self._window or self._waiting:
                return None
            if self._call is not None and self._call.requests is requests:
                self._call = None
            return encode(IngestBatch(self._stream, self._source, self._sequence, b"", over=True))

    def call_ended(self, call: _Call, failure: DovetailError) -> None:
        """A call is over."""
        with self._changed:
            call.failure = failure
            self._changed.notify_all()


class _Call:
    """One Ingest call, and the thread that hears its answers; `close` it unless it was idle."""

    def __init__(self, channels: Channels, address: str, feed: Feed, idle_s: float) -> None:
        self.failure: DovetailError | None = None  # why it is over; None while it is not
        self.requests: Requests = queue.SimpleQueue()
        self.feed = feed
        messages = _messages(self.requests, feed, idle_s)
        self._call = channels.stream_stream(address, INGEST, messages)
        self._thread = threading.Thread(target=self._listen, name="feed", daemon=True)
        self._thread.start()
        _OPEN.add(self)

    def put(self, message: bytes) -> None:
        """Send a message."""
        self.requests.put(message)

    def let_go(self, last: bytes | None) -> None:
        """Have it end by itself, after a last message if there is one."""
        if last is not None:
            self.requests.put(last)
        self.requests.put(None)

    def close(self, last: bytes | None = None) -> None:
        """End it, after a last message if there is one, and the thread, which ends the call."""
        self.let_go(last)
        try:
            if last is not None:
                self._thread.join(GOODBYE_S)
        finally:
            self._call.cancel()
        self._thread.join()

    def _listen(self) -> None:
        failure: DovetailError = Unreachable("sending rows: the home ended the call")
        try:
            for data in self._call:
                self.feed.acknowledged(decode(IngestAck, data))
        except grpc.RpcError as e:
            failure = told(e, "sending rows")
        except DovetailError as e:
            failure = e
        self.requests.put(None)
        self.feed.call_ended(self, failure)


def _messages(requests: Requests, feed: Feed, idle_s: float) -> Iterator[bytes]:
    """What is put, until the call is closed or nothing was put for a while.

    The thread that asks for them must not keep the call alive.
    """
    while True:
        try:
            message = requests.get(timeout=idle_s)
        except queue.Empty:
            if (last := feed.goodbye(requests)) is not None:
                yield last
                return
            continue
        if message is None:
            return
        yield message


_OPEN: WeakSet[_Call] = WeakSet()


@atexit.register
def _close_all() -> None:
    """A call that is still there when the interpreter ends may keep the program from ending."""
    for call in list(_OPEN):
        call.feed.close()
        call.close()
