"""What processors reported of a query: kept of those who left, summed for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from dovetail_proto.ids import ProcessorId
from dovetail_proto.messages import QueryLoad

CHECKSUM_MODULUS = 1 << 64


@dataclass(frozen=True, slots=True)
class Report:
    """The last that one incarnation of a processor said of a query."""

    processor: ProcessorId
    incarnation: int
    load: QueryLoad


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over several reports of a query."""

    held_bytes: int
    spilled_bytes: int
    produced: int
    results: int
    checksum: int
    pushes: int
    spilled_groups: int
    queued_bytes: int
    rows_in: tuple[int, ...]


def totals(inputs: int, reports: Sequence[Report]) -> Totals:
    """Sum what was reported; a checksum wraps at 2**64."""
    loads = [r.load for r in reports]
    return Totals(
        held_bytes=sum(x.held_bytes for x in loads),
        spilled_bytes=sum(x.spilled_bytes for x in loads),
        produced=sum(x.produced for x in loads),
        results=sum(x.results for x in loads),
        checksum=sum(x.checksum for x in loads) % CHECKSUM_MODULUS,
        pushes=sum(x.pushes for x in loads),
        spilled_groups=sum(x.spilled_groups for x in loads),
        queued_bytes=sum(x.queued_bytes for x in loads),
        rows_in=tuple(
            sum(x.rows_in[n] for x in loads if n < len(x.rows_in)) for n in range(inputs)
        ),
    )


def as_one(reports: Sequence[Report]) -> Report:
    """What several incarnations of a processor reported, as one report: the last, with sums."""
    last = reports[-1]
    summed = totals(max(len(r.load.rows_in) for r in reports), reports)
    sums = {f.name: getattr(summed, f.name) for f in fields(Totals)}
    return replace(last, load=replace(last.load, **sums))
