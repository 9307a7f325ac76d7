"""One query on one worker: its nodes of the graph, its part in moves, its end.

    home ─▶ evaluate ─▶ split ─▶ links to every worker, ours too        (per input hosted here)
    link ends ─▶ join ─▶ evaluate, if there is anything to ─▶ deliver ─▶ sink
                  └─▶ pusher ─▶ spill store                             (under memory pressure)

    opening ─▶ running ─▶ closing: rest pushed ▶ sink closed ▶ store closed ─▶ closed
       └──────────┴──────────┴── whatever is raised ─▶ failed

Read `operators` in the order of the drawing, then `group_moves`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from dovetail_processor.adaptation.recent_output import RecentOutput
from dovetail_processor.batches import Keyed
from dovetail_processor.expressions import above_join
from dovetail_processor.graph.arc import Arc, QueuePool
from dovetail_processor.graph.node import Node
from dovetail_processor.group_moves import GroupMoves
from dovetail_processor.jobs import FollowedLane, Lane, Outcome
from dovetail_processor.join.state import JoinState
from dovetail_processor.join.transfer import Arrived
from dovetail_processor.memory_pool import Claim
from dovetail_processor.operators.deliver import SEGMENT_S, Deliver
from dovetail_processor.operators.evaluate import Evaluate, Results, of_results
from dovetail_processor.operators.join import Join, chunk_rows
from dovetail_processor.operators.link_end import LinkEnd, Marker
from dovetail_processor.operators.links import Item, Links
from dovetail_processor.query_inputs import QueryInputs
from dovetail_processor.shell.interface import Shell
from dovetail_processor.sinks import Sink, SinkTotals
from dovetail_processor.spill.pusher import Pusher
from dovetail_processor.state_memory import StateMemory
from dovetail_proto.assignment import Phase, QueryTask
from dovetail_proto.cluster_memory import ClusterShares
from dovetail_proto.errors import DovetailError
from dovetail_proto.feeds import LinkAck
from dovetail_proto.ids import ProcessorId, SplitId, input_of
from dovetail_proto.memory import OUTPUT_PIECES
from dovetail_proto.messages import (
    EndOfMovedPartitions,
    FinishMove,
    MoveRequest,
    PushPartitions,
    QueryLoad,
    ReactivatePartitions,
    Stage,
)
from dovetail_proto.spill_format import RunRecord, SpillStore

JOIN, ABOVE, DELIVER = 40, 60, 70
"""Depths of the nodes; those of inputs are in `query_inputs`."""


class Query:
    """See the module."""

    def __init__(
        self,
        task: QueryTask,
        here: ProcessorId,
        *,
        bounds: ClusterShares,
        memory_bytes: int,
        queues: QueuePool,
        shell: Shell,
        clock: Callable[[], float],  # the time of the event that the worker handles
    ) -> None:
        self.task = task
        self.here = here
        self.bounds = bounds
        self._clock = clock
        self._shell = shell
        self._host_of = _hosts(task)
        self._processors = task.map.processors  # that ever owned a group
        self.state = JoinState(
            task.plan,
            memory_bytes - bounds.fixed,  # the most that state can ever get: if it is alone
            chunk_rows=chunk_rows(
                task.plan.joined_schema(), len(task.plan.inputs), bounds.shares.output
            ),
        )
        half_life_s = task.disk.productivity_half_life_s
        output = RecentOutput(self.state.produced, self.state.generation, half_life_s)
        self.memory = StateMemory(
            self.state, output, bounds.minimum, lambda: not self.moves.participant.may_push()
        )
        self.ends = [LinkEnd(bounds.window) for _ in task.plan.inputs]
        self._end_of = {s: self.ends[input_of(s)] for s in self._host_of}
        self._output: list[Arc[Results]] = [Arc(bounds.shares.output)]  # from the join to deliver
        self._above: list[Node] = []
        if not task.plan.is_bare:
            self._output.append(Arc(bounds.shares.output))
            above = of_results(above_join(task.plan))
            self._above = [Evaluate(task.name, ABOVE, above, *self._output)]
        self.join = Join(
            task.name,
            JOIN,
            state=self.state,
            inputs=self.ends,
            out=self._output[0],
            relief=self.memory,
            piece_bytes=bounds.shares.output,
        )
        self.links = Links(
            task.name, here, task.map, piece_bytes=bounds.shares.batch, post=self._post
        )
        self.inputs = QueryInputs(task.plan, self.links, queues, bounds.shares.batch)
        self.inputs.host(task.split_hosts.get(here, ()))
        self.moves = GroupMoves(
            task,
            here,
            links=self.links,
            join=self.join,
            memory=self.memory,
            output=output,
            shell=shell,
            lane=self._lane_for("groups"),
            now_s=self.now_s,
        )
        self.deliver: Deliver | None = None  # None until the files are open
        self._nodes: list[Node] = []  # likewise
        self.pusher: Pusher | None = None  # likewise; and without a place for state on disk
        self.stage = Stage.RUNNING
        self.cause = ""
        self.error: Exception | None = None  # what failed it here
        self.leaving = False  # the processor's groups are being moved away
        self.closing = False  # all is joined, and is being closed
        self.totals: SinkTotals | None = None  # once the sink is closed
        self._interrupted = False  # it closes before its files were read to their end
        self._fair_bytes = bounds.shares.state  # for state, if all queries here had the same
        self._open()

    # Opening --------------------------------------------------------------------------------------

    def _open(self) -> None:
        files, task, row_group_bytes = self._shell.files, self.task, self.bounds.shares.output
        self._lane = self._lane_for("results")

        def open_files() -> tuple[Sink, SpillStore | None]:
            sink = files.open_sink(task, row_group_bytes)
            try:
                return sink, files.open_store(task)
            except Exception:
                sink.abort()
                raise

        self._lane.run(open_files, self._opened)

    def _opened(self, opened: Outcome[tuple[Sink, SpillStore | None]]) -> None:
        if self.stage is not Stage.RUNNING:
            if opened.error is None:
                opened.result()[0].abort()
            return
        sink, store = opened.result()
        self.deliver = Deliver(
            self.task.name,
            DELIVER,
            source=self._output[-1],
            sink=sink,
            lane=self._lane,
            bound_bytes=self.bounds.shares.output,
            failed=self.fail,
            roll_s=SEGMENT_S if self.task.has_log else None,
            trims=bool(self.task.keep_s),
        )
        # Whatever the policy is: it may change, and groups may come that were pushed elsewhere.
        if store is not None:
            self.pusher = Pusher(
                self.state,
                store,
                self._lane_for("spill"),
                self.bounds.shares.spill,
                self.fail,
            )
        self.memory.use(self.pusher, self.task.disk)
        self._set_nodes()

    def _set_nodes(self) -> None:
        if self.deliver is not None:
            self._nodes = [self.deliver, *self._above, self.join, *self.inputs.nodes]

    @property
    def opening(self) -> bool:
        """Whether its files are being opened: it cannot work yet, and may turn out to fail."""
        return self.deliver is None and self.stage is Stage.RUNNING

    @property
    def now_s(self) -> float:
        """The time of the event that is being handled."""
        return self._clock()

    def _lane_for(self, what: str) -> Lane:
        """A lane whose jobs' ends fail the query, if they raise, and are followed up."""
        inner = self._shell.lane(f"{self.task.name}-{what}")
        return FollowedLane(inner, self.guard, self.follow_up)

    # What is wanted -------------------------------------------------------------------------------

    def set_task(self, task: QueryTask, bounds: ClusterShares) -> None:
        """Go on with what is wanted now; a split may have another host.

        A join that has closed, to leave, still answers what splits send to it.
        """
        hosts = _hosts(task)
        self._processors = task.map.processors
        self.task = replace(task, map=self.task.map)
        self._end_of = {s: self.ends[input_of(s)] for s in hosts}
        for split in set(hosts) - set(self._host_of):
            self._end_of[split].relink()
        changed, self._host_of = hosts != self._host_of, hosts
        if self.closing or self.stage is not Stage.RUNNING:
            return
        self.bounds = bounds
        if self.deliver is not None:
            self.memory.use(self.pusher, task.disk)
        if changed:
            mine = task.split_hosts.get(self.here, ())
            self.inputs.host(mine)
            self._set_nodes()
            self.moves.act(self.moves.participant.host(mine, task.map), self.now_s)

    # Work -----------------------------------------------------------------------------------------

    @property
    def nodes(self) -> Sequence[Node]:
        """Those that may work now."""
        if self.deliver is None or self.stage is not Stage.RUNNING or self.closing:
            return ()
        return self._nodes

    def follow_up(self) -> None:
        """Markers that came through, pushes that ended, acknowledgements, the end."""
        if self.stage is Stage.RUNNING and not self.closing:
            self.guard(self._follow_up)
        elif self.stage is not Stage.FAILED:
            self._acknowledge()  # once more for a split that did not hear it
        else:
            self._give_memory_back()  # a job that was given up may have ended

    def _follow_up(self) -> None:
        if self.deliver is None:
            return
        self.moves.follow_up(self.now_s)
        if self.settled:
            for marker in self.join.markers():
                if isinstance(marker, EndOfMovedPartitions):
                    self.moves.marker(marker, self.now_s)
        self._acknowledge()
        closing = self.task.phase is Phase.CLOSING
        if (closing and self._finished) or ((closing or self.leaving) and self._drained):
            self._close()

    @property
    def settled(self) -> bool:
        """Whether all that was taken from the inputs is joined and with the sink."""
        return self.join.settled and not any(map(len, self._output))

    @property
    def _finished(self) -> bool:
        """Whether all input has come and is joined, and all that our splits sent has arrived."""
        exhausted = all(end.exhausted for end in self.ends) and self.settled
        return exhausted and self.links.delivered and not self.moves.reading

    @property
    def _drained(self) -> bool:
        """Whether nothing of the query is here any more, and nothing will come.

        Such a join waits for no end of input: whoever would send it may have closed before this
        processor joined.
        """
        participant = self.moves.participant
        if participant.owned or participant.adapting or self.links.splits or self.moves.reading:
            return False
        return self.settled and not self.join.queued_bytes

    def guard(self, work: Callable[[], object]) -> None:
        """Do `work`; whatever it raises fails the query here, and nothing else."""
        try:
            work()
        except Exception as e:  # a defect, too, must not take the other queries along
            self.fail(e)

    def fail(self, error: Exception) -> None:
        """The query cannot go on here; the manager hears it with the next heartbeat."""
        if self.stage is Stage.RUNNING:
            self.error = error
            self.stop(cause_of(error))

    def stop(self, cause: str) -> None:
        """Drop the query; results stay."""
        self.stage, self.cause = Stage.FAILED, cause
        for arc in self._output:
            arc.clear()
        self.inputs.stop()
        if self.pusher is not None:
            self.pusher.stop()
        if self.deliver is not None:
            self.deliver.stop()
        else:
            self._lane.close()  # behind the job that opens its files
        self.moves.stop()
        self._give_memory_back()

    # Closing --------------------------------------------------------------------------------------

    def _close(self) -> None:
        """Push the rest of what has generations on disk, close the sink, then the store."""
        if self.memory.pushing:
            return  # its end comes here again
        self.closing = True
        self.moves.stop()
        if self.pusher is not None:
            self.pusher.push_rest(self.now_s, self._close_sink)
        else:
            self._close_sink()

    def _close_sink(self) -> None:
        assert self.deliver is not None
        self.deliver.close(self._sink_closed)

    def _sink_closed(self, closed: Outcome[SinkTotals]) -> None:
        self.totals = closed.result()
        if self.stage is not Stage.RUNNING:
            return
        if self.pusher is None:
            self._closed()
        else:
            self.pusher.close_run(self._record(self.totals), self.now_s, self._closed)

    def _closed(self) -> None:
        if self.pusher is not None:
            self.pusher.stop()
        self.stage = Stage.CLOSED
        self._give_memory_back()

    def _give_memory_back(self) -> None:
        """It has ended: others have its memory from now on, unless a job still reads it."""
        pushing = self.pusher is not None and self.pusher.reading
        if not pushing and not self.moves.reading:
            self.state.slab.give_back()

    def _record(self, totals: SinkTotals) -> RunRecord:
        """For the store: which processors have stores of the same run, and what was pushed, by
        anybody, of the groups that are here: so a clean-up knows whether it has it all.

        Combinations of rows that were not kept are none of its business: they have met everyone.
        """
        lifetime = self.state.produced + self.state.produced_before - self.state.unkept
        owned = np.flatnonzero(self.join.live).tolist()
        return RunRecord(
            rows_in=self.inputs.rows_in,
            results_run=totals.rows,
            checksum=totals.checksum,
            produced={g: int(lifetime[g]) for g in np.flatnonzero(lifetime).tolist()},
            interrupted=self._interrupted,
            output=self.task.results,
            processor=self.here,
            processors=tuple(sorted({self.here, *self._processors})),
            owned={g: int(self.state.generation[g]) for g in owned},
        )

    @property
    def writing(self) -> bool:
        """Whether its sink is not at its end yet, though the query may be."""
        return self.deliver is not None and not self.deliver.ended

    # Input ----------------------------------------------------------------------------------------

    @property
    def reads(self) -> bool:
        """Whether its splits want what comes on their streams, or what came before it closed."""
        return self.stage is Stage.RUNNING and not self.closing

    @property
    def ended(self) -> tuple[bool, ...]:
        """Of which inputs the end has reached this join."""
        return tuple(end.ended for end in self.ends)

    def has_ended(self, stream: str) -> bool:
        """Whether the join here knows that no row of a stream comes any more."""
        inputs = zip(self.task.plan.inputs, self.ends, strict=True)
        return all(end.ended for one, end in inputs if one.stream == stream)

    def interrupt(self) -> None:
        """It closes although a file that it reads has not ended."""
        self._interrupted = True

    # Links ----------------------------------------------------------------------------------------

    def frame(
        self, split: SplitId, number: int, item: Keyed | Marker | None, size_bytes: int
    ) -> None:
        """A frame arrived for our join; of a host that we do not know, it comes again."""
        if split not in self._host_of:
            return
        end = self._end_of[split]
        if end.arrived(number, item, size_bytes) and isinstance(item, EndOfMovedPartitions):
            end.overtake(self.moves.leaving(item))

    def _post(self, split: SplitId, to: ProcessorId, frames: list[tuple[int, Item | None]]) -> None:
        for number, item in frames:
            if to == self.here:
                size_bytes = item.size_bytes if isinstance(item, Keyed) else 0
                self.frame(split, number, item, size_bytes)
            else:
                self._shell.send_frame(to, split, number, item)

    def _acknowledge(self) -> None:
        for split, host in self._host_of.items():
            news = self._end_of[split].news()
            if news is None:
                continue
            if host == self.here:
                self.links.acknowledged(split, self.here, news, self.now_s)
            else:
                self._shell.send_ack(host, LinkAck(self.task.name, split, *news))

    def tick(self, leaving: bool) -> None:
        """Now and then: send again what was not acknowledged, write what found no room."""
        self.leaving = leaving
        if self.pusher is not None:
            self.pusher.tick(self.now_s)
        if self.stage is not Stage.RUNNING:
            return
        self.inputs.rank()
        self.links.resend(self.now_s)
        if self.deliver is not None:
            self.deliver.tick(self.now_s)
        self.follow_up()

    @property
    def quiet(self) -> bool:
        """Whether nothing is under way: no tick has anything to do until an event comes."""
        if self.stage is not Stage.RUNNING:
            return self.pusher is None or not self.pusher.no_room
        if self.deliver is None or self.adapting or self.task.phase is Phase.CLOSING:
            return False
        rolled = self.deliver.roll_at_s == float("inf")
        return rolled and not self.queued_bytes and not self.links.unanswered

    def control(self, m: MoveRequest | PushPartitions, arrived: Arrived | None = None) -> None:
        """What the manager wants, or groups that arrived.

        A join that has closed, to leave, takes part in no move, but says again that one is over:
        the answer may have been lost, and the manager waits for it.
        """
        active = self.stage is Stage.RUNNING and not self.closing
        again = isinstance(m, ReactivatePartitions | FinishMove) and self.stage is not Stage.FAILED
        if active or again:
            self.guard(lambda: self.moves.handle(m, arrived, self.now_s))
            self.follow_up()

    # Memory and reports ---------------------------------------------------------------------------

    @property
    def claim(self) -> Claim:
        """What it has of the memory for state."""
        borrowed = self._borrowed_bytes
        return Claim(
            held=self._kept_bytes + borrowed,
            minimum=self._minimum_bytes,
            spills=self.memory.spills,
            short=self.memory.short is not None,
            frees=self.closing
            or borrowed > 0
            or self.deliver is None
            or self.join.frees
            or self.moves.frees,
        )

    @property
    def _minimum_bytes(self) -> int:
        """Groups that come, and what it needs to go on beside them."""
        return self.bounds.minimum + self.moves.coming_bytes

    @property
    def _kept_bytes(self) -> int:
        """State, and groups that come."""
        return int(self.state.held_bytes) + self.moves.coming_bytes

    @property
    def _borrowed_bytes(self) -> int:
        """Rows held back and output on its way that lie in memory for state."""
        output = sum(arc.held_bytes for arc in self._output)
        output += 0 if self.deliver is None else self.deliver.under_way_bytes
        beyond = output - OUTPUT_PIECES * self.bounds.shares.output
        return self.links.borrowed_bytes + max(0, beyond)

    def set_room(self, state_bytes: int, fair_bytes: int) -> None:
        """So much memory for state is its own or free; `fair_bytes` is its part of all of it.

        Rows may be held back in half of what is free: the other half is for rows that are queued
        already. And never in the minimum, nor in the batch that may come on top.
        """
        self._fair_bytes = fair_bytes
        most = state_bytes - self._minimum_bytes - self.bounds.shares.batch
        self.links.lent_bytes = max(0, min((state_bytes - self._kept_bytes) // 2, most))
        room = max(0, state_bytes - self._borrowed_bytes - self.moves.coming_bytes)
        self.memory.set_limit(room)
        if room < self.state.held_bytes and self.memory.spills and self.settled and self.reads:
            self.guard(lambda: self.memory.before_batch(self.now_s))  # though no batch comes
        if not self.closing:
            self.state.slab.trim(room)

    @property
    def queued_bytes(self) -> int:
        """On its way into or out of the join."""
        output = sum(arc.held_bytes for arc in self._output)
        links = self.links.queued_bytes + self.moves.shipped_bytes
        return self.join.queued_bytes + links + self.inputs.queued_bytes + output

    @property
    def used_bytes(self) -> int:
        """Whatever counts against the limit."""
        if self.stage is not Stage.RUNNING:
            return 0
        sink = 0 if self.deliver is None else self.deliver.held_bytes
        return self._kept_bytes + self.queued_bytes + sink

    @property
    def adapting(self) -> bool:
        """Whether a push or a move is under way."""
        if self.stage is not Stage.RUNNING:
            return False
        return self.moves.participant.adapting is not None or self.memory.pushing

    @property
    def produced(self) -> int:
        """Combinations made here, whoever owns their groups now."""
        made = self.state.produced.sum() + self.state.produced_before.sum()
        return int(made) - self.moves.moved_in

    def _waits_for(self) -> str:
        """Why it stands still, if it does: its place on disk is full, or a processor is silent."""
        full = self.pusher.no_room if self.pusher is not None else ""
        return full or self.links.silent(self.now_s)

    def load(self) -> QueryLoad:
        """What the manager hears of it."""
        pusher, running = self.pusher, self.stage is Stage.RUNNING
        found = 0 if self.deliver is None else self.deliver.rows
        return QueryLoad(
            query=self.task.name,
            groups=len(self.moves.participant.owned),
            held_bytes=self.state.held_bytes if running else 0,
            spilled_bytes=pusher.spilled_bytes if pusher else 0,
            produced=self.produced,
            rows_in=self.inputs.rows_in,
            results=found if self.totals is None else self.totals.rows,
            checksum=0 if self.totals is None else self.totals.checksum,
            pushes=pusher.pushes if pusher else 0,
            spilled_groups=pusher.spilled_groups if pusher else 0,
            queued_bytes=self.queued_bytes if running else 0,
            peak_state_bytes=self.join.peak_bytes,
            pushed_bytes=pusher.pushed_bytes if pusher else 0,
            state_limit_bytes=self._fair_bytes if running else 0,
            stage=self.stage,
            cause=self.cause or (self._waits_for() if running else ""),
        )


def cause_of(error: Exception) -> str:
    """Why a query cannot go on, for whoever asks; a defect says of which kind it is."""
    return str(error) if isinstance(error, DovetailError) else f"{type(error).__name__}: {error}"


def _hosts(task: QueryTask) -> dict[SplitId, ProcessorId]:
    return {s: p for p, splits in task.split_hosts.items() for s in splits}
