"""`dovetail run` on rows of very many columns, against DuckDB."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dovetail_bench.oracle import compare
from kit.cli import dovetail

COLUMNS = 320  # their read buffers alone take more than one block of columns may
ROWS = 3_000


@pytest.mark.parametrize("memory", ["12MB", "1GB"])
def test_rows_of_hundreds_of_columns_are_joined_exactly(tmp_path: Path, memory: str) -> None:
    """With memory for all of them, and with pushes and a clean-up."""
    random = np.random.default_rng(12)
    gaps = random.random(ROWS) < 0.05
    kinds = (
        lambda: pa.array(random.integers(0, 1 << 40, ROWS), mask=gaps),
        lambda: pa.array(random.random(ROWS)),
        lambda: pa.array([f"w{i}" for i in random.integers(0, 9999, ROWS)], mask=gaps),
    )
    wide = {"k": pa.array(random.integers(0, 1000, ROWS))}
    wide |= {f"c{i}": kinds[i % 3]() for i in range(1, COLUMNS)}
    many = np.arange(300_000)  # so that they do not end before the wide ones
    narrow = pa.table({"k": many, "n": many * 2})
    pq.write_table(pa.table(wide), tmp_path / "w.parquet", row_group_size=2_000)
    pq.write_table(narrow, tmp_path / "n.parquet")
    sql = "SELECT w.*, n.n, w.c1 + n.n AS s FROM w JOIN n ON w.k = n.k WHERE w.c4 > 0.1"
    done = dovetail(
        "run", sql, "--input=w=w.parquet", "--input=n=n.parquet", "--output=out",
        f"--memory={memory}", "--partitions=50", "--cleanup=local", "--json",
        "--read=interleaved",  # else the narrow ones are read first, and the wide ones not kept
        cwd=tmp_path,
    )  # fmt: skip
    assert done.code == 0, done.err
    assert (done.json["pushes"] > 0) == (memory == "12MB")
    streams = {name: f"'{tmp_path / name}.parquet'" for name in ("w", "n")}
    found = compare(tmp_path / "out", sql, streams)
    assert found.equal, found
    assert found.rows == done.json["results_run"] + done.json["results_cleanup"]
