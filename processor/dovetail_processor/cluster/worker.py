"""The one thread that runs all queries of a processor, and the mailbox that it reads.

    gRPC threads ── events ─▶ mailbox ─▶ worker: handle all, then one step of work, and so on
                                           │
                  deliver › evaluate › read streams while there is room › join

All state is this thread's. What comes from outside is a closure in the mailbox; what goes outside
goes to the shell, which never blocks the worker. Work is done in small steps, so a message waits
for one step at most.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import structlog

from dovetail_processor.cluster.duties import Shell
from dovetail_processor.cluster.input_queue import Marker
from dovetail_processor.cluster.keeping import Remover
from dovetail_processor.cluster.query_run import QueryRun, cause_of
from dovetail_processor.cluster.sharing import Pool
from dovetail_processor.cluster.streams import Streams
from dovetail_processor.cluster.transit import Arrived
from dovetail_proto.assignment import Assignment, Leaving, QueryTask, assignment_from_json
from dovetail_proto.errors import Domain, DovetailError, Refusal
from dovetail_proto.ids import Epoch, ProcessorId, QueryName, SplitId, query_of
from dovetail_proto.messages import (
    Assign,
    ControlMessage,
    Heard,
    Heartbeat,
    MoveRequest,
    PushPartitions,
    QueryLoad,
    QueryStopped,
    Stage,
    StopQuery,
)
from dovetail_proto.roots import Roots
from dovetail_proto.transport import Unreachable

TICK_S = 0.1
"""Between two looks at what has to be sent again; a fifth of a link's patience."""

FILE_POLL_S = 0.002
"""How soon a batch that a file reader has decoded is seen, when there is nothing else to do."""

T = TypeVar("T")
log = structlog.get_logger("processor")


@dataclass(slots=True)
class _Waiter:
    """Somebody who waits until all that came for the splits here so far is joined."""

    query: QueryName
    targets: dict[SplitId, int]
    done: Future[int]
    rows: int


