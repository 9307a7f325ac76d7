"""A stream's file, read on a lane: whole, in order, and left at any time."""

from __future__ import annotations

import gc
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dovetail_processor.operators.file_feed import FileFeed
from dovetail_processor.sources import open_source
from dovetail_proto.errors import DovetailError, InputError
from dovetail_proto.ids import StreamName
from kit.hand_shell import HandLane

ROWS = 200_000


def write(path: Path) -> None:
    """Numbers that count up, in the format of the name."""
    table = pa.table({"n": range(ROWS), "m": range(ROWS)})
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    elif path.suffix == ".csv":
        path.write_text("n,m\n" + "".join(f"{i},{i}\n" for i in range(ROWS)))
    elif path.suffix == ".jsonl":
        path.write_text("".join(f'{{"n": {i}, "m": {i}}}\n' for i in range(ROWS)))
    else:
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=10_000)


class Case:
    """A feed, and what came of it."""

    def __init__(self, path: Path) -> None:
        self.lane = HandLane()
        self.batches: list[pa.RecordBatch | None] = []
        self.failed: list[DovetailError] = []
        self.feed = FileFeed(
            StreamName("s"), self.lane, lambda: open_source(str(path)), batch_bytes=100_000
        )

    def read(self) -> None:
        """The next one."""
        self.feed.read(self.batches.append, self.failed.append)
        while self.lane.jobs:
            self.lane.do()


@pytest.mark.parametrize("name", ["t.parquet", "t.csv", "t.jsonl", "t.arrow"])
def test_a_file_is_read_to_its_end_or_left(name: str, tmp_path: Path) -> None:
    """Only the columns that somebody wants; no open file stays behind either way."""
    path = tmp_path / name
    write(path)
    whole, half = Case(path), Case(path)
    for case in (whole, half):
        case.feed.want(frozenset({"n"}))
        case.read()
    half.feed.close()
    half.feed.close()
    half.lane.do()
    half.read()
    assert len(half.batches) == 1
    while not whole.feed.ended:
        whole.read()
    *batches, last = whole.batches
    assert last is None
    assert all(b is not None and b.nbytes <= 100_000 for b in batches)
    assert pa.Table.from_batches(batches).to_pydict() == {"n": list(range(ROWS))}
    assert whole.lane.closed
    assert half.lane.closed
    del batches  # some formats are read where they lie, as long as a batch is there
    whole.batches.clear()
    half.batches.clear()
    gc.collect()
    assert [f.path for f in psutil.Process().open_files() if f.path == str(path)] == []


def test_only_one_batch_is_asked_for_at_a_time(tmp_path: Path) -> None:
    """However often somebody asks."""
    write(tmp_path / "t.parquet")
    case = Case(tmp_path / "t.parquet")
    case.feed.want(frozenset({"n"}))
    for _ in range(3):
        case.feed.read(case.batches.append, case.failed.append)
    assert len(case.lane.jobs) == 1
    assert case.feed.rows_total is None
    case.lane.do()
    assert len(case.batches) == 1
    assert case.feed.rows_total == ROWS


def test_a_file_that_is_gone_is_told_and_not_asked_for_again(tmp_path: Path) -> None:
    """It is an error of the input."""
    case = Case(tmp_path / "gone.parquet")
    case.feed.want(frozenset({"n"}))
    case.read()
    case.read()
    assert [type(e) for e in case.failed] == [InputError]
    assert case.batches == []
