"""The stream generator keeps S4's two factors exactly and depends on its seed alone."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from dovetail.generator import HotKeyWorkload, RangeWorkload, UniformWorkload, Workload
from dovetail.stream_files import FORMATS, write_stream
from dovetail_bench.workloads import mixed_ratios, w1, w2
from dovetail_proto.errors import ConfigError
from dovetail_proto.partitioning import canonical_keys, partition_ids


def results_of(workload: Workload) -> int:
    """How many results the join has, counted by DuckDB."""
    with duckdb.connect() as db:
        for i, name in enumerate(workload.names):
            db.register(name, workload.table(i))
        found = db.execute(f"SELECT count(*) FROM ({workload.sql})").fetchone()
    assert found is not None
    return int(found[0])


def test_w1_has_each_key_once_in_every_range() -> None:
    """So that ten ranges of three streams give 10³ results per key."""
    workload = w1(0.01)
    keys = workload.table(1)["k"].to_numpy().reshape(10, 300)
    assert (np.sort(keys, axis=1) == np.arange(300)).all()
    assert results_of(workload) == 300 * 10**3


def test_w2_draws_keys_uniformly() -> None:
    """About as many results as rows in one stream."""
    workload = w2(0.01)
    assert workload.rows == 30_000
    assert results_of(workload) == pytest.approx(30_000, rel=0.05)


def test_a_third_of_the_partitions_has_each_of_the_mixed_ratios() -> None:
    """Per range, a key of class c comes up as often as the class's ratio says."""
    workload = mixed_ratios(0.1)
    keys = workload.table(0)["k"].to_numpy()[: workload.tuple_range]
    distinct, counts = np.unique(keys, return_counts=True)
    hashes = canonical_keys([pa.array(distinct)], [pa.int64()]).hashes
    classes = partition_ids(hashes, workload.partitions) % 3
    for number, ratio in enumerate((4, 2, 1)):
        assert set(counts[classes == number]) == {ratio}
        assert counts[classes == number].sum() == workload.tuple_range // 3


def test_a_row_of_join_ratio_two_meets_four_rows_in_the_first_range_and_sixteen_in_two() -> None:
    """S4 3.4's own example: range join ratio 2, three streams."""
    once = RangeWorkload(rows=3_000, tuple_range=3_000, join_ratios=(2,))
    twice = RangeWorkload(rows=6_000, tuple_range=3_000, join_ratios=(2,))
    assert results_of(once) == 3_000 * 2**2
    assert results_of(twice) == 6_000 * 4**2


def test_the_hot_key_holds_half_of_the_first_stream() -> None:
    """And a fixed few rows of each other stream."""
    workload = HotKeyWorkload(rows=200_000, hot_elsewhere=5)
    hot = [(workload.table(i)["k"].to_numpy() == 0).sum() for i in range(3)]
    assert hot[0] == pytest.approx(100_000, rel=0.01)
    assert hot[1:] == [5, 5]


@pytest.mark.parametrize(
    "kind", [RangeWorkload, UniformWorkload, HotKeyWorkload], ids=lambda k: k.__name__
)
def test_the_same_seed_gives_the_same_rows(kind: type[Workload]) -> None:
    """Another seed, and another stream of the same seed, give others."""
    workload = kind(rows=70_001, seed=7, pad_bytes=5)
    assert workload.table(0).num_rows == 70_001
    assert workload.table(0).equals(kind(rows=70_001, seed=7, pad_bytes=5).table(0))
    assert not workload.table(0).equals(kind(rows=70_001, seed=8, pad_bytes=5).table(0))
    assert not workload.table(0)["k"].equals(workload.table(1)["k"])


@pytest.mark.parametrize("suffix", FORMATS)
def test_every_format_holds_the_same_rows(suffix: str, tmp_path: Path) -> None:
    """Read back by DuckDB or Arrow, in order."""
    workload = UniformWorkload(rows=70_000, pad_bytes=3)
    path = tmp_path / f"s0.{suffix}"
    assert write_stream(workload.reader(0), path) == 70_000
    if suffix == "arrow":
        back = pa.ipc.open_file(path).read_all()
    else:
        reader = {"jsonl": "read_json"}.get(suffix, f"read_{suffix}")
        with duckdb.connect() as db:
            back = db.sql(f"SELECT * FROM {reader}('{path}')").to_arrow_table()
    assert back.cast(workload.schema).equals(workload.table(0))


def test_an_unknown_suffix_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    """Nothing is written."""
    with pytest.raises(ConfigError, match=r"'\.orc'; use one of parquet, csv, jsonl, arrow"):
        write_stream(UniformWorkload(rows=1).reader(0), tmp_path / "s0.orc")
    assert list(tmp_path.iterdir()) == []


def test_a_join_ratio_below_one_is_refused() -> None:
    """A key cannot come up less than once in its range."""
    with pytest.raises(ConfigError, match="must be 1 or more"):
        RangeWorkload(join_ratios=(2, 0))
