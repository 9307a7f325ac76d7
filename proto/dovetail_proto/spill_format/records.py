"""What a spill store says about itself: the manifest of a push, and the record of a closed run.

A manifest lists the groups of the push, each with its generation, and for each input its file by
row groups, as arrays with one element each. Hashes, and so groups, ascend through the file:

    group:       17   42   99   99           row_group:     0        1        2        3
    generation:   0    3    1    2                rows:  10400    10400    10400     4030
    rows:       800   30  30000 4400         hash range:  17 … 99   99 …     99 …     99 …

A push that several were merged into may hold several generations of a group: their rows lie among
each other, in hash order, and each row knows its own. It names the pushes that it stands for, which
do not exist any more. Everything read here comes from outside and is checked before it is believed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail_proto.errors import SpillError
from dovetail_proto.ids import MapVersion
from dovetail_proto.partitioning import partition_ids
from dovetail_proto.query import QueryPlan
from dovetail_proto.spill_format.sealed import (
    INT64_MAX,
    UINT64_MAX,
    Fields,
    checker,
    hex32,
    hex64,
    pack,
    refuse,
)

GENERATIONS_MAX = (1 << 31) - 1
"""`__generation` is an int32 column."""

PUSHES_MAX = 999_999
"""Six digits name a push; at one push a second that is more than eleven days."""

GENERATIONS_IN_PUSH_MAX = 1 << 26
"""Of all groups of one push: what is said of them can be read into a gigabyte."""

FIRST_MAP = MapVersion(0)
"""The map of a run that never moved a group."""

QUERY_FILE = "query.json"
CLOSED_FILE = "closed.json"
PUSHES_FOLDER = "pushes"
MANIFEST_FILE = "manifest.json"

_STORE_ID = re.compile(r"[0-9a-f]{32}")


def push_folder(push: int) -> str:
    """The folder of a push."""
    return f"{PUSHES_FOLDER}/{push:06d}"


def input_file(index: int) -> str:
    """The file of one input in the folder of a push."""
    return f"input-{index:02d}.parquet"


@dataclass(frozen=True, slots=True, eq=False)
class InputEntry:
    """One input's file in a push.

    Every byte of the file is under a checksum: the four of the magic, then the column chunks
    without a gap, then the footer.
    """

    name: str  # relative to the store
    bytes: int  # size of the file
    footer_bytes: int  # Parquet's footer with its length and magic: the file's last bytes
    footer_crc32: int
    chunk_crc32: NDArray[np.uint32]  # of column chunks, by row group, then by leaf column
    group_rows: NDArray[np.int64]  # of each generation of a group; 0: other inputs alone have rows
    rows: NDArray[np.int64]  # this and those below have one element per row group
    memory_bytes: NDArray[np.int64]  # as Arrow, when it was written
    hash_min: NDArray[np.uint64]  # of the first row; hashes never fall from row to row
    hash_max: NDArray[np.uint64]  # of the last row

    @property
    def row_groups(self) -> int:
        """Row groups in the file."""
        return self.rows.size

    def to_json(self) -> dict[str, Any]:
        """The entry as JSON values."""
        return {
            "name": self.name,
            "bytes": self.bytes,
            "footer_bytes": self.footer_bytes,
            "footer_crc32": hex32(self.footer_crc32),
            "row_groups": self.row_groups,
            "leaf_columns": self.chunk_crc32.size // self.row_groups,
            "chunk_crc32": pack(self.chunk_crc32, "uint32"),
            "group_rows": pack(self.group_rows, "uint32"),
            "rows": pack(self.rows, "uint32"),
            "memory_bytes": pack(self.memory_bytes, "uint64"),
            "hash_min": pack(self.hash_min, "uint64"),
            "hash_max": pack(self.hash_max, "uint64"),
        }


@dataclass(frozen=True, slots=True, eq=False)
class PushManifest:
    """A committed push."""

    store_id: str
    push: int  # from 1
    group: NDArray[np.int64]  # the groups of this push, one element for each generation of them
    generation: NDArray[np.int64]  # with `group`, in ascending order
    inputs: tuple[InputEntry | None, ...]  # None: the push holds no rows of that input
    crc32: int  # of the manifest file, so that the record of the run can name it
    replaces: NDArray[np.int64]  # pushes whose rows it holds, ascending: they are no more

    @property
    def bytes(self) -> int:
        """Size of the push's files, the manifest aside."""
        return sum(e.bytes for e in self.inputs if e is not None)

    def body(self) -> dict[str, Any]:
        """The manifest as JSON values."""
        return {
            "store": self.store_id,
            "push": self.push,
            "generations": self.group.size,
            "group": pack(self.group, "uint32"),
            "generation": pack(self.generation, "uint32"),
            "replaced": self.replaces.size,
            "replaces": pack(self.replaces, "uint32"),
            "inputs": [None if e is None else e.to_json() for e in self.inputs],
        }


