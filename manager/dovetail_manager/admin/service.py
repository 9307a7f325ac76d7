"""The verbs of the cluster, once: what REST, gRPC and programs in this process call.

Plain types in, plain types out (`dovetail_proto.admin`); every call may come from any thread,
blocks until its effect is durable, and raises errors of `dovetail_proto.errors` only. In a
refusal, `details["reason"]` is `unknown` (no such thing), `exists` (the name is taken), `state`
(not in this state) or `busy` (try again later).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from dovetail_manager import members, queries, streams
from dovetail_manager.adaptation import rounds
from dovetail_manager.admin import status
from dovetail_manager.admin.cleaning import Cleanups
from dovetail_manager.admin.requests import local_place, read_schema, record_of
from dovetail_manager.effects import RECORDS_KEPT
from dovetail_manager.history import (
    adaptations_history,
    decision_from_record,
    decision_number,
    decision_status,
    move_from_record,
    move_status,
    moves_history,
)
from dovetail_manager.loop import ControllerLoop, Stopped
from dovetail_manager.moves.protocol import MovePhase
from dovetail_manager.moves.protocol import Outcome as MoveOutcome
from dovetail_manager.planner import plan_query
from dovetail_manager.refusals import wrong_state
from dovetail_manager.state import State
from dovetail_proto import admin as a
from dovetail_proto.assignment import Phase
from dovetail_proto.errors import Domain, Refusal
from dovetail_proto.ids import GroupId, ProcessorId, QueryName, StreamName, check_name
from dovetail_proto.roots import Roots

LET_GO_S = 10.0
"""How long a drop waits for processors to let go of a query: some heartbeats."""

LET_GO_POLL_S = 0.05

BEFORE_MOVING = {MovePhase.PLANNED, MovePhase.COMPUTING, MovePhase.CHOSEN, MovePhase.RESERVING}
BEGIN_S_MAX = 5.0
"""How long a move may take to begin before its caller is told that it is planned."""

BEGIN_POLL_S = 0.02

T = TypeVar("T")


class AdminService:
    """The verbs of one manager; `name` is what it calls itself."""

    def __init__(
        self,
        loop: ControllerLoop,
        *,
        name: str,
        roots: Roots,
        spill_root: str | None = None,
        spark_masters: Sequence[str] = (),
        keep_results: tuple[float, int] = (0.0, 0),
    ) -> None:
        self._loop = loop
        self._name = name
        self._roots = roots  # what callers may name lies below these
        self._cleanups = Cleanups(loop, spark_masters, roots)
        self._spill_root = spill_root  # where spilled state goes that no submission gives a place
        self._keep_results = keep_results  # seconds, bytes of each log; 0: all

    @property
    def cleanups(self) -> Cleanups:
        """The clean-ups under way, to be resumed and stopped with the manager."""
        return self._cleanups

    # Streams --------------------------------------------------------------------------------------

    def create_stream(self, request: a.CreateStream) -> a.StreamStatus:
        """Declare a stream; Refusal if the name is taken, ConfigError if the schema is none.

        Returns when its home takes rows.
        """
        name = StreamName(check_name("stream", request.name))
        schema = read_schema(name, request.schema)
        path = local_place("path", request.path, self._roots)
        return self._do(
            lambda s: streams.create(s, name, schema, path),
            lambda s: status.stream_status(s, name),
            everywhere=f"stream {name!r} is created",
        )

    def end_stream(self, ref: a.StreamRef) -> a.StreamStatus:
        """Say that nothing more will be sent; ending it twice is no error."""
        return self._do(
            lambda s: streams.end(s, StreamName(ref.name)),
            lambda s: status.stream_status(s, ref.name),
        )

    def drop_stream(self, ref: a.StreamRef) -> a.StreamStatus:
        """Forget a stream that no query reads, so that its name is free; its last status.

        Returns when its home has let go of it.
        """

        def drop(state: State) -> a.StreamStatus:
            last = status.stream_status(state, ref.name)
            streams.drop(state, StreamName(ref.name))
            return last

        return self._loop.call(drop, everywhere=f"stream {ref.name!r} is dropped")

    def get_stream(self, ref: a.StreamRef) -> a.StreamStatus:
        """One stream."""
        return self._loop.look(lambda s: status.stream_status(s, ref.name))

    def list_streams(self) -> a.Streams:
        """All streams, by name."""
        return self._loop.look(
            lambda s: a.Streams(tuple(status.stream_status(s, n) for n in status.names(s)[0]))
        )

    # Queries --------------------------------------------------------------------------------------

    def submit(self, request: a.Submit) -> a.QueryStatus:
        """Plan a query over the declared streams and start it on all processors.

        Returns when they run it, so that it sees every row that is sent from then on. ConfigError
        or QueryError if it cannot be planned; Refusal if the name is taken, if a stream has ended,
        if it fails at once, or (of domain `busy`) if it is submitted and a processor does not hear
        of it.
        """
        name = QueryName(check_name("query", request.name))
        schemas = self._loop.look(
            lambda s: {str(n): record.schema for n, record in s.declared().items()}
        )
        # Planning asks DuckDB and takes a while: not on the machine's thread.
        plan = plan_query(
            request.sql,
            schemas,
            name=name,
            partitions=request.partitions,
            declare="declare it with `dovetail stream create`; `dovetail stream list` shows all",
        )
        record = record_of(
            request,
            plan,
            roots=self._roots,
            spill_root=self._spill_root,
            adaptation=self._loop.settings.adaptation,
            keep_results=self._keep_results,
            created_s=self._loop.now_s(),
        )
        self._loop.call(
            lambda s: queries.submit(s, record, request.weights or None),
            everywhere=f"query {name!r} is submitted",
        )
        made = self.get_query(a.QueryRef(name))
        if made.state == "failed":
            raise wrong_state(
                Domain.QUERY,
                f"query {name!r} has failed: {made.cause}",
                "drop it and submit it again",
            )
        return made

    def close_query(self, ref: a.QueryRef) -> a.QueryStatus:
        """Take nothing more in and close it; returns at once, `get_query` tells when it is done."""
        return self._phase(ref, Phase.CLOSING)

    def pause_query(self, ref: a.QueryRef) -> a.QueryStatus:
        """Take nothing in until `resume_query`; nothing adapts meanwhile."""
        return self._phase(ref, Phase.PAUSED)

    def resume_query(self, ref: a.QueryRef) -> a.QueryStatus:
        """Go on after `pause_query`."""
        return self._phase(ref, Phase.RUNNING)

    def get_query(self, ref: a.QueryRef, *, fresh: bool = False) -> a.QueryStatus:
        """One query, also when it has ended; `fresh`: every processor reports once more first."""
        if fresh:
            self._hear_everyone(ref.name)
        return self._loop.look(lambda s: status.query_status(s, ref.name))

    def list_queries(self) -> a.Queries:
        """All queries, by name, also those that have ended."""
        return self._loop.look(
            lambda s: a.Queries(tuple(status.query_status(s, n) for n in status.names(s)[1]))
        )

    def drop_query(self, request: a.DropQuery) -> a.QueryStatus:
        """Forget a query that is closed or failed, so that its name is free; its last status.

        Processors remove its result logs and its state on disk unless `keep` is set. Waits a little
        for them to let go of it; Refusal of domain `busy` if they do not.
        """
        name = QueryName(request.name)

        def drop(state: State) -> a.QueryStatus:
            last = status.query_status(state, name)
            queries.drop(state, name)
            return last

        if not request.keep:
            self._patiently(lambda s: queries.discard(s, name))
        return self._patiently(drop)

    def _patiently(self, verb: Callable[[State], T]) -> T:
        """Try again for a little while what is refused as busy."""
        until_s = time.monotonic() + LET_GO_S
        while True:
            try:
                return self._loop.call(verb)
            except Refusal as e:
                if e.domain is not Domain.BUSY or time.monotonic() > until_s:
                    raise
            self._loop.ended.wait(LET_GO_POLL_S)

    def start_cleanup(self, request: a.StartCleanup) -> a.CleanupStatus:
        """Begin to produce what a closed query owes; returns when that is recorded."""
        return self._cleanups.start(request)

    def get_cleanup(self, ref: a.QueryRef) -> a.CleanupStatus:
        """How far the latest clean-up of a query is, or what became of it."""
        return self._loop.look(lambda s: status.cleanup_status(s, ref.name))

    def cancel_cleanup(self, ref: a.QueryRef) -> a.CleanupStatus:
        """Stop a clean-up; returns when it has stopped. One that is over is left as it is."""
        return self._cleanups.cancel(ref)

    def set_policy(self, request: a.SetPolicy) -> a.QueryStatus:
        """Adapt by another policy from now on."""
        name = QueryName(request.query)
        return self._do(
            lambda s: queries.set_policy(s, name, request.policy),
            lambda s: status.query_status(s, name),
        )

    # Groups and moves -----------------------------------------------------------------------------

    def list_partitions(self, ref: a.QueryRef) -> a.Partitions:
        """Who owns which group."""
        return self._loop.look(lambda s: status.partitions(s, ref.name))

    def list_moves(self, ref: a.QueryRef) -> a.Moves:
        """Moves under way and ended ones, newest first."""
        # In this order: a move that ends meanwhile is seen twice, not missed.
        moves = self._moves_here(ref.name)
        history = moves_history(QueryName(ref.name))
        for _, text in self._loop.store.records(history, newest=RECORDS_KEPT):
            move = move_from_record(text)
            moves[move.id] = move
        return a.Moves(tuple(moves[i] for i in sorted(moves, reverse=True)))

    def list_adaptations(self, ref: a.QueryRef) -> a.Adaptations:
        """Decisions and why nothing was done, newest first."""

        def here(state: State) -> dict[int, a.AdaptationRecord]:
            decisions = state.query(ref.name).admission.history
            return {decision_number(state.epoch, r): decision_status(r) for r in decisions}

        newer = self._loop.look(here)
        history = adaptations_history(QueryName(ref.name))
        stored = self._loop.store.records(history, newest=RECORDS_KEPT)
        records = {number: decision_from_record(text) for number, text in stored} | newer
        return a.Adaptations(tuple(records[n] for n in sorted(records, reverse=True)))

    def move(self, request: a.MoveGroups) -> a.MoveStatus:
        """Begin to move one processor's groups; returns when the receiver has room for them.

        Refusal, with what was refused, if it could not begin.
        """
        groups = _groups(request.groups)

        def begin(state: State) -> a.MoveStatus:
            name, to = QueryName(request.query), ProcessorId(request.to)
            return move_status(rounds.move(state, name, groups, to))

        begun = self._loop.call(begin)
        end_s = time.monotonic() + BEGIN_S_MAX
        while not begun.failure and begun.phase in BEFORE_MOVING and time.monotonic() < end_s:
            time.sleep(BEGIN_POLL_S)
            begun = self._moves_here(request.query).get(begun.id) or next(
                m for m in self.list_moves(a.QueryRef(request.query)).moves if m.id == begun.id
            )
        if begun.failure and begun.outcome in ("", MoveOutcome.ROLLED_BACK):
            raise Refusal(
                Domain.MOVE,
                f"move {begun.id} was rolled back: {begun.failure}",
                remedy="name fewer groups or another processor",
                reason="state",
                move=begun.id,
            )
        return begun

    def pin(self, request: a.Pin) -> a.Partitions:
        """Keep groups where they are, or let them go again."""
        name, groups = QueryName(request.query), _groups(request.groups)
        return self._do(
            lambda s: rounds.pin(s, name, groups, request.pinned),
            lambda s: status.partitions(s, name),
        )

    def rebalance(self, request: a.Rebalance) -> a.Adaptations:
        """Let the policy decide now, whatever the interval; with `dry_run` only tell."""

        def decide(state: State) -> a.Adaptations:
            made = rounds.rebalance(state, QueryName(request.query), dry_run=request.dry_run)
            return a.Adaptations(tuple(decision_status(r) for r in reversed(made)))

        return self._loop.call(decide)

    # The cluster ----------------------------------------------------------------------------------

    def get_cluster(self) -> a.ClusterStatus:
        """The manager and its processors."""
        return self._loop.look(lambda s: status.cluster_status(s, self._name, self._loop.started_s))

    def leave(self, ref: a.ProcessorRef) -> a.ProcessorStatus:
        """Move a processor's groups and streams away and let it go; returns when that has begun."""
        return self._do(
            lambda s: members.ask_to_leave(s, ProcessorId(ref.name)),
            lambda s: status.processor_status(s, ref.name),
        )

    def events(self, since: int, wait_s: float = 0.0) -> a.Events:
        """Events after number `since`; waits up to `wait_s` for the first one.

        Stopped if the manager has ended and there is nothing more to tell.
        """
        seen = self._loop.events.since(since, wait_s)
        if not seen.events and self._loop.ended.is_set():
            raise Stopped("the manager has ended") from self._loop.cause
        return seen

    # Parts ----------------------------------------------------------------------------------------

    def _moves_here(self, name: str) -> dict[str, a.MoveStatus]:
        """A query's moves that are not in the history yet, by id."""

        def here(state: State) -> list[a.MoveStatus]:
            query = state.query(name)
            moves = (*query.coordinator.moves.values(), *query.ended_moves.values())
            return [move_status(m) for m in moves]

        return {m.id: m for m in self._loop.look(here)}

    def _do(
        self,
        verb: Callable[[State], None],
        tell: Callable[[State], T],
        *,
        everywhere: str = "",
    ) -> T:
        """Run a verb until it is durable (and processors know); what there was to tell of it."""

        def run(state: State) -> T:
            verb(state)
            return tell(state)

        return self._loop.call(run, everywhere=everywhere)

    def _hear_everyone(self, query: str) -> None:
        """Return when every member has reported since; Refusal of domain `busy` if one does not.

        An assignment of another number, even of the same content, is answered by a heartbeat.
        """

        def tell_again(state: State) -> None:
            state.query(query)
            state.assignments.changed()

        self._loop.call(tell_again, everywhere=f"the newest state of query {query!r} was asked for")

    def _phase(self, ref: a.QueryRef, phase: Phase) -> a.QueryStatus:
        return self._do(
            lambda s: queries.set_phase(s, QueryName(ref.name), phase),
            lambda s: status.query_status(s, ref.name),
        )


def _groups(groups: Sequence[int]) -> list[GroupId]:
    return [GroupId(g) for g in groups]
