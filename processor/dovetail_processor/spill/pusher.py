"""Writing detached groups to the spill store while the join goes on.

    worker:  start(detached) ───────────────────────────────── done: the pages are given back
    lane:      └▶ per chunk of groups: rows in hash order ▶ columns ▶ row groups; commit
                  └─ no room: nothing of it is left in the store; again after a while ─┘

One push at a time. Invariant: rows are in memory until the push that holds them is committed. So a
place that is full holds the query up and loses nothing.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from dovetail_processor.jobs import Lane, Outcome
from dovetail_processor.join.state import Detached, JoinState
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
        self.reading = False
        """Whether a job on the lane reads groups: their pages have to stay, though it was given up.
        """
        self._cancelled = False  # read by the lane
        self._now_s = 0.0
        self.no_room = ""
        """Why what is being written waits: its place is full. Empty if it does not."""
        self.pushes = 0
        """Pushes committed."""
        self.spilled_bytes = 0
        """Bytes of their files."""
        self.pushed_bytes = 0
        """Bytes that their groups held in memory."""
        self._groups: set[int] = set()  # pushed at least once

    @property
    def spilled_groups(self) -> int:
        """Groups that were pushed at least once."""
        return len(self._groups)

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
            self._groups.update(manifest.groups)
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
        self._begin(lambda: self._store.close_run(record), lambda _: done(), now_s)

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

    def _push(self, detached: Detached, held_bytes: int) -> PushManifest:
        writer = self._store.begin_push()
        try:
            for chunk in _chunks(detached, self._state.n, held_bytes, self._chunk_bytes):
                for group, generation, tables, ranges in _tables(self._state, chunk):
                    if self._cancelled:
                        raise SpillError("the push was given up")
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
