"""Writing detached groups to the spill store while the join goes on.

    join thread:   start(detached) ──────────────────────────── collect_finished(): frees the pages
    push thread:      └▶ per chunk of groups: rows in hash order ▶ columns ▶ row groups; commit
                         └─ no room: nothing of it is left in the store; again after a while ─┘

One push at a time. Invariant: rows are in memory until the push that holds them is committed. So a
place that is full holds the run up and loses nothing.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from itertools import pairwise

import numpy as np
import pyarrow as pa

from dovetail_processor.join.state import Detached, JoinState
from dovetail_proto.errors import SpillError
from dovetail_proto.spill_format import PushManifest, RunRecord, SpillStore

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors that go away when somebody makes room; any other ends the query."""

RETRY_S_MIN, RETRY_S_MAX = 0.25, 8.0
"""Between two tries to write to a place that is full. Each one writes until it is full again, so
they become rarer; an operator who has made room waits for some seconds at most."""

LOOK_S = 0.1
"""Between two calls of `between` in `finish`: soon enough for a person."""


class Pusher:
    """Pushes groups of `state` to `store`, in chunks of about `chunk_bytes`.

    `ended` is called in the push thread when there is something to collect.
    """

    def __init__(
        self,
        state: JoinState,
        store: SpillStore,
        chunk_bytes: int,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        self._state = state
        self._store = store
        self._chunk_bytes = chunk_bytes
        self._ended = ended
        self._detached: Detached | None = None  # what is being pushed
        self._writing: Future[PushManifest | None] | None = None  # None: nothing to collect
        self._cancelled = threading.Event()
        self.no_room = ""
        """Why what is being written waits: its place is full. Empty if it does not."""
        self.pushes = 0
        """Pushes committed."""
        self.spilled_bytes = 0
        """Bytes of their files."""
        self.pushed_bytes = 0
        """Bytes that their groups held in memory."""
        self._held_bytes = 0  # of the push under way
        self._groups: set[int] = set()  # pushed at least once

    @property
    def spilled_groups(self) -> int:
        """Groups that were pushed at least once."""
        return len(self._groups)

    @property
    def busy(self) -> bool:
        """Whether a push is under way or not collected yet (indiskAdaptation)."""
        return self._writing is not None

    @property
    def done(self) -> bool:
        """Whether `collect_finished` would return true, or raise."""
        return self._writing is not None and self._writing.done()

    def start(self, detached: Detached, held_bytes: int) -> None:
        """Begin to push groups that hold `held_bytes` in all; the push before must be over."""
        self._begin(lambda: self._push(detached, held_bytes))
        self._detached = detached
        self._held_bytes = held_bytes

    def collect_finished(self, wait_s: float = 0.0) -> bool:
        """Free what was pushed, if the push is over or ends within `wait_s`; whether it is.

        Raises what the push failed with.
        """
        if self._writing is None:
            return False
        try:
            self._writing.exception(wait_s)
        except TimeoutError:
            return False
        written, self._writing = self._writing, None
        detached, self._detached = self._detached, None
        manifest = written.result()
        if manifest is not None and detached is not None:
            self._state.release(detached)
            self.pushes += 1
            self.spilled_bytes += manifest.bytes
            self.pushed_bytes += self._held_bytes
            self._groups.update(manifest.groups)
        return True

    def finish(self, between: Callable[[], None] = lambda: None) -> None:
        """Wait for what is under way, if anything; `between` is called now and then."""
        while self.busy and not self.collect_finished(LOOK_S):
            between()

    def push_rest(self, between: Callable[[], None] = lambda: None) -> None:
        """At the end: push what memory still holds of every group that has been pushed before.

        The other groups owe nothing: all their rows have met.
        """
        self.finish(between)
        held = self._state.group_bytes()
        again = np.flatnonzero((self._state.generation > 0) & (held > 0))
        if again.size:
            self.start(self._state.detach(again), int(held[again].sum()))
            self.finish(between)

    def close_run(self, record: RunRecord, between: Callable[[], None] = lambda: None) -> None:
        """Record in the store that the run has ended; nothing can be pushed after it."""
        self._begin(lambda: self._store.close_run(record))
        self.finish(between)

    def cancel(self) -> None:
        """Have what is under way end soon, without anything of it in the store. From any thread."""
        self._cancelled.set()

    def stop(self) -> None:
        """Give up what is under way; returns when it has ended."""
        self.cancel()
        if self._writing is not None:
            self._writing.exception()
            self._writing = None

    def _begin(self, work: Callable[[], PushManifest | None]) -> None:
        assert self._writing is None
        writing: Future[PushManifest | None] = Future()

        def write() -> None:
            try:
                writing.set_result(self._when_there_is_room(work))
            except BaseException as e:  # the join thread must see it, whatever it is
                writing.set_exception(e)
            self._ended()

        self._writing = writing
        threading.Thread(target=write, name="push", daemon=True).start()

    def _when_there_is_room(self, work: Callable[[], PushManifest | None]) -> PushManifest | None:
        retry_s = RETRY_S_MIN
        try:
            while True:
                try:
                    return work()
                except SpillError as e:
                    if e.details.get("errno") not in NO_ROOM:
                        raise
                    self.no_room = str(e)
                    if self._cancelled.wait(retry_s):
                        raise
                retry_s = min(2 * retry_s, RETRY_S_MAX)
        finally:
            self.no_room = ""

    def _push(self, detached: Detached, held_bytes: int) -> PushManifest:
        writer = self._store.begin_push()
        try:
            for chunk in _chunks(detached, self._state.n, held_bytes, self._chunk_bytes):
                if self._cancelled.is_set():
                    raise SpillError("the push was given up")
                for group, generation, tables, ranges in _tables(self._state, chunk):
                    writer.write_group(group, generation, tables, ranges)
            return writer.commit()
        except BaseException:
            writer.abort()
            raise


def _chunks(detached: Detached, n: int, held_bytes: int, chunk_bytes: int) -> list[Detached]:
    """The groups in order, as few to a chunk as hold about `chunk_bytes`, one at least."""
    rows = detached.rows(n).sum(axis=1)
    bytes_per_row = held_bytes / max(1, int(rows.sum()))
    share = np.cumsum(rows) * bytes_per_row // max(1, chunk_bytes)
    cuts = np.flatnonzero(np.diff(share)) + 1
    edges = [0, *cuts.tolist(), rows.size]
    return [detached.part(a, b, n) for a, b in pairwise(edges)]


_Group = tuple[int, int, list[pa.Table | None], list[tuple[int, int] | None]]


def _tables(state: JoinState, chunk: Detached) -> Iterator[_Group]:
    """Per group: id, generation, and per input its rows in hash order and their hash range."""
    rows = chunk.rows(state.n)
    ends = np.cumsum(rows, axis=0)
    columns, ranges = [], []
    for i, (rows_at, hashes) in enumerate(state.collect(chunk)):
        columns.append(state.read_rows(i, rows_at))
        ranges.append(hashes)
    for k in range(chunk.ids.size):
        held = rows[k] > 0
        yield (
            int(chunk.ids[k]),
            int(chunk.generations[k]),
            [
                columns[i].slice(int(ends[k, i] - rows[k, i]), int(rows[k, i])) if held[i] else None
                for i in range(state.n)
            ],
            [
                (int(ranges[i][k, 0]), int(ranges[i][k, 1])) if held[i] else None
                for i in range(state.n)
            ],
        )
