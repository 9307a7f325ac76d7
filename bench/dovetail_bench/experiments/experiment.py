"""What an experiment yields: the plotted series as rows, totals, and the paper's claims."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from dovetail_bench.measure import machine


@dataclass(frozen=True, slots=True)
class Claim:
    """Something that the paper states, and what one run found."""

    claim: str
    paper: str
    ours: str
    holds: bool  # in this run
    bar: str  # what `ours` had to be
    set_by: str = ""  # the parameter that was chosen so that it holds; empty: none
    difference: float | None = None  # signed; not told from noise if runs differ by as much


@dataclass(slots=True)
class Experiment:
    """One figure."""

    name: str
    title: str
    settings: dict[str, Any]
    rows: list[dict[str, Any]] = field(default_factory=list)  # the plotted points
    totals: list[dict[str, Any]] = field(default_factory=list)  # one per series
    claims: list[Claim] = field(default_factory=list)

    def total(self, series: str) -> dict[str, Any]:
        """The totals of one series."""
        return next(t for t in self.totals if t["series"] == series)

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {**asdict(self), "machine": machine()}
