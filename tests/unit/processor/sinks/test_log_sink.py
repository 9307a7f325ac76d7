"""A result log while it is written: rows in memory and in files, whose offsets never change."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dovetail_processor.shell.files import RUN_FILE, Logs, logs_folder
from dovetail_processor.shell.result_log import Listener, LogRead
from dovetail_processor.shell.threads import WorkerLoop
from dovetail_processor.sinks import LogSink
from dovetail_processor.sinks.log import KEEP_ALL, Retention
from dovetail_proto.arrow_bytes import from_bytes
from dovetail_proto.errors import InputError, OutputError, Refusal
from dovetail_proto.feeds import ReadResults
from dovetail_proto.ids import LogName, QueryName
from dovetail_proto.messages import Stage

SCHEMA = pa.schema([("n", pa.int64())])
QUERY, RUN, LOG = QueryName("q"), "q-1", LogName("p1")


class Case:
    """A log, its lane, and whoever reads it; jobs are done when a test says so."""

    def __init__(
        self,
        folder: Path,
        *,
        row_group_rows: int = 1 << 20,
        segment_rows: int = 1 << 20,
        keep: Retention = KEEP_ALL,
    ) -> None:
        self.folder = logs_folder(folder, QUERY) / LOG
        self.folder.mkdir(parents=True)
        (self.folder.parent / RUN_FILE).write_text(RUN)
        self.sink = LogSink(
            self.folder,
            SCHEMA,
            row_group_bytes=8 * row_group_rows,
            segment_bytes=8 * segment_rows,
            first=0,
            keep=keep,
            clock=lambda: self.now_s,
        )
        self.now_s = time.time()
        self._trims = keep != KEEP_ALL
        self.rows = 0
        self.jobs: list[Any] = []
        self.cuts_for_readers = 0
        self._data_dir = folder
        query = SimpleNamespace(
            task=SimpleNamespace(run=RUN, log=LOG, has_log=True),
            opening=False,
            stage=Stage.RUNNING,
            deliver=SimpleNamespace(roll=self._roll_for_reader),
        )
        worker = SimpleNamespace(here="p1", queries={QUERY: query})
        self._loop = cast(
            WorkerLoop,
            SimpleNamespace(worker=worker, ask=lambda work: work(), post=lambda work: work()),
        )
        self._logs: Any = {(RUN, LOG): self.sink}

    def find(self, rows: int) -> None:
        """Results that count up: shown, and to be written."""
        batch = pa.record_batch([pa.array(range(self.rows, self.rows + rows), pa.int64())], SCHEMA)
        self.rows += rows
        full = self.sink.show(batch)
        self.jobs.append(lambda: self.sink.write(batch))
        if full:
            self.roll()

    def roll(self) -> None:
        """Cut a segment; its file is to be made."""
        self.sink.cut()
        self.jobs.append(self.sink.roll)

    def _roll_for_reader(self) -> None:
        self.cuts_for_readers += 1
        self.roll()
        self.work(len(self.jobs))

    def work(self, jobs: int) -> None:
        """Do some of the jobs."""
        for _ in range(min(jobs, len(self.jobs))):
            self.jobs.pop(0)()

    def read(
        self,
        at: tuple[int, int] = (0, 0),
        listener: Listener | None = None,
        *,
        follow: bool = False,
    ) -> Iterator[tuple[tuple[int, int], list[int]]]:
        """Offsets and the numbers there."""
        wanted = ReadResults(QUERY, LOG, *at, follow, RUN, 0, self._trims)
        logs = cast(Logs, self._logs)
        for m in LogRead(
            self._loop, self._data_dir, logs, wanted, listener or Listener()
        ).batches():
            if m.payload:
                batch = from_bytes(m.payload, SCHEMA, "results")
                yield (m.segment, m.row), batch["n"].to_pylist()

    @property
    def files(self) -> list[Path]:
        """Finished segments."""
        return sorted(self.folder.glob("segment-*.parquet"))

    def close(self) -> dict[tuple[int, int], int]:
        """Write everything; what is at each offset."""
        self.work(len(self.jobs))
        self.sink.close()
        return {
            (segment, row): n
            for segment, path in enumerate(self.files)
            for row, n in enumerate(pq.read_table(path)["n"].to_pylist())
        }


def test_what_is_shown_can_be_read_before_anything_is_written(tmp_path: Path) -> None:
    """And reading makes no file."""
    case = Case(tmp_path)
    case.find(3)
    case.find(2)
    assert list(case.read()) == [((0, 0), [0, 1, 2, 3, 4])]
    assert list(case.read((0, 4))) == [((0, 4), [4])]
    assert list(case.read((0, 5))) == []
    assert case.files == []
    case.work(2)
    assert list(case.read()) == [((0, 0), [0, 1, 2, 3, 4])]
    assert case.files == []
    assert case.cuts_for_readers == 0


def test_an_offset_means_the_same_in_memory_and_in_files(tmp_path: Path) -> None:
    """Whatever is written, cut and read in whatever order: readers agree with the files.

    The reference is what the files hold in the end.
    """
    for seed in range(60):
        random = np.random.default_rng(seed)
        case = Case(
            tmp_path / str(seed), row_group_rows=12, segment_rows=int(random.integers(5, 40))
        )
        got: dict[tuple[int, int], int] = {}
        next_at = (0, 0)
        for _ in range(60):
            match random.integers(4):
                case 0 | 1:
                    case.find(int(random.integers(0, 7)))
                case 2:
                    case.work(int(random.integers(1, 4)))
                case _ if random.random() < 0.3:
                    case.roll()
                case _:
                    start = next_at if random.random() < 0.8 else (0, 0)
                    for (segment, row), numbers in case.read(start):
                        for i, n in enumerate(numbers):
                            assert got.setdefault((segment, row + i), n) == n, f"seed {seed}"
                        next_at = max(next_at, (segment, row + len(numbers)))
                    assert sorted(got.values()) == list(range(case.rows)), f"seed {seed}"
        final = case.close()
        assert sorted(final.values()) == list(range(case.rows)), f"seed {seed}"
        assert {offset: final[offset] for offset in got} == got, f"seed {seed}"
        assert [n for _, part in case.read() for n in part] == list(range(case.rows))


def test_a_follower_is_woken_by_results_by_the_end_and_by_leaving(tmp_path: Path) -> None:
    """It does not look now and then: no time passes here but what threads take."""
    case = Case(tmp_path)
    came: list[int] = []
    seen = threading.Semaphore(0)

    def follow(listener: Listener) -> None:
        for _, numbers in case.read(listener=listener, follow=True):
            came.extend(numbers)
            seen.release(len(numbers))

    stays, leaves = Listener(), Listener()
    threads = [threading.Thread(target=follow, args=(who,)) for who in (stays, leaves)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        case.find(1)
        case.work(1)
        assert seen.acquire(timeout=30)
        assert seen.acquire(timeout=30)
    leaves.leave()
    threads[1].join(30)
    assert not threads[1].is_alive()
    assert case.files == [], "following makes no files"
    case.find(1)
    assert seen.acquire(timeout=30)
    case.close()
    threads[0].join(30)
    assert not threads[0].is_alive()
    assert sorted(came) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5]


def test_rows_that_left_memory_before_their_segment_was_finished_are_read(tmp_path: Path) -> None:
    """The reader has the segment cut: it needs a file that can be read."""
    case = Case(tmp_path, row_group_rows=4)
    case.find(5)
    case.find(1)
    case.work(1)  # a row group is in the unfinished file
    assert case.sink.in_memory(0, 0) is None
    assert [n for _, part in case.read() for n in part] == list(range(6))
    assert case.cuts_for_readers == 1
    assert len(case.files) == 1


def test_a_segment_is_cut_when_it_is_large(tmp_path: Path) -> None:
    """By its bytes; and no segment is empty."""
    case = Case(tmp_path, segment_rows=10)
    for _ in range(7):
        case.find(4)
    case.roll()
    case.roll()
    assert [len(p) for p in (pq.read_table(f) for f in case.files)] == []
    final = case.close()
    assert [max(r for s, r in final if s == segment) + 1 for segment in range(3)] == [12, 12, 4]


def test_an_offset_beyond_a_segment_is_refused(tmp_path: Path) -> None:
    """Also while the segment is in memory; and a gap is an error, never fewer results."""
    case = Case(tmp_path)
    case.find(3)
    with pytest.raises(InputError, match="segment 0 of query 'q' has 3 rows, not 9"):
        list(case.read((0, 9)))
    case.roll()
    case.find(2)
    case.roll()
    case.find(1)
    case.close()
    with pytest.raises(InputError, match="segment 1 of query 'q' has 2 rows, not 3"):
        list(case.read((1, 3)))
    case.files[1].unlink()
    with pytest.raises(OutputError, match=r"segment-00001\.parquet is not in .* but segment-00002"):
        list(case.read())


def test_a_log_that_is_given_up_has_what_its_files_hold(tmp_path: Path) -> None:
    """The disk failed: followers end, and rows that were never written are gone."""
    case = Case(tmp_path)
    case.find(2)
    case.roll()
    case.work(2)
    case.find(3)
    assert [n for _, part in case.read() for n in part] == [0, 1, 2, 3, 4]
    case.sink.abort()
    assert [n for _, part in case.read(follow=True) for n in part] == [0, 1]


def finished(case: Case, segments: int) -> None:
    """Segments of two rows each."""
    for _ in range(segments):
        case.find(2)
        case.roll()
    case.work(len(case.jobs))


def test_what_is_not_kept_goes_by_bytes_and_its_offset_is_refused(tmp_path: Path) -> None:
    """The error names the oldest there is; who begins at the beginning begins there."""
    case = Case(tmp_path, keep=Retention(size_bytes=1))
    finished(case, 4)
    assert [p.name for p in case.files] == ["segment-00003.parquet"]
    case.find(1)
    assert list(case.read()) == [((3, 0), [6, 7]), ((4, 0), [8])]
    assert list(case.read((4, 0))) == [((4, 0), [8])]
    for offset in ((0, 1), (2, 0)):
        with pytest.raises(Refusal, match=rf"segment {offset[0]} .* the oldest is segment 3") as e:
            list(case.read(offset))
        assert e.value.details["oldest"] == 3
    case.close()
    assert list(case.read()) == [((3, 0), [6, 7]), ((4, 0), [8])]


def test_a_follower_whose_next_segment_is_gone_is_told(tmp_path: Path) -> None:
    """It gets what it had begun to read, then the error, never a gap."""
    case = Case(tmp_path, keep=Retention(size_bytes=1))
    finished(case, 1)
    reading = case.read(follow=True)
    assert next(reading) == ((0, 0), [0, 1])
    finished(case, 3)
    with pytest.raises(Refusal, match=r"segment 1 .* the oldest is segment 3"):
        next(reading)


def test_a_follower_that_has_read_a_segment_does_not_need_its_file(tmp_path: Path) -> None:
    """It had the rows from memory: that they are not kept is no gap, also for who comes again."""
    case = Case(tmp_path, keep=Retention(size_bytes=1))
    case.find(2)
    reading = case.read(follow=True)
    assert next(reading) == ((0, 0), [0, 1])
    case.roll()
    finished(case, 2)
    assert [p.name for p in case.files] == ["segment-00002.parquet"]
    with pytest.raises(Refusal, match=r"segment 1 .* the oldest is segment 2"):
        next(reading)
    reading = case.read((1, 2), follow=True)
    assert next(reading) == ((2, 0), [4, 5])
    finished(case, 1)
    assert next(reading) == ((3, 0), [6, 7])


def test_a_segment_that_was_read_from_memory_is_not_read_again(tmp_path: Path) -> None:
    """Its file would be decoded for nothing."""
    case = Case(tmp_path)
    case.find(2)
    reading = case.read(follow=True)
    assert next(reading) == ((0, 0), [0, 1])
    case.roll()
    case.work(2)
    case.files[0].write_bytes(b"not Parquet")
    case.find(1)
    assert next(reading) == ((1, 0), [2])


def test_a_reader_has_nothing_cut_that_was_finished_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows left memory because their segment has its file."""
    case = Case(tmp_path)
    case.find(3)
    look = case.sink.in_memory

    def finished_first(segment: int, row: int) -> pa.RecordBatch | None:
        if not case.files:
            case.roll()
            case.find(1)
            case.work(2)
        return look(segment, row)

    monkeypatch.setattr(case.sink, "in_memory", finished_first)
    assert [n for _, part in case.read() for n in part] == [0, 1, 2, 3]
    assert case.cuts_for_readers == 0


