"""A stream's file, read on a lane: whole, in order, and left at any time."""

from __future__ import annotations

import gc
import random
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dovetail_processor.operators import file_feed
from dovetail_processor.operators.file_feed import FileFeed
from dovetail_processor.sources import open_source, parquet_files
from dovetail_proto.errors import DovetailError, InputError
from dovetail_proto.ids import StreamName
from dovetail_proto.memory import read_ahead_bytes
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
            StreamName("s"), [self.lane], lambda: open_source(str(path)), batch_bytes=100_000
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


class Lanes:
    """A feed of several lanes, whose jobs end in any order, and what came of it."""

    def __init__(
        self, path: Path, seed: int, *, lanes: int, ahead_bytes: int, batch_bytes: int = 100_000
    ) -> None:
        self.random = random.Random(seed)
        self.lanes = [HandLane() for _ in range(lanes)]
        self.batches: list[pa.RecordBatch | None] = []
        self.failed: list[DovetailError] = []
        self.asked = 0
        self.most_bytes = 0  # held, and being decoded before it is awaited
        self.feed = FileFeed(
            StreamName("s"),
            self.lanes,
            lambda: open_source(str(path)),
            batch_bytes=batch_bytes,
            ahead_bytes=ahead_bytes,
        )
        self.feed.want(frozenset({"n"}))

    def step(self) -> bool:
        """A job ends, or somebody asks; whether there was a job."""
        if self.random.random() < 0.3:
            self.ask()
        busy = [lane for lane in self.lanes if lane.jobs]
        if busy:
            self.random.choice(busy).do()
        under_way = sum(len(lane.jobs) for lane in self.lanes)
        awaited = self.asked > len(self.batches)
        ahead_bytes = self.feed.held_bytes + max(0, under_way - awaited) * 100_000
        self.most_bytes = max(self.most_bytes, 0 if self.feed.ended else ahead_bytes)
        return bool(busy)

    def ask(self) -> None:
        """For the next batch, unless somebody waits for it."""
        self.asked = len(self.batches) + 1
        self.feed.read(self.batches.append, self.failed.append)

    def settle(self) -> None:
        """All jobs, lane by lane."""
        while any(lane.jobs for lane in self.lanes):
            for lane in self.lanes:
                while lane.jobs:
                    lane.do()


