"""What a clean-up will do and why: terms, groups, generations, bins and the owed count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dovetail_pipeline.cleanup.bins import Bin
from dovetail_pipeline.cleanup.catalog import open_catalog
from dovetail_pipeline.cleanup.owed import OwedReport, owed
from dovetail_pipeline.cleanup.planning import plan_bins
from dovetail_pipeline.cleanup.terms import delta_terms, show
from dovetail_proto.spill_format import SpillStore

WORKERS_SHOWN = 2
"""Bins are planned for as many workers as there are; an example must take some number."""

GROUPS_SHOWN = 10
"""The largest groups that the text names; the dictionary has them all."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """What is owed by one store, and how it will be produced."""

    query: str
    spill: str
    aliases: tuple[str, ...]
    terms: tuple[str, ...]  # for every generation t
    report: OwedReport
    total: int  # all combinations, which are never computed
    bins: tuple[Bin, ...]

    @property
    def generations(self) -> dict[int, int]:
        """How many groups have so many generations."""
        return dict(sorted(Counter(g.generations for g in self.report.groups).items()))

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "query": self.query,
            "spill": self.spill,
            "terms": list(self.terms),
            "owed": self.report.owed,
            "all_combinations": self.total,
            "bytes": self.report.bytes,
            "groups": [asdict(g) for g in self.report.groups],
            "generations": self.generations,
            "bins": [b.to_json() for b in self.bins],
        }

    def to_text(self) -> str:
        """For people."""
        groups, report = self.report.groups, self.report
        share = f" of {self.total:,} combinations in all" if self.total else ""
        lines = [
            f"query {self.query} at {self.spill}: {' ⋈ '.join(self.aliases)}",
            "",
            "For each generation t of a group, in the order of pushes (incremental view",
            "maintenance, S4 Eq. 1, less what the run produced), the union of",
            *(f"  {term}" for term in self.terms),
            "where =t are the rows of generation t, <t older ones, ≤t both. The full join is never",
            "computed.",
            "",
            f"groups that owe     {len(groups):,}, reading {report.bytes:,} bytes",
            "generations         "
            + (", ".join(f"{n:,} groups of {g}" for g, n in self.generations.items()) or "none"),
            f"owed                {report.owed:,}{share}",
            f"bins                {len(self.bins):,}, each a task; for {WORKERS_SHOWN} workers",
        ]
        for b in self.bins:
            lines.append(f"  {b.name}  {len(b.slices):,} slices of key hashes, cost {b.cost:,.0f}")
        largest = sorted(groups, key=lambda g: -g.owed)[:GROUPS_SHOWN]
        if largest:
            lines += ["", f"{'group':>8}{'generations':>13}{'rows':>12}{'owed':>16}"]
        for g in largest:
            lines.append(f"{g.group:>8}{g.generations:>13}{sum(g.rows):>12,}{g.owed:>16,}")
        if len(groups) > GROUPS_SHOWN:
            lines.append(f"… and {len(groups) - GROUPS_SHOWN:,} groups more; --json lists them all")
        return "\n".join(lines)


def explain(stores: Sequence[SpillStore], *, memory_bytes: int) -> Explanation:
    """Look at the closed stores of a run; reads key columns only."""
    catalog = open_catalog(stores)
    report = owed(*stores)
    aliases = tuple(i.alias for i in catalog.plan.inputs)
    return Explanation(
        query=catalog.plan.name,
        spill=stores[0].root,
        aliases=aliases,
        terms=tuple(show(t, "t", aliases) for t in delta_terms(len(aliases))),
        report=report,
        total=sum(g.total for g in report.groups),
        bins=tuple(plan_bins(catalog, WORKERS_SHOWN, memory_bytes)),
    )
