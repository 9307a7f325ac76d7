"""What is not kept of a result log: it goes, its offsets are refused, and nobody sees a gap."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from dovetail_processor.sinks import LogSink
from dovetail_processor.sinks.log import Retention
from dovetail_proto.errors import Refusal
from kit.log_cases import SCHEMA, Case, finished


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
