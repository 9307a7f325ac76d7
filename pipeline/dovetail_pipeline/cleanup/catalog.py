"""What there is to clean up: the row groups that hold groups which were pushed more than once.

A group with one generation on disk owes nothing, because the run's close pushes the rest of every
group that has any: its rows have all met. Row groups without any other group are left out; where
such a group shares one with its neighbours, its rows are read along and owe nothing.

Row groups, groups and generations are kept as columns, one array per property: there may be a
million of them. A hash range picks the row groups to read, because files are in hash order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail_pipeline.cleanup.checking import run_records
from dovetail_proto.errors import SpillError
from dovetail_proto.partitioning import partition_ids
from dovetail_proto.query import QueryPlan
from dovetail_proto.spill_format import InputEntry, PushManifest, RunRecord, SpillStore

HASH_MAX = (1 << 64) - 1

MIXED = -1
"""In place of a generation: a row group holds groups of several."""


@dataclass(frozen=True, slots=True)
class SpillFile:
    """One input's file of one push."""

    store: SpillStore
    push: PushManifest
    entry: InputEntry


@dataclass(frozen=True, slots=True, eq=False)
class RowGroups:
    """Row groups of one input; an array element for each.

    In the order of stores, pushes and files, so that a group's generations usually ascend.
    """

    file: NDArray[np.int64]  # index into Catalog.files
    number: NDArray[np.int64]  # in its file
    generation: NDArray[np.int64]  # of all its rows, or MIXED
    rows: NDArray[np.int64]
    memory_bytes: NDArray[np.int64]
    stored_bytes: NDArray[np.int64]  # about
    hash_min: NDArray[np.uint64]
    hash_max: NDArray[np.uint64]

    def pick(self, chosen: NDArray[np.bool_] | NDArray[np.int64]) -> RowGroups:
        """Some of the row groups, by mask or index."""
        return RowGroups(*(getattr(self, name)[chosen] for name in self.__slots__))

    def overlapping(self, low: int, high: int) -> RowGroups:
        """The row groups that may hold hashes in low … high."""
        return self.pick((self.hash_max >= np.uint64(low)) & (self.hash_min <= np.uint64(high)))

    def share(self, low: int, high: int) -> NDArray[np.float64]:
        """Roughly which share of each row group lies in low … high, hashes being even."""
        begin = np.maximum(self.hash_min, np.uint64(low)).astype(np.float64)
        end = np.minimum(self.hash_max, np.uint64(high)).astype(np.float64)
        width = (self.hash_max - self.hash_min).astype(np.float64)
        return np.clip((end - begin + 1) / (width + 1), 0.0, 1.0)


@dataclass(frozen=True, slots=True, eq=False)
class Generations:
    """What was pushed of the groups; an array element for each generation of a group."""

    group: NDArray[np.int64]
    rows: tuple[NDArray[np.int64], ...]  # per input


@dataclass(frozen=True, slots=True, eq=False)
class Catalog:
    """Everything that may owe results in one query's closed stores."""

    plan: QueryPlan
    stores: tuple[SpillStore, ...]
    records: tuple[RunRecord, ...]  # of the stores that were closed
    files: tuple[SpillFile, ...]
    inputs: tuple[RowGroups, ...]
    groups: NDArray[np.int64]  # those that may owe results, ascending
    generations: Generations  # of `groups`

    @property
    def rows(self) -> int:
        """Rows that must be read."""
        return sum(int(p.rows.sum()) for p in self.inputs)

    @property
    def stored_bytes(self) -> int:
        """Bytes that must be read."""
        return sum(int(p.stored_bytes.sum()) for p in self.inputs)

    def group_generations(self) -> list[int]:
        """How many generations each of `groups` has."""
        at = np.searchsorted(self.groups, self.generations.group)
        return [int(n) for n in np.bincount(at, minlength=self.groups.size)]

    def group_rows(self) -> list[tuple[int, ...]]:
        """Rows of each of `groups`, per input."""
        at = np.searchsorted(self.groups, self.generations.group)
        per_input = [np.bincount(at, r, self.groups.size) for r in self.generations.rows]
        return [tuple(int(n) for n in rows) for rows in zip(*per_input, strict=True)]


def group_ranges(
    groups: NDArray[np.int64], partitions: int
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """The first and the last hash of each group: those h with `(h >> 32) * partitions >> 32`."""

    def first(group: NDArray[np.int64]) -> NDArray[np.uint64]:
        half = np.uint64(32)
        # The smallest upper half u with u * partitions >= group << 32. After the last group it is
        # 1 << 32, which the shift drops: zero, and one less is the last hash of all.
        upper = ((group.astype(np.uint64) << half) + np.uint64(partitions - 1)) // np.uint64(
            partitions
        )
        return upper << half

    return first(groups), first(groups + 1) - np.uint64(1)


