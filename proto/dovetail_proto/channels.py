"""The processors' data planes as clients and the manager reach them: one channel per address."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import grpc

from dovetail_proto import certificate_roles
from dovetail_proto.errors import Domain, DovetailError, Refusal
from dovetail_proto.feeds import Joined, QueryAt
from dovetail_proto.ids import QueryName
from dovetail_proto.transport import Security, Unreachable, call_metadata, open_channel, raised
from dovetail_proto.wire.data import decode, encode
from dovetail_proto.wire.methods import AWAIT_JOINED


class Channels:
    """Channels that are opened when first used. Safe in several threads at once.

    `live` gives the addresses that are in use: channels to others go when a new one is opened.
    Once they are closed, every call is refused.
    """

    def __init__(self, security: Security, live: Callable[[], set[str]] | None = None) -> None:
        self._security = security
        self._live = live
        self._open: dict[str, grpc.Channel] = {}
        self._closed = False
        self._lock = threading.Lock()  # of the two above

    def close(self) -> None:
        """End every call."""
        with self._lock:
            self._closed = True
            for channel in self._open.values():
                channel.close()
            self._open.clear()

    def stream_stream(
        self, address: str, method: str, requests: Iterable[bytes], timeout_s: float | None = None
    ) -> Any:
        """A call that sends and is answered piece by piece."""
        call = self._channel(address).stream_stream(method)
        return call(iter(requests), timeout=timeout_s, metadata=call_metadata(self._security))

    def unary_stream(self, address: str, method: str, request: bytes) -> Any:
        """A call that is answered piece by piece."""
        call = self._channel(address).unary_stream(method)
        return call(request, metadata=call_metadata(self._security))

    def joined(self, homes: Mapping[str, str], query: str, timeout_s: float | None) -> int:
        """Wait until all that splits of the query at `homes` (name → address) took in is joined.

        How many rows that was. Refusal of domain `busy` if the time does not suffice.
        """
        calls = self.begin_joined(homes, query, timeout_s)
        try:
            return sum(joined_rows(call, home) for home, call in calls.items())
        finally:
            for call in calls.values():
                call.cancel()

    def begin_joined(
        self, homes: Mapping[str, str], query: str, timeout_s: float | None
    ) -> dict[str, Any]:
        """The calls of `joined` by home, under way; `joined_rows` reads one that is done."""
        request = encode(QueryAt(QueryName(query)))
        return {
            home: self._channel(address)
            .unary_unary(AWAIT_JOINED)
            .future(request, timeout=timeout_s, metadata=call_metadata(self._security))
            for home, address in homes.items()
        }

    def _channel(self, address: str) -> grpc.Channel:
        with self._lock:
            if address in self._open:
                return self._open[address]
        live = None if self._live is None else self._live()
        with self._lock:
            if self._closed:
                raise closed()
            for gone in () if live is None else self._open.keys() - live:
                self._open.pop(gone).close()
            if address not in self._open:
                self._open[address] = open_channel(
                    address, self._security, to=certificate_roles.PROCESSOR
                )
            return self._open[address]


def closed() -> Refusal:
    """The error of a call after the connection to the cluster was closed."""
    return Refusal(
        Domain.MESSAGE,
        "the connection to the cluster is closed",
        remedy="make the call before `close` or inside the `with` block, or connect again",
        reason="state",
    )


def told(error: grpc.RpcError, doing: str) -> DovetailError:
    """What a processor raised; where it did not answer, with what we were about.

    A call is the error that it raises. Without its traceback it goes when nobody has it any more;
    with it, the collector may find it at the interpreter's end, when a thread of gRPC that was
    stopped then may hold its lock for ever.
    """
    error.__traceback__ = None
    made = raised(error)
    if isinstance(made, Unreachable):
        return Unreachable(f"{doing}: {made.message}", remedy=made.remedy)
    return made


def joined_rows(call: Any, home: str) -> int:
    """How many rows a call of `begin_joined` waited for; waits for its end."""
    try:
        return decode(Joined, call.result()).rows
    except grpc.RpcError as e:
        raise _not_joined(e, home) from None


def _not_joined(error: Any, home: str) -> DovetailError:
    failure = told(error, f"waiting for the join at processor {home!r}")
    if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
        return failure
    return Refusal(
        Domain.BUSY,
        "what was sent is not joined within the time given",
        remedy="wait again, longer",
        reason="busy",
    )
