"""What a spill store says about itself: the manifest of a push, and the record of a closed run.

A manifest describes each input's file by *pieces*, the rows of one group that lie in one row group,
as arrays with one element per piece, in file order:

    file input-01.parquet       piece:   0      1      2      3      4
                            row_group:   0      0      1      2      3
                                group:  17     42     99     99     99     small groups share a row
                           generation:   0      3      1      1      1     group, large ones have
                                 rows: 800     30  41000  41000   1600     several
                       hash_min … max: sorted and disjoint within a group

Everything read here comes from outside and is checked before it is believed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail_proto.errors import SpillError
from dovetail_proto.ids import Generation, GroupId, MapVersion
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
    """One input's file in a push; the arrays below `chunk_crc32` have one element per piece.

    Every byte of the file is under a checksum: the four of the magic, then the column chunks
    without a gap, then the footer.
    """

    name: str  # relative to the store
    bytes: int  # size of the file
    footer_bytes: int  # Parquet's footer with its length and magic: the file's last bytes
    footer_crc32: int
    chunk_crc32: NDArray[np.uint32]  # of column chunks, by row group, then by leaf column
    row_group: NDArray[np.int64]  # 0, then never falling and never leaving one out
    group: NDArray[np.int64]
    generation: NDArray[np.int64]
    rows: NDArray[np.int64]
    memory_bytes: NDArray[np.int64]  # as Arrow, when it was written
    hash_min: NDArray[np.uint64]
    hash_max: NDArray[np.uint64]

    @property
    def row_groups(self) -> int:
        """Row groups in the file."""
        return int(self.row_group[-1]) + 1

    def to_json(self) -> dict[str, Any]:
        """The entry as JSON values."""
        return {
            "name": self.name,
            "bytes": self.bytes,
            "footer_bytes": self.footer_bytes,
            "footer_crc32": hex32(self.footer_crc32),
            "chunk_crc32": pack(self.chunk_crc32),
            "leaf_columns": self.chunk_crc32.size // self.row_groups,
            "pieces": {
                "row_group": self.row_group.tolist(),
                "group": self.group.tolist(),
                "generation": self.generation.tolist(),
                "rows": self.rows.tolist(),
                "memory_bytes": self.memory_bytes.tolist(),
                "hash_min": [hex64(h) for h in self.hash_min.tolist()],
                "hash_max": [hex64(h) for h in self.hash_max.tolist()],
            },
        }


@dataclass(frozen=True, slots=True, eq=False)
class PushManifest:
    """A committed push."""

    store_id: str
    push: int  # from 1
    inputs: tuple[InputEntry | None, ...]  # None: the push holds no rows of that input
    crc32: int  # of the manifest file, so that the record of the run can name it

    @property
    def groups(self) -> dict[GroupId, Generation]:
        """The groups of this push, each with the generation that it was pushed as."""
        found: dict[GroupId, Generation] = {}
        for entry in self.inputs:
            if entry is not None:
                pairs = zip(entry.group.tolist(), entry.generation.tolist(), strict=True)
                found.update((GroupId(g), Generation(t)) for g, t in pairs)
        return found

    @property
    def bytes(self) -> int:
        """Size of the push's files, the manifest aside."""
        return sum(e.bytes for e in self.inputs if e is not None)

    def body(self) -> dict[str, Any]:
        """The manifest as JSON values."""
        return {
            "store": self.store_id,
            "push": self.push,
            "inputs": [None if e is None else e.to_json() for e in self.inputs],
        }


def manifest_from_fields(
    fields: Fields, *, plan: QueryPlan, store_id: str, push: int, crc32: int
) -> PushManifest:
    """Check and read the manifest of a push; SpillError names its file."""
    check = checker(fields.place)
    check(fields.text("store") == store_id, "belongs to another spill store")
    check(fields.integer("push") == push, f"is not the manifest of push {push}")
    raw = fields.items("inputs")
    fields.done()
    check(len(raw) == len(plan.inputs), f"has {len(raw)} inputs, the query {len(plan.inputs)}")
    inputs = tuple(
        None
        if r is None
        else _input_entry(
            Fields(r, f"{fields.place}: input {i}"),
            f"{push_folder(push)}/{input_file(i)}",
            plan.partitions,
        )
        for i, r in enumerate(raw)
    )
    generations: dict[int, int] = {}
    for entry in inputs:
        if entry is not None:
            for g, t in zip(entry.group.tolist(), entry.generation.tolist(), strict=True):
                check(generations.setdefault(g, t) == t, f"group {g} has two generations")
    return PushManifest(store_id, push, inputs, crc32)


