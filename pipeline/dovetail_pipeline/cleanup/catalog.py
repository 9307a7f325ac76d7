"""What there is to clean up: the pieces of all groups that were pushed more than once.

A group with one generation on disk owes nothing, because the run's close pushes the rest of every
group that has any: its rows have all met. The catalog leaves such groups out.

Pieces are kept as columns, one array per property, because there may be a million of them. A hash
range picks the ones to read: groups, and pieces within a group, are hash ranges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail_proto.errors import SpillError
from dovetail_proto.query import QueryPlan
from dovetail_proto.spill_format import InputEntry, PushManifest, RunRecord, SpillStore

HASH_MAX = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class SpillFile:
    """One input's file of one push."""

    store: SpillStore
    push: PushManifest
    entry: InputEntry


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """Pieces of one input (rows of one group in one row group); an array element for each.

    In the order of stores, pushes and files, so that a group's generations usually ascend.
    """

    file: NDArray[np.int64]  # index into Catalog.files
    number: NDArray[np.int64]  # index into the file's entry
    row_group: NDArray[np.int64]
    group: NDArray[np.int64]
    generation: NDArray[np.int64]
    rows: NDArray[np.int64]
    memory_bytes: NDArray[np.int64]
    stored_bytes: NDArray[np.int64]  # about
    hash_min: NDArray[np.uint64]
    hash_max: NDArray[np.uint64]

    def pick(self, chosen: NDArray[np.bool_] | NDArray[np.int64]) -> Pieces:
        """Some of the pieces, by mask or index."""
        return Pieces(*(getattr(self, name)[chosen] for name in self.__slots__))

    def overlapping(self, low: int, high: int) -> Pieces:
        """The pieces that may hold hashes in low … high."""
        return self.pick((self.hash_max >= np.uint64(low)) & (self.hash_min <= np.uint64(high)))

    def share(self, low: int, high: int) -> NDArray[np.float64]:
        """Roughly which share of each piece lies in low … high, hashes being even."""
        begin = np.maximum(self.hash_min, np.uint64(low)).astype(np.float64)
        end = np.minimum(self.hash_max, np.uint64(high)).astype(np.float64)
        width = (self.hash_max - self.hash_min).astype(np.float64)
        return np.clip((end - begin + 1) / (width + 1), 0.0, 1.0)


@dataclass(frozen=True, slots=True, eq=False)
class Catalog:
    """Everything that may owe results in one query's closed stores."""

    plan: QueryPlan
    stores: tuple[SpillStore, ...]
    records: tuple[RunRecord, ...]
    files: tuple[SpillFile, ...]
    inputs: tuple[Pieces, ...]
    groups: tuple[int, ...]  # those of `inputs`, ascending

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
        pairs = [p.group * (1 << 31) + p.generation for p in self.inputs]
        groups = np.unique(np.concatenate(pairs)) >> 31
        return [int(n) for n in np.bincount(np.searchsorted(self.groups, groups))]

    def group_rows(self) -> list[tuple[int, ...]]:
        """Rows of each of `groups`, per input."""
        size = len(self.groups)
        per_input = [
            np.bincount(np.searchsorted(self.groups, p.group), p.rows, size) for p in self.inputs
        ]
        return [tuple(int(n) for n in rows) for rows in zip(*per_input, strict=True)]


def open_catalog(
    stores: SpillStore | Sequence[SpillStore], *, every_group: bool = False
) -> Catalog:
    """The catalog of a query's stores: one, or several that a moved group left generations in.

    `every_group` takes in those that were pushed once and owe nothing. SpillError if a run was not
    closed, if the stores are of different queries, or if two hold one generation of a group.
    """
    stores = (stores,) if isinstance(stores, SpillStore) else tuple(stores)
    plan = stores[0].plan
    records = tuple(store.run_record() for store in stores)
    for store in stores[1:]:
        if store.plan.to_json() != plan.to_json():
            raise SpillError(
                f"{store.root} holds another query than {stores[0].root}",
                remedy="clean up each query's stores by themselves",
            )
    files: list[SpillFile] = []
    inputs: list[list[tuple[int, InputEntry]]] = [[] for _ in plan.inputs]
    homes: dict[tuple[int, int], str] = {}
    generations: dict[int, int] = {}
    for store in stores:
        for push in store.pushes():
            for pair in push.groups.items():
                if homes.setdefault(pair, store.root) != store.root:
                    raise SpillError(
                        f"generation {pair[1]} of group {pair[0]} is both in {homes[pair]} and "
                        f"in {store.root}",
                        remedy="give each store once, and only stores of one run",
                    )
                generations[pair[0]] = generations.get(pair[0], 0) + 1
            for i, entry in enumerate(push.inputs):
                if entry is not None:
                    inputs[i].append((len(files), entry))
                    files.append(SpillFile(store, push, entry))
    least = 1 if every_group else 2
    owing = np.array(sorted(g for g, c in generations.items() if c >= least), np.int64)
    return Catalog(
        plan=plan,
        stores=stores,
        records=records,
        files=tuple(files),
        inputs=tuple(_pieces(entries, owing) for entries in inputs),
        groups=tuple(owing.tolist()),
    )


def _pieces(entries: list[tuple[int, InputEntry]], owing: NDArray[np.int64]) -> Pieces:
    def column(name: str, dtype: type[np.generic] = np.int64) -> NDArray[Any]:
        parts = [getattr(e, name) for _, e in entries]
        return np.concatenate([np.empty(0, dtype), *parts])

    sizes = [e.rows.size for _, e in entries]
    stored = [e.memory_bytes * (e.bytes / max(1, e.memory_bytes.sum())) for _, e in entries]
    numbers = [np.empty(0, np.int64), *(np.arange(s) for s in sizes)]
    pieces = Pieces(
        file=np.repeat(np.array([i for i, _ in entries], np.int64), sizes),
        number=np.concatenate(numbers),
        row_group=column("row_group"),
        group=column("group"),
        generation=column("generation"),
        rows=column("rows"),
        memory_bytes=column("memory_bytes"),
        stored_bytes=np.concatenate([np.empty(0), *stored]).astype(np.int64),
        hash_min=column("hash_min", np.uint64),
        hash_max=column("hash_max", np.uint64),
    )
    return pieces.pick(np.isin(pieces.group, owing))
