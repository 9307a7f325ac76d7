"""Making one push of many: thousands of small files cost their readers more than the rows do.

Under a small memory limit pushes are small and many, and a clean-up with little memory goes to all
of their files again and again. So the oldest pushes of a level are merged into one of the next:

    level 0   ·· ················  when it has MERGED_AT: the oldest MERGED_MAX ───────┐
    level 1   ▪▪▪▪▪▪  ◀────────────────────────────────────────────────────────────────┘
    level 2   █

Each row is written again once per level, and a level is sixteen times the one below it. Generations
are not merged: rows keep theirs. The manifest of the merged push says whom it replaces, and writing
it is the one step that counts: before it the old pushes exist, after it the new one, and whether
the old files are still there makes no difference. One process writes to a store, one push or merge
at a time; no clean-up reads it before it is closed, and nothing is merged after that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail_proto.errors import SpillError
from dovetail_proto.partitioning import canonical_keys
from dovetail_proto.spill_format.layout import GENERATION_COLUMN, GROUP_COLUMN
from dovetail_proto.spill_format.reader import InputFile
from dovetail_proto.spill_format.records import GENERATIONS_MAX, PushManifest
from dovetail_proto.spill_format.writer import PushWriter

if TYPE_CHECKING:
    from dovetail_proto.spill_format.store import SpillStore

MERGED_MAX = 16
"""Pushes that are merged at once. A row group of each is in memory: 4 MB in all, of
very wide rows up to 16."""

MERGED_AT = 64
"""Pushes of a level that have some of them merged. A run that never has so many is left alone: that
is state of five times the memory, and merging would cost as much as it spares."""

MERGED_AT_ONCE_BYTES = 1 << 20
"""About so much goes out at a time: it is there twice meanwhile, side by side and in order. All
that is held, thrice over, was most of what a process with a limit of 8 MB took beyond it."""

MERGED_BYTES_MAX = 64 << 20
"""A push whose files are larger than this stays as it is: going to them costs little beside
reading them."""

_ONE_AT_A_TIME = threading.Lock()
"""The workers of a process have a store each, and that memory once."""

LEFT_AT_CLOSE = 8
"""Pushes of each level that a store may be closed with, if it had to merge at all."""


def choose(pushes: Sequence[tuple[int, int]], *, closing: bool) -> list[int]:
    """Which pushes, given by level and bytes, to merge now, oldest first; [] if none."""
    merged_before = any(level for level, _ in pushes)
    for level in sorted({level for level, _ in pushes}):
        found = [
            i for i, (of, size) in enumerate(pushes) if of == level and size <= MERGED_BYTES_MAX
        ]
        many = len(found) >= MERGED_AT
        if many or (closing and merged_before and len(found) > LEFT_AT_CLOSE):
            return found[:MERGED_MAX]
    return []


def merge(
    store: SpillStore,
    pushes: Sequence[PushManifest],
    writer: PushWriter,
    given_up: Callable[[], bool],
) -> PushManifest:
    """Write the rows of `pushes` as one push that replaces them; SpillError leaves them as they
    are. `given_up` is asked often whether to stop.
    """
    try:
        writer.list_generations(*_generations(pushes))
        for i in range(len(store.layouts)):
            with _ONE_AT_A_TIME:
                _merge_input(store, pushes, i, writer, given_up)
        # Also those that they replaced: their files may still be there.
        replaced = [np.array([p.push for p in pushes]), *(p.replaces for p in pushes)]
        return writer.commit(np.unique(np.concatenate(replaced)))
    except OSError as e:
        writer.abort()
        raise SpillError(f"spill store {store.root}: pushes cannot be merged: {e}") from e
    except BaseException:
        writer.abort()
        raise


def _generations(
    pushes: Sequence[PushManifest],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Groups, generations and rows per input of all pushes, ascending."""
    group = np.concatenate([p.group for p in pushes])
    generation = np.concatenate([p.generation for p in pushes])
    rows = np.zeros((group.size, len(pushes[0].inputs)), np.int64)
    ends = np.cumsum([p.group.size for p in pushes])
    for push, end in zip(pushes, ends.tolist(), strict=True):
        for i, entry in enumerate(push.inputs):
            if entry is not None:
                rows[end - push.group.size : end, i] = entry.group_rows
    order = np.argsort(group * (GENERATIONS_MAX + 1) + generation)
    return group[order], generation[order], rows[order]


def _merge_input(
    store: SpillStore,
    pushes: Sequence[PushManifest],
    i: int,
    writer: PushWriter,
    given_up: Callable[[], bool],
) -> None:
    """One input's files as one: a row group of each is in memory, and what is sure to come first
    goes out.
    """
    runs: list[_Run] = []
    try:
        for push in pushes:
            file = store.open_input(push, i)
            if file is not None:
                runs.append(_Run(store, file, i))
        while filled := [run for run in runs if run.fill()]:
            if given_up():
                raise SpillError("the merge was given up")
            # Beyond the least of these, a file may have something smaller, or there is too much.
            most = MERGED_AT_ONCE_BYTES // len(filled)
            reached = [last for run in filled if (last := run.reaches(most)) is not None]
            parts = [run.take(min(reached, default=None)) for run in filled]
            order = np.argsort(np.concatenate([hashes for hashes, _ in parts]), kind="stable")
            columns = zip(*(columns for _, columns in parts), strict=True)
            joined = [pa.concat_arrays(column) for column in columns]
            writer.write_rows(i, [column.take(pa.array(order)) for column in joined])
    finally:
        for run in runs:
            run.file.close()


class _Run:
    """A file that is being merged: its rows come in hash order, a row group at a time."""

    def __init__(self, store: SpillStore, file: InputFile, i: int) -> None:
        layout = store.layouts[i]
        self.file = file
        self._columns = [*layout.kept.names, GROUP_COLUMN, GENERATION_COLUMN]
        self._key = [self._columns.index(name) for name in layout.key]
        self._key_types = store.plan.key_types
        self._next = 0  # row group
        self._held: list[pa.Array] = []  # columns of what was read and not taken
        self.hashes = np.empty(0, np.uint64)  # of these
        self._row_bytes = 1  # of these, about

    @property
    def more(self) -> bool:
        """Whether there are row groups left to read."""
        return self._next < self.file.entry.row_groups

    def fill(self) -> bool:
        """Hold some rows, if there are any left."""
        if self.hashes.size == 0 and self.more:
            table = self.file.read([self._next], self._columns)
            self._row_bytes = 1 + table.nbytes // max(1, table.num_rows)
            self._held = [column.combine_chunks() for column in table.columns]
            keys = [self._held[k] for k in self._key]
            self.hashes = canonical_keys(keys, self._key_types).hashes
            self.file.check_hashes(self.hashes, [self._next])
            self._next += 1
        return self.hashes.size > 0

    def reaches(self, most_bytes: int) -> np.uint64 | None:
        """The last hash of about so many bytes of what is held; None: that is all there is."""
        at = most_bytes // self._row_bytes
        if at >= self.hashes.size and not self.more:
            return None
        last: np.uint64 = self.hashes[min(at, self.hashes.size - 1)]
        return last

    def take(self, last: np.uint64 | None) -> tuple[NDArray[np.uint64], list[pa.Array]]:
        """The rows held up to hash `last`, or all; they are not held any more."""
        count = self.hashes.size if last is None else np.searchsorted(self.hashes, last, "right")
        taken = self.hashes[:count], [column[:count] for column in self._held]
        self.hashes = self.hashes[count:]
        self._held = [column[count:] for column in self._held]
        return taken
