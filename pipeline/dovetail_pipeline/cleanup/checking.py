"""Whether all of a run's spilled state is here: a clean-up of less would be short, and not know it.

Every group has one owner in the end, whose store tells how often the group was pushed, by anybody.
So the stores of a run are complete if their owned groups are all groups and each has as many
generations on disk as its owner says. That needs no reading. What the rows themselves say is
compared while they are read: combinations of rows of one generation must be as many as the run
produced.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from dovetail_proto.errors import SpillError
from dovetail_proto.query import QueryPlan
from dovetail_proto.spill_format import RunRecord, SpillStore

NOBODY = -1
"""In place of a number of pushes: no store has the group's owner."""


def run_records(
    plan: QueryPlan, stores: Sequence[SpillStore], of_generation: NDArray[np.int64]
) -> tuple[RunRecord, ...]:
    """How a run ended, as its stores tell; `of_generation` are the groups of those here.

    SpillError if a store or a part of one is missing. A processor that died when it owned nothing
    has left its store open: what was pushed there counts if the owners know of it.
    """
    closed = [s for s in stores if s.closed] or list(stores[:1])
    records = tuple(store.run_record() for store in closed)
    if any(r.owned is None for r in records):
        for store in stores:
            store.run_record()
        return records
    pushed = np.full(plan.partitions, NOBODY, np.int64)
    for r in records:
        assert r.owned is not None
        pushed[list(r.owned)] = list(r.owned.values())
    here = np.bincount(of_generation, minlength=plan.partitions)
    wrong = np.flatnonzero(pushed != here)
    if wrong.size:
        for store in stores:
            store.run_record()  # names one that was never closed
        group, places = int(wrong[0]), ", ".join(s.root for s in stores)
        what = _what_is_missing(records, group, int(pushed[group]), int(here[group]))
        raise SpillError(
            f"query {plan.name!r}: {what} (at {places}); results would be missing too",
            remedy="give the folder with the stores of all its processors; where a machine wrote "
            "to a disk that is not shared, bring its store beside the others first",
        )
    return records


def check_produced(
    records: Iterable[RunRecord], groups: Iterable[int], shared: Mapping[int, int]
) -> None:
    """SpillError unless the rows of these groups say what the run counted."""
    records = tuple(records)
    for group in groups:
        produced = sum(r.produced.get(group, 0) for r in records)
        if produced != shared.get(group, 0):
            raise SpillError(
                f"group {group}: the run produced {produced} combinations, but what is on disk "
                f"accounts for {shared.get(group, 0)}",
                remedy="files of other runs or a defect of Dovetail: keep the spill folder and "
                "report it; the results in the output are not complete",
            )


def _what_is_missing(records: Sequence[RunRecord], group: int, pushed: int, here: int) -> str:
    found = {r.processor for r in records}
    missing = sorted({p for r in records for p in r.processors} - found)
    if missing:
        names, others = (", ".join(f"{p!r}" for p in sorted(x)) for x in (missing, found))
        return f"the spill store of processor {names} is missing: there are those of {others}"
    if pushed == NOBODY:
        return f"the spill store of the owner of group {group} is missing"
    return (
        f"group {group} was pushed {pushed} times and {here} of these are here: a spill store is "
        "missing or of another run"
    )
