"""Writes a stream to a file block by block, in the format that the file's name says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from dovetail_proto.errors import ConfigError


def write_stream(reader: pa.RecordBatchReader, path: Path) -> int:
    """Write every batch of `reader` to `path`, in order; return the number of rows.

    The format follows the suffix (see `FORMATS`). Never holds more than a few batches.
    """
    writer = FORMATS.get(path.suffix.removeprefix("."))
    if writer is None:
        raise ConfigError(
            f"no stream format has the suffix {path.suffix!r}",
            remedy=f"use one of {', '.join(FORMATS)}",
        )
    rows = 0

    def counted() -> pa.RecordBatchReader:
        def batches() -> object:
            nonlocal rows
            for batch in reader:
                rows += batch.num_rows
                yield batch

        return pa.RecordBatchReader.from_batches(reader.schema, batches())

    writer(counted(), path)
    return rows


def _write_parquet(reader: pa.RecordBatchReader, path: Path) -> None:
    with pq.ParquetWriter(path, reader.schema) as out:
        for batch in reader:
            out.write_batch(batch)


def _write_csv(reader: pa.RecordBatchReader, path: Path) -> None:
    with pyarrow.csv.CSVWriter(path, reader.schema) as out:
        for batch in reader:
            out.write_batch(batch)


def _write_json_lines(reader: pa.RecordBatchReader, path: Path) -> None:
    # Arrow reads JSON lines but does not write them; DuckDB pulls the reader batch by batch.
    with duckdb.connect(config={"threads": 1}) as db:
        db.register("rows_to_write", reader)
        place = str(path).replace("'", "''")
        db.execute(f"COPY (FROM rows_to_write) TO '{place}' (FORMAT json)")


def _write_arrow(reader: pa.RecordBatchReader, path: Path) -> None:
    with pa.ipc.new_file(path, reader.schema) as out:
        for batch in reader:
            out.write_batch(batch)


FORMATS: dict[str, Callable[[pa.RecordBatchReader, Path], None]] = {
    "parquet": _write_parquet,
    "csv": _write_csv,
    "jsonl": _write_json_lines,
    "arrow": _write_arrow,
}
"""What a stream can be written as, by suffix."""
