"""Rows on their way through the graph, with what was found out about them, so that it is done once.

    home:      Stamped   rows of a stream, each with its sequence
    evaluate:  Stamped   fewer rows, other columns, the same sequences
    split:     Keyed     each row's key hashed, and its partition group; no row with a null key;
                         whole for the workers of the process, each with the positions of its rows
    join:      puts the rows in group order, drops those that its marks have seen

A sequence is a row's number in its stream, dense from 0, given once by the stream's home. The rows
of a batch ascend in it, so a batch names the first one and, where rows were dropped, the distance
of each row to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dovetail_proto.partitioning import Keys, canonical_keys, partition_ids
from dovetail_proto.query import QueryPlan


@dataclass(frozen=True, slots=True)
class Stamped:
    """Rows with their sequences, ascending."""

    rows: pa.RecordBatch
    first: int
    offsets: NDArray[np.uint32] | None  # of each row's sequence to `first`; None: consecutive
    size_bytes: int  # asking Arrow walks all buffers: asked for once

    @property
    def lowest(self) -> int:
        """The sequence of the first row."""
        return self.first + (int(self.offsets[0]) if self.offsets is not None else 0)

    @property
    def highest(self) -> int:
        """The sequence of the last row."""
        last = self.rows.num_rows - 1 if self.offsets is None else int(self.offsets[-1])
        return self.first + last

    def follows(self, other: Stamped) -> bool:
        """Whether the sequences of both together are consecutive, the other's first."""
        whole = self.offsets is None and other.offsets is None
        return whole and self.first == other.highest + 1

    def sequences(self) -> NDArray[np.int64]:
        """Of every row."""
        if self.offsets is None:
            return np.arange(self.first, self.first + self.rows.num_rows, dtype=np.int64)
        return self.offsets.astype(np.int64) + self.first

    def evaluated(self, rows: pa.RecordBatch, kept: NDArray[np.int32] | None) -> Stamped:
        """What an evaluator made of it: other columns, of the rows at `kept` (None: of all)."""
        return stamped(rows, self.first, self.offsets_at(kept))

    def offsets_at(self, positions: NDArray[Any] | None) -> NDArray[np.uint32] | None:
        """Of the rows at some positions, ascending; None: of all."""
        if positions is None:
            return self.offsets
        return positions.astype(np.uint32) if self.offsets is None else self.offsets[positions]


def stamped(rows: pa.RecordBatch, first: int, offsets: NDArray[np.uint32] | None = None) -> Stamped:
    """Rows with their sequences."""
    size_bytes = int(rows.nbytes) + (0 if offsets is None else int(offsets.nbytes))
    return Stamped(rows, first, offsets, size_bytes)


@dataclass(frozen=True, slots=True)
class Keyed:
    """Rows of one input whose keys are hashed; none has a null in its key.

    The workers of a process share a batch instead of copying out of it: each gets all of it, with
    the positions of the rows that are meant. What `size_bytes` say of all sharers is together at
    least what the batch takes, however unequal their parts.
    """

    stamped: Stamped
    keys: Keys
    groups: NDArray[np.int32]
    chosen: NDArray[np.int32] | None = None  # positions of those meant, ascending; None: all
    sharers: int = 1

    @property
    def rows(self) -> pa.RecordBatch:
        """The rows, with those of other sharers."""
        return self.stamped.rows

    @property
    def count(self) -> int:
        """How many rows are meant."""
        return self.groups.size if self.chosen is None else self.chosen.size

    @property
    def positions(self) -> NDArray[np.int32]:
        """Of the rows that are meant, ascending."""
        return np.arange(self.groups.size, dtype=np.int32) if self.chosen is None else self.chosen

    @property
    def size_bytes(self) -> int:
        """Of the rows that are meant and their sequences."""
        whole = self.stamped.size_bytes
        return max(whole * self.count // max(1, self.groups.size), whole // self.sharers)

    def positions_in(self, groups: NDArray[np.bool_]) -> NDArray[np.int32]:
        """Of the rows that are meant, those of some groups."""
        return self.positions[groups[self.groups[self.positions]]]

    def share(self, positions: NDArray[np.int32], sharers: int) -> Keyed:
        """The rows at some positions, ascending, beside so many others who share the batch."""
        return Keyed(self.stamped, self.keys, self.groups, positions, sharers)

    def take(self, positions: NDArray[Any]) -> Keyed:
        """A copy of the rows at some positions, ascending: it keeps nothing of the others."""
        rows = self.rows.take(pa.array(positions))
        return Keyed(
            stamped(rows, self.stamped.first, self.stamped.offsets_at(positions)),
            self.keys.take(positions),
            self.groups[positions],
        )


def keyed(plan: QueryPlan, index: int, of: Stamped) -> Keyed:
    """Hash the keys of an input's kept columns; rows with a null in the key are left out."""
    columns = [of.rows.column(name) for name in plan.inputs[index].key]
    keys = canonical_keys(columns, plan.key_types)
    made = Keyed(of, keys, partition_ids(keys.hashes, plan.partitions))
    return made if keys.valid is None else made.take(np.flatnonzero(keys.valid))
