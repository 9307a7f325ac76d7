"""Resident memory, as the processes themselves report it, where values or groups are large."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kit.cluster_faults import until
from kit.clusters import same_bag, small_cluster

NESTED_SQL = "SELECT l.v, r.n FROM l JOIN r ON l.k = r.k"
LIMIT_BYTES = 64_000_000


def nested(rows: int) -> pa.Table:
    """One key; lists of 80 KB."""
    width = 10_000
    values = pa.array(np.random.default_rng(1).integers(0, 2**62, rows * width))
    lists = pa.ListArray.from_arrays(np.arange(rows + 1, dtype=np.int32) * width, values)
    return pa.table({"k": np.zeros(rows, np.int64), "v": lists})


def run_nested(folder: Path, rows: int) -> tuple[int, int]:
    """Results, and the most memory that `dovetail run` took."""
    folder.mkdir()
    pq.write_table(nested(rows), folder / "l.parquet", row_group_size=10)
    pq.write_table(
        pa.table({"k": np.zeros(150, np.int64), "n": np.arange(150)}), folder / "r.parquet"
    )
    words = [sys.executable, "-m", "dovetail", "run", NESTED_SQL, "--output", "none", "--json"]
    words += [f"--input={side}={folder / side}.parquet" for side in "lr"]
    made = subprocess.run([*words, f"--memory={LIMIT_BYTES}"], capture_output=True, check=True)
    report = json.loads(made.stdout)
    return report["results_run"] + report["results_cleanup"], report["peak_rss_bytes"][0]


def test_nested_results_are_bounded_by_their_bytes(tmp_path: Path) -> None:
    """1.8 GB of results pass through a limit of 64 MB, of which they take what they are."""
    few, empty_bytes = run_nested(tmp_path / "few", 1)
    many, peak_bytes = run_nested(tmp_path / "many", 150)
    assert (few, many) == (150, 22_500)
    assert peak_bytes - empty_bytes < 1.25 * LIMIT_BYTES


def test_a_large_group_moves_in_little_more_than_its_size() -> None:
    """One group holds all of the state; neither end of the move holds it three times."""
    rows, sql = 400_000, "SELECT l.k, l.v, r.w FROM l JOIN r ON l.k = r.k"
    left = pa.table({"k": np.arange(rows), "v": [f"{k:0100}" for k in range(rows)]})
    right = pa.table({"k": np.arange(0, rows, 1_000), "w": np.arange(0, rows, 1_000)})
    with small_cluster(processors=2, memory_bytes=512_000_000) as local:
        cluster = local.cluster
        cluster.stream("l", left.schema)
        cluster.stream("r", right.schema)
        query = cluster.submit(sql, name="q", policy="none", partitions=1)
        cluster.stream("l").send(left)
        query.wait()
        (owner,) = [i.processor for i in query.status().instances if i.groups]
        other = "p2" if owner == "p1" else "p1"
        until(lambda: sum(i.held_bytes for i in query.status().instances) > 50_000_000)
        held = max(i.held_bytes for i in query.status().instances)
        before = {p.name: p.rss_bytes for p in cluster.status().processors}
        query.move([0], other)
        until(lambda: query.moves()[0].outcome == "completed")
        cluster.stream("r").send(right)
        query.close()
        assert same_bag(query.results().to_arrow(), sql, l=left, r=right)
        for p in cluster.status().processors:
            extra = p.peak_rss_bytes - before[p.name]
            assert extra < 2.2 * held, (p.name, owner, extra / held)