def write_groups(path: Path, damaged: int | None = None) -> None:
    """Twenty row groups of numbers that count up; one of them may be damaged."""
    table = pa.table({"n": pa.array(range(ROWS), pa.int64())})
    pq.write_table(table, path, row_group_size=ROWS // 20, use_dictionary=False)
    if damaged is not None:
        at = pq.read_metadata(path).row_group(damaged).column(0).data_page_offset
        raw = bytearray(path.read_bytes())
        raw[at : at + 40] = b"\xff" * 40
        path.write_bytes(raw)


@pytest.fixture
def in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of which each row group is a part."""
    monkeypatch.setattr(parquet_files, "PART_ROWS", 1)
    path = tmp_path / "t.parquet"
    write_groups(path)
    return path


@pytest.mark.parametrize("seed", range(8))
def test_rows_come_in_order_however_many_lanes_decode(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is decoded before its turn is within its bound, what is under way included."""
    monkeypatch.setattr(parquet_files, "PART_ROWS", 1 + seed * 10_000)
    path = tmp_path / "t.parquet"
    write_groups(path)
    lanes, ahead_bytes = 1 + seed % 3, 150_000 * (seed % 4)
    case = Lanes(path, seed, lanes=lanes, ahead_bytes=ahead_bytes)
    while not case.feed.ended:
        case.step()
    assert None not in case.batches[:-1]
    batches = [b for b in case.batches if b is not None]  # the end may come before it is asked for
    assert pa.Table.from_batches(batches).to_pydict() == {"n": list(range(ROWS))}
    assert case.most_bytes <= ahead_bytes
    assert lanes == 1 or ahead_bytes < 100_000 or case.most_bytes >= 100_000
    assert case.feed.held_bytes == 0
    while case.step():
        pass
    assert all(lane.closed for lane in case.lanes)


def test_lanes_without_room_for_a_batch_stay_idle(in_parts: Path) -> None:
    """One decodes what is awaited; another one for each batch that may be held."""
    for ahead_bytes, lanes in ((50_000, 1), (100_000, 2), (250_000, 3), (1 << 20, 4)):
        case = Lanes(in_parts, 0, lanes=4, ahead_bytes=ahead_bytes)
        case.ask()
        case.lanes[0].do()
        case.ask()
        case.ask()
        assert sum(len(lane.jobs) for lane in case.lanes) == lanes


def test_a_file_that_was_asked_for_one_batch_holds_nothing_else(in_parts: Path) -> None:
    """Its turn may not have come: it is begun, and its first batch waits at its home."""
    case = Lanes(in_parts, 0, lanes=3, ahead_bytes=1 << 20)
    case.ask()
    case.settle()
    assert (len(case.batches), case.feed.held_bytes) == (1, 0)
    case.ask()
    case.settle()
    assert case.feed.held_bytes > 200_000, "each lane a part"


def test_files_of_numbers_are_decoded_by_two_lanes_with_a_gibibyte(tmp_path: Path) -> None:
    """Three of them on one of two workers: their batches are small, whatever batches may be."""
    numbers = pa.array(range(3 << 17), pa.int64())
    table = pa.table({"k": numbers, "seq": numbers, "v": numbers.cast(pa.float64())})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=1 << 16)
    ahead_bytes = read_ahead_bytes((1 << 30) // 2) // 3
    case = Lanes(tmp_path / "t.parquet", 0, lanes=2, ahead_bytes=ahead_bytes, batch_bytes=5 << 20)
    case.feed.want(frozenset({"k", "seq", "v"}))
    case.ask()
    case.lanes[0].do()
    case.ask()
    assert [len(lane.jobs) for lane in case.lanes] == [1, 1]
    case.lanes[1].do()
    assert 3 << 19 <= case.feed.held_bytes <= ahead_bytes


def test_batches_of_long_text_count_as_what_came_so_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The types do not tell: the first one does."""
    monkeypatch.setattr(parquet_files, "PART_ROWS", 1)
    table = pa.table({"n": [f"{i:0500}" for i in range(2_000)]})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=500)
    monkeypatch.setattr(file_feed, "BATCH_ROWS", 500)
    case = Lanes(tmp_path / "t.parquet", 0, lanes=4, ahead_bytes=600_000, batch_bytes=1 << 20)
    case.ask()
    case.lanes[0].do()
    case.ask()
    assert sum(len(lane.jobs) for lane in case.lanes) == 3, "batches of 252 KB, not of 8"


def test_damage_is_told_in_its_turn_behind_all_rows_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where another lane meets it long before."""
    monkeypatch.setattr(parquet_files, "PART_ROWS", 1)
    path = tmp_path / "t.parquet"
    write_groups(path, damaged=6)
    for seed in range(4):
        case = Lanes(path, seed, lanes=3, ahead_bytes=1 << 20)
        while not case.failed:
            case.step()
        rows = [n for batch in case.batches if batch for n in batch["n"].to_pylist()]
        assert rows == list(range(6 * ROWS // 20))
        while case.step():
            pass
        assert len(case.failed) == 1


def test_a_feed_that_is_left_while_lanes_decode_keeps_no_file_open(in_parts: Path) -> None:
    """Whenever that is: before it is opened, while it is, or later."""
    for steps in range(12):
        case = Lanes(in_parts, steps, lanes=2, ahead_bytes=1 << 20)
        for _ in range(steps):
            case.step()
        case.feed.close()
        for lane in case.lanes:
            while lane.jobs:
                lane.do()
        assert [f.path for f in psutil.Process().open_files() if f.path == str(in_parts)] == []
