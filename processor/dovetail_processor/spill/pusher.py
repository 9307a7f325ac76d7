"""Writing detached groups to the spill store while the join goes on.

    join thread:   start(detached) ──────────────── collect_finished() ── … (frees their pages)
    push thread:      └▶ per chunk of groups: rows in hash order ▶ columns ▶ row groups; commit

One push at a time. Only the join thread touches the slab's free lists: the push thread hands back
the groups it has written, and the join thread releases them when it next looks.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa

from dovetail_processor.join.state import Detached, JoinState
from dovetail_proto.spill_format import PushManifest, SpillStore


class Pusher:
    """Pushes groups of `state` to `store`, in chunks of about `chunk_bytes`."""

    def __init__(self, state: JoinState, store: SpillStore, chunk_bytes: int) -> None:
        self._state = state
        self._store = store
        self._chunk_bytes = chunk_bytes
        self._written: queue.SimpleQueue[Detached | PushManifest | BaseException] = (
            queue.SimpleQueue()
        )
        self._thread: threading.Thread | None = None
        self._cancelled = threading.Event()
        self.pushes = 0
        """Pushes committed."""
        self.spilled_bytes = 0
        """Bytes of their files."""
        self._groups: set[int] = set()  # pushed at least once

    @property
    def spilled_groups(self) -> int:
        """Groups that were pushed at least once."""
        return len(self._groups)

    @property
    def busy(self) -> bool:
        """Whether a push is under way (indiskAdaptation)."""
        return self._thread is not None

    def start(self, detached: Detached, held_bytes: int) -> None:
        """Begin to push groups that hold `held_bytes` in all; the push before must be over."""
        assert self._thread is None
        self._thread = threading.Thread(
            target=self._push, args=(detached, held_bytes), name="push", daemon=True
        )
        self._thread.start()

    def collect_finished(self, *, wait: bool) -> bool:
        """Free what has been written; whether any was. With `wait`, for the next news at least.

        Raises what the push failed with.
        """
        freed = False
        while self._thread is not None:
            try:
                news = self._written.get(block=wait)
            except queue.Empty:
                break
            wait = False
            if isinstance(news, Detached):
                self._state.release(news)
                freed = True
            else:
                self._thread.join()
                self._thread = None
                if isinstance(news, BaseException):
                    raise news
                self.pushes += 1
                self.spilled_bytes += news.bytes
                self._groups.update(news.groups)
        return freed

    def finish(self) -> None:
        """Wait for the push under way, if any."""
        while self._thread is not None:
            self.collect_finished(wait=True)

    def cancel(self) -> None:
        """Give up the push under way: nothing of it will be in the store."""
        self._cancelled.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _push(self, detached: Detached, held_bytes: int) -> None:
        try:
            writer = self._store.begin_push()
            try:
                for chunk in _chunks(detached, self._state.n, held_bytes, self._chunk_bytes):
                    if self._cancelled.is_set():
                        writer.abort()
                        return
                    for group, generation, tables, ranges in _tables(self._state, chunk):
                        writer.write_group(group, generation, tables, ranges)
                    self._written.put(chunk)
                self._written.put(writer.commit())
            except BaseException:
                writer.abort()
                raise
        except BaseException as e:  # the join thread must see it, whatever it is
            self._written.put(e)


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
