"""What is owed, told by counting."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dovetail_pipeline.cleanup import owed, verify
from dovetail_proto.errors import SpillError
from dovetail_proto.spill_format import RunRecord, SpillStore
from kit.spills import make_plan, owed_results, spill, write_group

SCHEMA = pa.schema([("k", pa.int64())])


def keys(values: list[int]) -> pa.Table:
    """Rows with these keys."""
    return pa.Table.from_arrays([pa.array(values, pa.int64())], schema=SCHEMA)


def test_three_ways_of_counting_agree(tmp_path: Path):
    """The run's counter, the generations' key counts and all keys, group by group."""
    rng = np.random.default_rng(0)
    tables = [keys(rng.integers(0, 40, 300).tolist()) for _ in range(3)]
    epochs = [np.sort(rng.integers(0, 5, 300)) for _ in range(3)]
    spilled = spill(tmp_path / "s", make_plan([SCHEMA] * 3), tables, epochs, rng=rng)
    report = owed(spilled.store)
    assert report.owed == len(owed_results(spilled)) > 0
    assert report.bytes > 0
    for g in report.groups:
        assert g.agrees
        assert g.produced == g.shared
        assert g.produced + g.owed == g.total
        assert g.generations > 1
    everything = verify(spilled.store)
    assert everything.owed == report.owed
    assert {g.group for g in report.groups} <= {g.group for g in everything.groups}


def test_a_counter_that_is_wrong_is_named(tmp_path: Path):
    """produced + owed = total is checked against the run, not only against itself."""
    tables = [keys([1, 1, 2]), keys([1, 2, 2])]
    epochs = [np.array([0, 1, 1])] * 2
    plan = make_plan([SCHEMA] * 2, partitions=1)
    store = spill(tmp_path / "s", plan, tables, epochs, close=False).store
    store.close_run(RunRecord((3, 3), 0, 0, {0: 4}))
    assert not owed(store).groups[0].agrees
    with pytest.raises(SpillError, match="group 0: the run produced 4 combinations"):
        verify(store)


def test_counts_are_exact_beyond_64_bits(tmp_path: Path):
    """Six inputs of 3 000 rows with one key: more than 7 × 10²⁰ combinations, none of them made."""
    inputs, rows = 6, 3000
    store = SpillStore.create(str(tmp_path / "s"), make_plan([SCHEMA] * inputs, partitions=1))
    table = keys([7] * (rows // 2))
    for generation in range(2):
        writer = store.begin_push()
        write_group(writer, 0, generation, [table] * inputs)
        writer.commit()
    store.close_run(RunRecord((rows,) * inputs, 0, 0))
    assert owed(store).owed == rows**inputs - 2 * (rows // 2) ** inputs > 2**64


def test_groups_that_were_pushed_once_owe_nothing(tmp_path: Path):
    """Their rows have all met."""
    tables = [keys([1, 2, 3]), keys([1, 2, 3])]
    spilled = spill(tmp_path / "s", make_plan([SCHEMA] * 2), tables, [np.zeros(3, int)] * 2)
    report = owed(spilled.store)
    assert report.owed == 0
    assert report.groups == ()
    assert len(verify(spilled.store).groups) > 0


def test_an_unclosed_run_is_not_counted(tmp_path: Path):
    """What was in memory is unknown."""
    tables = [keys([1]), keys([1])]
    plan = make_plan([SCHEMA] * 2)
    store = spill(tmp_path / "s", plan, tables, [np.zeros(1, int)] * 2, close=False).store
    with pytest.raises(SpillError, match="was not closed"):
        owed(store)


def split_between_stores(tmp_path: Path) -> tuple[SpillStore, SpillStore]:
    """A group that moved: its even generations in one store, the odd ones in another."""
    plan = make_plan([SCHEMA] * 2, partitions=1)
    stores = [SpillStore.create(str(tmp_path / name), plan) for name in ("p0", "p1")]
    table = keys([5, 5])
    for generation in (1, 0, 3, 2):
        writer = stores[generation % 2].begin_push()
        write_group(writer, 0, generation, [table, table])
        writer.commit()
    stores[0].close_run(RunRecord((8, 8), 0, 0, {0: 16}))
    stores[1].close_run(RunRecord((0, 0), 0, 0))
    return stores[0], stores[1]


def test_generations_in_several_stores_are_counted_together(tmp_path: Path):
    """A moved group leaves its files where they are."""
    stores = split_between_stores(tmp_path)
    assert verify(*stores).owed == 8 * 8 - 4 * 4
    assert verify(*reversed(stores)).owed == 8 * 8 - 4 * 4


def test_a_store_given_twice_is_refused(tmp_path: Path):
    """Its rows would be counted twice."""
    first, second = split_between_stores(tmp_path)
    copy = SpillStore.open(first.root)
    copy.storage.uri += "/."
    with pytest.raises(SpillError, match="generation 0 of group 0 is both in"):
        owed(first, second, copy)


def test_stores_of_different_queries_are_refused(tmp_path: Path):
    """They cannot owe each other anything."""
    first, _ = split_between_stores(tmp_path)
    other = SpillStore.create(str(tmp_path / "q"), make_plan([SCHEMA] * 2, partitions=2))
    other.close_run(RunRecord((0, 0), 0, 0))
    with pytest.raises(SpillError, match="holds another query"):
        owed(first, other)