def open_catalog(
    stores: SpillStore | Sequence[SpillStore], *, every_group: bool = False
) -> Catalog:
    """The catalog of a query's stores: one, or several that a moved group left generations in.

    `every_group` takes in those that were pushed once and owe nothing. SpillError if a run was not
    closed, if the stores are of different queries, if two hold one generation of a group, or if
    one of the run is missing.
    """
    stores = (stores,) if isinstance(stores, SpillStore) else tuple(stores)
    # In one order, however they were given: bins number a hot key's rows by it, and what a clean-up
    # has finished is recorded in the first.
    stores = tuple(sorted(stores, key=lambda s: s.id))
    plan = stores[0].plan
    for store in stores[1:]:
        if store.plan.to_json() != plan.to_json():
            raise SpillError(
                f"{store.root} holds another query than {stores[0].root}",
                remedy="clean up each query's stores by themselves",
            )
    pushes = [(store, push) for store in stores for push in store.pushes()]
    _check_homes(pushes)
    group = _joined([p.group for _, p in pushes])
    records = run_records(plan, stores, group)
    pushed = np.bincount(group, minlength=plan.partitions)
    owing = np.flatnonzero(pushed >= (1 if every_group else 2))
    files: list[SpillFile] = []
    inputs: list[list[int]] = [[] for _ in plan.inputs]
    for store, push in pushes:
        for i, entry in enumerate(push.inputs):
            if entry is not None:
                inputs[i].append(len(files))
                files.append(SpillFile(store, push, entry))
    kept = np.isin(group, owing)
    return Catalog(
        plan=plan,
        stores=stores,
        records=records,
        files=tuple(files),
        inputs=tuple(_row_groups(files, numbers, owing) for numbers in inputs),
        groups=owing,
        generations=Generations(
            group[kept],
            tuple(_joined([_rows_of(p, i) for _, p in pushes])[kept] for i in range(len(inputs))),
        ),
    )


def _check_homes(pushes: Sequence[tuple[SpillStore, PushManifest]]) -> None:
    """Refuse a generation of a group that two pushes hold; a store has checked its own."""
    pairs = _joined([p.group * (1 << 31) + p.generation for _, p in pushes])
    order = np.argsort(pairs, kind="stable")
    twice = np.flatnonzero(pairs[order][1:] == pairs[order][:-1])
    if twice.size:
        owners = np.repeat(np.arange(len(pushes)), [p.group.size for _, p in pushes])
        one, other = (pushes[owners[order[twice[0] + k]]][0].root for k in (0, 1))
        group, generation = divmod(int(pairs[order[twice[0]]]), 1 << 31)
        raise SpillError(
            f"generation {generation} of group {group} is both in {one} and in {other}",
            remedy="give each store once, and only stores of one run",
        )


def _rows_of(push: PushManifest, index: int) -> NDArray[np.int64]:
    entry = push.inputs[index]
    return np.zeros(push.group.size, np.int64) if entry is None else entry.group_rows


def _joined(parts: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate([np.empty(0, np.int64), *parts])


def _row_groups(
    files: Sequence[SpillFile], numbers: list[int], owing: NDArray[np.int64]
) -> RowGroups:
    entries = [files[n].entry for n in numbers]

    def column(name: str, dtype: type[np.generic] = np.int64) -> NDArray[Any]:
        return np.concatenate([np.empty(0, dtype), *(getattr(e, name) for e in entries)])

    sizes = [e.row_groups for e in entries]
    stored = [e.memory_bytes * (e.bytes / max(1, e.memory_bytes.sum())) for e in entries]
    found = RowGroups(
        file=np.repeat(np.array(numbers, np.int64), sizes),
        number=_joined([np.arange(s) for s in sizes]),
        generation=_joined([_generations(files[n]) for n in numbers]),
        rows=column("rows"),
        memory_bytes=column("memory_bytes"),
        stored_bytes=np.concatenate([np.empty(0), *stored]).astype(np.int64),
        hash_min=column("hash_min", np.uint64),
        hash_max=column("hash_max", np.uint64),
    )
    if not entries:
        return found
    partitions = files[numbers[0]].store.plan.partitions
    first = np.searchsorted(owing, partition_ids(found.hash_min, partitions))
    last = np.searchsorted(owing, partition_ids(found.hash_max, partitions), "right")
    return found.pick(first < last)


def _generations(file: SpillFile) -> NDArray[np.int64]:
    """The generation of each row group of a file, or MIXED."""
    push, partitions = file.push, file.store.plan.partitions
    # A first and a last group for each row group; `reduceat` takes what lies between.
    first = np.searchsorted(push.group, partition_ids(file.entry.hash_min, partitions))
    end = np.searchsorted(push.group, partition_ids(file.entry.hash_max, partitions), "right")
    edges = np.stack([first, end], axis=1).ravel()
    padded = np.append(push.generation, push.generation[-1])
    least = np.minimum.reduceat(padded, edges)[::2]
    most = np.maximum.reduceat(padded, edges)[::2]
    return np.where(least == most, least, MIXED)
