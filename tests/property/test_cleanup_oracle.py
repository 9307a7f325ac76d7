"""Run + clean-up = the join: what the clean-up makes is what DuckDB says is owed, as bags."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dovetail_pipeline.cleanup import owed, run_local, verify
from dovetail_proto.partitioning import Keys, canonical_keys
from dovetail_proto.query import QueryPlan
from kit.spills import Spilled, make_plan, owed_results, read_bag, spill

MEMORY_BYTES = 64 << 20

KEYS = ["one value", "few", "many", "skewed", "text", "long text", "composite", "float", "decimal"]


def key_columns(kind: str, rng: np.random.Generator, rows: int, index: int) -> dict[str, pa.Array]:
    """Key columns of one input; `index` varies the types that must compare as equal."""
    few = rng.integers(0, 4, rows)
    match kind:
        case "one value":
            return {"k": pa.array(np.full(rows, 42))}
        case "few":
            return {"k": pa.array(few, [pa.int64(), pa.int16(), pa.uint8()][index % 3])}
        case "many":
            return {"k": pa.array(rng.integers(0, 60, rows))}
        case "skewed":
            return {"k": pa.array(np.where(rng.random(rows) < 0.7, 5, rng.integers(0, 9, rows)))}
        case "text":
            return {"k": pa.array([["", "a", "aé", "b"][i] for i in few])}
        case "long text":
            return {"k": pa.array(["common prefix " * 3 + str(i) for i in few])}
        case "composite":
            second = pa.array([["x", "xy"][i] for i in rng.integers(0, 2, rows)])
            return {"k": pa.array(few), "l": second}
        case "float":
            values = np.array([0.0, -0.0, np.nan, 1.5])[few]
            return {"k": pa.array(values, [pa.float64(), pa.float32()][index % 2])}
        case _:
            return {"k": pa.array(few.tolist(), pa.decimal128(10, 2))}


@contextmanager
def tiny_bounds(budget_bytes: int, chunk_rows: int) -> Iterator[None]:
    """Work in parts and chunks that real bounds would make of real sizes."""
    module = "dovetail_pipeline.cleanup"
    with (
        patch(f"{module}.task.row_budget", lambda memory_bytes: budget_bytes),
        patch(f"{module}.conducting.row_budget", lambda memory_bytes: budget_bytes),
        patch(f"{module}.combinations.CHUNK_ROWS_MAX", chunk_rows),
        patch.multiple(f"{module}.bins", BIN_COST_MIN=20, FILE_COST=0),
        patch(f"{module}.measuring.SEGMENTS_PER_PART", 5),
        patch("dovetail_proto.spill_format.writer.ROW_GROUP_BYTES", 1 + 150 * (chunk_rows % 4)),
        patch("dovetail_proto.spill_format.writer.ROW_GROUP_BYTES_MAX", 300),
        patch.multiple(
            "dovetail_proto.spill_format.merging",
            MERGED_MAX=2 + chunk_rows % 3,
            MERGED_AT=2 * (2 + chunk_rows % 3),
            LEFT_AT_CLOSE=1,
            MERGED_AT_ONCE_BYTES=40 * chunk_rows,
        ),
    ):
        yield


@st.composite
def cases(draw: st.DrawFn) -> tuple[int, int, str, int, int, int, int, bool]:
    """Inputs, rows, keys, pushes, partitions, budget, chunk, whether all groups are pushed."""
    inputs = draw(st.integers(2, 5))
    kind = draw(st.sampled_from(KEYS))
    rows = draw(st.integers(0, {2: 50, 3: 24, 4: 12, 5: 8}[inputs]))
    return (
        inputs,
        rows,
        kind,
        draw(st.integers(1, 7)),
        draw(st.sampled_from([1, 3, 16])),
        draw(st.sampled_from([2500, 8000, 1 << 20])),
        draw(st.sampled_from([1, 7, 65_536])),
        draw(st.booleans()),
    )


def spilled_case(
    root: Path, seed: int, case: tuple[int, int, str, int, int, int, int, bool]
) -> Spilled:
    """A closed store for a case."""
    inputs, rows, kind, pushes, partitions, _, _, every = case
    rng = np.random.default_rng(seed)
    tables = []
    epochs = []
    for i in range(inputs):
        count = int(rng.integers(rows // 2, rows + 1))
        columns = key_columns(kind, rng, count, i)
        text = pa.array([f"{i}/{r}" if r % 4 else None for r in range(count)], pa.string())
        tables.append(pa.table({**columns, "n": pa.array(range(count), pa.int64()), "s": text}))
        epochs.append(np.sort(rng.integers(0, pushes, count)))
    plan = make_plan(
        [t.schema for t in tables], [n for n in ("k", "l") if n in tables[0].column_names],
        partitions=partitions,
    )  # fmt: skip
    return spill(root, plan, tables, epochs, rng=None if every else rng)


@settings(
    max_examples=60, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip
@given(seed=st.integers(0, 2**32), case=cases())
def test_the_clean_up_makes_what_duckdb_says_is_owed(
    seed: int, case: tuple[int, int, str, int, int, int, int, bool]
):
    """For any keys, generations, groups and bounds; and counting agrees with making."""
    with TemporaryDirectory() as folder, tiny_bounds(case[5], case[6]):
        spilled = spilled_case(Path(folder) / "spill", seed, case)
        expected = owed_results(spilled)
        out = Path(folder) / "out"
        result = run_local(spilled.store, out, workers=1, memory_bytes=MEMORY_BYTES)
        assert read_bag(out) == expected
        assert result.rows == result.owed == len(expected)
        assert owed(spilled.store).owed == len(expected)
        verify(spilled.store)
        counted = run_local(spilled.store, None, workers=1, memory_bytes=MEMORY_BYTES)
        assert (counted.rows, counted.checksum) == (result.rows, result.checksum)
        assert counted.files == ()


def colliding(columns: list[pa.Array], key_types: list[pa.DataType]) -> Keys:
    """Keys whose hashes take four values."""
    keys = canonical_keys(columns, key_types)
    return Keys(keys.hashes & np.uint64(3 << 62), keys.valid, keys.offsets, keys.data)


@pytest.mark.parametrize("seed", range(6))
def test_keys_that_share_a_hash_are_not_joined(seed: int):
    """Text keys whose 64-bit hashes collide, within an input and across inputs."""
    kind = ["text", "long text", "composite"][seed % 3]
    case = (3, 25, kind, 4, 3, [3000, 1 << 20][seed % 2], 7, True)
    with (
        TemporaryDirectory() as folder,
        tiny_bounds(case[5], case[6]),
        patch("kit.spills.canonical_keys", colliding),
        patch("dovetail_proto.spill_format.writer.canonical_keys", colliding),
        patch("dovetail_pipeline.cleanup.reading.canonical_keys", colliding),
    ):
        spilled = spilled_case(Path(folder) / "spill", seed, case)
        expected = owed_results(spilled)
        assert len(expected) > 40
        out = Path(folder) / "out"
        run_local(spilled.store, out, workers=1, memory_bytes=MEMORY_BYTES)
        assert read_bag(out) == expected
        verify(spilled.store)


def two_inputs(rows: int, pushes: int, tmp_path: Path, plan: QueryPlan | None = None) -> Spilled:
    """A store with a hot key: half of the rows of input 0, all of input 1."""
    rng = np.random.default_rng(5)
    left = np.where(rng.random(rows) < 0.5, 7, rng.integers(0, 50, rows))
    right = np.full(rows // 4, 7)
    tables = [
        pa.table({"k": left, "v": rng.random(rows)}),
        pa.table({"k": right, "w": rng.random(right.size)}),
    ]
    plan = plan or make_plan([t.schema for t in tables])
    epochs = [np.arange(t.num_rows) * pushes // t.num_rows for t in tables]
    return spill(tmp_path / "spill", plan, tables, epochs)


def test_a_hot_key_is_cut_by_rows(tmp_path: Path):
    """One key that outgrows the budget many times; every bin gets a share of it."""
    spilled = two_inputs(800, 3, tmp_path)
    with tiny_bounds(3000, 100):
        result = run_local(spilled.store, tmp_path / "out", workers=1, memory_bytes=MEMORY_BYTES)
    assert result.bins > 1
    assert read_bag(tmp_path / "out") == owed_results(spilled)
    sizes = [p.stat().st_size for p in (tmp_path / "out").glob("*.parquet")]
    assert max(sizes) < 0.7 * sum(sizes)
