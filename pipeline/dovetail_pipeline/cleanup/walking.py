"""Going through a slice in parts that fit memory.

A part is first cut by what the manifests say about its size and then, if keys are not even, by what
reading it showed: at the median hash seen, or around it if that one hash is much of the part. A
single hash that does not fit is cut by rows of its largest input.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import ceil

import numpy as np

from dovetail_pipeline.cleanup.catalog import Catalog
from dovetail_pipeline.cleanup.reading import SliceReader, SliceRows, TooLarge, estimate_bytes
from dovetail_pipeline.cleanup.slices import Slice

FILL = 0.8
"""Parts are cut to this share of the budget, because hashes are even only on average."""

ALONE_SHARE = 0.25
"""A hash with more than this share of the rows seen gets a part of its own."""

UNBOUNDED = 1 << 62


def read_in_parts(
    catalog: Catalog, reader: SliceReader, whole: Slice, budget_bytes: int
) -> Iterator[SliceRows]:
    """The rows of a slice in parts of at most `budget_bytes`, each complete in itself.

    Only a part of one row per input may be larger.
    """
    todo = [whole]
    while todo:
        part = todo.pop()
        pieces = _by_estimate(catalog, part, budget_bytes)
        if len(pieces) > 1:
            todo.extend(reversed(pieces))
            continue
        try:
            found = reader.read(part, budget_bytes)
        except TooLarge as seen:
            smaller = _by_sight(reader, part, seen)
            todo.extend(reversed(smaller))
            found = None if smaller else reader.read(part, UNBOUNDED)
        if found is not None:
            yield found


def _by_estimate(catalog: Catalog, part: Slice, budget_bytes: int) -> list[Slice]:
    """Even hash ranges that should fit; the part itself if it should."""
    size = estimate_bytes(catalog, part)
    count = ceil(size / (FILL * budget_bytes)) if size > budget_bytes else 1
    count = min(count, part.high - part.low + 1)
    marks = [part.low + (part.high + 1 - part.low) * c // count for c in range(count + 1)]
    if count == 1:
        return [part]
    return [Slice(a, b - 1) for a, b in pairwise(marks)]


def _by_sight(reader: SliceReader, part: Slice, seen: TooLarge) -> list[Slice]:
    if part.low < part.high:
        middle = int(np.partition(seen.hashes, seen.hashes.size // 2)[seen.hashes.size // 2])
        count = int((seen.hashes == np.uint64(middle)).sum())
        return part.cut_at(middle, alone=count > ALONE_SHARE * seen.hashes.size)
    return part.cut_rows(reader.count_rows(part) if part.rows is None else ())
