"""A result log while it is written: rows in memory and in files, whose offsets never change."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dovetail_processor.shell.result_log import Listener
from dovetail_processor.sinks import LogSink
from dovetail_proto.errors import InputError, OutputError
from kit.log_cases import Case


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


def test_a_segment_is_cut_before_its_footer_is_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its column chunks, whatever batches its row groups are made of; offsets stay as they are.

    No file has more row groups than the bound, but for those of its last batch and the rest of it.
    """
    monkeypatch.setattr("dovetail_processor.sinks.parquet.FILE_CHUNKS", 3)
    for seed in range(20):
        random = np.random.default_rng(seed)
        case = Case(tmp_path / str(seed), row_group_rows=4)
        shown: dict[tuple[int, int], int] = {}
        for _ in range(40):
            case.find(int(random.integers(1, 7)))
            case.work(int(random.integers(0, 3)))
            for (segment, row), numbers in case.read(max(shown, default=(0, 0))):
                shown |= {(segment, row + i): n for i, n in enumerate(numbers)}
        case.work(len(case.jobs))
        final = case.close()
        assert {offset: final[offset] for offset in shown} == shown, f"seed {seed}"
        assert sorted(final.values()) == list(range(case.rows)), f"seed {seed}"
        groups = [pq.read_metadata(f).num_row_groups for f in case.files]
        assert max(groups) <= 3 + 1 + 1, f"seed {seed}"
        assert len(groups) >= case.rows // (4 * 3 + 6), f"seed {seed}"


def test_the_columns_of_a_row_bound_its_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A struct of 40 fields has 40 chunks in a row group: the third one reaches 100."""
    monkeypatch.setattr("dovetail_processor.sinks.parquet.FILE_CHUNKS", 100)
    schema = pa.schema([("s", pa.struct([(f"c{i}", pa.int64()) for i in range(40)]))])
    one = pa.RecordBatch.from_pylist([{"s": {f"c{i}": i for i in range(40)}}], schema)
    log = LogSink(tmp_path, schema, row_group_bytes=one.nbytes, first=0)
    full = []
    for _ in range(7):
        full.append(log.show(one))
        log.write(one)
        if full[-1]:
            log.cut()
            log.roll()
    files = log.close().files
    assert full == [False, False, True, False, False, True, False]
    assert [pq.read_metadata(f).num_row_groups for f in files] == [3, 3, 1]


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
    assert [n for _, part in case.read() for n in part] == [0, 1, 2]
    assert case.cuts_for_readers == 0


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