class Worker:
    """See the module. `start` and `stop` are for the process; `post` and `ask` for its shell."""

    def __init__(
        self,
        here: ProcessorId,
        memory_bytes: int,
        data_dir: Path,
        shell: Shell,
        *,
        roots: Roots,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.here = here
        self.memory_bytes = memory_bytes
        self._data_dir = data_dir
        self._roots = roots
        self._shell = shell
        self._clock = clock
        self._mailbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="worker", daemon=True)
        self.epoch = Epoch(0)  # the highest heard
        self.joined = False
        self.assigned = (Epoch(0), 0)  # of the assignment that is carried out
        self.leaving: Leaving | None = None  # its groups are being moved away
        self.peers: Mapping[ProcessorId, str] = {}
        self.runs: dict[QueryName, QueryRun] = {}
        self.pool = Pool(memory_bytes, self.runs)
        self.streams = Streams(self.runs, roots, clock)
        self._remover = Remover(data_dir)
        self._unstarted: dict[QueryName, str] = {}  # why a query could not be started here
        self._waiters: list[_Waiter] = []
        self._turn = 0
        self._next_tick_s = 0.0
        self._told: object = None
        self.snapshot = self._heartbeat()
        """How it goes, a moment ago; for other threads."""
        self._stopped = threading.Event()

    # For other threads ----------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def stop(self) -> None:
        """End, dropping all queries; results that are written stay."""
        self._mailbox.put(None)
        self._thread.join()

    def post(self, event: Callable[[], None]) -> None:
        """Have `event` done in the worker's thread, soon."""
        self._mailbox.put(event)

    def ask(self, question: Callable[[], T]) -> T:
        """Have `question` answered in the worker's thread; raises what it raises."""
        answer: Future[T] = Future()

        def put() -> None:
            try:
                answer.set_result(question())
            except BaseException as e:
                answer.set_exception(e)

        self.post(put)
        while not self._stopped.is_set():
            try:
                return answer.result(timeout=1.0)
            except TimeoutError:
                continue
        raise Unreachable(f"processor {self.here!r} is stopping", remedy="try again elsewhere")

    # The loop -------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._handle_events():
                now = self._clock()
                if now >= self._next_tick_s:
                    self._next_tick_s = now + TICK_S
                    self._tick()
                self._work()
                self._answer_waiters()
        except Exception as e:  # what is half done cannot be gone on with: better dead than wrong
            log.exception("defect", processor=self.here)
            self._shell.give_up(DovetailError(f"defect: {type(e).__name__}: {e}"))
        finally:
            self._stopped.set()
            for run in self.runs.values():
                if run.stage is Stage.RUNNING:
                    run.stop("the processor stops")
            self.streams.close()

    def _handle_events(self) -> bool:
        """All that waits in the mailbox; if there is no work, wait for something. False to end."""
        wait_s = 0.0
        if not self._busy():
            self._tell_news()
            wait_s = self._wait_s()
        while True:
            try:
                event = self._mailbox.get(timeout=wait_s) if wait_s else self._mailbox.get_nowait()
            except queue.Empty:
                return True
            if event is None:
                return False
            try:
                event()
            except DovetailError as e:
                log.warning("refused", processor=self.here, cause=str(e))
            wait_s = 0.0

    def _busy(self) -> bool:
        return any(r.ready for r in self.runs.values()) or self.streams.flow

    def _wait_s(self) -> float:
        reading = any(s.reading for s in self.streams.all())
        until_tick_s = max(0.0, self._next_tick_s - self._clock())
        return max(1e-4, min(until_tick_s, FILE_POLL_S) if reading else until_tick_s)

    def _work(self) -> None:
        """Read what there is room for; then one step of a query, each in its turn."""
        self.pool.share()
        self.streams.route()
        runs = list(self.runs.values())
        for k in range(len(runs)):
            run = runs[(self._turn + k) % len(runs)]
            if run.ready:
                self._turn = (self._turn + k + 1) % len(runs)
                run.step()
                return

    def _tick(self) -> None:
        for run in list(self.runs.values()):
            run.tick(self.peers, self.leaving is not None, fed=not self.streams.owes(run))
        self.snapshot = self._heartbeat()

    def _tell_news(self) -> None:
        """Have the manager hear at once that an assignment, a query or a stream has got on."""
        stages = tuple((n, r.stage) for n, r in self.runs.items())
        streams = tuple((s.ended, self.streams.left(s)) for s in self.streams.all())
        if (self.assigned, stages, streams) != self._told:
            self._told = (self.assigned, stages, streams)
            self.snapshot = self._heartbeat()
            self._shell.beat()

    # Clients --------------------------------------------------------------------------------------

    def await_joined(self, query: QueryName) -> Future[int]:
        """Answers with the rows that came so far, also those that wait, when all are joined."""
        run = self.runs.get(query)
        if run is None:
            raise Refusal(Domain.QUERY, f"query {query!r} does not run at {self.here!r}")
        waiting = self.streams.waiting(run)
        targets = {s: one.taken + waiting.get(s, (0, 0))[0] for s, one in run.splits.splits.items()}
        rows = sum(run.rows_in) + sum(rows for _, rows in waiting.values())
        waiter = _Waiter(query, targets, Future(), rows)
        self._waiters.append(waiter)
        return waiter.done

    def _answer_waiters(self) -> None:
        if not self._waiters:
            return
        left = []
        for waiter in self._waiters:
            run = self.runs.get(waiter.query)
            if run is None or run.stage is Stage.FAILED:
                cause = run.cause if run else "it was dropped"
                waiter.done.set_exception(
                    Refusal(Domain.QUERY, f"query {waiter.query!r} has failed: {cause}")
                )
            elif run.stage is Stage.CLOSED or all(
                s not in run.splits.splits or run.splits.joined(s) >= target
                for s, target in waiter.targets.items()
            ):
                waiter.done.set_result(waiter.rows)
            else:
                left.append(waiter)
        self._waiters = left

    # Links ----------------------------------------------------------------------------------------

    def frame(self, split: SplitId, number: int, item: object | None, size_bytes: int) -> None:
        """A frame of another processor's split."""
        run = self.runs.get(query_of(split))
        if run is not None and run.stage is not Stage.FAILED:
            content: Marker | None = item  # type: ignore[assignment]
            run.guard(lambda: run.frame(split, number, content, size_bytes))
            run.follow_up()

    def acknowledged(
        self, source: ProcessorId, split: SplitId, number: int, allowed: int, done: int
    ) -> None:
        """Another processor's instance tells how far it is."""
        run = self.runs.get(query_of(split))
        if run is not None and run.stage is Stage.RUNNING and split in run.splits.splits:
            run.guard(lambda: run.splits.acknowledged(split, source, number, allowed, done))

    # The manager ----------------------------------------------------------------------------------

    def control(self, m: ControlMessage, arrived: Arrived | None = None) -> None:
        """A message from the manager, or groups from another processor."""
        if isinstance(m, Assign | StopQuery | PushPartitions) and m.epoch < self.epoch:
            return  # from a manager that has been replaced; moves are fenced by the participant
        match m:
            case Heard():
                self.epoch = max(self.epoch, m.epoch)
                self.joined |= m.member
            case Assign():
                self.epoch = m.epoch
                self._assign(assignment_from_json(m.document))
            case StopQuery():
                self.epoch = m.epoch
                run = self.runs.get(m.query)
                if run is not None and run.stage is not Stage.FAILED:
                    run.stop(m.cause)
                self._shell.tell_manager(QueryStopped(m.query, m.epoch))
            case PushPartitions() if m.query in self.runs:
                self.runs[m.query].control(m)
            case _ if isinstance(m, MoveRequest) and self.joined and m.ref.query in self.runs:
                self.runs[m.ref.query].control(m, arrived)
            case _:
                pass  # of a query that is not here yet, or not any more

    def _assign(self, a: Assignment) -> None:
        if (a.epoch, a.version) <= self.assigned:
            return
        self.peers = a.peers
        wanted = {q.name: q for q in a.queries}
        for name in set(self.runs) - set(wanted):
            run = self.runs.pop(name)
            if run.stage is Stage.RUNNING:
                run.stop("it was dropped")
        self._unstarted = {n: c for n, c in self._unstarted.items() if n in wanted}
        self._remover.remove(a.dropped)  # first: a query of the same name and places may follow
        self.streams.set_tasks(a.streams, self.memory_bytes)
        for task in a.queries:
            self._take_up(task)
        self.streams.listen()
        self.leaving = a.leaving
        self.assigned = (a.epoch, a.version)

    @property
    def finds_nothing_more(self) -> bool:
        """Whether no query adds to its results here."""
        return not any(self._runs(name) for name in self.runs)

    def _runs(self, name: QueryName) -> bool:
        return self.runs[name].stage is Stage.RUNNING

    def _take_up(self, task: QueryTask) -> None:
        run = self.runs.get(task.name)
        try:
            if run is not None and run.stage is Stage.CLOSED:
                run.set_task(task)
                return
            if task.name in self._unstarted:
                return
            bounds = self.pool.bounds(task, self.here, len(self.peers), run)
            if run is None:
                log.info("query starts", query=task.name, processor=self.here)
                for what, place in (("results", task.results), ("spill", task.spill)):
                    if place is not None:
                        self._roots.check(what, place)
                self.runs[task.name] = QueryRun(
                    task,
                    self.here,
                    data_dir=self._data_dir,
                    bounds=bounds,
                    memory_bytes=self.memory_bytes,
                    shell=self._shell,
                    clock=self._clock,
                )
            elif run.stage is Stage.RUNNING:
                run.set_task(task)
                run.instance.set_shares(bounds, task.disk)
                run.follow_up()
        except Exception as e:  # whatever it is: others must not end because this one cannot begin
            if run is not None:
                run.fail(cause_of(e))
            else:
                log.warning("query cannot start", query=task.name, exc_info=e)
                self._unstarted[task.name] = cause_of(e)

    def drop_all(self) -> None:
        """The cluster let this processor go: start anew, with nothing."""
        for run in self.runs.values():
            if run.stage is Stage.RUNNING:
                run.stop("the cluster let this processor go")
        self.runs.clear()
        self.streams.set_tasks((), self.memory_bytes)
        self._unstarted.clear()
        self.joined = False
        self.assigned = (Epoch(0), 0)

    def _heartbeat(self) -> Heartbeat:
        """What the manager hears, but for what the process knows of itself."""
        loads = [run.load() for run in self.runs.values()]
        loads += [
            QueryLoad(name, 0, 0, 0, 0, stage=Stage.FAILED, cause=cause)
            for name, cause in self._unstarted.items()
        ]
        streams = [self.streams.load(s) for s in self.streams.all()]
        epoch, version = self.assigned
        waiting = sum(s.held_bytes for s in self.streams.all())
        return Heartbeat(
            self.here,
            0,
            waiting + sum(r.used_bytes for r in self.runs.values()),
            tuple(loads),
            any(r.adapting for r in self.runs.values()),
            version if epoch == self.epoch else 0,
            tuple(streams),
            room_bytes=self.pool.room_bytes,
        )
