"""Rows in and results out, through the manager: one kept channel to each processor.

A client of REST need not reach processors. Everything here is bounded: bodies that are held at
once by bytes, calls by number, and of results only a few batches per processor are ever here,
because a reader takes the next one only when the last has gone out.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import grpc
import pyarrow as pa

from dovetail_manager.admin.rest.results import Piece, read_piece
from dovetail_manager.admin.rest.room import Room
from dovetail_proto import certificate_roles, feeds
from dovetail_proto.errors import Domain, DovetailError, Refusal
from dovetail_proto.ids import QueryName, StreamName
from dovetail_proto.transport import Security, Unreachable, call_metadata, open_channel, raised
from dovetail_proto.wire.data import BATCH_BYTES_MAX, decode, encode
from dovetail_proto.wire.methods import AWAIT_JOINED, INGEST, READ_RESULTS

HELD_BYTES_MAX = 4 * BATCH_BYTES_MAX
"""Of bodies on their way: enough to keep several feeds busy, small beside a machine."""

FEEDS_MAX = 32
"""Batches under way at once; each takes a thread while its home takes it in."""

INGEST_TIMEOUT_S = 60.0
"""A home that is full pushes back; after a minute the sender should hear of it."""

HOME_S = 0.2
"""Between two looks for the next home of a stream whose home leaves."""

READERS_MAX = 64
"""Readers of results at once; each takes a thread per processor."""

WAITS_MAX = 256
"""Waits at once; each takes a call per processor, no thread."""

LOOK_S = 1.0
"""How soon a follower sees the log of a processor that is new."""

Logs = tuple[Sequence[tuple[feeds.ReadResults, str]], bool]
"""What to read and where; and whether there will be no other logs."""

CREDIT_BATCHES = 2
"""Of results, per processor and reader: one that goes out and one that is on its way."""


@dataclass(slots=True)
class _Source:
    """Our own feed of one stream, for batches that come without a source of their own."""

    name: str = ""
    sequence: int = 0  # of the last batch that was taken in
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def renew(self) -> None:
        """Whether the last batch was taken in is not known: go on under another name."""
        self.name, self.sequence = f"rest-{secrets.token_hex(8)}", 0


class DataPlane:
    """The processors, as REST reaches them. `live` gives the addresses that are in use."""

    def __init__(self, security: Security, live: Callable[[], set[str]]) -> None:
        self._security = security
        self._live = live
        self._channels: dict[str, grpc.Channel] = {}
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(FEEDS_MAX, thread_name_prefix="rest-feed")
        self._sources: dict[str, _Source] = {}
        self.held = Room(HELD_BYTES_MAX, "bytes in batches")
        self.feeds = Room(FEEDS_MAX, "batches")
        self.readers = Room(READERS_MAX, "readers of results")
        self.waits = Room(WAITS_MAX, "waits")

    def close(self) -> None:
        """End all calls."""
        with self._lock:
            for channel in self._channels.values():
                channel.close()
            self._channels.clear()
        self._threads.shutdown(wait=False, cancel_futures=True)

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
        source = self._sources.setdefault(stream, _Source())
        async with source.turn:
            if not source.name:
                source.renew()
            try:
                sequence = source.sequence + 1
                ack = await self._ingest(address, home, batch(source.name, sequence, payload))
            except BaseException:
                source.renew()
                raise
            source.sequence = sequence
            return source.name, sequence, ack

    async def _ingest(
        self, address: str, home: Callable[[], Awaitable[str]], batch: feeds.IngestBatch
    ) -> feeds.IngestAck:
        """Send a batch; to the next home, if the stream is on its way there."""
        message = encode(batch)
        end_s = time.monotonic() + INGEST_TIMEOUT_S
        while True:
            try:
                return await self._ingest_at(address, batch.stream, message)
            except Refusal as e:
                if e.details.get("reason") != "home" or time.monotonic() > end_s:
                    raise
            await asyncio.sleep(HOME_S)
            address = await home()

    async def _ingest_at(self, address: str, stream: str, message: bytes) -> feeds.IngestAck:
        def send() -> feeds.IngestAck:
            call = self._channel(address).stream_stream(INGEST)(
                iter([message]), timeout=INGEST_TIMEOUT_S, metadata=call_metadata(self._security)
            )
            try:
                for data in call:
                    return decode(feeds.IngestAck, data)
            except grpc.RpcError as e:
                raise _told(e, "the batch may or may not have been taken in") from e
            raise Unreachable(f"stream {stream!r}: its home gave no answer", remedy="try again")

        with self.feeds.take():
            return await asyncio.get_running_loop().run_in_executor(self._threads, send)

    async def joined(self, addresses: Sequence[str], query: str, timeout_s: float) -> int:
        """Wait until all that the splits at `addresses` have is joined; how many rows it was."""
        request = encode(feeds.QueryAt(QueryName(query)))
        with self.waits.take():
            calls = [
                self._channel(address)
                .unary_unary(AWAIT_JOINED)
                .future(request, timeout=timeout_s, metadata=call_metadata(self._security))
                for address in addresses
            ]
            try:
                answers = await asyncio.gather(*(_outcome(call) for call in calls))
            finally:
                for call in calls:
                    call.cancel()
        return sum(decode(feeds.Joined, data).rows for data in answers)

    async def results(
        self, schema: pa.Schema, logs: Logs, look: Callable[[], Awaitable[Logs]] | None
    ) -> AsyncGenerator[Piece | None]:
        """The results of several logs as they come; `look` finds those that are new, if wanted.

        First of all None, once every log is open: a log that is missing raises before it.
        """
        loop = asyncio.get_running_loop()
        arrived: asyncio.Queue[tuple[_Reader, _Found]] = asyncio.Queue()
        readers: dict[str, _Reader] = {}  # by log
        places: dict[str, tuple[int, int]] = {}  # where a log is read on

        def begin(found: Iterable[tuple[feeds.ReadResults, str]]) -> None:
            """Read the logs that are not being read."""
            for wanted, address in found:
                if wanted.log in readers:
                    continue
                segment, row = places.get(wanted.log, (wanted.segment, wanted.row))
                message = encode(replace(wanted, segment=segment, row=row))
                reader = readers[wanted.log] = _Reader(
                    wanted.log,
                    schema,
                    self._channel(address).unary_stream(READ_RESULTS)(
                        message, metadata=call_metadata(self._security)
                    ),
                    lambda reader, item: loop.call_soon_threadsafe(
                        arrived.put_nowait, (reader, item)
                    ),
                )
                reader.start()

        with self.readers.take():
            try:
                found, over = logs
                begin(found)
                unopened: set[str] | None = set(readers)  # None: said that all are open
                early: list[tuple[_Reader, Piece]] = []  # came meanwhile; `credit` bounds them
                look_at_s = loop.time() + LOOK_S
                while unopened is not None or readers or not (over or look is None):
                    if look is not None and not over and loop.time() >= look_at_s:
                        found, over = await look()
                        begin(found)
                        look_at_s = loop.time() + LOOK_S
                        continue
                    if unopened is not None and not unopened:
                        unopened = None
                        yield None
                        for reader, piece in early:
                            yield piece
                            reader.credit.release()
                        continue
                    watching = look is not None and not over
                    try:
                        wait_s = LOOK_S if watching else None
                        reader, item = await asyncio.wait_for(arrived.get(), wait_s)
                    except TimeoutError:
                        continue
                    if item is None or (isinstance(item, Unreachable) and watching):
                        del readers[reader.log]  # a log may be handed to another processor
                    elif isinstance(item, DovetailError):
                        raise item
                    if unopened is not None:
                        unopened.discard(reader.log)
                    if isinstance(item, Piece):
                        places[item.log] = item.segment, item.row + item.batch.num_rows
                        if unopened is not None:
                            early.append((reader, item))
                        else:
                            yield item
                            reader.credit.release()
            finally:
                for reader in readers.values():
                    reader.stop()

    def _channel(self, address: str) -> grpc.Channel:
        with self._lock:
            found = self._channels.get(address)
        if found is not None:
            return found
        live = self._live()
        with self._lock:
            for gone in self._channels.keys() - live:
                self._channels.pop(gone).close()
            if address not in self._channels:
                self._channels[address] = open_channel(
                    address, self._security, to=certificate_roles.PROCESSOR
                )
            return self._channels[address]


class _Opened:
    """A processor has the log that is wanted, and begins to read it."""


_Found = Piece | _Opened | DovetailError | None
"""What a reader hands over; None at the end."""


class _Reader(threading.Thread):
    """Reads one log, no faster than `credit` is given back."""

    def __init__(
        self,
        log: str,
        schema: pa.Schema,
        call: Any,
        hand_over: Callable[[_Reader, _Found], object],
    ) -> None:
        super().__init__(name=f"rest-results-{log}", daemon=True)
        self.credit = threading.Semaphore(CREDIT_BATCHES)
        self.log = log
        self._schema = schema
        self._call = call
        self._hand_over = hand_over
        self._stopped = False

    def run(self) -> None:
        """Hand over that the log is open, every piece, then None, or the error that ended it."""
        last: DovetailError | None = None
        try:
            for data in self._call:
                piece = read_piece(self.log, decode(feeds.ResultBatch, data), self._schema)
                if piece is None:
                    self._hand_over(self, _Opened())
                    continue
                self.credit.acquire()
                if self._stopped:
                    return
                self._hand_over(self, piece)
        except grpc.RpcError as e:
            last = _told(e, f"reading the log {self.log!r}")
        except DovetailError as e:
            last = e
        with suppress(RuntimeError):  # the loop has ended, and with it whoever asked
            self._hand_over(self, last)

    def stop(self) -> None:
        """End the call and the thread; nothing more is handed over that matters."""
        self._stopped = True
        self._call.cancel()
        self.credit.release()


async def _outcome(call: Any) -> bytes:
    """The answer of a call that runs without a thread of its own."""
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
    try:
        answer: bytes = call.result()
    except grpc.RpcError as e:
        if e.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            raise Refusal(
                Domain.BUSY,
                "what was sent is not joined within the time given",
                remedy="wait again, longer",
                reason="busy",
            ) from e
        raise _told(e, "waiting for the join") from e
    return answer


def _told(error: grpc.RpcError, doing: str) -> DovetailError:
    made = raised(error)
    if isinstance(made, Unreachable):
        return Unreachable(f"{doing}: {made.message}", remedy=made.remedy)
    return made
