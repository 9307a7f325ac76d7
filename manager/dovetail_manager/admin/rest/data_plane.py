"""Rows in and results out, through the manager: one kept channel to each processor.

A client of REST need not reach processors. Everything here is bounded: bodies that are held at
once by bytes, calls by number, and of results only a few pieces per reader are ever here, because
the next one is taken only when the last has gone out.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa

from dovetail_manager.admin.rest.ingest_calls import IngestCalls
from dovetail_manager.admin.rest.room import Room
from dovetail_proto import feeds
from dovetail_proto.channels import Channels, joined_rows
from dovetail_proto.errors import Refusal
from dovetail_proto.ids import StreamName
from dovetail_proto.log_reader import LogReader, Offset, Piece
from dovetail_proto.result_logs import Logs
from dovetail_proto.transport import Security
from dovetail_proto.wire.data import BATCH_BYTES_MAX, encode

HELD_BYTES_MAX = 4 * BATCH_BYTES_MAX
"""Of bodies on their way: enough to keep several feeds busy, small beside a machine."""

FEEDS_MAX = 32
"""Batches under way at once; each takes a call to its home."""

MOVING_S_MAX = 60.0
"""How long the next home of a stream is looked for."""

SOURCE_S_MAX = 300.0
"""Silent for longer, a source of ours is not used again: homes forget it after twice as long."""

HOME_S = 0.2
"""Between two looks for the next home of a stream whose home leaves."""

READERS_MAX = 64
"""Readers of results at once; each takes a thread, and one per log."""

WAITS_MAX = 256
"""Waits at once; each takes a call per processor, no thread."""


@dataclass(slots=True)
class _Source:
    """A feed of ours, for batches that come without a source of their own, one after the other."""

    name: str = field(default_factory=lambda: f"rest-{secrets.token_hex(8)}")
    next: int = 1  # sequence of its next batch; all before it were taken in
    used_s: float = 0.0


class DataPlane:
    """The processors, as REST reaches them. `live` gives the addresses that are in use."""

    def __init__(self, security: Security, live: Callable[[], set[str]]) -> None:
        self._channels = Channels(security, live)
        self._reading = ThreadPoolExecutor(READERS_MAX, thread_name_prefix="rest-results")
        self._calls = IngestCalls(security, live)
        self._sources: dict[str, list[_Source]] = {}  # by stream: those that nobody uses now
        self.held = Room(HELD_BYTES_MAX, "bytes in batches")
        self.feeds = Room(FEEDS_MAX, "batches")
        self.readers = Room(READERS_MAX, "readers of results")
        self.waits = Room(WAITS_MAX, "waits")

    def close(self) -> None:
        """End all calls; those to homes end with their event loop."""
        self._channels.close()
        self._reading.shutdown(wait=False, cancel_futures=True)

    async def feed(
        self,
        address: str,
        home: Callable[[], Awaitable[str]],
        stream: str,
        payload: bytes,
        given: tuple[str, int] | None,
    ) -> tuple[str, int, feeds.IngestAck]:
        """Send one batch to the stream's home; its source, its sequence and the home's answer.

        The home is at `address`; if it leaves, `home` looks where the stream is then.

        `given` is the client's own source and sequence: the home drops what it has had already.
        Without, the batch gets ours, and a call that fails may or may not have been taken in.
        """
        batch = partial(feeds.IngestBatch, StreamName(stream))
        if given is not None:
            return *given, await self._ingest(address, home, batch(*given, payload))
        source = self._free_source(stream)
        try:
            ack = await self._ingest(address, home, batch(source.name, source.next, payload))
        except Refusal as e:
            if e.details.get("reason") != "source":
                raise
            # The home was started anew and knows none of ours. It has taken nothing of this batch,
            # and nobody before it has: whoever was asked first has refused it, too.
            self._sources.pop(stream, None)
            source = _Source()
            ack = await self._ingest(address, home, batch(source.name, source.next, payload))
        sequence, source.next, source.used_s = source.next, source.next + 1, time.monotonic()
        self._sources.setdefault(stream, []).append(source)
        return source.name, sequence, ack

    def _free_source(self, stream: str) -> _Source:
        """One that nobody uses; after a failure it is not known how far one is, so it is lost."""
        free = self._sources.get(stream, [])
        while free:
            source = free.pop()
            if time.monotonic() < source.used_s + SOURCE_S_MAX:
                return source
        return _Source()

    async def _ingest(
        self, address: str, home: Callable[[], Awaitable[str]], batch: feeds.IngestBatch
    ) -> feeds.IngestAck:
        """Send a batch; to the next home, if the stream is on its way there."""
        message = encode(batch)
        end_s = time.monotonic() + MOVING_S_MAX
        while True:
            try:
                with self.feeds.take():
                    return await self._calls.ask(address, message)
            except Refusal as e:
                if e.details.get("reason") != "home" or time.monotonic() > end_s:
                    raise
            await asyncio.sleep(HOME_S)
            address = await home()

    async def joined(self, homes: Mapping[str, str], query: str, timeout_s: float) -> int:
        """See `Channels.joined`; takes no thread."""
        with self.waits.take():
            calls = self._channels.begin_joined(homes, query, timeout_s)
            try:
                await asyncio.gather(*(_end_of(call) for call in calls.values()))
                return sum(joined_rows(call, home) for home, call in calls.items())
            finally:
                for call in calls.values():
                    call.cancel()

    async def results(
        self,
        query: str,
        schema: pa.Schema,
        logs: Logs,
        start: Offset,
        look: Callable[[], Logs] | None,
    ) -> AsyncGenerator[Piece | None]:
        """The results of several logs as they come; `look` finds those that are new, if wanted.

        First of all None, once every log is open: a log that is missing raises before it.
        """
        run = asyncio.get_running_loop().run_in_executor
        with self.readers.take():
            starts = {log.name: start for log in logs[0]}
            reader = LogReader(query, schema, logs, self._channels, starts=starts, look=look)
            try:
                await run(self._reading, reader.wait_open)
                yield None
                while (piece := await run(self._reading, reader.take)) is not None:
                    yield piece
            finally:
                reader.stop()


async def _end_of(call: Any) -> None:
    """When a call that runs without a thread of its own is done."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()

    def tell() -> None:
        if not ended.done():
            ended.set_result(None)

    def done(_: Any) -> None:
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(tell)

    call.add_done_callback(done)
    await ended