def manifest_from_fields(
    fields: Fields, *, plan: QueryPlan, store_id: str, push: int, crc32: int
) -> PushManifest:
    """Check and read the manifest of a push; SpillError names its file."""
    check = checker(fields.place)
    check(fields.text("store") == store_id, "belongs to another spill store")
    check(fields.integer("push") == push, f"is not the manifest of push {push}")
    count = fields.integer("generations", 0, GENERATIONS_IN_PUSH_MAX)
    group = fields.packed_ints("group", "uint32", count, 0, plan.partitions - 1)
    generation = fields.packed_ints("generation", "uint32", count, 0, GENERATIONS_MAX)
    replaced = fields.integer("replaced", 0, push)
    replaces = fields.packed_ints("replaces", "uint32", replaced, 1, push - 1)
    raw = fields.items("inputs")
    fields.done()
    pairs = group * (GENERATIONS_MAX + 1) + generation
    check(bool((pairs[1:] > pairs[:-1]).all()), "its groups and generations do not ascend")
    check(bool((replaces[1:] > replaces[:-1]).all()), "the pushes that it replaces do not ascend")
    check(len(raw) == len(plan.inputs), f"has {len(raw)} inputs, the query {len(plan.inputs)}")
    inputs = tuple(
        None
        if r is None
        else _input_entry(
            Fields(r, f"{fields.place}: input {i}"),
            f"{push_folder(push)}/{input_file(i)}",
            group,
            plan.partitions,
        )
        for i, r in enumerate(raw)
    )
    rows = np.zeros(count, np.int64)
    for entry in inputs:
        if entry is not None:
            rows += entry.group_rows
    check(bool((rows > 0).all()), "lists a group that has no rows")
    return PushManifest(store_id, push, group, generation, inputs, crc32, replaces)


def _input_entry(
    fields: Fields, name: str, group: NDArray[np.int64], partitions: int
) -> InputEntry:
    check = checker(fields.place)
    check(fields.text("name") == name, f"names a file other than {name}")
    size = fields.integer("bytes", 12)
    footer_bytes = fields.integer("footer_bytes", 8)
    check(footer_bytes <= size, "its footer is larger than the file")
    # Each row group takes some bytes of the file: a size that could never be read is refused here.
    count = fields.integer("row_groups", 1, size)
    leaves = fields.integer("leaf_columns", 1, 1 << 20)
    entry = InputEntry(
        name=name,
        bytes=size,
        footer_bytes=footer_bytes,
        footer_crc32=fields.hex32("footer_crc32"),
        chunk_crc32=fields.packed("chunk_crc32", "uint32", leaves * count),
        group_rows=fields.packed_ints("group_rows", "uint32", group.size),
        rows=fields.packed_ints("rows", "uint32", count, 1),
        memory_bytes=fields.packed_ints("memory_bytes", "uint64", count),
        hash_min=fields.packed("hash_min", "uint64", count),
        hash_max=fields.packed("hash_max", "uint64", count),
    )
    fields.done()
    check(bool((entry.hash_min <= entry.hash_max).all()), "a hash range ends before it begins")
    check(
        bool((entry.hash_max[:-1] <= entry.hash_min[1:]).all()),
        "its row groups are not in hash order",
    )
    check(entry.group_rows.sum() == entry.rows.sum(), "its groups have other rows than its file")
    held = group[entry.group_rows > 0]
    for bound in (entry.hash_min, entry.hash_max):
        known = np.isin(partition_ids(bound, partitions), held)
        check(bool(known.all()), "a hash range lies outside its groups")
    return entry


