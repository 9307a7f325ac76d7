"""Whole commands, measured from outside: `dovetail run`, and DuckDB doing the same from files."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from dovetail.stream_files import write_stream
from dovetail_bench.measure import Measured, run_command

DUCKDB_PROGRAM = """\
import duckdb, json, sys, time
sql, output, threads, *streams = sys.argv[1:]
db = duckdb.connect(config={"threads": int(threads)})
for stream in streams:
    name, path = stream.split("=", 1)
    db.execute(f"CREATE VIEW {name} AS FROM '{path}'")
started = time.perf_counter()
if output == "none":
    rows = sum(b.num_rows for b in db.sql(sql).to_arrow_reader(1 << 16))
else:
    db.execute(f"COPY ({sql}) TO '{output}' (FORMAT parquet)")
    rows = db.execute(f"SELECT count(*) FROM '{output}'").fetchone()[0]
print(json.dumps({"seconds": time.perf_counter() - started, "results": rows}))
"""


class Workload(Protocol):
    """Streams and the query over them."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the streams."""

    @property
    def sql(self) -> str:
        """The query."""

    def reader(self, stream: int) -> pa.RecordBatchReader:
        """The rows of a stream."""


@dataclass(frozen=True, slots=True)
class Files:
    """A workload in Parquet files, with its query."""

    folder: Path
    workload: Workload

    @classmethod
    def write(cls, workload: Workload, folder: Path) -> Files:
        """Write the streams and the query below `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        files = cls(folder, workload)
        for i, path in enumerate(files.streams.values()):
            write_stream(workload.reader(i), path)
        (folder / "query.sql").write_text(workload.sql, encoding="utf-8")
        return files

    @property
    def streams(self) -> dict[str, Path]:
        """The file of each stream."""
        return {name: self.folder / f"{name}.parquet" for name in self.workload.names}

    def dovetail(self, *flags: str, output: bool, one_core: bool = False) -> Measured:
        """`dovetail run` on these files, to Parquet or only counting; its results are removed."""
        results = self.folder / "results"
        declared = [f"--input={name}={path}" for name, path in self.streams.items()]
        command = [sys.executable, "-m", "dovetail", "run", str(self.folder / "query.sql")]
        place = f"--output={results if output else 'none'}"
        try:
            measured = run_command(
                [*command, *declared, place, "--cleanup=local", *flags, "--json"],
                one_core=one_core,
            )
        finally:
            shutil.rmtree(results, ignore_errors=True)
        if measured.exit_code:
            raise RuntimeError(measured.errors)
        return measured

    def duckdb(self, *, output: bool, threads: int = 1, one_core: bool = False) -> Measured:
        """The same join by DuckDB from the same files."""
        results = self.folder / "duckdb.parquet"
        streams = [f"{name}={path}" for name, path in self.streams.items()]
        place = str(results) if output else "none"
        try:
            return run_command(
                [
                    sys.executable,
                    "-c",
                    DUCKDB_PROGRAM,
                    self.workload.sql,
                    place,
                    str(threads),
                    *streams,
                ],
                one_core=one_core,
            )
        finally:
            results.unlink(missing_ok=True)
