"""A stream joined with itself on several threads: what is chosen by default is never refused."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from dovetail.embedded import RunRequest, run_query
from dovetail.preparing import prepare
from dovetail_bench.oracle import compare
from dovetail_proto.errors import MemoryLimitError
from kit.trades import write_all


def test_a_stream_joined_with_itself_gets_threads_that_its_memory_suffices_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All its splits are at one worker: ten cores are too many for 1 GiB, and none is refused."""
    tables = {"t": pa.table({"k": [1, 1, 2], "v": [1, 2, 3]})}
    write_all(tables, tmp_path, "parquet")
    sql = "SELECT a.v, b.v AS w FROM t a JOIN t b ON a.k = b.k"
    for cores in (2, 10, 32):
        monkeypatch.setattr("dovetail_proto.cluster_memory.usable_cores", lambda n=cores: n)
        out = tmp_path / str(cores)
        report = run_query(RunRequest(sql, {"t": tmp_path / "t.parquet"}, out))
        assert report.results_run == 5
        assert compare(out, sql, tables).equal
        with pytest.raises(MemoryLimitError, match="too small for 64 threads") as refused:
            prepare(RunRequest(sql, {"t": tmp_path / "t.parquet"}, out, threads=64))
        assert refused.value.details["smallest_bytes"] > 1 << 30
