"""Distinct types for the things that are counted and named, so that none is taken for another."""

from __future__ import annotations

import re
from typing import NewType

from dovetail_proto.errors import ConfigError

GroupId = NewType("GroupId", int)
"""A partition group: hash of the key, scaled to 0 … P−1."""

Generation = NewType("Generation", int)
"""How often a group has been pushed to disk so far; 0 before its first push."""

MapVersion = NewType("MapVersion", int)
"""Version of the partition map; grows by one with each committed change."""

Epoch = NewType("Epoch", int)
"""A manager's term; messages of a lower epoch are refused."""

MoveId = NewType("MoveId", str)
"""`<epoch>-<number>` in fixed widths, so that the order of text is the order of issue."""

SplitId = NewType("SplitId", str)
"""The split of one input of a query: `<query>/<input index>`."""

ProcessorId = NewType("ProcessorId", str)
QueryName = NewType("QueryName", str)
StreamName = NewType("StreamName", str)

LogName = NewType("LogName", str)
"""A log of results: its writer's name; `<writer>.<n>` for the n-th one of a writer that left before
and came back.
"""

MOVE_ID = re.compile(r"[0-9]{10}-[0-9]{8}")
NAME = re.compile(r"[a-z0-9_-]{1,64}")
OWNER = re.compile(r"[a-z0-9_-]{1,64}(\.[0-9]{1,3})?")
"""An owner of groups: a processor of one worker, or a worker of several, such as `p1.0`."""
NAME_IN_WORDS = "1 to 64 characters of a-z, 0-9, '_' and '-'"
LOG_NAME = re.compile(r"[a-z0-9_-]{1,64}(\.[0-9]{1,9}){0,2}")


def check_name(kind: str, name: str) -> str:
    """Return `name` if it may name a `kind` (stream, query, …); raise ConfigError if not."""
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"{kind} name {name!r} is not allowed",
            remedy=f"use {NAME_IN_WORDS}",
        )
    return name


def worker_names(processor: ProcessorId, workers: int) -> list[ProcessorId]:
    """The workers of a process, each an owner of groups: `p1.0`, `p1.1`; one alone is `p1`."""
    if workers == 1:
        return [processor]
    return [ProcessorId(f"{processor}.{n}") for n in range(workers)]


def process_of(worker: ProcessorId) -> ProcessorId:
    """The processor whose worker it is."""
    return ProcessorId(worker.partition(".")[0])


def move_id(epoch: Epoch, number: int) -> MoveId:
    """The id of the `number`-th move of the manager of `epoch`; later moves compare greater."""
    text = f"{epoch:010d}-{number:08d}"
    if not MOVE_ID.fullmatch(text):
        raise ConfigError(f"move {number} of epoch {epoch} cannot be named", remedy="")
    return MoveId(text)


def split_id(query: QueryName, index: int, hosting: int = 1) -> SplitId:
    """The split of input `index`, at its `hosting`-th host: `prices/0`, then `prices/0.2`.

    Each host has links of its own, so what one of them sent late is not taken for the next one's.
    """
    return SplitId(f"{query}/{index}.{hosting}" if hosting > 1 else f"{query}/{index}")


def next_split(split: SplitId) -> SplitId:
    """The same input's split at its next host."""
    _, _, hosting = split.rpartition("/")[2].partition(".")
    return split_id(query_of(split), input_of(split), int(hosting or 1) + 1)


def input_of(split: SplitId) -> int:
    """Which input of its query a split feeds."""
    return int(split.rpartition("/")[2].partition(".")[0])


def query_of(split: SplitId) -> QueryName:
    """Whose split it is."""
    return QueryName(split.rpartition("/")[0])
