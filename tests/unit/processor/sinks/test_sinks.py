"""Results on disk: whole, bounded, of the right schema, and gone where writing failed."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dovetail_processor.sinks import (
    CountingSink,
    ParquetSink,
    checksum,
    claim_output,
    prepare_output,
)
from dovetail_proto.errors import OutputError
from kit import small_disks
from kit.arrow_samples import ROWS, plain_samples

NUMBERS = pa.schema([("k", pa.int64()), ("v", pa.float64()), ("s", pa.string())])


def numbers(rows: int, seed: int = 1) -> pa.RecordBatch:
    """Rows that differ from each other."""
    rng = np.random.default_rng(seed)
    keys = rng.integers(0, 1000, rows)
    return pa.record_batch(
        [pa.array(keys), pa.array(rng.random(rows)), pa.array([f"name-{k}" for k in keys])],
        schema=NUMBERS,
    )


def read_back(folder: Path) -> pa.Table:
    """Every file of the folder, in order of names, as a reader of Parquet sees them."""
    files = sorted(folder.glob("*.parquet"))
    return pa.concat_tables([pq.read_table(f) for f in files])


def test_a_file_of_very_many_columns_is_finished_before_its_footer_is_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer keeps something of every column chunk until then."""
    monkeypatch.setattr("dovetail_processor.sinks.parquet.FILE_CHUNKS", 120)
    schema = pa.schema([(f"c{i}", pa.int64()) for i in range(50)])
    sink = ParquetSink(tmp_path, schema, prefix="r", row_group_bytes=1)
    rows = pa.RecordBatch.from_arrays([pa.array([1, 2])] * 50, schema=schema)
    for _ in range(7):
        sink.write(rows.slice(0, 1))
    totals = sink.close()
    assert [pq.read_metadata(f).num_row_groups for f in totals.files] == [3, 3, 1]
    assert totals.rows == 7
    assert pq.read_table(tmp_path).num_rows == 7


