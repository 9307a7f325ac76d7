"""What is around a worker of a process: its gRPC server, its line to the manager, its heartbeats.

    manager ◀── Attach ──▶ control line ─▶ worker ◀─ data plane ◀── other processors, clients
                                             ▲  ▼
                                 neighbours: the other workers of the process, in memory

A processor of several threads is as many workers, each a member of the cluster with its own groups
and its part of the memory. To a neighbour, rows and groups go in memory, with their hashes.

The line is opened by the processor and again whenever it breaks; what was on it is lost, which the
protocols can bear. Heartbeats have a thread of their own: a processor that waits for its disk is
slow, not dead.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

import grpc
import psutil
import structlog

from dovetail_processor.allocators import keep_lean
from dovetail_processor.batches import Keyed
from dovetail_processor.operators.links import Item
from dovetail_processor.process_memory import ProcessMemory
from dovetail_processor.shell.data_plane import CALLS_MAX, DataPlane
from dovetail_processor.shell.files import ProcessorFiles
from dovetail_processor.shell.log_transfer import LogSender
from dovetail_processor.shell.peers import Peers
from dovetail_processor.shell.processor_settings import ProcessorSettings
from dovetail_processor.shell.threads import ThreadLane, WorkerLoop
from dovetail_processor.worker import Worker
from dovetail_proto import certificate_roles
from dovetail_proto.errors import ConfigError, DovetailError, Refusal
from dovetail_proto.feeds import LinkAck, LogPiece
from dovetail_proto.ids import ProcessorId, SplitId
from dovetail_proto.messages import (
    ControlMessage,
    Heard,
    Join,
    Leave,
    ReceivePartitions,
)
from dovetail_proto.roots import Roots
from dovetail_proto.transport import (
    Unreachable,
    call_metadata,
    open_channel,
    raised,
    start_server,
)
from dovetail_proto.wire import control as wire
from dovetail_proto.wire.methods import ATTACH, DATA_PLANE, LINK_CALLS

RETRY_S = 0.3

STOP_GRACE_S = 0.2
"""What calls under way get when the worker ends."""

UNHEARD_S_MAX = 30.0
"""How long a processor that is to end waits for a manager that cannot be reached: to start one
again takes seconds."""

log = structlog.get_logger("processor")


class ProcessorServer:
    """A running worker. `wait` returns when it is over, and says why."""

    def __init__(self, settings: ProcessorSettings) -> None:
        keep_lean()
        self._settings = settings
        self.name = ProcessorId(settings.name)
        roots = Roots((*settings.roots, str(settings.data_dir)))
        self.files = ProcessorFiles(self.name, settings.data_dir, roots)
        self._loop = WorkerLoop(self.name, self.give_up)
        memory = ProcessMemory(settings.memory_bytes, 1)  # what it promises the manager it keeps
        self._worker = self._loop.worker = Worker(
            self.name, memory, self, cpu_s=time.thread_time, now_s=time.monotonic()
        )
        self._data_plane = DataPlane(self._loop, settings.data_dir, self.files.logs)
        self._peers = Peers(self.name, settings.security, self.acknowledged)
        self._log_sender = LogSender(settings.data_dir, self._send_log)
        self.neighbours: Mapping[ProcessorId, ProcessorServer] = {}
        """The other workers of this process."""
        self._line: queue.SimpleQueue[bytes | None] | None = None  # None: not attached
        self._incarnation = time.time_ns()
        self._over = threading.Event()
        self._beat_now = threading.Event()
        self._leaving = threading.Event()
        self._heard_s = 0.0  # when the manager last said something
        self._ends_s: float | None = None  # when it was told to end; it leaves first
        self._cause: DovetailError | None = None
        self._process = psutil.Process()
        self._peak_rss_bytes = 0

    def start(self) -> None:
        """Listen, attach to the manager, work. ConfigError if a setting cannot be worked with."""
        s = self._settings
        if s.security.by_certificate and s.security.certificate is not None:
            certificate_roles.check_own(s.security.certificate, certificate_roles.PROCESSOR)
        try:
            s.data_dir.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise ConfigError(
                f"data folder {str(s.data_dir)!r} cannot be made: {e.strerror}",
                remedy="name a folder that can be written",
            ) from e
        services = {DATA_PLANE: self._data_plane.handlers()}
        self._server = start_server(
            s.listen, s.security, services, peers=_peer_refusal, threads=CALLS_MAX
        )
        host = s.advertise or s.listen.rpartition(":")[0]
        self.address = f"{host}:{self._server.port}"
        self._loop.start()
        for target in (self._attach, self._beat):
            threading.Thread(target=target, name=target.__name__, daemon=True).start()

    def wait(self, timeout_s: float) -> bool:
        """For a while, until it has left or was stopped, and whether it has.

        Raises why it could not go on. Ask again and again: a signal may reach another thread than
        this one, whose handlers run only when it wakes.
        """
        self._over.wait(timeout_s)
        if self._cause is not None:
            raise self._cause
        return self._over.is_set()

    def leave(self) -> None:
        """Have the cluster take over what is here, then end; safe in a signal handler.

        A second call ends at once.
        """
        if self._ends_s is not None or not self._worker.joined:
            self._over.set()
            return
        self._ends_s = time.monotonic()
        self._beat_now.set()

    def over(self) -> None:
        """Have `wait` return; safe in a signal handler."""
        self._over.set()

    def stop(self) -> None:
        """End now."""
        self._over.set()
        self._beat_now.set()
        if self._line is not None:
            self._line.put(None)
        self._loop.stop()
        self._peers.close()
        self._server.stop(STOP_GRACE_S)

    # What the worker needs ------------------------------------------------------------------------

    def tell_manager(self, message: ControlMessage) -> None:
        """See Shell."""
        line = self._line
        if line is not None:
            line.put(wire.encode(self.name, message))

    def lane(self, name: str) -> ThreadLane:
        """See Lanes."""
        return self._loop.lane(name)

    def send_frame(self, to: ProcessorId, split: SplitId, number: int, item: Item | None) -> None:
        """See Shell."""
        if (near := self.neighbours.get(to)) is None:
            self._peers.send_frame(to, split, number, item)
        else:
            size_bytes = item.size_bytes if isinstance(item, Keyed) else 0
            near.post(lambda worker: worker.frame(split, number, item, size_bytes))

    def send_ack(self, to: ProcessorId, ack: LinkAck) -> None:
        """See Shell."""
        if (near := self.neighbours.get(to)) is None:
            self._data_plane.send_ack(to, ack)
        else:
            near.acknowledged(self.name, ack)

    def send_groups(
        self, to: ProcessorId, message: ReceivePartitions, ended: Callable[[], None]
    ) -> None:
        """See Shell."""

        def send() -> None:
            with suppress(DovetailError):  # the manager asks again, or rolls back
                if (near := self.neighbours.get(to)) is None:
                    self._peers.send_groups(to, message)
                else:
                    near.take_groups(message)
            self._loop.post(ended)

        threading.Thread(target=send, name="ship", daemon=True).start()

    def wake(self) -> None:
        """See Shell."""
        self._loop.wake()

    def give_up(self, error: DovetailError) -> None:
        """See Shell."""
        self._cause = error
        self._over.set()

    def beat(self) -> None:
        """See Shell."""
        self._loop.take_snapshot()
        self._beat_now.set()

    # What other threads and neighbours tell the worker --------------------------------------------

    def post(self, event: Callable[[Worker], None]) -> None:
        """Have the worker handle something."""
        self._loop.post(lambda: event(self._worker))

    def acknowledged(self, source: ProcessorId, ack: LinkAck) -> None:
        """A join tells how far it is."""
        news = (ack.split, ack.number, ack.allowed_bytes, ack.done_number)
        self.post(lambda worker: worker.acknowledged(source, *news))

    def take_groups(self, message: ReceivePartitions) -> None:
        """A chunk of a move arrived; Refusal if it cannot be for this worker."""
        self._data_plane.take_groups(message)

    # The manager ----------------------------------------------------------------------------------

    def _attach(self) -> None:
        """Hold the line to the manager."""
        security = self._settings.security
        with open_channel(self._settings.manager, security) as channel:
            attach = channel.stream_stream(ATTACH)
            while not self._over.is_set():
                line: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
                line.put(wire.encode(self.name, self._join_message()))
                try:
                    calls = attach(_lines(line), metadata=call_metadata(security))
                    self._line = line
                    for data in calls:
                        self._hear(data)
                except grpc.RpcError as e:
                    error = raised(e)
                    if not isinstance(error, Unreachable):
                        self._refused(error)
                    elif self._ends_s is not None:
                        self._end_unheard(max(self._ends_s, self._heard_s))
                self._line = None
                line.put(None)
                self._over.wait(RETRY_S)

    def _join_message(self) -> Join:
        s = self._settings
        return Join(self.name, self._incarnation, s.version, s.memory_bytes, self.address)

    def _end_unheard(self, since_s: float) -> None:
        """It is to end, and nobody is there who could have others take over what it holds."""
        if time.monotonic() > since_s + UNHEARD_S_MAX:
            self.give_up(
                Unreachable(
                    f"processor {self.name!r} ends without having left: no manager answers at "
                    f"{self._settings.manager!r}, and what it held in memory is lost",
                    remedy="end processors while their manager runs",
                )
            )

    def _hear(self, data: bytes) -> None:
        self._heard_s = time.monotonic()
        try:
            _, message = wire.decode(data)
        except Refusal as e:
            log.warning("message refused", processor=self.name, cause=str(e))
            return
        if isinstance(message, Heard) and message.incarnation != self._incarnation:
            return
        if isinstance(message, Heard) and not message.member:
            self._let_go()
            return

        near = {self.name, *self.neighbours}

        def handle() -> None:
            self._worker.control(message)
            if self._worker.leaving and not self._leaving.is_set():
                self._leaving.set()
                threading.Thread(
                    target=self._hand_over_logs, name="log hand-over", daemon=True
                ).start()
            self._peers.set_links(
                {p: peer for p, peer in self._worker.peers.items() if p not in near},
                {split for q in self._worker.queries.values() for split in q.links.splits},
            )

        self._loop.post(handle)

    def _send_log(self, to: ProcessorId, piece: LogPiece) -> None:
        """Have a piece of a result log kept, also by a neighbour; DovetailError if it is not."""
        if (near := self.neighbours.get(to)) is None:
            self._peers.send_log(to, piece)
        else:
            near.keep_log(piece)

    def keep_log(self, piece: LogPiece) -> None:
        """Keep a piece of another worker's result log; DovetailError if it cannot be."""
        self._data_plane.keep_log(piece)

    def _let_go(self) -> None:
        """The cluster goes on without this processor: it has left, or was taken for dead."""
        if self._leaving.is_set():
            log.info("has left", processor=self.name)
            self._over.set()
            return
        if self._ends_s is not None:
            log.warning("ends without having left; was taken for dead", processor=self.name)
            self._over.set()
            return
        log.warning("was let go; joins anew without state", processor=self.name)
        self._loop.ask(self._worker.drop_all)
        self._incarnation = time.time_ns()
        self.tell_manager(self._join_message())

    def _hand_over_logs(self) -> None:
        """While it leaves: hand its result logs to the successor once nothing is added to them."""
        while not self._over.wait(RETRY_S):
            leaving = self._worker.leaving
            if leaving is None or leaving == self._log_sender.done:
                continue
            try:
                if self._loop.ask(lambda: self._worker.finds_nothing_more):
                    self._log_sender.hand_over(leaving)
                    self._beat_now.set()
            except DovetailError as e:
                successor = leaving.successor
                log.warning(
                    "results not kept", processor=self.name, successor=successor, cause=str(e)
                )

    def _refused(self, error: DovetailError) -> None:
        """The manager does not take this processor in."""
        if (
            error.details.get("reason") == "over"
        ):  # this incarnation: the cluster goes on without it
            self._let_go()
            return
        self.give_up(error)

    def _beat(self) -> None:
        """Tell the manager about once a second how it goes."""
        self._process.cpu_percent()
        while not self._over.is_set():
            self._beat_now.wait(self._settings.heartbeat_s)
            self._beat_now.clear()
            if self._line is None:
                continue
            rss = self._process.memory_info().rss
            self._peak_rss_bytes = max(self._peak_rss_bytes, rss)
            beat = replace(
                self._loop.snapshot,
                incarnation=self._incarnation,
                rss_bytes=rss,
                peak_rss_bytes=self._peak_rss_bytes,
                cpu_share=self._process.cpu_percent() / 100,
            )
            self.tell_manager(beat)
            leaving, ends = self._worker.leaving, self._ends_s is not None
            if leaving is not None or ends:
                successor = (
                    leaving.successor if leaving and leaving == self._log_sender.done else None
                )
                self.tell_manager(Leave(self.name, self._incarnation, successor or "", ends))


def _peer_refusal(method: str, name: str) -> DovetailError | None:
    """Only processors link and hand over; clients send, wait and read, also through the manager."""
    if method in LINK_CALLS:
        return certificate_roles.refusal(name, certificate_roles.PROCESSOR)
    return certificate_roles.refusal(name, certificate_roles.MANAGER, certificate_roles.CLIENT)


def _lines(line: queue.SimpleQueue[bytes | None]) -> Iterator[bytes]:
    while (data := line.get()) is not None:
        yield data