@dataclass(frozen=True, slots=True)
class RunRecord:
    """How the run ended. With it, produced + owed = total can be checked for every group."""

    rows_in: tuple[int, ...]  # rows read, per input
    results_run: int  # rows written by the run
    checksum: int  # uint64: order-free checksum of those rows
    produced: Mapping[int, int] = field(default_factory=dict)
    """Combinations of kept rows that each group produced before residual conditions; groups with
    none may lack. Rows that could meet nobody any more were not kept, and owe nothing."""
    interrupted: bool = False  # stopped by the user: the inputs were not read to their end
    map_version: MapVersion = FIRST_MAP
    output: str | None = None  # where the run's results are; None: only counted
    processor: str = ""  # that filled this store; empty: the run had one process
    processors: tuple[str, ...] = ()  # of the run that ever owned a group; each has a store
    owned: Mapping[int, int] | None = None
    """Groups that this processor owned in the end, and how often each was pushed, by whomever: over
    all stores of a run they are all groups, each once. None: the run has this store alone."""

    def body(self) -> dict[str, Any]:
        """The record as JSON values; SpillError if a number cannot be kept."""
        for n in (*self.rows_in, self.results_run, *self.produced.values()):
            if not 0 <= n <= INT64_MAX:
                raise SpillError(f"run record: {n} does not fit 63 bits")
        if not 0 <= self.checksum <= UINT64_MAX:
            raise SpillError(f"run record: checksum {self.checksum} does not fit 64 bits")
        groups = np.array(sorted(self.produced), np.int64)
        combinations = np.array([self.produced[g] for g in groups.tolist()], np.int64)
        return {
            "rows_in": list(self.rows_in),
            "results_run": self.results_run,
            "checksum": hex64(self.checksum),
            "produced": {
                "groups": groups.size,
                "group": pack(groups, "uint32"),
                "combinations": pack(combinations, "uint64"),
            },
            "interrupted": self.interrupted,
            "map_version": int(self.map_version),
            "output": self.output,
            "processor": self.processor,
            "processors": list(self.processors),
            "owned": None if self.owned is None else _owned_body(self.owned),
        }


def _owned_body(owned: Mapping[int, int]) -> dict[str, Any]:
    groups = np.array(sorted(owned), np.int64)
    pushed = np.array([owned[g] for g in groups.tolist()], np.int64)
    return {
        "groups": groups.size,
        "group": pack(groups, "uint32"),
        "pushed": pack(pushed, "uint32"),
    }


def _owned_from_fields(fields: Fields, plan: QueryPlan) -> dict[int, int]:
    count = fields.integer("groups", 0, plan.partitions)
    group = fields.packed_ints("group", "uint32", count, 0, plan.partitions - 1)
    pushed = fields.packed_ints("pushed", "uint32", count)
    fields.done()
    if (group[1:] <= group[:-1]).any():
        refuse(fields.place, "its groups do not ascend")
    return dict(zip(group.tolist(), pushed.tolist(), strict=True))


def record_from_fields(fields: Fields, plan: QueryPlan) -> RunRecord:
    """Check and read a run record; the caller takes what else the fields hold."""
    produced = fields.fields("produced")
    count = produced.integer("groups", 0, plan.partitions)
    group = produced.packed_ints("group", "uint32", count, 0, plan.partitions - 1)
    combinations = produced.packed_ints("combinations", "uint64", count)
    produced.done()
    if (group[1:] <= group[:-1]).any():
        refuse(fields.place, "the groups that produced combinations do not ascend")
    record = RunRecord(
        rows_in=tuple(fields.ints("rows_in").tolist()),
        results_run=fields.integer("results_run"),
        checksum=fields.hex64("checksum"),
        produced=dict(zip(group.tolist(), combinations.tolist(), strict=True)),
        interrupted=fields.boolean("interrupted"),
        map_version=MapVersion(fields.integer("map_version")),
        output=fields.optional_text("output"),
        processor=fields.text("processor"),
        processors=fields.texts("processors"),
        owned=_owned_from_fields(owned, plan) if (owned := fields.optional("owned")) else None,
    )
    if len(record.rows_in) != len(plan.inputs):
        refuse(fields.place, f"has rows of {len(record.rows_in)} inputs, not {len(plan.inputs)}")
    return record


def check_store_id(store_id: str, place: str) -> str:
    """Return `store_id` if it is one; SpillError if not."""
    if not _STORE_ID.fullmatch(store_id):
        refuse(place, f"store id {store_id!r} is not 32 hexadecimal digits")
    return store_id