def test_the_fields_of_a_nested_column_count_as_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has its chunks: here 1 + 40 + 2 of them a row group."""
    monkeypatch.setattr("dovetail_processor.sinks.parquet.FILE_CHUNKS", 100)
    fields = pa.struct([(f"c{i}", pa.int64()) for i in range(40)])
    pairs = pa.list_(pa.struct([("a", pa.int8()), ("b", pa.string())]))
    schema = pa.schema([("k", pa.int64()), ("s", fields), ("l", pairs)])
    rows = pa.RecordBatch.from_pylist(
        [{"k": 1, "s": {f"c{i}": i for i in range(40)}, "l": [{"a": 1, "b": "x"}]}], schema
    )
    sink = ParquetSink(tmp_path, schema, prefix="r", row_group_bytes=1)
    for _ in range(7):
        sink.write(rows)
    totals = sink.close()
    assert [pq.read_metadata(f).num_row_groups for f in totals.files] == [3, 3, 1]
    assert pq.read_metadata(totals.files[0]).num_columns == 43


def test_a_shared_output_folder_is_one_runs(tmp_path: Path) -> None:
    """Every processor of the run may claim it, whatever the others wrote; nobody else may."""
    out = tmp_path / "new" / "out"
    assert claim_output(out, "q-1") == out
    (out / "q-p1-00000.parquet").touch()
    claim_output(out, "q-1")
    with pytest.raises(OutputError, match="is not empty"):
        claim_output(out, "q-2")
    (out / ".run-q-2").touch()
    with pytest.raises(OutputError, match="is another query's"):
        claim_output(out, "q-2")
    with pytest.raises(OutputError, match="cannot be written"):
        claim_output(tmp_path / ("x" * 300), "q-1")


@pytest.mark.parametrize("name", plain_samples())
def test_every_type_comes_back_as_it_was_written(name: str, tmp_path: Path) -> None:
    """Type, values and nulls, through pyarrow and DuckDB; the checksum is that of the rows."""
    column = plain_samples()[name]
    batch = pa.record_batch([column], ["c"])
    sink = ParquetSink(tmp_path, batch.schema, prefix="r")
    sink.write(batch)
    sink.write(batch.slice(2, 3))
    totals = sink.close()
    table = read_back(tmp_path)
    assert table.schema.field("c").type == column.type
    expected = pa.chunked_array([column, column.slice(2, 3)])
    if name not in ("halffloat", "float", "double"):  # NaN is not equal to itself
        assert table.column("c").equals(expected)
    assert sum(checksum(b) for b in table.to_batches()) % 2**64 == totals.checksum
    assert totals.rows == ROWS + 3
    duck = duckdb.sql(f"SELECT c FROM '{tmp_path}/*.parquet'").to_arrow_table().column("c")
    seen = pa.record_batch([duck.combine_chunks().cast(column.type)], ["c"])
    assert checksum(seen) == totals.checksum


def test_duckdb_reads_what_was_written(tmp_path: Path) -> None:
    """Over several files and row groups."""
    sink = ParquetSink(tmp_path, NUMBERS, prefix="r", row_group_bytes=20_000, file_bytes=60_000)
    batches = [numbers(700, seed) for seed in range(10)]
    for batch in batches:
        sink.write(batch)
    totals = sink.close()
    written = pa.Table.from_batches(batches)
    found = f"(SELECT k, v, s FROM '{tmp_path}/*.parquet')"
    for lost in (f"FROM written EXCEPT ALL {found}", f"{found} EXCEPT ALL FROM written"):
        assert duckdb.sql(lost).fetchall() == []
    assert len(totals.files) > 2
    assert totals.rows == written.num_rows
    assert totals.bytes == sum(Path(f).stat().st_size for f in totals.files)


def test_files_and_row_groups_stay_within_their_bounds(tmp_path: Path) -> None:
    """Whatever the size of the batches."""
    for rows in (1, 50, 3000):
        folder = tmp_path / str(rows)
        batch = numbers(rows)
        sink = ParquetSink(folder, NUMBERS, prefix="r", row_group_bytes=10_000, file_bytes=30_000)
        for _ in range(3000 // rows):
            sink.write(batch)
            assert sink.held_bytes < 10_000
        for name in sink.close().files:
            metadata = pq.ParquetFile(name).metadata
            row_bytes = batch.nbytes / batch.num_rows
            assert metadata.num_rows * row_bytes <= 30_000 + 10_000 + batch.nbytes
            for i in range(metadata.num_row_groups):
                assert metadata.row_group(i).num_rows * row_bytes <= 10_000 * 2 + row_bytes


def test_names_count_up_and_nothing_else_is_left(tmp_path: Path) -> None:
    """No temporary file survives."""
    sink = ParquetSink(tmp_path, NUMBERS, prefix="prices", row_group_bytes=1, file_bytes=1)
    for _ in range(3):
        sink.write(numbers(5))
    totals = sink.close()
    names = [f"prices-{i:05d}.parquet" for i in range(3)]
    assert totals.files == tuple(str(tmp_path / n) for n in names)
    assert sorted(p.name for p in tmp_path.iterdir()) == names


def test_a_file_has_its_name_only_when_it_is_whole(tmp_path: Path) -> None:
    """While it is written it is hidden."""
    sink = ParquetSink(tmp_path, NUMBERS, prefix="r", row_group_bytes=1)
    sink.write(numbers(5))
    (hidden,) = [p.name for p in tmp_path.iterdir()]
    assert re.fullmatch(r"\.r-00000\.parquet\.[0-9a-f]+\.tmp", hidden)
    sink.close()
    assert [p.name for p in tmp_path.iterdir()] == ["r-00000.parquet"]


def test_no_rows_make_one_file_with_the_columns(tmp_path: Path) -> None:
    """A dataset without files would have no schema."""
    sink = ParquetSink(tmp_path, NUMBERS, prefix="r")
    sink.write(numbers(0))
    totals = sink.close()
    assert (totals.rows, totals.checksum, len(totals.files)) == (0, 0, 1)
    assert read_back(tmp_path).schema.equals(NUMBERS)


def test_abort_removes_the_unfinished_file_and_keeps_the_others(tmp_path: Path) -> None:
    """May be called again, and after close."""
    sink = ParquetSink(tmp_path, NUMBERS, prefix="r", row_group_bytes=1, file_bytes=30_000)
    for _ in range(12):
        sink.write(numbers(100))
    finished = sorted(p.name for p in tmp_path.glob("*.parquet"))
    sink.abort()
    sink.abort()
    assert finished
    assert sorted(p.name for p in tmp_path.iterdir()) == finished
    with pytest.raises(ValueError, match="closed"):
        sink.write(numbers(1))
    closed = ParquetSink(tmp_path / "other", NUMBERS, prefix="r")
    closed.write(numbers(3))
    closed.close()
    closed.abort()
    assert read_back(tmp_path / "other").num_rows == 3


def test_a_schema_that_parquet_cannot_hold_is_refused_before_anything_is_made(
    tmp_path: Path,
) -> None:
    """The column is named."""
    schema = pa.schema([("hollow", pa.struct([]))])
    with pytest.raises(OutputError, match="hollow"):
        ParquetSink(tmp_path / "out", schema, prefix="r")
    assert not (tmp_path / "out").exists()


def test_a_batch_of_another_schema_is_a_defect(tmp_path: Path) -> None:
    """Not an error of the user's."""
    sink = ParquetSink(tmp_path, NUMBERS, prefix="r")
    with pytest.raises(ValueError, match="schema"):
        sink.write(pa.record_batch([pa.array([1])], ["k"]))
    sink.abort()


