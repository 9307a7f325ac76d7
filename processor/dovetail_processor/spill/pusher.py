"""Writing detached groups to the spill store while the join goes on.

    worker:  start(detached) ───────────────────────────────── done: the pages are given back
    lane:      └▶ per chunk of groups: rows in hash order ▶ columns ▶ row groups; commit
                  └─ no room: nothing of it is left in the store; again after a while ─┘

One push at a time. Invariant: rows are in memory until the push that holds them is committed. So a
place that is full holds the query up and loses nothing.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dovetail_processor.jobs import Lane, Outcome
from dovetail_processor.join.detached import Detached
from dovetail_processor.join.state import JoinState
from dovetail_proto.errors import SpillError
from dovetail_proto.spill_format import PushManifest, RunRecord, SpillStore

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors that go away when somebody makes room; any other ends the query."""

RETRY_S_MIN, RETRY_S_MAX = 0.25, 8.0
"""Between two tries to write to a place that is full. Each one writes until it is full again, so
they become rarer; an operator who has made room waits for some seconds at most."""


@dataclass(slots=True)
class _UnderWay:
    """What is being written, or waits for room to be written again."""

    work: Callable[[], PushManifest | None]
    done: Callable[[PushManifest | None], None]
    retry_s: float = RETRY_S_MIN
    again_s: float | None = None  # when it is tried again; None: it is being written


class Pusher:
    """Pushes groups of `state` to `store` on `lane`, in chunks of about `chunk_bytes`.

    `failed` hears what a write failed with, unless room was missing.
    """

    def __init__(
        self,
        state: JoinState,
        store: SpillStore,
        lane: Lane,
        chunk_bytes: int,
        failed: Callable[[Exception], None],
    ) -> None:
        self._state = state
        self._store = store
        self._lane = lane
        self._chunk_bytes = chunk_bytes
        self._failed = failed
        self._under_way: _UnderWay | None = None
        self._cancelled = False  # read by the lane
        self.reading = False
        """Whether a job reads the state, or is about to: also one that was given up."""
        self._merges = True  # until it fails: a run can do without
        self._now_s = 0.0
        self.no_room = ""
        """Why what is being written waits: its place is full. Empty if it does not."""
        self.pushes = 0
        """Pushes committed."""
        self.spilled_bytes = 0
        """Bytes of their files."""
        self.pushed_bytes = 0
        """Bytes that their groups held in memory."""
        self._pushed = np.zeros(state.partitions, np.bool_)  # groups, at least once

    @property
    def spilled_groups(self) -> int:
        """Groups that were pushed at least once."""
        return int(np.count_nonzero(self._pushed))

    @property
    def busy(self) -> bool:
        """Whether a push is under way (indiskAdaptation)."""
        return self._under_way is not None

    @property
    def next_s(self) -> float:
        """When `tick` has something to do."""
        again_s = self._under_way.again_s if self._under_way is not None else None
        return float("inf") if again_s is None else again_s

    def tick(self, now_s: float) -> None:
        """Try again what found no room, if it is time."""
        self._now_s = now_s
        if now_s >= self.next_s:
            self._write()

    def start(
        self,
        detached: Detached,
        held_bytes: int,
        now_s: float,
        done: Callable[[], None] = lambda: None,
    ) -> None:
        """Begin to push groups that hold `held_bytes` in all; the push before must be over."""

        def committed(manifest: PushManifest | None) -> None:
            assert manifest is not None
            self._state.release(detached)
            self.pushes += 1
            self.spilled_bytes += manifest.bytes
            self.pushed_bytes += held_bytes
            self._pushed[manifest.group] = True
            self._merge()
            done()

        self._begin(lambda: self._push(detached, held_bytes), committed, now_s)

    def push_rest(self, now_s: float, done: Callable[[], None]) -> None:
        """At the end: push what memory still holds of every group that has been pushed before.

        The other groups owe nothing: all their rows have met.
        """
        held = self._state.group_bytes()
        again = np.flatnonzero((self._state.generation > 0) & (held > 0))
        if again.size:
            self.start(self._state.detach(again), int(held[again].sum()), now_s, done)
        else:
            done()

    def close_run(self, record: RunRecord, now_s: float, done: Callable[[], None]) -> None:
        """Record in the store that the run has ended; nothing can be pushed after it."""

        def close() -> None:
            # What cannot be merged is closed as it is.
            with contextlib.suppress(SpillError):
                while many := self._store.to_merge(closing=True):
                    self._store.merge(many, lambda: self._cancelled)
            self._store.close_run(record)

        self._begin(close, lambda _: done(), now_s)

    def stop(self) -> None:
        """Give up what is under way: nothing of it will be in the store."""
        self._cancelled = True
        self._under_way = None
        self._lane.close()

    def _begin(
        self,
        work: Callable[[], PushManifest | None],
        done: Callable[[PushManifest | None], None],
        now_s: float,
    ) -> None:
        assert self._under_way is None
        self._now_s = now_s
        self._under_way = _UnderWay(work, done)
        self._write()

    def _write(self) -> None:
        under_way = self._under_way
        assert under_way is not None
        under_way.again_s = None

        def written(outcome: Outcome[PushManifest | None]) -> None:
            self.reading = False
            if self._under_way is not under_way:
                return  # it was given up
            error = outcome.error
            if isinstance(error, SpillError) and error.details.get("errno") in NO_ROOM:
                self.no_room = str(error)
                under_way.again_s = self._now_s + under_way.retry_s
                under_way.retry_s = min(2 * under_way.retry_s, RETRY_S_MAX)
                return
            self.no_room = ""
            self._under_way = None
            if error is not None:
                self._failed(error)
            else:
                under_way.done(outcome.value)

        self.reading = True
        self._lane.run(under_way.work, written)

    def _merge(self) -> None:
        """Have many small pushes made one, behind which the next push waits; it may fail, and then
        they stay as they are.
        """

        def merged(outcome: Outcome[None]) -> None:
            if outcome.error is not None and not self._cancelled:
                self._merges = False
                if not isinstance(outcome.error, SpillError):
                    self._failed(outcome.error)

        many = self._store.to_merge() if self._merges else []
        if many:
            self._lane.run(lambda: self._store.merge(many, lambda: self._cancelled), merged)

    def _push(self, detached: Detached, held_bytes: int) -> PushManifest:
        state = self._state
        writer = self._store.begin_push()
        try:
            for chunk in _chunks(detached, state.n, held_bytes, self._chunk_bytes):
                if self._cancelled:
                    raise SpillError("the push was given up")
                tables = [state.read_rows(i, at) for i, at in enumerate(state.collect(chunk))]
                writer.write_groups(chunk.ids, chunk.generations, chunk.rows(state.n), tables)
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
