"""What processors that were away when a query was dropped remove when they are back.

    drop ── p2 took part in the query and is not in ─▶ removal/<run>: p2
    p2 joins ── its assignment names the run ── it carries that out ─▶ p2 is struck out

Only what a drop without `keep` named is ever removed, never what is merely unknown here: a manager
with a new store must not cost anyone results.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from dovetail_manager.journal import Entry, Puts
from dovetail_proto.assignment import DroppedRun
from dovetail_proto.errors import ConfigError
from dovetail_proto.ids import ProcessorId

if TYPE_CHECKING:
    from dovetail_manager.records import QueryRecord
    from dovetail_manager.state import State

REMOVALS_MAX = 1000
"""Dropped runs that are remembered for processors that may never come back; of the oldest beyond
it, files stay where they are. With 300 bytes each they are a small part of an assignment."""


@dataclass(frozen=True, slots=True)
class Removal:
    """A dropped run, and who has not removed what it wrote."""

    run: DroppedRun
    away: tuple[ProcessorId, ...]
    dropped_s: float

    @property
    def key(self) -> str:
        """Where it is stored."""
        return f"removal/{self.run.run}"

    def to_json(self) -> str:
        """The record."""
        return json.dumps(asdict(self))


def removal_from_json(text: str) -> Removal:
    """Read a removal's record; ConfigError if it is none."""
    try:
        raw: Mapping[str, Any] = json.loads(text)
        away = tuple(ProcessorId(p) for p in raw["away"])
        return Removal(DroppedRun(**raw["run"]), away, float(raw["dropped_s"]))
    except (KeyError, TypeError, ValueError) as e:
        raise ConfigError(
            f"not the record of a removal: {e}", remedy="restore the manager's store"
        ) from e


def remember(state: State, record: QueryRecord) -> Puts:
    """What to write when a query is dropped that processors which are away took part in."""
    took_part = {r.processor for r in record.reports} | {k.keeper for k in record.kept}
    away = took_part - {m.processor for m in state.membership.alive()}
    wrote = record.has_logs or record.spill is not None
    if not (record.discarded and wrote and away):
        return {}
    run = DroppedRun(record.name, record.run, record.spill)
    removal = state.removals[run.run] = Removal(run, tuple(sorted(away)), state.now_s)
    by_age = sorted(state.removals.values(), key=lambda r: (r.dropped_s, r.key))
    forgotten = by_age[: max(0, len(by_age) - REMOVALS_MAX)]
    for one in forgotten:
        del state.removals[one.run.run]
    return {removal.key: removal.to_json(), **dict.fromkeys(one.key for one in forgotten)}


def strike_out_due(state: State) -> None:
    """Strike out who is back and carries out an assignment that names the run."""
    if not state.removals:
        return
    unaware = state.assignments.unaware(state, state.assignments.version)
    done = {m.processor for m in state.membership.alive()} - set(unaware)
    for removal in list(state.removals.values()):
        left = tuple(p for p in removal.away if p not in done)
        if left == removal.away:
            continue
        changed = state.removals[removal.run.run] = replace(removal, away=left)
        if not left:
            del state.removals[removal.run.run]
        state.write(Entry({removal.key: changed.to_json() if left else None}))