def _input_entry(fields: Fields, name: str, partitions: int) -> InputEntry:
    check = checker(fields.place)
    check(fields.text("name") == name, f"names a file other than {name}")
    leaves = fields.integer("leaf_columns", 1, 1 << 20)
    columns = fields.fields("pieces")
    row_group = columns.ints("row_group")
    check(row_group.size > 0, "a file without rows is listed")
    steps = np.diff(row_group, prepend=0)
    in_turn = row_group[0] == 0 and bool(((steps == 0) | (steps == 1)).all())
    check(in_turn, "row groups are not counted one by one")
    entry = InputEntry(
        name=name,
        bytes=fields.integer("bytes", 12),
        footer_bytes=fields.integer("footer_bytes", 8),
        footer_crc32=fields.hex32("footer_crc32"),
        chunk_crc32=fields.packed("chunk_crc32", "uint32", leaves * (int(row_group[-1]) + 1)),
        row_group=row_group,
        group=columns.ints("group", 0, partitions - 1),
        generation=columns.ints("generation", 0, GENERATIONS_MAX),
        rows=columns.ints("rows", 1),
        memory_bytes=columns.ints("memory_bytes"),
        hash_min=columns.hashes("hash_min"),
        hash_max=columns.hashes("hash_max"),
    )
    columns.done()
    fields.done()
    sizes = {a.size for a in (entry.group, entry.generation, entry.rows)}
    sizes |= {a.size for a in (entry.memory_bytes, entry.hash_min, entry.hash_max)}
    check(sizes == {row_group.size}, "pieces are described by lists of different lengths")
    check(entry.footer_bytes <= entry.bytes, "its footer is larger than the file")
    check(bool((entry.hash_min <= entry.hash_max).all()), "a hash range ends before it begins")
    for bound in (entry.hash_min, entry.hash_max):
        owner = partition_ids(bound, partitions)
        check(bool((owner == entry.group).all()), "a hash range lies outside its group")
    order = np.argsort(entry.group, kind="stable")
    again = entry.group[order][1:] == entry.group[order][:-1]
    ordered = entry.hash_max[order][:-1] <= entry.hash_min[order][1:]
    check(bool(ordered[again].all()), "the pieces of a group are not in hash order")
    return entry


@dataclass(frozen=True, slots=True)
class RunRecord:
    """How the run ended. With it, produced + owed = total can be checked for every group."""

    rows_in: tuple[int, ...]  # rows read, per input
    results_run: int  # rows written by the run
    checksum: int  # uint64: order-free checksum of those rows
    produced: Mapping[int, int] = field(default_factory=dict)
    """Combinations each group produced before residual conditions; groups with none may lack."""
    interrupted: bool = False  # stopped by the user: the inputs were not read to their end
    map_version: MapVersion = FIRST_MAP
    output: str | None = None  # where the run's results are; None: only counted

    def body(self) -> dict[str, Any]:
        """The record as JSON values; SpillError if a number cannot be kept."""
        for n in (*self.rows_in, self.results_run, *self.produced.values()):
            if not 0 <= n <= INT64_MAX:
                raise SpillError(f"run record: {n} does not fit 63 bits")
        if not 0 <= self.checksum <= UINT64_MAX:
            raise SpillError(f"run record: checksum {self.checksum} does not fit 64 bits")
        groups = sorted(self.produced)
        return {
            "rows_in": list(self.rows_in),
            "results_run": self.results_run,
            "checksum": hex64(self.checksum),
            "produced": {
                "group": groups,
                "combinations": [self.produced[g] for g in groups],
            },
            "interrupted": self.interrupted,
            "map_version": int(self.map_version),
            "output": self.output,
        }


def record_from_fields(fields: Fields, plan: QueryPlan) -> RunRecord:
    """Check and read a run record; the caller takes what else the fields hold."""
    produced = fields.fields("produced")
    groups = produced.ints("group", 0, plan.partitions - 1).tolist()
    combinations = produced.ints("combinations").tolist()
    produced.done()
    if len(groups) != len(combinations) or len(set(groups)) != len(groups):
        refuse(fields.place, "produced combinations do not match their groups")
    record = RunRecord(
        rows_in=tuple(fields.ints("rows_in").tolist()),
        results_run=fields.integer("results_run"),
        checksum=fields.hex64("checksum"),
        produced=dict(zip(groups, combinations, strict=True)),
        interrupted=fields.boolean("interrupted"),
        map_version=MapVersion(fields.integer("map_version")),
        output=fields.optional_text("output"),
    )
    if len(record.rows_in) != len(plan.inputs):
        refuse(fields.place, f"has rows of {len(record.rows_in)} inputs, not {len(plan.inputs)}")
    return record


def check_store_id(store_id: str, place: str) -> str:
    """Return `store_id` if it is one; SpillError if not."""
    if not _STORE_ID.fullmatch(store_id):
        refuse(place, f"store id {store_id!r} is not 32 hexadecimal digits")
    return store_id
