"""What must hold of a worker after every event, and of all workers together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dovetail_processor.batches import Keyed
from dovetail_processor.query import Query
from dovetail_processor.worker import Worker
from dovetail_proto.ids import MoveId
from dovetail_proto.messages import ControlMessage, Pushed, PushPartitions, Stage
from kit.sim_world import Violation

if TYPE_CHECKING:
    from kit.sim_run import Scenario

STEP_BYTES_MAX = 64 << 10
"""What state may grow by in one step: a batch in pages."""


@dataclass(slots=True)
class _Seen:
    """A query as it was at the last look."""

    steps: int = -1
    live: bytes = b""
    pieces: bool = False  # results were still to be read from the state
    chores: int = 0
    order: PushPartitions | None = None  # a forced push that was not answered yet
    held: NDArray[np.int64] | None = None  # per group, while there is an order
    detached: list[int] = field(default_factory=list)  # bytes of every push since the order
    answered: PushPartitions | None = None  # the last one: it may come again


class Watch:
    """Looks at one worker."""

    def __init__(self, worker: Worker, scenario: Scenario) -> None:
        self._worker = worker
        self._scenario = scenario
        self._seen: dict[str, _Seen] = {}

    def look(self) -> None:
        """Assert every invariant; Violation if one does not hold."""
        worker = self._worker
        used = 0
        for query in worker.queries.values():
            used += query.used_bytes
            if query.stage is not Stage.RUNNING:
                continue
            query.moves.participant.check()
            self._look_at_moves(query)
            self._look_at(query, self._seen.setdefault(query.task.run, _Seen()))
        if used > worker.memory_bytes:
            raise Violation(f"{worker.here} uses {used} of {worker.memory_bytes} bytes")

    def _look_at(self, query: Query, seen: _Seen) -> None:
        live = query.join.live
        if (now := live.tobytes()) != seen.live:
            seen.live = now
            self._scenario.check_live(self._worker, query)
        if seen.order is not None:
            self._follow_order(query, seen)
        self._look_behind_ends(query)
        chores, pieces = len(query.join._chores), bool(query.join._pieces)
        if pieces and (query.join._in_chore or (seen.pieces and chores < seen.chores)):
            raise Violation(f"{query.here}: groups change while results are read from them")
        seen.pieces, seen.chores = pieces, chores
        steps = query.join.statistics.steps
        if steps != seen.steps and query.join.settled:
            seen.steps = steps
            self._scenario.check_marks(query)

    def _look_at_moves(self, query: Query) -> None:
        """Nobody takes part in a move before it is written down, or after it has ended.

        Unless nobody waits for an answer any more: of a query that failed, or of who was lost.
        """
        participant, store = query.moves.participant, self._scenario.store
        if query.task.name in store.failed or query.here in store.died:
            return
        moves: set[MoveId | None] = {move for move, _ in participant.split_host.held.values()}
        for move in moves | {participant.adapting} - {None}:
            if move not in store.open_moves:
                raise Violation(f"{query.here} takes part in move {move}, which is not open")

    def _look_behind_ends(self, query: Query) -> None:
        """Behind the end of an input comes nothing, but what the join has had before."""
        for i, end in enumerate(query.ends):
            waiting = [item for _, item, _ in end._items] if end.ended else []
            for rows in (item for item in waiting if isinstance(item, Keyed)):
                if (rows.stamped.sequences() > query.state.marks[i, rows.groups]).any():
                    raise Violation(f"{query.here}: rows come behind the end of input {i}")

    # Forced pushes --------------------------------------------------------------------------------

    def heard(self, message: ControlMessage) -> None:
        """A message is about to be handled."""
        if isinstance(message, PushPartitions) and message.query in self._worker.queries:
            query = self._worker.queries[message.query]
            seen = self._seen.setdefault(query.task.run, _Seen())
            if seen.order is None and message != seen.answered:
                seen.order, seen.detached = message, []
                seen.held = query.state.group_bytes()

    def says(self, message: ControlMessage) -> None:
        """A message is about to be sent: a push that is reported has happened, to the byte."""
        if not isinstance(message, Pushed) or message.query not in self._worker.queries:
            return
        query = self._worker.queries[message.query]
        seen = self._seen.setdefault(query.task.run, _Seen())
        if seen.order is None or seen.order.order != message.order:
            self._scenario.forced(query.task.run, message)
            return  # said again
        self._follow_order(query, seen)
        reported = message.size_bytes
        if reported and not any(d <= reported <= d + STEP_BYTES_MAX for d in seen.detached):
            self._scenario.blame(
                f"{self._worker.here} reports a push of {reported} bytes; pushed: {seen.detached}"
            )
        left = np.where(query.state.locked, 0, query.state.group_bytes()).sum()
        if not reported and left and query.memory.spills:
            self._scenario.blame(
                f"{self._worker.here} pushes nothing by order {message.order}, and has {left} bytes"
            )
        seen.order, seen.answered = None, seen.order
        self._scenario.forced(query.task.run, message)

    def _follow_order(self, query: Query, seen: _Seen) -> None:
        """Groups that lose what they hold while a push is under way are what it takes."""
        assert seen.held is not None
        held = query.state.group_bytes()
        pushed = held < seen.held
        if pushed.any() and query.memory.pushing:
            seen.detached.append(int(seen.held[pushed].sum()))
        seen.held = held
