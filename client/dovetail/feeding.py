"""Sends batches to a stream's home, each taken in once, however often the call breaks.

    batches ─▶ numbered ─▶ window ─▶ Ingest ─▶ home of the stream
                             ▲────── acknowledged: routed to every query

Batches wait in the window until they are acknowledged. When a call breaks, a new one sends the
window again, to wherever the home is now; the home drops what it has taken before. Each sending is
a source of its own: when all of it is acknowledged, the home is told that it need not know the
source any longer.
"""

from __future__ import annotations

import queue
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import grpc
import pyarrow as pa

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

GOODBYE_S = 1.0
"""How long a home may take to hear that a source is over; one that does not hear it forgets the
source later."""

RETRY_S = 0.2
PATIENCE_S = 30.0
"""How long a home may give no sign before sending is given up."""

Tell = Callable[[int], None]


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


class Feed:
    """Sends to one stream. Not for several threads at once.

    After an error the feed is over, since what became of its window is not known: make another.
    """

    def __init__(
        self,
        stream: str,
        home: Callable[[], str],
        channels: Channels,
        *,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """`home` looks up where the stream is at home now; Unreachable if it is away."""
        self.rows = 0  # routed so far
        self.rows_unread = 0  # of these, rows that no query took in
        self.readers = Readers()
        self._stream = StreamName(stream)
        self._home = home
        self._channels = channels
        self._patience_s = patience_s
        self._source = ""  # of the sending that is under way
        self._sequence = 0  # of its last batch
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
        before = self.rows
        self._source, self._sequence = f"feed-{secrets.token_hex(8)}", 0
        self._heard_s = time.monotonic()
        self._tell = (lambda: tell(self.rows - before)) if tell is not None else lambda: None
        try:
            for batch in batches:
                self._sequence += 1
                rows = None if rows is None else max(0, rows - batch.num_rows)
                m = IngestBatch(self._stream, self._source, self._sequence, to_bytes(batch), rows)
                sent = _Sent(self._sequence, batch.num_rows, encode(m))
                self._wait(partial(self._has_room, len(sent.message)))
                with self._changed:
                    self._window.append(sent)
                    self._window_bytes += len(sent.message)
                    if self._call is not None:
                        self._call.put(sent.message)
                self._wait(lambda: True)  # on its way before the next, which may be long in coming
            self._wait(lambda: not self._window)
            self._say_goodbye()
        except DovetailError as e:
            e.details["rows_routed"] = self.rows - before
            raise
        finally:
            self._hang_up()
        return self.rows - before

    def _has_room(self, size_bytes: int) -> bool:
        if not self._window:
            return True
        fits = self._window_bytes + size_bytes <= WINDOW_BYTES
        return fits and len(self._window) < WINDOW_BATCHES

    def _wait(self, done: Callable[[], bool]) -> None:
        """Until `done`, keeping a call open as long as something has to be sent."""
        while True:
            with self._changed:
                if self._call is not None and (failure := self._call.failure):
                    self._call.close()
                    self._call = None
                    self._bear(failure)
                over = done() and (self._call is not None or not self._window)
                if not over and self._call is not None:
                    self._changed.wait(RETRY_S)
            self._tell()
            if over:
                return
            if self._call is None:
                self._dial()

    def _bear(self, failure: DovetailError) -> None:
        """Raise what ended a call, unless another call may do better."""
        elsewhere = failure.details.get("reason") == "home"  # or not told of the stream yet
        if elsewhere:
            self._heard_s = time.monotonic()
        hopeless = time.monotonic() - self._heard_s > self._patience_s
        if hopeless or not (elsewhere or isinstance(failure, Unreachable)):
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
            self._call = _Call(self._channels, address, self)
            for sent in self._window:
                self._call.put(sent.message)

    def _say_goodbye(self) -> None:
        """Everything is acknowledged: the home may forget the source."""
        if self._call is not None and self._call.failure is None:
            over = IngestBatch(self._stream, self._source, self._sequence, b"", over=True)
            self._call.end(encode(over))

    def _hang_up(self) -> None:
        with self._changed:
            call, self._call = self._call, None
        if call is not None:
            call.close()

    def acknowledged(self, ack: IngestAck) -> None:
        """The home has routed everything up to the answer's sequence; from a call's thread."""
        with self._changed:
            self._heard_s = time.monotonic()
            self.readers = self.readers.then(ack.readers)
            while self._window and self._window[0].sequence <= ack.sequence:
                sent = self._window.popleft()
                self._window_bytes -= len(sent.message)
                self.rows += sent.rows
                self.rows_unread += 0 if ack.readers else sent.rows
            self._changed.notify_all()

    def call_ended(self, call: _Call, failure: DovetailError) -> None:
        """A call is over; from its thread."""
        with self._changed:
            call.failure = failure
            self._changed.notify_all()


class _Call:
    """One Ingest call, and the thread that hears its answers; `close` it, also when it is over."""

    def __init__(self, channels: Channels, address: str, feed: Feed) -> None:
        self.failure: DovetailError | None = None  # why it is over; None while it is not
        self._feed = feed
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._call = channels.stream_stream(address, INGEST, iter(self._requests.get, None))
        self._thread = threading.Thread(target=self._listen, name="feed", daemon=True)
        self._thread.start()

    def put(self, message: bytes) -> None:
        """Send a message."""
        self._requests.put(message)

    def end(self, last: bytes) -> None:
        """Send a last message and let the home end the call, for a moment."""
        self._requests.put(last)
        self._requests.put(None)
        self._thread.join(GOODBYE_S)

    def close(self) -> None:
        """End it, and the thread; its last act is `call_ended`."""
        self._requests.put(None)
        self._call.cancel()
        self._thread.join()

    def _listen(self) -> None:
        failure: DovetailError = Unreachable("sending rows: the home ended the call")
        try:
            for data in self._call:
                self._feed.acknowledged(decode(IngestAck, data))
        except grpc.RpcError as e:
            failure = told(e, "sending rows")
        except DovetailError as e:
            failure = e
        self._requests.put(None)
        self._feed.call_ended(self, failure)
