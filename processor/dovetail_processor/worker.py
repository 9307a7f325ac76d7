"""A worker: all queries and streams of a processor as one machine without I/O.

    events ─▶ handle ─▶ homes, queries, moves ─▶ effects: shell's messages, frames, jobs
    time   ─▶ tick   ─▶ what has to be sent again
              step   ─▶ one piece of work of the node that the strategy chooses

Events are closures, one at a time, each with its time: a message of the manager, a frame, a batch
of a source, the end of a job. A step is short, so an event waits for one step at most. The same
worker runs in a process, inside `dovetail run`, and in the simulator: only the shell differs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import structlog

from dovetail_processor.batches import Keyed
from dovetail_processor.graph import loop
from dovetail_processor.graph.arc import QueuePool
from dovetail_processor.graph.node import Node
from dovetail_processor.join.transfer import Arrived
from dovetail_processor.memory_pool import MemoryPool
from dovetail_processor.operators.home import Sent
from dovetail_processor.operators.link_end import Marker
from dovetail_processor.process_memory import ProcessMemory
from dovetail_processor.query import Query, cause_of
from dovetail_processor.scheduling.depth_first import DepthFirst
from dovetail_processor.shell.interface import Shell
from dovetail_processor.streams import Streams
from dovetail_proto.assignment import (
    Assignment,
    Leaving,
    Peer,
    Phase,
    QueryTask,
    assignment_from_json,
)
from dovetail_proto.errors import Domain, DovetailError, Refusal
from dovetail_proto.ids import Epoch, ProcessorId, QueryName, SplitId, StreamName, query_of
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

TICK_S = 0.1
"""Between two looks at what has to be sent again; a fifth of a link's patience."""

QUIET_TICK_S = 1.0
"""The same where no query waits for anything: nothing changes until an event comes."""

BATCH_SHARE = 32
"""A batch read from a file is at most this part of the memory limit, for all streams together."""

log = structlog.get_logger("processor")


@dataclass(slots=True)
class _Waiter:
    """Somebody who waits until all that came for the splits here so far is joined."""

    query: QueryName
    targets: dict[SplitId, int]  # sequences below which all has to be joined
    rows: int
    done: Callable[[int | DovetailError], None]


