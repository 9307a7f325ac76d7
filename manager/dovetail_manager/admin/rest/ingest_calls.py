"""Calls that bring batches to streams' homes, kept open for the next batch.

To make a call takes longer than to send a row on one that is open. Each is used by one batch at a
time, so that what ends one concerns that batch alone; several batches at once have several calls.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any

import grpc

from dovetail_proto.channels import Channels, told
from dovetail_proto.feeds import IngestAck
from dovetail_proto.transport import Unreachable
from dovetail_proto.wire.data import decode
from dovetail_proto.wire.methods import INGEST

IDLE_S = 3.0
"""How long a call stays open without a batch: a home has room for some hundred of them."""


class IngestCalls:
    """Those that nobody uses now, by address. For several threads at once."""

    def __init__(self, channels: Channels) -> None:
        self._channels = channels
        self._idle: dict[str, list[IngestCall]] = {}  # used last is last
        self._lock = threading.Lock()

    def take(self, address: str) -> IngestCall:
        """A call for one batch: `give_back` or `end` it."""
        with self._lock:
            idle = self._idle.get(address, [])
            while idle:
                call = idle.pop()
                if call.alive:
                    return call
                call.end()
        return IngestCall(self, self._channels, address)

    def give_back(self, call: IngestCall) -> None:
        """Its batch is answered."""
        with self._lock:
            self._idle.setdefault(call.address, []).append(call)

    def retire(self, call: IngestCall) -> bool:
        """Whether a call may end: nobody uses it, and nobody will."""
        with self._lock:
            idle = self._idle.get(call.address, [])
            unused = call in idle
            if unused:
                idle.remove(call)
            if not idle:
                self._idle.pop(call.address, None)
            return unused


class IngestCall:
    """One call to a home."""

    def __init__(self, calls: IngestCalls, channels: Channels, address: str) -> None:
        self.address = address
        self._calls = calls
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._call: Any = channels.stream_stream(address, INGEST, self._messages())

    @property
    def alive(self) -> bool:
        """Whether it has not ended, as far as is known here."""
        return bool(self._call.is_active())

    def ask(self, message: bytes) -> IngestAck:
        """Send a batch and wait for its answer; Unreachable if it may or may not be taken in."""
        self._requests.put(message)
        try:
            for data in self._call:
                return decode(IngestAck, data)
        except grpc.RpcError as e:
            raise told(e, "the batch may or may not have been taken in") from e
        raise Unreachable("the stream's home gave no answer", remedy="try again")

    def end(self) -> None:
        """Whoever waits for an answer gets none; twice is no error."""
        self._requests.put(None)
        self._call.cancel()

    def _messages(self) -> Iterator[bytes]:
        while True:
            try:
                message = self._requests.get(timeout=IDLE_S)
            except queue.Empty:
                if self._calls.retire(self):
                    return
                continue
            if message is None:
                return
            yield message
