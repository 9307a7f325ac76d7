"""How one field crosses the wire: written as it is, read only after it was checked.

Every reader raises Refusal of domain `message` that names the message, the field and the value.
Bounds are those of the types: a group is below PARTITIONS_MAX, a count fits 63 bits, a name is a
name. Whatever passes here is well-formed; whether it makes sense now is the machines' business.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, Any

from dovetail_proto.errors import Domain, Refusal
from dovetail_proto.ids import LOG_NAME, MOVE_ID, NAME, OWNER
from dovetail_proto.query import INPUTS_MAX, PARTITIONS_MAX

COUNT_MAX = (1 << 63) - 1
"""Everything that is counted fits a signed 64-bit lane of Arrow or NumPy."""

TEXT_CHARS_MAX = 4096
"""A cause or an error message: a screen, not a log."""

CHUNKS_MAX = PARTITIONS_MAX
"""A chunk has at least one group."""

SQL_CHARS_MAX = 1 << 20
"""Far beyond what a person writes; the planner has its own, smaller bound on words."""

SCHEMA_BYTES_MAX = 1 << 20
"""An Arrow schema of ten thousand columns takes less."""

WEIGHTS_MAX = 10_000
"""One for each processor."""

NUMBERS_MAX = 1_000
"""That led to one decision."""


@dataclass(frozen=True, slots=True)
class Codec:
    """`read` gets the protobuf value and where it stands; `write` gets the plain value."""

    read: Callable[[Any, str], Any]
    write: Callable[[Any], Any] = lambda value: value
    optional: bool = False  # absent on the wire is None


def refuse(where: str, value: Any, expected: str) -> Refusal:
    """The refusal of one field."""
    shown = repr(value)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    return Refusal(Domain.MESSAGE, f"{where}: {shown} is not {expected}", field=where)


def optional(codec: Codec) -> Codec:
    """What `codec` reads, or None."""
    return replace(codec, optional=True)


def whole(low: int, high: int, what: str) -> Codec:
    """An integer from `low` to `high`."""

    def read(value: int, where: str) -> int:
        if not low <= value <= high:
            raise refuse(where, value, f"{what} from {low} to {high}")
        return value

    return Codec(read)


def matching(pattern: Any, what: str) -> Codec:
    """Text that is `what`."""

    def read(value: str, where: str) -> str:
        if not pattern.fullmatch(value):
            raise refuse(where, value, what)
        return value

    return Codec(read)


def _read_split(value: str, where: str) -> str:
    query, slash, rest = value.partition("/")
    index, dot, hosting = rest.partition(".")
    digits = _short_number(index, 4) and (not dot or _short_number(hosting, 9))
    if not NAME.fullmatch(query) or not slash or not digits or int(index) >= INPUTS_MAX:
        raise refuse(where, value, "a split, <query>/<input>, or <query>/<input>.<host>")
    return value


def _short_number(text: str, digits_below: int) -> bool:
    return text.isascii() and text.isdigit() and len(text) < digits_below


def _read_text(value: str, where: str) -> str:
    if len(value) > TEXT_CHARS_MAX:
        raise refuse(where, value, f"text of at most {TEXT_CHARS_MAX} characters")
    return value


def _read_groups(values: Any, where: str) -> tuple[int, ...]:
    groups = tuple(values)
    if len(groups) > PARTITIONS_MAX or any(g >= PARTITIONS_MAX for g in groups):
        raise refuse(where, groups, f"groups below {PARTITIONS_MAX}")
    return groups


def _read_ascending(values: Any, where: str) -> tuple[int, ...]:
    groups = _read_groups(values, where)
    if any(a >= b for a, b in pairwise(groups)):
        raise refuse(where, groups, "ascending, each group once")
    return groups


def _read_some(values: Any, where: str) -> tuple[int, ...]:
    groups = _read_ascending(values, where)
    if not groups:
        raise refuse(where, groups, "at least one group")
    return groups


def _read_distinct(values: Any, where: str) -> tuple[int, ...]:
    groups = _read_groups(values, where)
    if len(set(groups)) != len(groups):
        raise refuse(where, groups, "each group once")
    return groups


def _read_sizes(values: Any, where: str) -> tuple[int, ...]:
    return tuple(COUNT.read(v, where) for v in values)


def _read_splits(values: Any, where: str) -> tuple[str, ...]:
    splits = tuple(_read_split(v, where) for v in values)
    if not splits or len(splits) > INPUTS_MAX or len(set(splits)) != len(splits):
        raise refuse(where, splits, f"1 to {INPUTS_MAX} distinct splits")
    return splits


def _read_sql(value: str, where: str) -> str:
    if not value.strip() or len(value) > SQL_CHARS_MAX:
        raise refuse(where, value, f"SQL of at most {SQL_CHARS_MAX} characters")
    return value


def _read_number(value: float, where: str) -> float:
    if not math.isfinite(value):
        raise refuse(where, value, "a finite number")
    return value


def _read_weights(values: Any, where: str) -> tuple[float, ...]:
    weights = tuple(_read_number(v, where) for v in values)
    if len(weights) > WEIGHTS_MAX or any(w < 0 for w in weights):
        raise refuse(where, weights, f"at most {WEIGHTS_MAX} weights of 0 or more")
    if weights and not sum(weights):
        raise refuse(where, weights, "weights of which one at least is above 0")
    return weights


def _read_numbers(values: Any, where: str) -> dict[str, float]:
    if len(values) > NUMBERS_MAX:
        raise refuse(where, f"{len(values)} numbers", f"at most {NUMBERS_MAX}")
    return {TEXT.read(k, where): _read_number(v, where) for k, v in values.items()}


def one_of(kinds: type[StrEnum]) -> Codec:
    """Text that is a member of `kinds`."""

    def read(value: str, where: str) -> str:
        if value not in set(kinds):
            raise refuse(where, value, f"one of {', '.join(kinds)}")
        return kinds(value)

    return Codec(read, str)


def limited(bytes_max: int) -> Codec:
    """Bytes up to a cap."""

    def read(value: bytes, where: str) -> bytes:
        if len(value) > bytes_max:
            raise refuse(where, f"{len(value)} bytes", f"at most {bytes_max} bytes")
        return value

    return Codec(read)


NAME_FIELD = matching(NAME, "a name of a-z, 0-9, '_' and '-'")
OWNER_FIELD = matching(OWNER, "a processor's name")
OWNER_OR_NONE = matching(re.compile(f"({OWNER.pattern})?"), "a processor's name or nothing")
LOG = matching(LOG_NAME, "a log's name")
RUN_NAME = matching(re.compile(r"[a-z0-9_-]{1,64}-[0-9]{1,20}"), "a run's name")
"""See `dovetail_manager.records.QueryRecord.run`."""
MOVE = matching(MOVE_ID, "a move id")
SPLIT = Codec(_read_split)
SPLITS = Codec(_read_splits, list)
TEXT = Codec(_read_text, lambda text: text[:TEXT_CHARS_MAX])
COUNT = whole(0, COUNT_MAX, "a count")
POSITIVE = whole(1, COUNT_MAX, "a number")
CHUNK = whole(0, CHUNKS_MAX, "a chunk")
CHUNK_OR_NONE = whole(-1, CHUNKS_MAX, "a chunk")
GROUPS = Codec(_read_ascending, list)
SOME_GROUPS = Codec(_read_some, list)
CHOSEN_GROUPS = Codec(_read_distinct, list)
SIZES = Codec(_read_sizes, list)
FLAG = Codec(lambda value, where: bool(value))
CHECKSUM = whole(0, (1 << 64) - 1, "a checksum")
PARTITION_COUNT = whole(1, PARTITIONS_MAX, "a number of partitions")
GROUP = whole(0, PARTITIONS_MAX - 1, "a group")
NUMBER = Codec(_read_number)
NUMBERS = Codec(_read_numbers, dict)
WEIGHTS = Codec(_read_weights, list)
SQL = Codec(_read_sql)
SCHEMA = limited(SCHEMA_BYTES_MAX)

# Types of fields, annotated with how they are read; see `wire.admin`.
Name = Annotated[str, NAME_FIELD]
Owner = Annotated[str, OWNER_FIELD]
Log = Annotated[str, LOG]
Run = Annotated[str, RUN_NAME]
Move = Annotated[str, MOVE]
Sql = Annotated[str, SQL]
Positive = Annotated[int, POSITIVE]
PartitionCount = Annotated[int, PARTITION_COUNT]
Group = Annotated[int, GROUP]
Groups = Annotated[tuple[int, ...], SOME_GROUPS]
Weights = Annotated[tuple[float, ...], WEIGHTS]
Checksum = Annotated[int, CHECKSUM]
