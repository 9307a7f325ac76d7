"""The data plane's calls, as gRPC handlers: frames, groups, feeding, waiting, reading results.

Each call decodes and checks what comes in its own thread, so that the worker gets batches that are
safe to use; whatever is wrong ends that call with our error.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import grpc

from dovetail_processor.join.transfer import decode
from dovetail_processor.operators.home import Sent
from dovetail_processor.shell.files import Logs
from dovetail_processor.shell.frames import unpack
from dovetail_processor.shell.log_transfer import Keeper
from dovetail_processor.shell.result_log import Listener, LogRead
from dovetail_processor.shell.threads import WorkerLoop
from dovetail_proto.arrow_bytes import from_bytes
from dovetail_proto.errors import Domain, DovetailError, InputError, Refusal
from dovetail_proto.feeds import (
    IngestAck,
    IngestBatch,
    Joined,
    LinkAck,
    LogPiece,
    QueryAt,
    ReadResults,
)
from dovetail_proto.ids import (
    OWNER,
    ProcessorId,
    QueryName,
    SplitId,
    StreamName,
)
from dovetail_proto.messages import ReceivePartitions
from dovetail_proto.query import QueryPlan
from dovetail_proto.transport import abort
from dovetail_proto.wire import data as wire

CHUNK_BYTES_MAX = 1 << 30
"""A chunk of a move: one group at least, and a group may be large."""

INGEST_SHARE = 16
"""A batch is at most this part of the memory limit: it must fit beside what is on its way."""

INGEST_BYTES_MIN = 4 << 20
"""But what a client cuts its rows to is always taken: batches of 2 MB, some bytes around them."""

INGEST_AHEAD = 4
"""Batches of one feed that may wait to be routed: one is routed while others are on their way."""

FEEDS_MAX, READS_MAX, WAITS_MAX, LINKS_MAX = 256, 256, 128, 256
"""Calls at once, each of which has a thread: feeds, readers of results, waits for the join; and
what processors ask of each other, for clusters of some dozens. One more is refused, by name."""

CALLS_MAX = FEEDS_MAX + READS_MAX + WAITS_MAX + LINKS_MAX + 32
"""Threads of the server: refusing takes one, too."""

LOOK_S = 1.0
"""Between two looks whether a caller that waits is still there."""

T = TypeVar("T")


class DataPlane:
    """See the module. Acknowledgements go back on the call that the frames came on."""

    def __init__(self, loop: WorkerLoop, data_dir: Path, logs: Logs) -> None:
        self._loop = loop
        self._worker = loop.worker
        self._data_dir = data_dir
        self._logs = logs
        self._keeper = Keeper(data_dir)
        self._ingest_bytes = max(INGEST_BYTES_MIN, loop.worker.memory_bytes // INGEST_SHARE)
        self._ingest_rooms: dict[StreamName, ByteRoom] = {}
        self._acks: dict[tuple[ProcessorId, SplitId], queue.SimpleQueue[bytes | None]] = {}

    def handlers(self) -> dict[str, grpc.RpcMethodHandler]:
        """By method name; messages are bytes."""
        links, feeds = CallRoom("links", LINKS_MAX), CallRoom("feeds", FEEDS_MAX)
        reads, waits = CallRoom("readers of results", READS_MAX), CallRoom("waits", WAITS_MAX)
        return {
            "Feed": grpc.stream_stream_rpc_method_handler(_guarded_stream(links, self.feed)),
            "ReceivePartitions": grpc.stream_unary_rpc_method_handler(
                _guarded(links, self.receive_partitions)
            ),
            "Ingest": grpc.stream_stream_rpc_method_handler(_guarded_stream(feeds, self.ingest)),
            "AwaitJoined": grpc.unary_unary_rpc_method_handler(_guarded(waits, self.await_joined)),
            "ReadResults": grpc.unary_stream_rpc_method_handler(
                _guarded_stream(reads, self.read_results)
            ),
            "KeepResults": grpc.unary_unary_rpc_method_handler(_guarded(links, self.keep_results)),
        }

    def send_ack(self, to: ProcessorId, ack: LinkAck) -> None:
        """Tell a split's host how far its instance here is; lost if its link is down."""
        answers = self._acks.get((to, ack.split))
        if answers is not None:
            answers.put(wire.encode(ack))

    def feed(self, frames: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """A link: frames in, acknowledgements out, until the other side ends it."""
        metadata = dict(context.invocation_metadata())
        source = ProcessorId(str(metadata.get("dovetail-processor", "")))
        if not OWNER.fullmatch(source):
            raise Refusal(Domain.MEMBER, "a link without the name of its processor")
        answers: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        failure: list[DovetailError] = []
        context.add_callback(lambda: answers.put(None))
        reader = threading.Thread(
            target=self._read_frames, args=(source, frames, answers, failure), daemon=True
        )
        reader.start()
        while (answer := answers.get()) is not None:
            yield answer
        for link in [link for link, used in list(self._acks.items()) if used is answers]:
            self._acks.pop(link, None)
        if failure:
            raise failure[0]

    def _read_frames(
        self,
        source: ProcessorId,
        frames: Iterator[bytes],
        answers: queue.SimpleQueue[bytes | None],
        failure: list[DovetailError],
    ) -> None:
        try:
            for data in frames:
                split, number, item, size_bytes = unpack(data, self._plan)
                self._acks[source, split] = answers
                self._loop.post(partial(self._worker.frame, split, number, item, size_bytes))
                del data, item  # while this thread waits, only the worker may hold the rows
        except grpc.RpcError:
            pass
        except DovetailError as e:
            failure.append(e)
        except Exception as e:  # the request stream of a call that was cancelled
            failure.append(Refusal(Domain.MESSAGE, f"a link ends: {e}"))
        answers.put(None)

    def receive_partitions(self, parts: Iterator[bytes], _: grpc.ServicerContext) -> bytes:
        """A chunk of a move."""
        self.take_groups(wire.decode_parts(parts, CHUNK_BYTES_MAX))
        return b""

    def take_groups(self, message: ReceivePartitions) -> None:
        """A chunk of a move, checked here, kept by the worker; Refusal if it cannot be for it."""
        arrived = decode(message.payload, self._plan(message.ref.query), message.groups)
        self._loop.post(lambda: self._worker.control(message, arrived))

    def _plan(self, query: QueryName) -> QueryPlan:
        found = self._worker.queries.get(query)
        if found is None:
            raise Refusal(Domain.QUERY, f"query {query!r} does not run here")
        return found.task.plan

    # Clients --------------------------------------------------------------------------------------

    def ingest(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """A source's batches, each answered when it is routed; at the end that it is over."""
        answers: queue.SimpleQueue[IngestAck | DovetailError | None] = queue.SimpleQueue()
        room, over = threading.Semaphore(INGEST_AHEAD), threading.Event()

        def end() -> None:
            over.set()
            room.release(INGEST_AHEAD + 1)  # whoever reads must not wait for ever
            answers.put(None)

        context.add_callback(end)
        threading.Thread(
            target=self._read_batches, args=(requests, answers, room, over), daemon=True
        ).start()
        while (answer := answers.get()) is not None:
            if isinstance(answer, DovetailError):
                raise answer
            room.release()
            yield wire.encode(answer)

    def _read_batches(
        self,
        requests: Iterator[bytes],
        answers: queue.SimpleQueue[IngestAck | DovetailError | None],
        room: threading.Semaphore,
        over: threading.Event,
    ) -> None:
        try:
            for data in requests:
                m = wire.decode(IngestBatch, data)
                if m.over:
                    self._forget(m.stream, m.source)
                    continue
                room.acquire()
                if over.is_set():
                    return
                self._take_batch(m, answers, over)
            for _ in range(INGEST_AHEAD):
                room.acquire()  # until all that was taken is answered
            answers.put(None)
        except DovetailError as e:
            answers.put(e)
        except Exception:  # the caller went away
            answers.put(None)

    def _take_batch(
        self,
        m: IngestBatch,
        answers: queue.SimpleQueue[IngestAck | DovetailError | None],
        over: threading.Event,
    ) -> None:
        stream = m.stream
        schema = self._worker.streams.home(stream).task.schema
        largest = self._ingest_bytes
        if len(m.payload) > largest:
            raise InputError(
                f"a batch for {m.stream!r} has {len(m.payload):,} bytes, more than the {largest:,} "
                "that its home takes at once",
                remedy="send smaller batches",
            )
        size_bytes = len(m.payload)
        room = self._ingest_rooms.setdefault(stream, ByteRoom(self._ingest_bytes))
        if not room.take(size_bytes, over):
            return
        try:
            batch = from_bytes(m.payload, schema, f"a batch for {m.stream!r}")
        except DovetailError:
            room.give_back(size_bytes)
            raise
        number = m.sequence  # a batch that waits must not keep its message

        def routed(rows: int, readers: int) -> None:
            room.give_back(size_bytes)
            answers.put(IngestAck(number, rows, readers))

        def refused(error: DovetailError) -> None:
            room.give_back(size_bytes)
            answers.put(error)

        sent = Sent(m.source, number, batch, routed, refused, m.rows_left)

        def accept() -> None:
            try:
                self._worker.accept(stream, sent)
            except DovetailError as e:
                refused(e)

        self._loop.post(accept)

    def _forget(self, stream: StreamName, source: str) -> None:
        def forget() -> None:
            with suppress(Refusal):  # the stream may be elsewhere by now
                self._worker.streams.home(stream).forget(source)

        self._loop.post(forget)

    def await_joined(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        """Answers when all that the query's splits here took in so far is joined."""
        query = wire.decode(QueryAt, request).query
        waiting: Future[int] = Future()

        def joined(rows: int | DovetailError) -> None:
            if isinstance(rows, DovetailError):
                waiting.set_exception(rows)
            else:
                waiting.set_result(rows)

        self._loop.ask(lambda: self._worker.await_joined(query, joined))
        while context.is_active():
            try:
                return wire.encode(Joined(waiting.result(timeout=0.5)))
            except TimeoutError:
                continue
        self._loop.post(lambda: self._worker.forget_waiter(joined))
        raise Refusal(Domain.MESSAGE, "the caller went away")

    def read_results(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        """The results in a log here, from an offset on."""
        wanted = wire.decode(ReadResults, request)
        listener = Listener()
        if not context.add_callback(listener.leave):
            return  # the caller has gone already
        read = LogRead(self._loop, self._data_dir, self._logs, wanted, listener)
        yield from map(wire.encode, read.batches())

    def keep_results(self, request: bytes, _: grpc.ServicerContext) -> bytes:
        """A piece of a log of a processor that leaves."""
        self.keep_log(wire.decode(LogPiece, request))
        return b""

    def keep_log(self, piece: LogPiece) -> None:
        """Keep it; Refusal if it is of another run of the query."""
        query = self._worker.queries.get(piece.query)
        if query is not None and query.task.run != piece.run:
            raise Refusal(Domain.QUERY, f"query {piece.query!r} is not of run {piece.run!r} here")
        self._keeper.take(piece)


class ByteRoom:
    """Bytes that feeds of a stream may have waiting here: who finds no room waits for it.

    Each stream has its own: one whose query is paused keeps no other from being fed.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._taken_bytes = 0
        self._changed = threading.Condition()

    def take(self, size_bytes: int, over: threading.Event) -> bool:
        """Wait until there is room; what is larger than all of it passes alone.

        Whether it was taken: not if the call is `over` meanwhile.
        """
        with self._changed:
            while self._taken_bytes and self._taken_bytes + size_bytes > self._most_bytes:
                if over.is_set():
                    return False
                self._changed.wait(LOOK_S)
            self._taken_bytes += size_bytes
            return True

    def give_back(self, size_bytes: int) -> None:
        """It waits no longer."""
        with self._changed:
            self._taken_bytes -= size_bytes
            self._changed.notify_all()


class CallRoom:
    """How many calls of one kind are open; one more than `most` is refused."""

    def __init__(self, what: str, most: int) -> None:
        self._what = what
        self._most = most
        self._open = 0
        self._lock = threading.Lock()

    @contextmanager
    def take(self) -> Iterator[None]:
        """Count a call for as long as it lasts; Refusal if there are too many."""
        with self._lock:
            if self._open >= self._most:
                raise Refusal(
                    Domain.BUSY,
                    f"this processor has {self._most} {self._what} already",
                    remedy="end some of them, or try again later",
                    reason="busy",
                )
            self._open += 1
        try:
            yield
        finally:
            with self._lock:
                self._open -= 1


def _guarded(room: CallRoom, method: Callable[[Any, grpc.ServicerContext], T]) -> Callable[..., T]:
    def call(request: Any, context: grpc.ServicerContext) -> T:
        try:
            with room.take():
                return method(request, context)
        except DovetailError as e:
            abort(context, e)
            raise

    return call


def _guarded_stream(
    room: CallRoom, method: Callable[[Any, grpc.ServicerContext], Iterator[bytes]]
) -> Callable[..., Iterator[bytes]]:
    def call(request: Any, context: grpc.ServicerContext) -> Iterator[bytes]:
        try:
            with room.take():
                yield from method(request, context)
        except DovetailError as e:
            abort(context, e)

    return call
