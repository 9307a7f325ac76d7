"""A stream at home: who reads it from where, which sources it remembers, what it answers them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pyarrow as pa
import pytest

from dovetail_processor.batches import Stamped
from dovetail_processor.graph.arc import Arc
from dovetail_processor.operators.home import REPEATS_MAX, Home, Reader, Sent
from dovetail_processor.operators.sources_heard import RESEND_S_MAX
from dovetail_proto.assignment import StreamTask
from dovetail_proto.errors import Domain, DovetailError, InputError, Refusal
from dovetail_proto.handover import SOURCES_MAX, Handover
from dovetail_proto.ids import QueryName, SplitId, StreamName

SCHEMA = pa.schema([("k", pa.int64())])
TASK = StreamTask(StreamName("s"), SCHEMA, False)


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


@dataclass
class Case:
    """A stream on virtual time, and what its sources were told."""

    task: StreamTask = TASK
    now_s: float = 0.0
    routed: list[tuple[str, int]] = field(default_factory=list)
    answers: list[tuple[int, int]] = field(default_factory=list)
    refused: list[DovetailError] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.home = Home(self.task, None, self.refused.append, self.now_s)

    def read(self, *readers: Reader) -> None:
        """These read it from now on."""
        for one in readers:
            self.home.add_reader(one)

    def send(self, source: str, number: int, *keys: int) -> None:
        """A batch comes."""

        def routed(count: int, queries: int) -> None:
            self.routed.append((source, number))
            self.answers.append((count, queries))

        batch = rows(*(keys or (1,)))
        self.home.accept(Sent(source, number, batch, routed, self.refused.append), self.now_s)

    def step(self) -> None:
        """Readers take what they have room for."""
        while self.home.ready:
            self.home.step(self.now_s)


def test_every_reader_has_its_own_place() -> None:
    """A slow query keeps the source waiting, and no other query."""
    case = Case()
    quick, slow = reader("p"), reader("q", room_bytes=1)
    case.read(quick, slow)
    for n in range(1, 4):
        case.send("a", n, n * 10, n * 10 + 1)
    case.step()
    assert taken(quick) == [(0, [10, 11]), (2, [20, 21]), (4, [30, 31])]
    assert case.routed == [("a", 1)], "the second one waits for the slow query"
    assert case.home.rows_routed == 2
    assert taken(slow) == [(0, [10, 11])]
    for number in (2, 3):
        case.step()
        assert case.routed[-1] == ("a", number)
        assert len(taken(slow)) == 1
    assert case.answers[-1] == (6, 2)
    assert case.home.held_bytes == 0


def test_the_reader_that_is_furthest_behind_takes_first() -> None:
    """So one batch is with all of them before the next one is given out."""
    case = Case()
    first, second = reader("p"), reader("q")
    case.read(first)
    case.send("a", 1)
    case.home.step(0.0)
    case.read(second)
    case.send("a", 2)
    case.send("a", 3)
    case.home.step(0.0)
    case.home.step(0.0)
    assert len(taken(first)) == 2
    assert len(taken(second)) == 1


def test_a_query_sees_a_stream_from_its_submission_on() -> None:
    """What came before it waits for others only, and what goes nowhere is said to."""
    case = Case()
    case.send("a", 1, 7)
    assert case.answers == [(1, 0)]
    early, late = reader("p", 1), reader("q")
    case.read(early)
    case.send("a", 2, 8)
    case.send("a", 3, 9)
    case.read(late)
    case.send("a", 4, 10)
    case.step()
    assert taken(late) == [(3, [10])]
    assert case.home.waits_for(early.split) == (2, 4, 2)
    assert case.home.waits_for(late.split) == (4, 4, 0)


def test_a_reader_that_closes_takes_what_has_come_and_nothing_more() -> None:
    """Its end does not move, and what comes later does not wait for it."""
    case = Case()
    closing, other = reader("p", 1), reader("q")
    case.read(closing, other)
    case.send("a", 1, 1)
    case.send("a", 2, 2)
    case.home.end_reader(closing.split)
    case.send("a", 3, 3)
    case.home.end_reader(closing.split)
    case.step()
    assert taken(closing) == [(0, [1])]
    case.step()
    assert case.answers == [(1, 2), (2, 2), (3, 1)], "it took what came before it closed"
    assert taken(closing) == [(1, [2])]
    case.step()
    assert taken(closing) == []
    assert closing.rows == 2
    assert case.home.waits_for(closing.split) == (3, 3, 0), "for nothing, wherever the stream is"


def test_paused_and_failed_readers_take_nothing() -> None:
    """Sources wait for the one and not for the other."""
    case = Case()
    paused, failed = reader("p"), reader("q")
    case.read(paused, failed)
    paused.paused = True
    case.send("a", 1)
    failed.gone = True
    case.step()
    assert case.routed == []
    assert case.home.owners == ("p",)
    paused.paused = False
    case.step()
    assert case.answers == [(1, 1)]
    case.send("a", 2)
    case.home.remove_reader(paused.split)
    assert case.answers[-1] == (2, 0)
    assert case.home.owners == ("s",)


def test_a_repeated_batch_is_answered_when_the_first_one_is_routed() -> None:
    """And not before; the newest calls of a source that sends it again and again are answered."""
    case = Case()
    one = reader("q")
    one.paused = True
    case.read(one)
    for _ in range(REPEATS_MAX + 5):
        case.send("a", 1)
    assert case.routed == []
    one.paused = False
    case.step()
    assert case.routed == [("a", 1)] * (1 + REPEATS_MAX)
    assert case.home.rows == 1
    case.send("a", 1)
    assert len(case.routed) == 2 + REPEATS_MAX
    assert case.home.rows == 1
    assert len(taken(one)) == 1


def test_a_batch_without_rows_is_answered_at_once() -> None:
    """It counts for its source, and nobody gets it."""
    case = Case()
    one = reader("q", 1)
    case.read(one)
    case.send("a", 1)
    sent = Sent("a", 2, rows(), lambda *a: case.answers.append(a), case.refused.append)
    case.home.accept(sent, 0.0)
    case.send("a", 3)
    assert case.answers == [(0, 1)]
    case.step()
    assert case.answers == [(0, 1), (1, 1)]


def test_marks_are_bounded_and_none_is_dropped_that_its_source_may_need() -> None:
    """One that is over goes, and one that was silent for long; else the next source is refused."""
    case = Case()
    for n in range(SOURCES_MAX):
        case.send(f"s{n}", 1)
        case.now_s += 0.001
    with pytest.raises(Refusal, match=f"{SOURCES_MAX} sources that may send") as full:
        case.send("one-more", 1)
    assert full.value.domain is Domain.BUSY
    case.send("s0", 1)  # all of them are known: this one sends its batch again, and it is dropped
    case.send("s0", 2)
    assert case.home.rows == SOURCES_MAX + 1
    case.home.forget("s5")
    case.send("one-more", 1)
    case.now_s += RESEND_S_MAX
    case.send("another", 1)  # takes the place of s1, silent for longest
    for known in ("s0", "s2", "one-more", "another"):
        case.send(known, 1)
    assert case.home.rows == SOURCES_MAX + 3
    with pytest.raises(Refusal, match=r"knows no batch of source 's1' before batch 2") as lost:
        case.send("s1", 2)
    assert lost.value.details["reason"] == "source"
    assert len(case.home.handover({}).marks) == SOURCES_MAX


def test_a_source_whose_batch_waits_is_remembered_however_long_that_takes() -> None:
    """As for a query that is paused for hours."""
    case = Case()
    one = reader("q")
    one.paused = True
    case.read(one)
    case.send("patient", 1)
    for n in range(SOURCES_MAX - 1):
        case.send(f"s{n}", 1)
    case.now_s += 10 * RESEND_S_MAX
    with pytest.raises(Refusal, match="sources that may send"):
        case.send("one-more", 1)
    one.paused = False
    case.step()
    case.send("patient", 1)
    assert case.home.rows == SOURCES_MAX


def test_a_gap_is_refused_and_what_waits_is_sent_elsewhere_when_the_stream_goes() -> None:
    """A batch that was not taken in is never acknowledged."""
    case = Case()
    case.send("a", 1)
    with pytest.raises(InputError, match="sent batch 3 after 1"):
        case.send("a", 3)
    one = reader("q")
    one.paused = True
    case.read(one)
    case.send("a", 2)
    case.send("a", 2)
    case.home.drop()
    assert case.routed == [("a", 1)]
    assert [e.details["reason"] for e in case.refused] == ["home", "home"]


def test_a_stream_that_leaves_takes_nothing_in_and_its_next_home_goes_on() -> None:
    """With its rows, its marks, and what queries have taken; a repeated batch is still answered."""
    case = Case()
    one = reader("q")
    case.read(one)
    case.send("a", 1, 5, 6)
    case.home.task = replace(TASK, leaves=True)
    assert not case.home.idle, "a batch waits"
    case.step()
    assert case.home.idle
    case.send("a", 1)
    assert case.answers == [(2, 1), (2, 1)]
    with pytest.raises(Refusal, match="gets another home") as refused:
        case.send("a", 2)
    assert refused.value.details["reason"] == "home"
    handover = case.home.handover({QueryName("q"): one.rows})
    assert handover == Handover(2, {"a": 1}, {QueryName("q"): 2})
    there = Case(replace(TASK, handover=handover.to_json()))
    assert there.home.inherited == {"q": 2}
    again = reader("q")
    there.read(again)
    there.send("a", 1, 5, 6)
    there.send("a", 2, 7)
    there.step()
    assert taken(again) == [(2, [7])], "sequences go on"


def test_an_ended_stream_refuses_what_is_sent() -> None:
    """It has ended when what came is routed."""
    case = Case()
    one = reader("q")
    case.read(one)
    case.send("a", 1)
    case.home.task = replace(TASK, ended=True)
    assert not case.home.ended
    case.step()
    assert case.home.ended
    assert case.home.rows_left == 0
    with pytest.raises(InputError, match="stream 's' has ended"):
        case.send("a", 2)
