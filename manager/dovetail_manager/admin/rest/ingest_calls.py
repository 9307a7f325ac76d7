"""Calls that bring batches to streams' homes, kept open for the next batch.

To make a call takes longer than to send a row on one that is open. Each is used by one batch at a
time, so that what ends one concerns that batch alone; several batches at once have several calls.
All of this runs on the event loop: no thread waits for an answer, and none is left waiting.

Invariant: a call is idle, or one batch's, or over; it is idle again only after its answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import grpc

from dovetail_proto import certificate_roles
from dovetail_proto.channels import told
from dovetail_proto.feeds import IngestAck
from dovetail_proto.transport import Security, Unreachable, call_metadata, open_channel
from dovetail_proto.wire.data import decode
from dovetail_proto.wire.methods import INGEST

IDLE_S = 3.0
"""How long a call stays open without a batch: a home has room for some hundred of them."""

ANSWER_S_MAX = 60.0
"""A home that is full pushes back; after a minute the sender should hear of it."""

UNCERTAIN = "the batch may or may not have been taken in"

Call = Any  # of grpc.aio, which has no types here


class IngestCalls:
    """Calls by address; `live` gives the addresses that are in use. For one event loop."""

    def __init__(self, security: Security, live: Callable[[], set[str]]) -> None:
        self._security = security
        self._live = live
        self._channels: dict[str, Any] = {}
        self._idle: dict[str, list[tuple[Call, asyncio.TimerHandle]]] = {}  # used last is last

    async def ask(self, address: str, message: bytes) -> IngestAck:
        """Send a batch and wait for its answer; Unreachable if it may or may not be taken in."""
        call = await self._take(address)
        answered = False
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                with suppress(asyncio.InvalidStateError):  # it is over: `read` tells why
                    await call.write(message)
                data = await call.read()
            if data is grpc.aio.EOF:
                raise Unreachable(f"{UNCERTAIN}: the home ended the call", remedy="try again")
            ack = decode(IngestAck, data)
            answered = True
        except grpc.RpcError as e:
            raise told(e, UNCERTAIN) from e
        except TimeoutError:
            raise Unreachable(
                f"{UNCERTAIN}: the home gave no answer for {ANSWER_S_MAX:g} s", remedy="try again"
            ) from None
        finally:
            if not answered:
                call.cancel()
        self._keep(address, call)
        return ack

    async def _take(self, address: str) -> Call:
        idle = self._idle.get(address, [])
        while idle:
            call, timer = idle.pop()
            timer.cancel()
            if not call.done():
                return call
        if address not in self._channels:
            self._end_gone(await asyncio.to_thread(self._live))
        channel = self._channels.get(address)  # somebody else may have been faster
        if channel is None:
            channel = self._channels[address] = open_channel(
                address, self._security, to=certificate_roles.PROCESSOR, asynchronous=True
            )
        return channel.stream_stream(INGEST)(metadata=call_metadata(self._security))

    def _keep(self, address: str, call: Call) -> None:
        timer = asyncio.get_running_loop().call_later(IDLE_S, self._retire, address, call)
        self._idle.setdefault(address, []).append((call, timer))

    def _retire(self, address: str, call: Call) -> None:
        self._idle[address] = [kept for kept in self._idle[address] if kept[0] is not call]
        call.cancel()

    def _end_gone(self, live: set[str]) -> None:
        """Channels to addresses that are not in use any more end, with the calls on them."""
        for gone in self._channels.keys() - live:
            for call, timer in self._idle.pop(gone, ()):
                timer.cancel()
                call.cancel()
            del self._channels[gone]
