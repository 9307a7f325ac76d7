"""The control service: a stream per processor, envelopes in both directions.

A stream begins with Join. A forged envelope, one that speaks for another processor, or a refused
Join ends that stream with an error of ours and nothing else. The manager's side is a bounded queue:
what does not fit is dropped, as if it were lost on the way, and sent again by the protocols.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import suppress

import grpc
import structlog

from dovetail_manager.loop import ControllerLoop
from dovetail_proto.errors import Domain, DovetailError, Refusal
from dovetail_proto.ids import ProcessorId
from dovetail_proto.messages import ControlMessage, Join
from dovetail_proto.transport import abort
from dovetail_proto.wire import control as wire

OUTGOING_MAX = 1024
"""Messages that wait for a slow processor; the moves of a busy second are far fewer."""

log = structlog.get_logger()


class Outgoing:
    """What waits to be sent on one stream. Thread-safe; only `messages` blocks."""

    def __init__(self) -> None:
        self._queue: queue.Queue[bytes | None] = queue.Queue(OUTGOING_MAX)
        self._closed = threading.Event()
        self.cause: DovetailError | None = None  # why the stream is ended with an error

    @property
    def closed(self) -> bool:
        """Whether the stream is over."""
        return self._closed.is_set()

    def send(self, message: ControlMessage) -> None:
        """Queue a message; dropped if there is no room or the stream is over."""
        if self.closed:
            return
        try:
            self._queue.put_nowait(wire.encode(None, message))
        except queue.Full:
            log.warning("outgoing queue is full", message=type(message).__name__)

    def close(self, cause: DovetailError | None = None) -> None:
        """End the stream; the first cause counts."""
        if not self._closed.is_set():
            self.cause = cause
            self._closed.set()
        with suppress(queue.Full):  # then `messages` has something to wake up for
            self._queue.put_nowait(None)

    def messages(self) -> Iterator[bytes]:
        """What is to be sent, until the stream is over."""
        while not self.closed:
            data = self._queue.get()
            if data is not None and not self.closed:
                yield data


class ControlServer:
    """The handler of `Attach`."""

    def __init__(self, loop: ControllerLoop) -> None:
        self._loop = loop

    def handlers(self) -> dict[str, grpc.RpcMethodHandler]:
        """For `transport.start_server`, under `CONTROL`."""
        return {"Attach": grpc.stream_stream_rpc_method_handler(self._attach)}

    def _attach(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        outgoing = Outgoing()
        try:
            processor = self._joined(requests, outgoing)
        except DovetailError as e:
            log.info("join refused", peer=context.peer(), error=str(e))
            abort(context, e)
            return
        context.add_callback(outgoing.close)
        bound = log.bind(processor=processor, peer=context.peer())
        bound.info("attached")
        reader = threading.Thread(
            target=self._read,
            args=(processor, requests, outgoing),
            name=f"control {processor}",
            daemon=True,
        )
        reader.start()
        try:
            yield from outgoing.messages()
        finally:
            self._loop.detach(processor, outgoing)
            bound.info("detached", cause=str(outgoing.cause or ""))
        if outgoing.cause is not None:
            abort(context, outgoing.cause)

    def _joined(self, requests: Iterator[bytes], outgoing: Outgoing) -> ProcessorId:
        first = next(requests, None)
        if first is None:
            raise Refusal(Domain.MESSAGE, "the stream ended before a Join")
        source, message = wire.decode(first)
        if not isinstance(message, Join) or source != message.processor:
            kind = type(message).__name__
            raise Refusal(
                Domain.MESSAGE, f"a control stream begins with its own Join, not with {kind}"
            )
        self._loop.attach(message, outgoing)
        return message.processor

    def _read(self, processor: ProcessorId, requests: Iterator[bytes], outgoing: Outgoing) -> None:
        """Pass on what the processor says until its stream ends or another has replaced it."""
        try:
            for data in requests:
                if outgoing.closed:
                    return
                source, message = wire.decode(data)
                if source != processor:
                    raise Refusal(Domain.MEMBER, f"{processor!r} speaks for {source!r}")
                self._loop.deliver(processor, message)
            outgoing.close()
        except DovetailError as e:
            log.warning("control stream refused", processor=processor, error=str(e))
            outgoing.close(e)
        except grpc.RpcError:
            outgoing.close()  # the connection is gone
        except Exception as e:
            # grpcio raises a bare Exception when a stream is cancelled under its reader.
            log.info("control stream broke", processor=processor, error=repr(e))
            outgoing.close()
