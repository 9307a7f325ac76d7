"""A folder in parts: large files in several, small ones together, and every row in its place."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dovetail_processor.operators.file_feed import FileFeed
from dovetail_processor.sources import FileSource, file_source, open_source, parquet_files
from dovetail_proto.errors import InputError
from dovetail_proto.ids import StreamName
from kit.hand_shell import HandLane


def write(folder: Path, form: str, rows: Sequence[int]) -> None:
    """Files of so many rows each, whose numbers count up through all of them."""
    first = 0
    for file, count in enumerate(rows):
        numbers = range(first, first + count)
        path = folder / f"{file:04}.{form}"
        if form == "parquet":
            pq.write_table(pa.table({"n": pa.array(numbers, pa.int64())}), path, row_group_size=10)
        elif form == "csv":
            path.write_text("n\n" + "".join(f"{n}\n" for n in numbers))
        else:
            path.write_text("".join(f'{{"n": {n}}}\n' for n in numbers))
        first += count


def in_parts(source: FileSource) -> list[list[int]]:
    """The numbers of each part."""
    parts = source.parts(["n"], batch_rows=1000, batch_bytes=1 << 20)
    return [[n for batch in part() for n in batch["n"].to_pylist()] for part in parts]


@pytest.mark.parametrize("form", ["parquet", "csv", "jsonl"])
def test_a_folder_of_small_files_is_a_batch(form: str, tmp_path: Path) -> None:
    """Not one per file: three hundred files of a row each."""
    write(tmp_path, form, [1] * 300)
    lane = HandLane()
    came: list[pa.RecordBatch | None] = []
    feed = FileFeed(
        StreamName("s"), [lane], lambda: open_source(tmp_path), batch_bytes=1 << 20, ahead_bytes=0
    )
    feed.want(frozenset({"n"}))
    while not feed.ended:
        feed.read(came.append, lambda e: pytest.fail(str(e)))
        lane.do()
    batch, end = came
    assert batch is not None
    assert end is None
    asked = f"SELECT n FROM '{tmp_path}/*.{form}' ORDER BY n"
    assert batch["n"].to_pylist() == [n for (n,) in duckdb.sql(asked).fetchall()]


@pytest.mark.parametrize("seed", range(10))
def test_files_of_any_size_come_in_order(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No part but the last is far smaller than a part, unless a large file follows."""
    monkeypatch.setattr(file_source, "PART_ROWS", 40)
    monkeypatch.setattr(parquet_files, "PART_ROWS", 40)
    rng = random.Random(seed)
    rows = [rng.choice((0, 1, 3, 20, 39, 40, 41, 200)) for _ in range(30)]
    write(tmp_path, "parquet", rows)
    parts = in_parts(open_source(tmp_path))
    assert [n for part in parts for n in part] == list(range(sum(rows)))
    large = sum(count >= 40 for count in rows)
    assert sum(len(part) < 40 for part in parts) <= 2 * large + 1
    assert max(map(len, parts)) < 2 * 40


def test_files_that_do_not_say_their_rows_go_by_their_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So do those of wide rows."""
    monkeypatch.setattr(file_source, "PART_BYTES", 30)
    write(tmp_path, "csv", [2, 2, 2, 2, 2, 2, 40, 2, 2])
    rows = [len(part) for part in in_parts(open_source(tmp_path))]
    assert sum(rows) == 56
    assert rows[-2:] == [40, 4]
    assert 2 < rows[0] < 12


def test_what_is_wrong_with_one_of_many_files_is_told_with_its_name_and_row(tmp_path: Path) -> None:
    """It is not opened before its part is read, and then has to be as it was."""
    write(tmp_path, "csv", [5] * 20)
    bad = tmp_path / "0013.csv"
    rows = "".join(f"{n}\n" for n in range(2000))
    bad.write_text(f"n\n{rows}x\n")
    (tmp_path / "0014.csv").write_text(f"n\n{rows}")
    with pytest.raises(InputError, match=r"0013\.csv: .*2002"):
        in_parts(open_source(tmp_path))
    bad.write_text("n\n1\n")
    source = open_source(tmp_path)
    [part] = source.parts(["n"], batch_rows=1000, batch_bytes=1 << 20)
    bad.write_text("n\n1\n2\n")
    with pytest.raises(InputError, match=r"0013\.csv: changed since it was opened"):
        list(part())
    bad.unlink()
    with pytest.raises(InputError, match=r"0013\.csv: there is no such file"):
        list(part())
