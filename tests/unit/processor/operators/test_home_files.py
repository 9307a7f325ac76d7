"""A stream that is read from a file: as its readers take it, to its end, or until it fails."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace

import pyarrow as pa
import pytest

from dovetail_processor.batches import Stamped
from dovetail_processor.graph.arc import Arc
from dovetail_processor.operators.file_feed import FileFeed
from dovetail_processor.operators.home import Home, Reader, Sent
from dovetail_proto.assignment import StreamTask
from dovetail_proto.errors import DovetailError, InputError
from dovetail_proto.ids import QueryName, SplitId, StreamName
from kit.hand_shell import HandLane

SCHEMA = pa.schema([("k", pa.int64())])


def rows(*keys: int) -> pa.RecordBatch:
    """A batch."""
    return pa.record_batch([pa.array(keys, pa.int64())], schema=SCHEMA)


def reader(query: str, room_bytes: int = 1 << 20) -> Reader:
    """A query's only input."""
    arc: Arc[Stamped] = Arc(room_bytes)
    return Reader(QueryName(query), SplitId(f"{query}/0"), arc, frozenset({"k"}))


def taken(one: Reader) -> list[tuple[int, list[int]]]:
    """What waits before a query: sequence of the first row, and the keys; it is taken out."""
    found = []
    while len(one.arc):
        batch = one.arc.take()
        found.append((batch.first, batch.rows["k"].to_pylist()))
    return found


class File:
    """A source of some batches, and what was asked of it."""

    schema = SCHEMA

    def __init__(self, batches: list[pa.RecordBatch], error: Exception | None = None) -> None:
        self._batches, self._error = batches, error
        self.rows_total = sum(b.num_rows for b in batches)
        self.read = 0
        self.closed = False

    def parts(self, columns: list[str], **_: int) -> list[Callable[[], Iterator[pa.RecordBatch]]]:
        """All of it in one."""
        return [lambda: self._rows(columns)]

    def _rows(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """Tells when it is left."""
        assert columns == ["k"]
        try:
            for batch in self._batches:
                self.read += 1
                yield batch
            if self._error is not None:
                raise self._error
        finally:
            self.closed = True


class Case:
    """A stream that is read from a file, on a lane that the test drives."""

    def __init__(self, file: File) -> None:
        self.failed: list[DovetailError] = []
        self.lane = HandLane()
        name = StreamName("s")
        feed = FileFeed(name, [self.lane], lambda: file, batch_bytes=1 << 20)  # type: ignore[arg-type,return-value]
        task = StreamTask(name, SCHEMA, False, path="s.parquet")
        self.home = Home(task, feed, self.failed.append, 0.0)

    def read(self, one: Reader) -> None:
        """It reads the stream from now on."""
        self.home.add_reader(one)

    def step(self) -> None:
        """Readers take what they have room for."""
        while self.home.ready:
            self.home.step(0.0)


def test_a_file_is_read_a_batch_at_a_time_as_its_readers_take_it() -> None:
    """It waits for a first reader, and is read while the batch before is being joined."""
    file = File([rows(1), rows(2), rows(), rows(3)])
    case = Case(file)
    lane = case.lane
    assert not lane.jobs
    one = reader("q", 1)
    case.read(one)
    lane.do()
    assert file.read == 1
    assert not lane.jobs, "the next one is read when this one is taken"
    assert case.home.rows_left == 4 - 1 - 0
    case.step()
    lane.do()
    assert (file.read, len(taken(one))) == (2, 1)
    case.step()
    while lane.jobs:
        lane.do()
    assert file.read == 4, "a batch without rows is passed over"
    assert taken(one) == [(1, [2])]
    case.step()
    assert not case.home.ended
    while lane.jobs:
        lane.do()
    assert taken(one) == [(2, [3])]
    assert case.home.ended
    assert case.home.rows_left == 0
    assert file.closed
    assert lane.closed


def test_nothing_can_be_sent_to_a_stream_that_is_read_from_a_file() -> None:
    """Who tries is told from which."""
    case = Case(File([rows(1)]))
    with pytest.raises(InputError, match=r"is read from 's\.parquet'"):
        case.home.accept(Sent("a", 1, rows(1), lambda *_: None, case.failed.append), 0.0)


@pytest.mark.parametrize("error", [InputError("row 2 is broken"), OSError("row 2 is broken")])
def test_a_file_that_cannot_be_read_on_is_told_once(error: Exception) -> None:
    """Behind the batches before it; whatever it raises is an error of the input."""
    file = File([rows(1)], error)
    case = Case(file)
    lane = case.lane
    one = reader("q")
    case.read(one)
    lane.do()
    case.step()
    assert taken(one) == [(0, [1])]
    while lane.jobs:
        lane.do()
    assert [type(e) for e in case.failed] == [InputError]
    assert str(case.failed[0]) == "row 2 is broken"
    assert not case.home.ended
    assert file.closed
    case.home.settle()
    assert not lane.jobs


def test_a_column_that_nobody_wanted_when_reading_began_is_not_there_later() -> None:
    """Queries of a file have to be submitted before it is read."""
    case = Case(File([rows(1)]))
    case.read(reader("p"))
    case.read(reader("q"))
    late = replace(reader("r"), columns=frozenset({"v"}))
    with pytest.raises(InputError, match="being read without column 'v'"):
        case.read(late)
    assert late.split not in case.home.readers


def test_a_file_that_nobody_wants_any_more_is_not_read_on() -> None:
    """The reader closes, and what was read for it is all that it takes."""
    file = File([rows(1), rows(2), rows(3)])
    case = Case(file)
    lane = case.lane
    one = reader("q")
    case.read(one)
    lane.do()
    case.home.end_reader(one.split)
    case.step()
    assert taken(one) == [(0, [1])]
    assert not lane.jobs
    case.home.drop()
    lane.do()
    assert file.closed
    assert not lane.jobs


def test_a_batch_that_comes_after_the_stream_went_is_nobodys() -> None:
    """The job was under way."""
    case = Case(File([rows(1)]))
    lane = case.lane
    case.read(reader("q"))
    heard = lane.work()
    case.home.drop()
    heard()
    assert case.home.rows == 0
    assert case.failed == []


def test_a_file_whose_turn_has_not_come_is_begun_and_waits() -> None:
    """Its first batch is there when its turn comes, or when its reader closes before."""
    for closes in (False, True):
        file = File([rows(1), rows(2)])
        case = Case(file)
        case.home.set_task(replace(case.home.task, waits=True))
        one = reader("q")
        case.read(one)
        case.lane.do()
        case.step()
        assert (file.read, taken(one), case.lane.jobs) == (1, [], deque())
        if closes:
            case.home.end_reader(one.split)
            case.step()
            assert case.home.has_fed(one.split)
        else:
            case.home.set_task(replace(case.home.task, waits=False))
            case.step()
        assert taken(one) == [(0, [1])]
