"""Ways to other processors: one channel each, one call per link, one per chunk that is sent.

A link's call carries frames there and acknowledgements back. If it breaks, what was on it is lost
and the call is made anew; the link's own numbering (`moves.link`) puts it right.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Collection, Iterator

import grpc

from dovetail_processor.operators.links import Item
from dovetail_processor.shell.frames import pack
from dovetail_proto import certificate_roles
from dovetail_proto.assignment import Peer
from dovetail_proto.errors import Refusal
from dovetail_proto.feeds import LinkAck, LogPiece
from dovetail_proto.ids import ProcessorId, SplitId
from dovetail_proto.messages import ReceivePartitions
from dovetail_proto.transport import Security, Unreachable, call_metadata, open_channel, raised
from dovetail_proto.wire import data as wire
from dovetail_proto.wire.methods import FEED, KEEP_RESULTS, RECEIVE_PARTITIONS

SEND_TIMEOUT_S = 30.0
"""For one chunk of a move: some megabytes on the slowest link that is worth having."""

FRAMES_WAITING_MAX = 256
"""On one link. A window has a few frames; more are repetitions that pile up on a slow wire."""

RETRY_S = 0.2
"""Between two tries to make a call anew."""

Frame = tuple[SplitId, int, Item | None]
"""A frame on its way: of which split, its number, what it carries."""

Acknowledged = Callable[[ProcessorId, LinkAck], None]


class Peers:
    """All that this processor sends to others. Its methods may be called from any thread."""

    def __init__(self, here: ProcessorId, security: Security, acknowledged: Acknowledged) -> None:
        self._here = here
        self._security = security
        self._acknowledged = acknowledged
        self._members: dict[ProcessorId, Peer] = {}
        self._channels: dict[ProcessorId, grpc.Channel] = {}
        self._calls: dict[tuple[ProcessorId, SplitId], _FeedCall] = {}
        self._lock = threading.Lock()

    def set_links(self, members: dict[ProcessorId, Peer], splits: Collection[SplitId]) -> None:
        """Who is in the cluster now, and which splits are here; other links end."""
        with self._lock:
            moved = [p for p, peer in self._members.items() if members.get(p) != peer]
            self._members = dict(members)
            for key in [k for k in self._calls if k[0] in moved or k[1] not in splits]:
                self._calls.pop(key).end()
            for p in moved:
                if p in self._channels:
                    self._channels.pop(p).close()

    def send_frame(self, to: ProcessorId, split: SplitId, number: int, item: Item | None) -> None:
        """Put a frame on its link, whose thread packs it; lost if the link is down."""
        with self._lock:
            call = self._calls.get((to, split))
            if call is None:
                channel = self._channel(to)
                if channel is None:
                    return
                metadata = [*call_metadata(self._security), ("dovetail-processor", self._here)]
                call = _FeedCall(to, channel, metadata, self._acknowledged)
                self._calls[to, split] = call
        call.put((split, number, item))

    def send_groups(self, to: ProcessorId, message: ReceivePartitions) -> None:
        """Send a chunk of a move; raises DovetailError if it did not arrive."""
        channel = self._reached(to)
        self._call(to, channel.stream_unary(RECEIVE_PARTITIONS), wire.encode_parts(message))

    def send_log(self, to: ProcessorId, piece: LogPiece) -> None:
        """Have a piece of a result log kept; raises DovetailError if it is not."""
        channel = self._reached(to)
        self._call(to, channel.unary_unary(KEEP_RESULTS), wire.encode(piece))

    def _reached(self, to: ProcessorId) -> grpc.Channel:
        with self._lock:
            channel = self._channel(to)
        if channel is None:
            raise Unreachable(f"processor {to!r} has no address")
        return channel

    def _call(self, to: ProcessorId, method: Callable[..., object], request: object) -> None:
        try:
            method(
                request,
                metadata=call_metadata(self._security),
                timeout=SEND_TIMEOUT_S,
                wait_for_ready=True,
            )
        except grpc.RpcError as e:
            raise raised(e) from e
        except ValueError as e:  # the channel was closed meanwhile
            raise Unreachable(f"processor {to!r} is gone") from e

    def close(self) -> None:
        """End all calls."""
        self.set_links({}, ())

    def _channel(self, to: ProcessorId) -> grpc.Channel | None:
        peer = self._members.get(to)
        if peer is None:
            return None
        if to not in self._channels:
            self._channels[to] = open_channel(
                peer.address, self._security, to=certificate_roles.PROCESSOR
            )
        return self._channels[to]


class _FeedCall:
    """The call of one link, made anew until it is ended."""

    def __init__(
        self,
        to: ProcessorId,
        channel: grpc.Channel,
        metadata: list[tuple[str, str]],
        acknowledged: Acknowledged,
    ) -> None:
        self._to = to
        self._feed = channel.stream_stream(FEED)
        self._metadata = metadata
        self._acknowledged = acknowledged
        self._frames: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        self._ended = threading.Event()
        threading.Thread(target=self._run, name=f"link-{to}", daemon=True).start()

    def put(self, frame: Frame) -> None:
        """Send a frame, or lose it if so many wait already: it comes again."""
        if self._frames.qsize() < FRAMES_WAITING_MAX:
            self._frames.put(frame)

    def end(self) -> None:
        self._ended.set()
        self._frames.put(None)

    def _run(self) -> None:
        while not self._ended.is_set():
            frames = self._frames
            try:
                # Frames of a call that broke may be taken by its ghost: a fresh queue for each.
                for data in self._feed(_until_none(frames), metadata=self._metadata):
                    with contextlib.suppress(Refusal):
                        self._acknowledged(self._to, wire.decode(LinkAck, data))
            except grpc.RpcError:
                pass
            except ValueError:
                return  # the channel is closed
            self._frames = queue.SimpleQueue()
            frames.put(None)
            self._ended.wait(RETRY_S)


def _until_none(frames: queue.SimpleQueue[Frame | None]) -> Iterator[bytes]:
    while (frame := frames.get()) is not None:
        yield pack(*frame)
        del frame  # while this thread waits, only its split may hold the rows
