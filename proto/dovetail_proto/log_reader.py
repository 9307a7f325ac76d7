"""Reads the result logs of a query, all at once, for whoever wants them: Python clients and REST.

    log p1 ─▶ thread ─┐
    log p2 ─▶ thread ─┼─▶ a few pieces ─▶ take
         a thread looks for logs that are new or have another keeper

Each processor keeps the results that it finds in a log of its own; when it leaves, another one
keeps the log. An offset (log, segment, row) names a place for good. Pieces come in the order of
each log; between logs there is none. A reader that does not take holds the processors up.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import grpc
import pyarrow as pa

from dovetail_proto.admin import LogStatus
from dovetail_proto.arrow_bytes import from_bytes
from dovetail_proto.channels import Channels, told
from dovetail_proto.errors import DovetailError, InputError
from dovetail_proto.feeds import ReadResults, ResultBatch
from dovetail_proto.ids import LogName, QueryName
from dovetail_proto.result_logs import Logs, away
from dovetail_proto.transport import Unreachable
from dovetail_proto.wire.data import decode, encode
from dovetail_proto.wire.methods import READ_RESULTS

AHEAD_PIECES = 4
"""Pieces that wait to be taken, of all logs together; each log has one more that waits for room."""

LOOK_S = 1.0
"""How soon a follower sees the log of a processor that is new."""


@dataclass(frozen=True, slots=True, order=True)
class Offset:
    """A place in one log: the row of a segment."""

    segment: int
    row: int


START = Offset(0, 0)


@dataclass(frozen=True, slots=True)
class Piece:
    """Some results of one log, the first of them at `at`."""

    log: str
    at: Offset
    batch: pa.RecordBatch

    @property
    def end(self) -> Offset:
        """Where the log goes on."""
        return Offset(self.at.segment, self.at.row + self.batch.num_rows)


class BadResults(DovetailError):  # noqa: N818 - a state of what was read
    """A processor sent something that is not results of the query."""

    code = "results"


class LogReader:
    """Reads from its making until `stop`. `take` and `wait_open` are for one thread at a time.

    `starts` says where to begin in logs, otherwise at their start. With `look`, which finds the
    logs there are by then, reading goes on with what comes, also from processors that join
    meanwhile or hand their log to another one, until the query is over; without, it ends with what
    there was. Unreachable if a log is away.
    """

    def __init__(
        self,
        query: str,
        schema: pa.Schema,
        found: Logs,
        channels: Channels,
        *,
        starts: Mapping[str, Offset],
        look: Callable[[], Logs] | None,
    ) -> None:
        logs, self._over = found
        self._query = query
        self._schema = schema
        self._channels = channels
        self._follow = look is not None
        self._changed = threading.Condition()  # of all that follows
        self._next = dict(starts)  # where a log is read on
        self._pieces: deque[Piece] = deque()
        self._unopened = {log.name for log in logs}  # of these, no sign has come
        self._calls: dict[str, Any] = {}  # of logs that are being read
        self._finished: set[str] = set()  # logs read to their end since the query is over
        self._cut_off: dict[str, tuple[str, Unreachable]] = {}  # log → where its reading broke off
        self._threads: set[threading.Thread] = set()  # that may still bring something
        self._failure: DovetailError | None = None
        self._stopped = False
        for log in logs:
            if not log.address:
                raise away(query, log)
        for log in logs:
            self._begin(log)
        if look is not None:
            self._start(self._watch, look)

    def wait_open(self) -> None:
        """Until every log has said that it is there; raises why one is not."""
        with self._changed:
            self._changed.wait_for(lambda: not self._unopened or self._failure or self._stopped)
            if self._failure is not None:
                raise self._failure

    def take(self) -> Piece | None:
        """The next piece, as soon as there is one; None at the end. Raises what ended a log."""
        with self._changed:
            self._changed.wait_for(lambda: self._pieces or self._ended)
            if self._pieces:
                self._changed.notify_all()
                return self._pieces.popleft()
            if self._failure is not None and not self._stopped:
                raise self._failure
            return None

    @property
    def stopped(self) -> bool:
        """Whether `stop` ended it."""
        return self._stopped

    def stop(self) -> set[threading.Thread]:
        """Take nothing more in; the threads that are about to end."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
            calls, threads = list(self._calls.values()), set(self._threads)
        for call in calls:
            call.cancel()
        return threads

    @property
    def _ended(self) -> bool:
        return not self._threads or self._failure is not None or self._stopped

    # Threads: one for each log, and one that looks for new logs -----------------------------------

    def _start(self, work: Callable[..., DovetailError | None], *args: object) -> None:
        def run() -> None:
            failure = work(*args)
            with self._changed:
                self._threads.discard(thread)
                self._failure = self._failure or failure
                self._changed.notify_all()

        thread = threading.Thread(target=run, name="results", daemon=True)
        with self._changed:
            self._threads.add(thread)
        thread.start()

    def _begin(self, log: LogStatus) -> None:
        at = self._next.setdefault(log.name, START)
        asked = ReadResults(
            QueryName(self._query),
            LogName(log.name),
            at.segment,
            at.row,
            self._follow,
            log.run,
            log.rows,
            log.trimmed,
        )
        call = self._channels.unary_stream(log.address, READ_RESULTS, encode(asked))
        with self._changed:
            self._calls[log.name] = call
        if self._stopped:
            call.cancel()  # `stop` may not have seen it
        self._start(self._read, log, call, self._over)

    def _read(self, log: LogStatus, call: Any, over: bool) -> DovetailError | None:
        """Hand over what a log has; the error that ended it. `over`: so was the query before."""
        failure: DovetailError | None = None
        name = log.name
        try:
            for data in call:
                self._hand_over(name, decode(ResultBatch, data))
                if self._stopped:
                    break
        except grpc.RpcError as e:
            failure = told(e, f"reading the log {name!r}")
        except DovetailError as e:
            failure = e
        with self._changed:
            del self._calls[name]
            if isinstance(failure, Unreachable) and self._follow:
                self._cut_off[name] = log.address, failure  # `_watch` sees where it is now
                failure = None
                if not self._over:
                    self._unopened.discard(name)
            elif failure is None:
                self._unopened.discard(name)
                if over:
                    self._finished.add(name)
            self._changed.notify_all()
            return None if self._stopped else failure

    def _hand_over(self, log: str, sent: ResultBatch) -> None:
        piece = None
        if sent.payload:
            try:
                batch = from_bytes(sent.payload, self._schema, f"a batch of log {log!r}")
            except InputError as e:
                raise BadResults(e.message) from e
            piece = Piece(log, Offset(sent.segment, sent.row), batch)
        with self._changed:
            self._unopened.discard(log)
            self._changed.notify_all()
            if piece is not None:
                self._changed.wait_for(lambda: len(self._pieces) < AHEAD_PIECES or self._stopped)
                self._pieces.append(piece)
                self._next[log] = piece.end
                self._changed.notify_all()

    def _watch(self, look: Callable[[], Logs]) -> DovetailError | None:
        """Begin to read logs that are new or somewhere else; all once more when it is over.

        What a log had when its reading ended need not be all: its writer may have begun just then.
        A log that could not be read to its end is looked for as long as the query is not over, and
        then once more at each place where it is said to be.
        """
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._stopped or (self._over and not self._calls), LOOK_S
                )
                if self._stopped:
                    return None
            try:
                logs, over = look()
            except Unreachable:
                with self._changed:  # the manager: it will be back
                    self._changed.wait_for(lambda: self._stopped, LOOK_S)
                continue
            except DovetailError as e:
                return e
            with self._changed:
                self._over = over
                left = [log for log in logs if log.name not in self._finished]
                idle = [log for log in left if log.name not in self._calls]
            if over and not left:
                return None
            for log in idle:
                where, failure = self._cut_off.get(log.name, ("", None))
                if over and not log.address:
                    return away(self._query, log)
                if over and failure is not None and where == log.address:
                    return failure
                if log.address:
                    self._begin(log)