def test_what_is_not_kept_goes_by_age(tmp_path: Path) -> None:
    """Rows in memory have no age; without a bound nothing ever goes."""
    case = Case(tmp_path / "aged", keep=Retention(age_s=60.0))
    finished(case, 3)
    case.sink.trim()
    assert len(case.files) == 3
    case.find(1)
    case.now_s += 1000.0
    case.sink.trim()
    assert case.files == []
    assert list(case.read()) == [((3, 0), [6])]
    whole = Case(tmp_path / "whole")
    finished(whole, 3)
    whole.now_s += 1e9
    whole.sink.trim()
    assert len(whole.files) == 3


@pytest.mark.parametrize(
    ("keep", "left"),
    [
        (Retention(), "abcd"),
        (Retention(age_s=25.0), "cd"),
        (Retention(size_bytes=5), "d"),
        (Retention(size_bytes=6), "cd"),
        (Retention(size_bytes=100), "abcd"),
        (Retention(age_s=35.0, size_bytes=6), "cd"),
        (Retention(age_s=15.0, size_bytes=100), "d"),
    ],
)
def test_the_newest_segments_that_are_enough_are_kept(keep: Retention, left: str) -> None:
    """Of four segments of five bytes, finished ten seconds apart; the newest is ten seconds old."""
    segments = [(Path(name), 10.0 * n, 5) for n, name in enumerate("abcd")]
    gone = {path.name for path in keep.beyond(segments, 40.0)}
    assert {*"abcd"} - gone == {*left}


def test_a_follower_reads_on_while_the_segment_that_it_reads_is_cut(tmp_path: Path) -> None:
    """It was in the middle of it, and the file of the segment is not finished yet."""
    case = Case(tmp_path)
    case.find(100)
    reading = case.read(follow=True)
    assert next(reading) == ((0, 0), list(range(100)))
    case.find(50)
    case.roll()
    case.find(5)
    assert next(reading) == ((0, 100), list(range(100, 150)))
    assert next(reading) == ((1, 0), list(range(150, 155)))


def test_segments_are_in_order_of_their_numbers_also_beyond_five_digits(tmp_path: Path) -> None:
    """The oldest goes, not the one whose name sorts first."""
    sink = LogSink(tmp_path, SCHEMA, row_group_bytes=80, first=99_998, keep=Retention(size_bytes=1))
    for n in range(3):
        batch = pa.record_batch([pa.array([n], pa.int64())], SCHEMA)
        sink.show(batch)
        sink.cut()
        sink.write(batch)
        sink.roll()
    assert [p.name for p in tmp_path.iterdir()] == ["segment-100000.parquet"]
    sink.close()
