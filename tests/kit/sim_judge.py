"""The verdict on a run: what it produced and what its clean-up owes, against DuckDB."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from dovetail_pipeline.cleanup.local import run_local
from dovetail_pipeline.cleanup.stores import find_cleanups
from dovetail_pipeline.cleanup.task import MEMORY_BYTES_MIN
from dovetail_proto.spill_format import SpillStore
from kit.sim_queries import SCHEMA, STREAMS, Oracle, bag, together
from kit.sim_results import lose_a_folder, read_back
from kit.sim_world import Violation

if TYPE_CHECKING:
    from kit.sim_run import Scenario, Submission, Verdict

ORACLE = Oracle()

DEADLY = frozenset(
    {"processor crash", "processor crash at step", "late crash", "processor pause", "cut", "loss",
     "slow", "store outage"}
)  # fmt: skip
"""Faults that may have a processor taken for dead."""


def judge(scenario: Scenario, kinds: set[str]) -> Verdict:
    """Violation if a query's results are not exactly its answer, or if it failed for no reason."""
    from kit.sim_run import Verdict

    ends: Counter[str] = Counter()
    results = pushes = owed = 0
    lost = lose_a_folder(scenario)
    for query in scenario.queries:
        ends[query.end[0] or "not submitted"] += 1
        if not query.end[0]:
            continue
        made = together(
            [batch for sink in scenario.sinks.get(query.run, ()) for batch in sink.rows],
            query.plan.output_schema,
        )
        results += made.num_rows
        tables = _inputs(scenario, query)
        answer = ORACLE.answer(query.sql, tables)
        if query.end[0] == "failed":
            _check_cause(scenario, query, kinds)
            if extra := bag(made) - bag(answer):
                raise Violation(f"{query.name}: rows that are no results: {_some(extra)}")
            continue
        _check_acknowledged(scenario, query)
        late, count = _clean_up(query, Path(scenario.disk.root) / f"late-{query.name}")
        pushes, owed = pushes + count, owed + late.num_rows
        read = read_back(scenario, query, lost)
        _compare(query, pa.concat_tables([made if read is None else read, late]), answer)
    scenario.managers[-1].check_store()
    outcomes = Counter(o for m in scenario.managers for o in m.moves.values())
    forced = scenario.forced_bytes()
    world = scenario.world
    return Verdict(
        world.seed,
        ends,
        outcomes,
        pushes,
        forced,
        owed,
        world.events,
        results,
        frozenset(kinds | world.happened),
    )


def _inputs(scenario: Scenario, query: Submission) -> dict[str, pa.Table]:
    return {
        s: together(taken, SCHEMA)
        for s in STREAMS
        if (taken := scenario.taken.get((query.run, s), []))
    }


def _compare(query: Submission, made: pa.Table, answer: pa.Table) -> None:
    found, true = bag(made), bag(answer)
    if missing := true - found:
        raise Violation(f"{query.name}: {missing.total()} results are missing: {_some(missing)}")
    if doubled := found - true:
        raise Violation(f"{query.name}: {doubled.total()} rows too many: {_some(doubled)}")


def _some(rows: Counter[tuple[object, ...]]) -> list[tuple[object, ...]]:
    return sorted(rows, key=repr)[:3]


def _check_acknowledged(scenario: Scenario, query: Submission) -> None:
    """What was sent after a query listened, and answered before it was to close, is in it."""
    streams = {i.stream for i in query.plan.inputs}
    closing_s = min(query.closing_s, scenario.store.closing_s[query.name])
    for feed in scenario.feeds:
        if feed.stream not in streams:
            continue
        taken = {b.column("n")[0].as_py() for b in scenario.taken.get((query.run, feed.stream), [])}
        for batch in feed.batches:
            during = query.listening_s < batch.sent_s and batch.answered_s < closing_s
            if during and (first := batch.rows.column("n")[0].as_py()) not in taken:
                raise Violation(
                    f"{query.name} has not the batch from row {first} of {feed.stream}, which was "
                    f"acknowledged at {batch.answered_s:.3f}"
                )


def _clean_up(query: Submission, output: Path) -> tuple[pa.Table, int]:
    """What is owed, and how many pushes it rests on."""
    empty = query.plan.output_schema.empty_table()
    if not Path(query.spill).exists():
        return empty, 0
    (found,) = find_cleanups([query.spill], output=str(output))
    run_local(found.stores, found.output, workers=1, memory_bytes=MEMORY_BYTES_MIN)
    files = sorted(Path(str(found.output)).glob("*.parquet"))
    tables = [pq.read_table(f, partitioning=None) for f in files]
    pushes = sum(len(SpillStore.open(s.root).pushes()) for s in found.stores)
    return pa.concat_tables([empty, *(t.cast(empty.schema) for t in tables)]), pushes


def _check_cause(scenario: Scenario, query: Submission, kinds: set[str]) -> None:
    cause, happened = query.end[1], scenario.world.happened
    if died := re.match(r"processor ([\w.]+) died", cause):
        crashed = any(p.crashed and p.id == died[1] for p in scenario.processors)
        if crashed or kinds & DEADLY:
            return
    if re.search("cannot be (written|created|recorded)", cause) and happened & {
        "disk broken",
        "disk full",
    }:
        return
    policies = {p for q in scenario.queries for p in q.policies}
    if "memory" in cause and policies & {"none", "distributed"}:
        return
    if "is too small for" in cause and len(scenario.queries) > 1:
        return  # they were submitted at once: the manager did not know yet what one takes
    raise Violation(f"{query.name} failed for no reason: {cause}")
