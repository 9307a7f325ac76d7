"""What a closed store owes, told by counting."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail_pipeline.cleanup.catalog import HASH_MAX, Catalog, open_catalog
from dovetail_pipeline.cleanup.counting import Counts
from dovetail_pipeline.cleanup.files import OpenFiles
from dovetail_pipeline.cleanup.measuring import measure
from dovetail_pipeline.cleanup.slices import Slice
from dovetail_proto.errors import SpillError
from dovetail_proto.ids import GroupId
from dovetail_proto.spill_format import SpillStore

COUNT_BYTES = 256 << 20
"""Memory for counting: two million rows at once."""


@dataclass(frozen=True, slots=True)
class GroupOwed:
    """One group's combinations, before residual conditions, counted in three ways."""

    group: GroupId
    generations: int
    rows: tuple[int, ...]  # on disk, per input
    produced: int  # by the run's own counter
    shared: int  # from the key counts of each generation: must be `produced`
    owed: int  # from the delta terms
    total: int  # from the key counts of all generations: must be `shared` + `owed`

    @property
    def agrees(self) -> bool:
        """produced + owed = total, however counted."""
        return self.produced == self.shared and self.shared + self.owed == self.total


@dataclass(frozen=True, slots=True)
class OwedReport:
    """What is owed, per group and in all."""

    groups: tuple[GroupOwed, ...]  # those with rows on disk that may owe results
    owed: int
    bytes: int  # to be read by a clean-up


def owed(*stores: SpillStore) -> OwedReport:
    """Count what closed stores of one query owe, reading key columns only.

    SpillError if a run was not closed or a file is damaged.
    """
    return _report(open_catalog(stores))


def verify(*stores: SpillStore) -> OwedReport:
    """Count as `owed` does, in all groups on disk; SpillError names one that does not add up."""
    report = _report(open_catalog(stores, every_group=True))
    for g in report.groups:
        if not g.agrees:
            raise SpillError(
                f"group {g.group}: the run produced {g.produced} combinations, its generations "
                f"hold {g.shared} and owe {g.owed}, all of its keys {g.total}",
                remedy="this is a defect of Dovetail: keep the spill folder and report it",
            )
    return report


def _report(catalog: Catalog) -> OwedReport:
    with OpenFiles(catalog, COUNT_BYTES) as files:
        counts = measure(catalog, files, Slice(0, HASH_MAX), COUNT_BYTES // 2).counts
    found = []
    described = zip(
        catalog.groups.tolist(), catalog.group_generations(), catalog.group_rows(), strict=True
    )
    for group, generations, rows in described:
        c = counts.get(group, Counts())
        found.append(
            GroupOwed(
                group=GroupId(group),
                generations=generations,
                rows=rows,
                produced=sum(r.produced.get(group, 0) for r in catalog.records),
                shared=c.shared,
                owed=c.owed,
                total=c.total,
            )
        )
    return OwedReport(tuple(found), sum(g.owed for g in found), catalog.stored_bytes)