def test_the_counting_sink_counts_what_the_parquet_sink_writes(tmp_path: Path) -> None:
    """Same rows, same checksum, no files."""
    counting, parquet = CountingSink(NUMBERS), ParquetSink(tmp_path, NUMBERS, prefix="r")
    for seed in range(3):
        counting.write(numbers(100, seed))
        parquet.write(numbers(100, seed))
    counted, written = counting.close(), parquet.close()
    assert (counted.rows, counted.checksum) == (written.rows, written.checksum) == (
        300, written.checksum,
    )  # fmt: skip
    assert (counted.bytes, counted.files, counting.held_bytes) == (0, (), 0)


DISK_BYTES = 4 << 20
"""Room on the small disk of `small_disk`."""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk that is soon full, mounted for the test."""
    with small_disks.small_disk(tmp_path / "disk", DISK_BYTES) as place:
        yield place


def test_a_full_disk_is_told_and_finished_files_stay(small_disk: Path) -> None:
    """The error names the file; what it had written of it is gone."""
    folder = small_disk / "results"
    sink = ParquetSink(folder, NUMBERS, prefix="r", row_group_bytes=100_000, file_bytes=1_000_000)

    def write_far_too_much() -> None:
        for _ in range(DISK_BYTES // numbers(4000).nbytes * 4):
            sink.write(numbers(4000))

    with pytest.raises(OutputError, match=r"r-0000\d.parquet.*disk is full") as caught:
        write_far_too_much()
    assert caught.value.remedy
    sink.abort()
    names = sorted(p.name for p in folder.iterdir())
    assert names
    assert all(n.endswith(".parquet") and not n.startswith(".") for n in names)
    assert read_back(folder).num_rows % 4000 == 0


def test_a_disk_that_is_full_at_the_end_is_told_by_close(small_disk: Path) -> None:
    """Rows that were still held do not get lost in silence."""
    sink = ParquetSink(small_disk / "results", NUMBERS, prefix="r", row_group_bytes=64 << 20)
    for _ in range(40):
        sink.write(numbers(4000))
    (small_disk / "filler").write_bytes(bytes(DISK_BYTES - (64 << 10)))
    with pytest.raises(OutputError, match="disk is full"):
        sink.close()
    assert list((small_disk / "results").iterdir()) == []


def test_a_file_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    """The folder vanished under the sink."""
    sink = ParquetSink(tmp_path / "gone", NUMBERS, prefix="r", row_group_bytes=1)
    (tmp_path / "gone").rmdir()
    with pytest.raises(OutputError, match=r"r-00000.parquet"):
        sink.write(numbers(3))


def test_prepare_output_makes_folders_and_accepts_empty_ones(tmp_path: Path) -> None:
    """With parents."""
    folder = tmp_path / "a" / "b"
    assert prepare_output(folder) == folder
    assert prepare_output(str(folder)) == folder


def test_prepare_output_refuses_what_is_not_an_empty_folder(tmp_path: Path) -> None:
    """Files, folders with anything in them, and places below a file."""
    (tmp_path / "file").write_text("x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / ".hidden").write_text("x")
    with pytest.raises(OutputError, match="not a folder"):
        prepare_output(tmp_path / "file")
    with pytest.raises(OutputError, match=r"not empty: it holds '\.hidden'"):
        prepare_output(tmp_path / "full")
    with pytest.raises(OutputError, match="not a folder"):
        prepare_output(tmp_path / "file" / "below")


def test_a_process_that_dies_leaves_whole_files_only(tmp_path: Path) -> None:
    """Killed while writing, every file that can be seen can be read."""
    program = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
sys.path.insert(0, {str(Path(__file__).parents[3])!r})
from test_sinks import NUMBERS, numbers, ParquetSink
sink = ParquetSink({str(tmp_path)!r}, NUMBERS, prefix="r", row_group_bytes=1, file_bytes=20_000)
for _ in range(17):
    sink.write(numbers(200))
os._exit(9)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 9
    visible = sorted(tmp_path.glob("*.parquet"))
    assert visible
    assert all(pq.read_table(f).num_rows for f in visible)
    assert len(list(tmp_path.glob(".*"))) == 1