class Worker:
    """See the module. `memory` is the process's; `cpu_s` tells how long its thread has computed."""

    def __init__(
        self,
        here: ProcessorId,
        memory: ProcessMemory,
        shell: Shell,
        *,
        cpu_s: Callable[[], float] = lambda: 0.0,
        now_s: float = 0.0,
    ) -> None:
        self.here = here
        self.memory = memory
        memory.join(here, shell.wake)
        self.memory_bytes = memory.part_bytes
        self.now_s = now_s  # of the event that is being handled
        self._shell = shell
        self._cpu_s = cpu_s
        self.epoch = Epoch(0)  # the highest heard
        self.joined = False
        self.assigned = (Epoch(0), 0)  # of the newest assignment
        self._carried_out = self.assigned  # the same, once the files of its queries are open
        self.leaving: Leaving | None = None  # its groups are being moved away
        self.peers: Mapping[ProcessorId, Peer] = {}
        self.queries: dict[QueryName, Query] = {}
        self.queues = QueuePool()
        self.pool = MemoryPool(here, memory, self.queries, self.queues)
        self.strategy = DepthFirst()
        self.streams = Streams(
            self.queries,
            memory,
            shell,
            lambda: self.now_s,
            self.strategy.forget,
        )
        self.unstarted: dict[QueryName, Exception] = {}
        """Why a query could not be started here."""
        self._waiters: list[_Waiter] = []
        self._next_tick_s = now_s
        self._reported: object = None  # what the last heartbeat was made of that others wait for

    # Events, time, work ---------------------------------------------------------------------------

    def handle(self, event: Callable[[], None], now_s: float) -> None:
        """Take one event; a DovetailError that it raises is logged and changes nothing."""
        self.now_s = max(self.now_s, now_s)
        self._tick_within(TICK_S)
        try:
            event()
        except DovetailError as e:
            log.warning("refused", processor=self.here, cause=str(e))

    def step(self, now_s: float) -> bool:
        """Do one piece of work, if there is any; whether there was."""
        self.now_s = max(self.now_s, now_s)
        due = self.now_s >= self._next_tick_s
        if due:
            self._tick()
        self.pool.share(anew=due)
        node = self._work()
        self._answer_waiters()
        if node is None:
            self._report_news()
        else:
            self._tick_within(TICK_S)
        return node is not None

    @property
    def next_s(self) -> float:
        """When `step` has to be called again, if no event comes before."""
        return self._next_tick_s

    def _work(self) -> Node | None:
        nodes = [*self.streams.homes.values(), *(n for q in self.queries.values() for n in q.nodes)]
        ready = [node for node in nodes if node.ready]
        if not ready:
            return None
        node = self.strategy.choose(ready, self.now_s)
        concerned = [self.queries[QueryName(o)] for o in node.owners if o in self.queries]
        try:
            loop.step(node, self.now_s, self._cpu_s)
        except Exception as e:  # a defect, too, must not take the other queries along
            for query in concerned:
                query.fail(e)
        for query in concerned:
            query.follow_up()
            self._end_inputs(query)
        return node

    def _tick_within(self, s: float) -> None:
        self._next_tick_s = min(self._next_tick_s, self.now_s + s)

    def _tick(self) -> None:
        self._next_tick_s = float("inf")
        for query in list(self.queries.values()):
            query.tick(self.leaving is not None)
            self._end_inputs(query)
        for home in self.streams.homes.values():
            home.settle()
        quiet = self.leaving is None and all(q.quiet for q in self.queries.values())
        self._tick_within(QUIET_TICK_S if quiet else TICK_S)

    def _end_inputs(self, query: Query) -> None:
        """The links of a split end when its stream has ended, or its query closes, and the split
        has taken all that came for it.
        """
        if query.reads:
            fed = [s for s in query.inputs.readers if self.streams.has_fed(query, s)]
            ended = query.inputs.end(fed, self.peers, self.now_s)
            if ended or query.task.phase is Phase.CLOSING:
                query.follow_up()

    def _report_news(self) -> None:
        """Have the manager hear at once that an assignment, a query or a stream has got on."""
        self._note_opened()
        stages = tuple((n, q.stage, q.ended) for n, q in self.queries.items())
        streams = tuple((h.ended, self.streams.left(h)) for h in self.streams.homes.values())
        if (self._carried_out, stages, streams) != self._reported:
            self._reported = (self._carried_out, stages, streams)
            self._shell.beat()

    def _note_opened(self) -> None:
        """An assignment is carried out once the files of its queries are open, or cannot be."""
        if not any(q.opening for q in self.queries.values()):
            self._carried_out = self.assigned

    # Clients --------------------------------------------------------------------------------------

    def accept(self, stream: StreamName, sent: Sent) -> None:
        """A source sent a batch; raises InputError or Refusal."""
        self.streams.home(stream).accept(sent, self.now_s)

    def await_joined(self, name: QueryName, done: Callable[[int | DovetailError], None]) -> None:
        """`done` hears the rows that came so far, also those that wait, when all are joined."""
        query = self.queries.get(name)
        if query is None:
            raise Refusal(Domain.QUERY, f"query {name!r} does not run at {self.here!r}")
        waiting = {s: self.streams.waits_for(query, s) for s in query.inputs.readers}
        rows = sum(reader.rows for reader in query.inputs.readers.values())
        rows += sum(rows for _, _, rows in waiting.values())
        targets = {s: end for s, (_, end, _) in waiting.items()}
        self._waiters.append(_Waiter(name, targets, rows, done))

    def forget_waiter(self, done: Callable[[int | DovetailError], None]) -> None:
        """Whoever waited with this `done` has gone."""
        self._waiters = [w for w in self._waiters if w.done is not done]

    def _answer_waiters(self) -> None:
        if not self._waiters:
            return
        left = []
        for waiter in self._waiters:
            query = self.queries.get(waiter.query)
            if query is None or query.stage is Stage.FAILED:
                cause = query.cause if query else "it was dropped"
                waiter.done(Refusal(Domain.QUERY, f"query {waiter.query!r} has failed: {cause}"))
            elif query.stage is Stage.CLOSED or all(
                s not in query.inputs.readers
                or query.inputs.joined_below(s, self.streams.waits_for(query, s)[0]) >= target
                for s, target in waiter.targets.items()
            ):
                waiter.done(waiter.rows)
            else:
                left.append(waiter)
        self._waiters = left

    # Links ----------------------------------------------------------------------------------------

    def frame(
        self, split: SplitId, number: int, item: Keyed | Marker | None, size_bytes: int
    ) -> None:
        """A frame of another processor's split.

        Rows are acknowledged when they are joined, or with the next tick: whoever waits for their
        results should not have to wait for an answer to be sent first.
        """
        query = self.queries.get(query_of(split))
        if query is not None and query.stage is not Stage.FAILED:
            query.guard(lambda: query.frame(split, number, item, size_bytes))
            if not isinstance(item, Keyed):
                query.follow_up()

    def acknowledged(
        self, source: ProcessorId, split: SplitId, number: int, allowed: int, done: int
    ) -> None:
        """Another processor's join tells how far it is."""
        query = self.queries.get(query_of(split))
        if query is not None and query.stage is Stage.RUNNING and split in query.links.splits:
            news = (number, allowed, done)
            query.guard(lambda: query.links.acknowledged(split, source, news, self.now_s))

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
                self.assign(assignment_from_json(m.document))
            case StopQuery():
                self.epoch = m.epoch
                query = self.queries.get(m.query)
                if query is not None and query.stage is not Stage.FAILED:
                    query.stop(m.cause)
                self._shell.tell_manager(QueryStopped(m.query, m.epoch))
            case PushPartitions() if m.query in self.queries:
                self.queries[m.query].control(m)
            case _ if isinstance(m, MoveRequest) and self.joined and m.ref.query in self.queries:
                self.queries[m.ref.query].control(m, arrived)
            case _:
                pass  # of a query that is not here yet, or not any more

    def assign(self, a: Assignment) -> None:
        """Carry out all that is wanted, unless it is older than what is carried out."""
        if (a.epoch, a.version) <= self.assigned:
            return
        self._set_peers(a.peers)
        wanted = {q.name: q for q in a.queries}
        for name in set(self.queries) - set(wanted):
            self._drop(name, "it was dropped")
        self.unstarted = {n: c for n, c in self.unstarted.items() if n in wanted}
        self._shell.files.remove(a.dropped)  # first: a query of the same name may follow
        self.streams.set_tasks({t.name: t for t in a.streams})
        for task in a.queries:
            self._take_up(task)
        self.streams.set_readers()
        for query in self.queries.values():
            self._end_inputs(query)
        self.leaving = a.leaving
        self.assigned = (a.epoch, a.version)

    def _set_peers(self, peers: Mapping[ProcessorId, Peer]) -> None:
        """Links to whoever has gone, or was started again, end: a new process counts from 1."""
        gone = [p for p, peer in self.peers.items() if peers.get(p) != peer]
        for query in self.queries.values():
            for processor in gone:
                query.links.forget(processor)
        self.peers = peers

    def _drop(self, name: QueryName, cause: str) -> None:
        query = self.queries.pop(name)
        if query.stage is Stage.RUNNING:
            query.stop(cause)
        self.streams.let_go(query)
        self.strategy.forget(name)

    def _take_up(self, task: QueryTask) -> None:
        query = self.queries.get(task.name)
        try:
            if task.name in self.unstarted:
                return
            if query is not None and query.stage is Stage.FAILED:
                return
            bounds = self.pool.bounds(task, self.here, len(self.peers), query)
            if query is None:
                self.queries[task.name] = Query(
                    task,
                    self.here,
                    bounds=bounds,
                    memory_bytes=self.memory.limit_bytes,
                    queues=self.queues,
                    shell=self._shell,
                    clock=lambda: self.now_s,
                )
            else:
                query.set_task(task, bounds)
                query.follow_up()
        except Exception as e:  # whatever it is: others must not end because this one cannot begin
            if query is not None:
                query.fail(e)
            else:
                log.warning("query cannot start", query=task.name, exc_info=e)
                self.unstarted[task.name] = e

    def drop_all(self) -> None:
        """The cluster let this processor go: start anew, with nothing."""
        for name in list(self.queries):
            self._drop(name, "the cluster let this processor go")
        self.streams.set_tasks({})
        self.unstarted.clear()
        self.joined = False
        self.assigned = self._carried_out = (Epoch(0), 0)

    def stop(self, cause: str) -> None:
        """End all work; results that are written stay."""
        for query in self.queries.values():
            if query.stage is Stage.RUNNING:
                query.stop(cause)
        self.streams.drop()
        self.memory.leave(self.here)

    @property
    def finds_nothing_more(self) -> bool:
        """Whether no query adds to its results here."""
        return not any(q.stage is Stage.RUNNING or q.writing for q in self.queries.values())

    # Reports --------------------------------------------------------------------------------------

    def heartbeat(self) -> Heartbeat:
        """What the manager hears, but for what the process knows of itself."""
        self._note_opened()
        loads = [query.load() for query in self.queries.values()]
        loads += [
            QueryLoad(name, 0, 0, 0, 0, stage=Stage.FAILED, cause=cause_of(error))
            for name, error in self.unstarted.items()
        ]
        epoch, version = self._carried_out
        waiting = sum(home.held_bytes for home in self.streams.homes.values())
        return Heartbeat(
            self.here,
            0,
            waiting + sum(q.used_bytes for q in self.queries.values()),
            tuple(loads),
            any(q.adapting for q in self.queries.values()),
            version if epoch == self.epoch else 0,
            tuple(self.streams.load(home) for home in self.streams.homes.values()),
            room_bytes=self.pool.room_bytes,
        )
