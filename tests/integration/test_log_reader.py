"""Reading result logs over gRPC, for the Python client and for REST alike."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from dovetail_proto.admin import LogStatus
from dovetail_proto.channels import Channels
from dovetail_proto.log_reader import AHEAD_PIECES, START, BadResults, LogReader, Offset
from dovetail_proto.result_logs import Logs
from dovetail_proto.transport import Security, Unreachable
from kit.admin_standin import RESULT_SCHEMA, RUN, DataPlaneStandIn


@pytest.fixture
def plane() -> Iterator[DataPlaneStandIn]:
    """One processor's logs."""
    made = DataPlaneStandIn(Security())
    yield made
    made.stop()


@pytest.fixture
def channels() -> Iterator[Channels]:
    """To be closed."""
    made = Channels(Security())
    yield made
    made.close()


def logs(plane: DataPlaneStandIn, *names: str) -> Logs:
    """Logs that the processor has; the query goes on."""
    return [LogStatus(name, name, plane.address, RUN, 0) for name in names], False


def rows(count: int) -> pa.RecordBatch:
    """Results."""
    return pa.record_batch({"k": np.arange(count), "v": np.ones(count)}, schema=RESULT_SCHEMA)


def test_each_log_is_read_in_order_from_where_it_is_asked_for(
    plane: DataPlaneStandIn, channels: Channels
) -> None:
    """Others from their start; then there is nothing more."""
    plane.results = [rows(3), rows(5)]
    starts = {"p1": Offset(0, 2)}
    found = logs(plane, "p1", "p2")
    reader = LogReader("q", RESULT_SCHEMA, found, channels, starts=starts, look=None)
    taken = list(iter(reader.take, None))
    places = {log: [(p.at, p.end) for p in taken if p.log == log] for log in ("p1", "p2")}
    second = (Offset(1, 0), Offset(1, 5))
    assert places == {
        "p1": [(Offset(0, 2), Offset(0, 3)), second],
        "p2": [(START, Offset(0, 3)), second],
    }


def test_a_log_of_another_schema_ends_the_reading(
    plane: DataPlaneStandIn, channels: Channels
) -> None:
    """What came before it is handed out, nothing of it is."""
    plane.results = [rows(3), pa.record_batch({"k": ["x"]})]
    reader = LogReader("q", RESULT_SCHEMA, logs(plane, "p1"), channels, starts={}, look=None)
    first = reader.take()
    assert first is not None
    assert first.batch.equals(rows(3))
    with pytest.raises(BadResults, match="log 'p1': its columns are"):
        reader.take()


def test_a_follower_is_open_before_results_come_and_stops_when_told(
    plane: DataPlaneStandIn, channels: Channels
) -> None:
    """A stopped reader hands out nothing, waits for nothing, and leaves no thread."""
    found = logs(plane, "p1")
    reader = LogReader("q", RESULT_SCHEMA, found, channels, starts={}, look=lambda: found)
    reader.wait_open()
    for thread in reader.stop():
        thread.join(60)
        assert not thread.is_alive()
    assert reader.take() is None
    assert plane.reading_ended.wait(60)


def test_a_follower_finds_a_log_that_was_handed_on_as_the_query_ended(
    plane: DataPlaneStandIn, channels: Channels
) -> None:
    """Its keeper ends while it reads; by then the query is over. The next keeper has all of it."""
    before = DataPlaneStandIn(Security())
    before.results = [rows(3)]
    kept, _ = logs(before, "p1")
    looked = threading.Event()

    def look() -> Logs:
        if not looked.is_set():
            looked.set()
            return kept, True  # as seen just before the hand-over
        return logs(plane, "p1")[0], True

    plane.results, plane.over = [rows(3), rows(4)], True
    reader = LogReader("q", RESULT_SCHEMA, (kept, False), channels, starts={}, look=look)
    first = reader.take()
    assert looked.wait(60)
    before.stop()
    taken = [first, *iter(reader.take, None)]
    assert sum(p.batch.num_rows for p in taken if p) == 7


def test_a_follower_of_an_ended_query_tells_who_does_not_answer(channels: Channels) -> None:
    """It does not look for ever in one place."""
    gone = [LogStatus("p1", "p1", "127.0.0.1:1", RUN, 0)]
    found: Logs = (gone, True)
    reader = LogReader("q", RESULT_SCHEMA, found, channels, starts={}, look=lambda: found)
    with pytest.raises(Unreachable, match="reading the log 'p1'"):
        reader.wait_open()


def test_a_log_that_nobody_answers_for_is_not_open(channels: Channels) -> None:
    """The error comes before the first piece."""
    gone = [LogStatus("p1", "p1", "127.0.0.1:1", RUN, 0)]
    reader = LogReader("q", RESULT_SCHEMA, (gone, True), channels, starts={}, look=None)
    with pytest.raises(Unreachable, match="reading the log 'p1'"):
        reader.wait_open()
    away = [LogStatus("p1", "p1", "", RUN, 0)]
    with pytest.raises(Unreachable, match="which has log 'p1' of query 'q', is away"):
        LogReader("q", RESULT_SCHEMA, (away, True), channels, starts={}, look=None)


def test_a_reader_that_takes_nothing_holds_the_processor_up(
    plane: DataPlaneStandIn, channels: Channels
) -> None:
    """A few pieces wait, and what gRPC has on its way; most never leaves."""
    plane.results = [rows(200_000)] * 50
    reader = LogReader("q", RESULT_SCHEMA, logs(plane, "p1"), channels, starts={}, look=None)
    assert reader.take() is not None
    reader.stop()
    assert plane.reading_ended.wait(60)
    assert plane.sent < 50 - AHEAD_PIECES
