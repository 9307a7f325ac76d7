"""The controller's shell: one thread owns the machine, everybody else sends it events.

    control streams ─ deliver ─┐              ┌─▶ outgoing queue of that processor's stream
    admin threads ─── call ────┤─▶ one thread ┼─▶ store writer ─▶ confirmed, failed, lost
    store writer ── confirmed ─┘   + ticks    └─▶ event log

A call runs on that thread and returns when whatever it wrote is durable. A message to a processor
that is not attached is dropped: the protocols send again. When another manager leads, or on a
defect, the manager ends: it holds no truth, and whoever is started next goes on from the store.

Times are seconds since 1970 that never jump: the wall clock at the start, then the monotonic one.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import structlog

from dovetail_manager.controller import Controller
from dovetail_manager.effects import AppendHistory, Effect, LogEvent, Send, StepDown
from dovetail_manager.event_log import EventLog
from dovetail_manager.journal import Write
from dovetail_manager.refusals import busy
from dovetail_manager.state import ControllerSettings, State
from dovetail_manager.store import Leadership, Store
from dovetail_manager.store_writer import StoreWriter
from dovetail_proto.errors import Domain, DovetailError, Refusal
from dovetail_proto.ids import ProcessorId
from dovetail_proto.messages import ControlMessage, Join
from dovetail_proto.transport import Unreachable

EVENTS_QUEUED_MAX = 10_000
"""Messages that wait for the machine; a full queue stops the reading of control streams."""

CALL_TIMEOUT_S = 30.0
"""Longer than the store's own patience: beyond it, the store is away."""

EVERYWHERE_S_MAX = 25.0
"""How long a call may take until every processor knows of it. A silent processor is declared dead
long before, unless the operator has chosen otherwise; below `CALL_TIMEOUT_S`, so that the caller
hears who does not know."""

TICK_S_MAX = 1.0
"""The machine is given the time at least this often."""

TICKS_PER_SILENCE = 4
"""And this often while a silent processor is waited for: a machine that hears the time more rarely
takes itself for the one that slept, and blames nobody."""

T = TypeVar("T")
log = structlog.get_logger()


class Link(Protocol):
    """A processor's control stream, as the manager sees it. No method blocks."""

    def send(self, message: ControlMessage) -> None:
        """Queue a message; dropped if the queue is full or the link closed."""

    def close(self, cause: DovetailError | None = None) -> None:
        """End the stream."""


@dataclass(slots=True)
class _Waiting:
    """A call whose writes are not durable yet, or not known to the processors."""

    answer: Future[Any]
    value: Any
    revision: int  # that must be durable
    everywhere: str  # what processors must know as well; empty: nothing
    until_s: float  # when they are waited for no longer
    version: int = 0  # of the assignment that they must know; 0 until the write is durable


class Stopped(Unreachable):
    """The manager has ended; `__cause__` says why, if nobody asked it to.

    To others it is a manager that does not answer: they try again, and reach the next one.
    """


