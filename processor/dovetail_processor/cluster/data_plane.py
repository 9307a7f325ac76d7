"""The data plane's calls, as gRPC handlers: frames, groups, feeding, waiting, reading results.

Each call decodes and checks what comes in its own thread, so that the worker gets batches that are
safe to use; whatever is wrong ends that call with our error.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import grpc

from dovetail_processor.cluster.heirs import Keeper
from dovetail_processor.cluster.ingress import Sent
from dovetail_processor.cluster.result_log import read_log
from dovetail_processor.cluster.transit import decode
from dovetail_processor.cluster.worker import Worker
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
    TupleBatch,
)
from dovetail_proto.ids import (
    NAME,
    ProcessorId,
    QueryName,
    SplitId,
    StreamName,
    input_of,
    query_of,
)
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

T = TypeVar("T")


class DataPlane:
    """See the module. Acknowledgements go back on the call that the frames came on."""

    def __init__(self, worker: Worker, data_dir: Path) -> None:
        self._worker = worker
        self._data_dir = data_dir
        self._keeper = Keeper(data_dir)
        self._acks: dict[tuple[ProcessorId, SplitId], queue.SimpleQueue[bytes | None]] = {}

    def handlers(self) -> dict[str, grpc.RpcMethodHandler]:
        """By method name; messages are bytes."""
        return {
            "Feed": grpc.stream_stream_rpc_method_handler(_guarded_stream(self.feed)),
            "ReceivePartitions": grpc.stream_unary_rpc_method_handler(
                _guarded(self.receive_partitions)
            ),
            "Ingest": grpc.stream_stream_rpc_method_handler(_guarded_stream(self.ingest)),
            "AwaitJoined": grpc.unary_unary_rpc_method_handler(_guarded(self.await_joined)),
            "ReadResults": grpc.unary_stream_rpc_method_handler(_guarded_stream(self.read_results)),
            "KeepResults": grpc.unary_unary_rpc_method_handler(_guarded(self.keep_results)),
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
        if not NAME.fullmatch(source):
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
                frame = wire.decode_frame(data)
                self._acks[source, frame.split] = answers
                item: object | None = frame.item
                size_bytes = 0
                if isinstance(frame.item, TupleBatch):
                    kept = self._plan(query_of(frame.split)).inputs[input_of(frame.split)].kept
                    size_bytes = len(frame.item.payload)
                    item = from_bytes(frame.item.payload, kept, f"a frame of {frame.split}")
                self._to_worker(frame.split, frame.number, item, size_bytes)
        except grpc.RpcError:
            pass
        except DovetailError as e:
            failure.append(e)
        except Exception as e:  # the request stream of a call that was cancelled
            failure.append(Refusal(Domain.MESSAGE, f"a link ends: {e}"))
        answers.put(None)

    def _to_worker(self, split: SplitId, number: int, item: object | None, size_bytes: int) -> None:
        self._worker.post(lambda: self._worker.frame(split, number, item, size_bytes))

    def receive_partitions(self, parts: Iterator[bytes], _: grpc.ServicerContext) -> bytes:
        """A chunk of a move: checked here, kept by the worker."""
        message = wire.decode_parts(parts, CHUNK_BYTES_MAX)
        arrived = decode(message.payload, self._plan(message.ref.query), message.groups)
        self._worker.post(lambda: self._worker.control(message, arrived))
        return b""

    def _plan(self, query: QueryName) -> QueryPlan:
        run = self._worker.runs.get(query)
        if run is None:
            raise Refusal(Domain.QUERY, f"query {query!r} does not run here")
        return run.task.plan

    # Clients --------------------------------------------------------------------------------------

    def ingest(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """A source's batches, each answered when it is routed; at the end that it is over."""
        answers: queue.SimpleQueue[IngestAck | DovetailError | None] = queue.SimpleQueue()
        room = threading.Semaphore(INGEST_AHEAD)
        context.add_callback(lambda: answers.put(None))
        threading.Thread(
            target=self._read_batches, args=(requests, answers, room), daemon=True
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
    ) -> None:
        try:
            for data in requests:
                m = wire.decode(IngestBatch, data)
                if m.over:
                    self._forget(m.stream, m.source)
                    continue
                room.acquire()
                self._take_batch(m, answers)
            for _ in range(INGEST_AHEAD):
                room.acquire()  # until all that was taken is answered
            answers.put(None)
        except DovetailError as e:
            answers.put(e)
        except Exception:  # the caller went away
            answers.put(None)

    def _take_batch(
        self, m: IngestBatch, answers: queue.SimpleQueue[IngestAck | DovetailError | None]
    ) -> None:
        stream = m.stream
        schema = self._worker.streams.get(stream).task.schema
        largest = max(INGEST_BYTES_MIN, self._worker.memory_bytes // INGEST_SHARE)
        if len(m.payload) > largest:
            raise InputError(
                f"a batch for {m.stream!r} has {len(m.payload):,} bytes, more than the {largest:,} "
                "that its home takes at once",
                remedy="send smaller batches",
            )
        batch = from_bytes(m.payload, schema, f"a batch for {m.stream!r}")
        number = m.sequence  # a batch that waits must not keep its message

        def routed(rows: int, readers: int) -> None:
            answers.put(IngestAck(number, rows, readers))

        sent = Sent(m.source, number, batch, routed, answers.put, m.rows_left)

        def accept() -> None:
            try:
                self._worker.streams.accept(stream, sent)
            except DovetailError as e:
                answers.put(e)

        self._worker.post(accept)

    def _forget(self, stream: StreamName, source: str) -> None:
        def forget() -> None:
            with suppress(Refusal):  # the stream may be elsewhere by now
                self._worker.streams.get(stream).forget(source)

        self._worker.post(forget)

    def await_joined(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        """Answers when all that the query's splits here took in so far is joined."""
        query = wire.decode(QueryAt, request).query
        waiting: Future[int] = self._worker.ask(lambda: self._worker.await_joined(query))
        while context.is_active():
            try:
                return wire.encode(Joined(waiting.result(timeout=0.5)))
            except TimeoutError:
                continue
        raise Refusal(Domain.MESSAGE, "the caller went away")

    def read_results(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        """The results in a log here, from an offset on."""
        wanted = wire.decode(ReadResults, request)
        yield from map(
            wire.encode, read_log(self._worker, self._data_dir, wanted, context.is_active)
        )

    def keep_results(self, request: bytes, _: grpc.ServicerContext) -> bytes:
        """A piece of a log of a processor that leaves."""
        piece = wire.decode(LogPiece, request)
        run = self._worker.runs.get(piece.query)
        if run is not None and run.task.run != piece.run:
            raise Refusal(Domain.QUERY, f"query {piece.query!r} is not of run {piece.run!r} here")
        self._keeper.take(piece)
        return b""


def _guarded(method: Callable[[Any, grpc.ServicerContext], T]) -> Callable[..., T]:
    def call(request: Any, context: grpc.ServicerContext) -> T:
        try:
            return method(request, context)
        except DovetailError as e:
            abort(context, e)
            raise

    return call


def _guarded_stream(
    method: Callable[[Any, grpc.ServicerContext], Iterator[bytes]],
) -> Callable[..., Iterator[bytes]]:
    def call(request: Any, context: grpc.ServicerContext) -> Iterator[bytes]:
        try:
            yield from method(request, context)
        except DovetailError as e:
            abort(context, e)

    return call
