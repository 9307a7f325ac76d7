"""Marks: the last sequence that a group has taken of each input; no row is taken twice."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail_processor.adaptation.recent_output import RecentOutput
from dovetail_processor.batches import Keyed, keyed, stamped
from dovetail_processor.join.state import JoinState
from dovetail_processor.join.transfer import Arrived, counters, decode, encode, install
from dovetail_proto.errors import Refusal
from kit.spills import make_plan

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
PLAN = make_plan([SCHEMA, SCHEMA], partitions=4)
ALL = np.arange(PLAN.partitions)


def state() -> JoinState:
    """With memory for everything."""
    return JoinState(PLAN, 8 << 20, chunk_rows=64)


def rows(keys: list[int], first: int, offsets: list[int] | None = None) -> Keyed:
    """Rows whose values are their sequences."""
    at = np.arange(len(keys)) if offsets is None else np.array(offsets)
    batch = pa.RecordBatch.from_arrays([pa.array(keys), pa.array(at + first)], schema=SCHEMA)
    gaps = None if offsets is None else at.astype(np.uint32)
    return keyed(PLAN, 0, stamped(batch, first, gaps))


def join(one: JoinState, i: int, batch: Keyed) -> list[tuple[int, int]]:
    """Sequences of the pairs that a batch makes."""
    found: list[tuple[int, int]] = []
    one.begin(i, batch, 0.0)
    while (event := one.advance()) is not None:
        assert isinstance(event, np.ndarray)
        left, right = one.materialise(event, [(0, "v"), (1, "v")])
        found += zip(left.to_pylist(), right.to_pylist(), strict=True)
    return sorted(found)


def taken(one: JoinState, i: int = 0) -> int:
    """Rows of an input in the state."""
    return int(one.group_rows()[:, i].sum())


def test_a_batch_that_comes_again_is_dropped() -> None:
    """It makes no combination, and its rows are not stored once more."""
    one = state()
    batch = rows(list(range(20)), 0)
    join(one, 0, batch)
    assert len(join(one, 1, batch)) == 20
    assert join(one, 0, batch) == []
    assert join(one, 1, batch) == []
    assert (taken(one, 0), taken(one, 1)) == (20, 20)
    assert len(join(one, 0, rows([1, 2], 20))) == 2


def test_of_a_batch_that_comes_again_in_part_the_rest_is_taken() -> None:
    """As when a source's rows are cut otherwise than before."""
    one = state()
    join(one, 1, rows(list(range(30)), 0))
    assert len(join(one, 0, rows(list(range(20)), 0))) == 20
    again = join(one, 0, rows(list(range(10, 30)), 10))
    assert again == [(n, n) for n in range(20, 30)]
    assert taken(one) == 30


def test_each_group_and_input_has_its_own_mark() -> None:
    """A row that overtook those of other groups does not keep them out."""
    one = state()
    batch = rows(list(range(40)), 100)
    ahead = batch.groups == 2
    join(one, 0, batch.take(np.flatnonzero(ahead)))
    last = int(batch.stamped.sequences()[ahead][-1])
    assert one.marks[0].tolist() == [-1, -1, last, -1]
    join(one, 0, batch.take(np.flatnonzero(~ahead)))
    assert taken(one) == 40
    assert (one.marks[1] == -1).all()
    join(one, 0, batch)
    assert taken(one) == 40


def test_sequences_with_gaps_are_as_good_as_any() -> None:
    """A filter has dropped rows between; the mark is the sequence, not the place."""
    one = state()
    join(one, 0, rows([1, 1, 1], 10, [0, 5, 30]))
    assert one.marks[0].max() == 40
    join(one, 0, rows([1, 1, 1], 10, [5, 30, 31]))
    assert taken(one) == 4
    assert one.marks[0].max() == 41


def test_marks_outlive_a_push() -> None:
    """What is on disk was taken, too."""
    one = state()
    batch = rows(list(range(20)), 0)
    join(one, 0, batch)
    one.release(one.detach(ALL))
    join(one, 0, batch)
    assert taken(one) == 0


def travel(source: JoinState, target: JoinState, ids: np.ndarray) -> None:
    """Groups go from one state to another."""
    output = RecentOutput(source.produced, source.generation, 0.0)
    payload = encode(source, source.view(ids), counters(source, ids, output, 0.0))
    arrived: Arrived = decode(payload, PLAN, ids.tolist())
    for _ in install(target, arrived, lambda: pytest.fail("memory is short"), 0.0):
        pass
    source.drop(ids)


def test_marks_travel_with_their_groups_and_drop_replays_there() -> None:
    """Where they were, nothing of them is left: the groups may come back with other marks."""
    here, there = state(), state()
    batch = rows(list(range(40)), 7)
    join(here, 0, batch)
    before = here.marks.copy()
    ids = np.array([1, 3])
    travel(here, there, ids)
    assert (there.marks[:, ids] == before[:, ids]).all()
    assert (here.marks[:, ids] == -1).all()
    moved = batch.take(np.flatnonzero(np.isin(batch.groups, ids)))
    join(there, 0, moved)
    assert taken(there) == moved.rows.num_rows, "a replay is dropped"
    stayed = batch.take(np.flatnonzero(~np.isin(batch.groups, ids)))
    join(here, 0, stayed)
    assert taken(here) == stayed.rows.num_rows
    travel(there, here, ids)
    join(here, 0, batch)
    assert taken(here) == 40


@pytest.mark.parametrize(
    ("name", "forged"),
    [
        ("marks", [[0] * 4]),
        ("marks", [[0] * 3] * 2),
        ("marks", None),
        ("marks", [["1"] * 4] * 2),
        ("marks", [[-2] * 4] * 2),
        ("marks", [[2**63] * 4] * 2),
        ("generation", [0.5] * 4),
        ("produced", [-1] * 4),
        ("produced_before", [2**64] * 4),
        ("recent", [float("nan")] * 4),
        ("idle_s", ["long"] * 4),
        ("idle_s", [float("inf")] * 4),
    ],
)
def test_counters_that_no_group_can_have_are_refused(name: str, forged: object) -> None:
    """Before anything of the groups is used."""
    one = state()
    join(one, 0, rows(list(range(10)), 0))
    known = counters(one, ALL, RecentOutput(one.produced, one.generation, 0.0), 0.0)
    decode(encode(one, one.view(ALL), known), PLAN, ALL.tolist())
    object.__setattr__(known, name, forged)
    with pytest.raises(Refusal, match="state of groups cannot be read"):
        decode(encode(one, one.view(ALL), known), PLAN, ALL.tolist())


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=15), st.data())
def test_whatever_comes_again_and_wherever_groups_are_each_row_is_taken_once(
    pieces: list[tuple[int, int]], picks: st.DataObject
) -> None:
    """Pieces of one stream in an order without gaps, some of them again; groups travel between."""
    states, owner = [state(), state()], np.zeros(PLAN.partitions, np.int64)
    known = 0  # all sequences below have come
    for start, count in pieces:
        first = min(start, known)
        keys = [n % 7 for n in range(first, first + count)]
        batch = rows(keys, first)
        known = max(known, first + count)
        for side, one in enumerate(states):
            mine = batch.take(np.flatnonzero(owner[batch.groups] == side))
            if mine.rows.num_rows:
                join(one, 0, mine)
        group = picks.draw(st.integers(0, PLAN.partitions - 1))
        side = int(owner[group])
        travel(states[side], states[1 - side], np.array([group]))
        owner[group] = 1 - side
    assert taken(states[0]) + taken(states[1]) == known
