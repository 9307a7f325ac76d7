"""Groups that travel: what arrives is what left, and joining goes on as if nothing had happened."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail_manager.planner import plan_query
from dovetail_processor.adaptation.recent_output import RecentOutput
from dovetail_processor.batches import Keyed, keyed, stamped
from dovetail_processor.join.state import JoinState, Short
from dovetail_processor.join.transfer import Arrived, counters, decode, encode, install
from dovetail_proto.errors import Refusal
from dovetail_proto.query import QueryPlan

PARTITIONS = 8
SCHEMA = pa.schema(
    [("k", pa.int64()), ("text", pa.string()), ("tags", pa.list_(pa.int32())), ("v", pa.float64())]
)
SQL = "SELECT a.k, a.text, b.tags, c.v, b.v AS w FROM a JOIN b ON a.k = b.k JOIN c ON c.k = a.k"


def make_plan() -> QueryPlan:
    """Three inputs with text, lists and numbers."""
    return plan_query(SQL, dict.fromkeys("abc", SCHEMA), name="q", partitions=PARTITIONS)


def batch_of(plan: QueryPlan, i: int, keys: list[int], first: int) -> Keyed:
    """Rows of input i, from a sequence on, with values that tell them apart; some are null."""
    n = range(first, first + len(keys))
    rows = {
        "k": pa.array(keys, pa.int64()),
        "text": pa.array([None if r % 5 == 0 else f"text {r}" * (r % 3) for r in n], pa.string()),
        "tags": pa.array([list(range(r % 4)) for r in n], pa.list_(pa.int32())),
        "v": pa.array([float(r) for r in n]),
    }
    kept = plan.inputs[i].kept
    batch = pa.RecordBatch.from_arrays([rows[name] for name in kept.names], schema=kept)
    return keyed(plan, i, stamped(batch, first))


def join(state: JoinState, i: int, batch: Keyed) -> Counter[str]:
    """The combinations that a batch makes, as text; one without rows makes none."""
    found: Counter[str] = Counter()
    columns = state.plan.joined_columns()
    if batch.rows.num_rows:
        state.begin(i, batch, 0.0)
    while (event := state.advance()) is not None:
        assert event is not Short.OF_MEMORY
        arrays = state.materialise(event, columns)
        found.update(map(str, zip(*(a.to_pylist() for a in arrays), strict=True)))
    return found


def output_of(state: JoinState) -> RecentOutput:
    """P_o as a plain sum."""
    return RecentOutput(state.produced, state.generation, 0.0)


def travel(source: JoinState, target: JoinState, ids: np.ndarray) -> Arrived:
    """Send groups from one state to another; they are dropped where they were."""
    payload = encode(source, source.view(ids), counters(source, ids, output_of(source), 10.0))
    arrived = decode(payload, source.plan, ids.tolist())
    for _ in install(target, arrived, lambda: pytest.fail("memory is short"), 20.0):
        pass
    source.drop(ids)
    return arrived


KEYS = st.lists(st.integers(0, 40), max_size=60)


@given(st.lists(st.tuples(st.integers(0, 2), KEYS), max_size=12), st.data())
def test_a_join_whose_groups_travel_finds_what_one_that_stays_finds(
    work: list[tuple[int, list[int]]], picks: st.DataObject
) -> None:
    """Results, generations and counters, whatever travels when."""
    plan = make_plan()
    alone = JoinState(plan, 8 << 20, chunk_rows=64)
    here, there = (JoinState(plan, 8 << 20, chunk_rows=64) for _ in range(2))
    homes = np.zeros(PARTITIONS, np.int64)  # 0: here, 1: there
    expected: Counter[str] = Counter()
    found: Counter[str] = Counter()
    for step, (i, keys) in enumerate(work):
        batch = batch_of(plan, i, keys, step * 100)
        expected += join(alone, i, batch)
        if picks.draw(st.booleans(), label="travels"):
            chosen = picks.draw(st.sets(st.integers(0, PARTITIONS - 1), min_size=1), label="groups")
            for side, (source, target) in enumerate(((here, there), (there, here))):
                ids = np.array(sorted(g for g in chosen if homes[g] == side), np.int64)
                if ids.size:
                    travel(source, target, ids)
            for g in chosen:
                homes[g] ^= 1
        for side, state in enumerate((here, there)):
            found += join(state, i, batch.take(np.flatnonzero(homes[batch.groups] == side)))
    assert found == expected
    owner = [here, there]
    for g in range(PARTITIONS):
        state = owner[homes[g]]
        assert state.produced[g] == alone.produced[g]
        assert (state.group_rows()[g] == alone.group_rows()[g]).all()
        assert not owner[1 - homes[g]].group_rows()[g].any()


def test_counters_travel_with_their_groups() -> None:
    """Generation, combinations now and before, and for how long no row came."""
    plan = make_plan()
    source, target = (JoinState(plan, 8 << 20, chunk_rows=64) for _ in range(2))
    for i in range(3):
        join(source, i, batch_of(plan, i, list(range(40)), 0))
    ids = np.arange(PARTITIONS)
    source.release(source.detach(ids))
    for i in range(3):
        join(source, i, batch_of(plan, i, [1, 2, 3], 40))
    source.last_insert_s[ids] = 4.0
    before = (source.generation.copy(), source.produced.copy(), source.produced_before.copy())
    travel(source, target, ids)
    after = (target.generation, target.produced, target.produced_before)
    assert all((a == b).all() for a, b in zip(before, after, strict=True))
    assert (target.last_insert_s == 14.0).all()
    assert target.locked.all()
    assert not source.generation.any()
    assert source.held_bytes == 0


@given(st.integers(0, 10**6), st.binary(min_size=1, max_size=4))
def test_damaged_state_is_refused_and_never_used(at: int, junk: bytes) -> None:
    """Whatever is overwritten: our refusal, or rows that are valid Arrow."""
    plan = make_plan()
    source = JoinState(plan, 8 << 20, chunk_rows=64)
    for i in range(3):
        join(source, i, batch_of(plan, i, list(range(30)), 0))
    ids = np.arange(PARTITIONS)
    payload = bytearray(
        encode(source, source.view(ids), counters(source, ids, output_of(source), 0.0))
    )
    at %= len(payload)
    payload[at : at + len(junk)] = junk
    with suppress(Refusal):
        decode(bytes(payload[: len(payload) - at % 3]), plan, ids.tolist())