class ControllerLoop:
    """See the module. `ended` is set when the manager is over; `cause` says why, if not asked."""

    def __init__(self, store: Store, leadership: Leadership, settings: ControllerSettings) -> None:
        self._wall_s = time.time() - time.monotonic()
        self.store = store
        self.epoch = leadership.epoch
        self.settings = settings
        self.started_s = self.now_s()
        self.events = EventLog()
        self.ended = threading.Event()
        self._tick_s = min(TICK_S_MAX, settings.dead_after_s / TICKS_PER_SILENCE)
        self._ticked_s = self.started_s
        self.cause: DovetailError | None = None
        self.on_end: Callable[[], None] = lambda: None  # called once, on the machine's thread
        self._queue: queue.Queue[Callable[[], None]] = queue.Queue(EVENTS_QUEUED_MAX)
        self._links: dict[ProcessorId, Link] = {}  # touched by the loop's thread only
        self._waiting: list[_Waiting] = []  # likewise
        self._answers: set[Future[Any]] = set()  # that somebody waits for
        self._drained = False  # no answer comes any more
        self._lock = threading.Lock()  # of the two above
        self._writer = StoreWriter(
            store,
            leadership.epoch,
            confirmed=lambda r: self._post(lambda: self._confirmed(r)),
            failed=lambda: self._post(lambda: self._act(self._controller.store_failed())),
            recorded=lambda m: self._post(
                lambda: self._act(self._controller.recorded(m, self.now_s()))
            ),
            lost=lambda e: self._post(lambda: self._end(e)),
        )
        self._controller, self._first = Controller.resume(*leadership, settings, self.started_s)
        self._thread = threading.Thread(target=self._run, name="manager", daemon=True)

    def now_s(self) -> float:
        """Seconds since 1970, without jumps."""
        return self._wall_s + time.monotonic()

    def start(self) -> None:
        """Begin."""
        self._writer.start()
        self._thread.start()

    def stop(self) -> None:
        """End; open moves are left to a successor, which finds them in the store."""
        self._post(lambda: self._end(None))
        self._thread.join()
        self._writer.stop()

    # From other threads ---------------------------------------------------------------------------

    def call(self, verb: Callable[[State], T], *, everywhere: str = "") -> T:
        """Run `verb` on the machine's thread; returns its value when its writes are durable.

        With `everywhere`, which says what is done then ("query 'q' is submitted"), when every
        member carries it out: a processor that is declared dead is none. Refusal of domain `busy`
        that names who does not know if that takes longer than `EVERYWHERE_S_MAX`; it stays done.

        Raises what the verb raises; Stopped if the manager has ended, Unreachable if the store does
        not answer (the writes are then done when it does).
        """
        answer: Future[T] = self._awaited()

        def run() -> None:
            now_s = self.now_s()
            try:
                value, effects = self._controller.do(verb, now_s)
            except DovetailError as e:
                answer.set_exception(e)
                return
            self._act(effects)
            revision = self._controller.state.journal.last_revision
            self._waiting.append(
                _Waiting(answer, value, revision, everywhere, now_s + EVERYWHERE_S_MAX)
            )

        self._post(run)
        try:
            return answer.result(CALL_TIMEOUT_S)
        except TimeoutError:
            raise Unreachable(
                "the manager's store does not answer",
                remedy="see to the store; what was asked is done when it answers",
            ) from None

    def look(self, at: Callable[[State], T]) -> T:
        """A value of the machine, taken on its thread; waits for no write."""
        answer: Future[T] = self._awaited()

        def run() -> None:
            try:
                answer.set_result(at(self._controller.state))
            except DovetailError as e:
                answer.set_exception(e)

        self._post(run)
        return answer.result()

    def attach(self, m: Join, link: Link) -> None:
        """A processor's stream begins with its Join; Refusal if it may not join.

        A stream that it had before is closed.
        """
        answer: Future[None] = self._awaited()

        def run() -> None:
            try:
                effects = self._controller.handle(m.processor, m, self.now_s())
            except DovetailError as e:
                answer.set_exception(e)
                return
            former = self._links.get(m.processor)
            self._links[m.processor] = link
            if former is not None:
                former.close(Refusal(Domain.MEMBER, f"{m.processor!r} has attached itself anew"))
            answer.set_result(None)
            self._act(effects)

        self._post(run)
        answer.result()

    def detach(self, processor: ProcessorId, link: Link) -> None:
        """A stream has ended. The processor stays a member until it was silent for too long."""

        def run() -> None:
            if self._links.get(processor) is link:
                del self._links[processor]

        self._post(run)

    def deliver(self, source: ProcessorId, message: ControlMessage) -> None:
        """A message from a processor; one that is out of order is logged and changes nothing."""

        def run() -> None:
            try:
                effects = self._controller.handle(source, message, self.now_s())
            except Refusal as e:
                kind = type(message).__name__
                log.info("message refused", processor=source, message=kind, error=str(e))
                return
            self._act(effects)

        self._post(run)

    def _post(self, event: Callable[[], None]) -> None:
        while not self.ended.is_set():
            try:
                self._queue.put(event, timeout=TICK_S_MAX)
                return
            except queue.Full:
                continue

    def _awaited(self) -> Future[Any]:
        """An answer that comes, or is Stopped, whatever becomes of the loop."""
        answer: Future[Any] = Future()
        with self._lock:
            if self._drained:
                raise Stopped("the manager has ended") from self.cause
            self._answers.add(answer)
        answer.add_done_callback(self._answered)
        return answer

    def _answered(self, answer: Future[Any]) -> None:
        with self._lock:
            self._answers.discard(answer)

    # On the machine's thread ----------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._act(self._first)
            while not self.ended.is_set():
                due_s = min(self._controller.next_tick_s(), self._ticked_s + self._tick_s)
                try:
                    event = self._queue.get(timeout=max(due_s - self.now_s(), 0.0))
                except queue.Empty:
                    event = None
                if event is not None:
                    event()
                now_s = self.now_s()
                self._answer(now_s)
                if not self.ended.is_set() and now_s >= due_s:
                    self._ticked_s = now_s
                    self._act(self._controller.tick(now_s))
        except Exception as e:
            # A machine that raised may be half changed; the store is whole.
            log.exception("defect in the manager: it ends", error=str(e))
            self._end(DovetailError(f"defect in the manager: {e!r}", remedy="start it again"))
        finally:
            self._drain()

    def _act(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(to, message):
                    if link := self._links.get(to):
                        link.send(message)
                case Write() | AppendHistory():
                    self._writer.put(effect)
                case LogEvent(kind, query, stream, processor, move, text):
                    about = {
                        "query": query,
                        "stream": stream,
                        "processor": processor,
                        "move": move,
                        "text": text,
                    }
                    self.events.add(self.now_s(), kind, **about)
                    log.info(kind, **{k: v for k, v in about.items() if v})
                case StepDown(cause):
                    self._end(Stopped(f"this manager was replaced: {cause}"))

    def _confirmed(self, revision: int) -> None:
        self._act(self._controller.confirmed(revision, self.now_s()))

    def _answer(self, now_s: float) -> None:
        """Let go whoever has waited for what is there now."""
        state = self._controller.state
        left: list[_Waiting] = []
        for w in self._waiting:
            if w.revision > state.journal.revision:
                left.append(w)
                continue
            w.version = w.version or state.assignments.version
            unaware = state.assignments.unaware(state, w.version) if w.everywhere else []
            if not unaware:
                w.answer.set_result(w.value)
            elif now_s >= w.until_s:
                w.answer.set_exception(_unheard(w.everywhere, unaware))
            else:
                left.append(w)
        self._waiting = left

    def _end(self, cause: DovetailError | None) -> None:
        if self.ended.is_set():
            return
        if cause is not None:
            log.error("the manager ends", cause=str(cause), epoch=self.epoch)
        self.cause = cause
        self.ended.set()

    def _drain(self) -> None:
        """Nobody may wait for a manager that has ended."""
        self.events.close()
        for link in self._links.values():
            link.close()
        stopped = Stopped("the manager has ended")
        stopped.__cause__ = self.cause
        with self._lock:
            self._drained = True
            left = list(self._answers)
        for answer in left:
            answer.set_exception(stopped)
        self.on_end()


def _unheard(done: str, unaware: Sequence[ProcessorId]) -> Refusal:
    names = ", ".join(map(repr, unaware))
    return busy(
        f"{done}, but within {EVERYWHERE_S_MAX:g} s it was not heard of by processor {names}",
        "see the log there; it is told again until it knows, and a query may miss rows that "
        "are sent before",
    )
