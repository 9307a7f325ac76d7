"""A stream at home: which sources it remembers, and what it answers to what was sent before."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from dovetail_processor.cluster.ingress import REPEATS_MAX, RESEND_S_MAX, Ingress, Sent
from dovetail_proto.assignment import StreamTask
from dovetail_proto.errors import Domain, DovetailError, InputError, Refusal
from dovetail_proto.handover import SOURCES_MAX
from dovetail_proto.ids import StreamName
from dovetail_proto.roots import Roots

SCHEMA = pa.schema([("k", pa.int64())])
ROW = pa.record_batch({"k": [1]}, schema=SCHEMA)


@dataclass
class Home:
    """A stream on virtual time, and what its sources were told."""

    now_s: float = 0.0
    routed: list[tuple[str, int]] = field(default_factory=list)
    refused: list[DovetailError] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.stream = Ingress(
            StreamTask(StreamName("s"), SCHEMA, False), 1, Roots(), lambda: self.now_s
        )

    def send(self, source: str, sequence: int, *, route: bool = True) -> None:
        """A batch comes, and is routed if nothing keeps it."""
        told = (source, sequence)
        sent = Sent(source, sequence, ROW, lambda *_: self.routed.append(told), self.refused.append)
        self.stream.accept(sent, 1)
        if route:
            self.route()

    def route(self) -> None:
        """All that waits goes on."""
        while self.stream.ready:
            taken = self.stream.next()
            assert taken is not None
            assert taken[1] is not None
            taken[1](self.stream.rows, 1)


def test_a_repeated_batch_is_answered_when_the_first_one_is_routed() -> None:
    """And not before; the newest calls of a source that sends it again and again are answered."""
    home = Home()
    for _ in range(REPEATS_MAX + 5):
        home.send("a", 1, route=False)
    assert home.routed == []
    home.route()
    assert home.routed == [("a", 1)] * (1 + REPEATS_MAX)
    assert home.stream.rows == 1
    home.send("a", 1)
    assert len(home.routed) == 2 + REPEATS_MAX
    assert home.stream.rows == 1


def test_marks_are_bounded_and_none_is_dropped_that_its_source_may_need() -> None:
    """One that is over goes, and one that was silent for long; else the next source is refused."""
    home = Home()
    for n in range(SOURCES_MAX):
        home.send(f"s{n}", 1)
        home.now_s += 0.001
    with pytest.raises(Refusal, match=f"{SOURCES_MAX} sources that may send") as full:
        home.send("one-more", 1)
    assert full.value.domain is Domain.BUSY
    home.send("s0", 1)  # all of them are known: this one sends its batch again, and it is dropped
    home.send("s0", 2)
    assert home.stream.rows == SOURCES_MAX + 1
    home.stream.forget("s5")
    home.send("one-more", 1)
    home.now_s += RESEND_S_MAX
    home.send("another", 1)  # takes the place of s1, silent for longest
    for known in ("s0", "s2", "one-more", "another"):
        home.send(known, 1)
    assert home.stream.rows == SOURCES_MAX + 3
    with pytest.raises(Refusal, match=r"knows no batch of source 's1' before batch 2") as lost:
        home.send("s1", 2)
    assert lost.value.details["reason"] == "source"
    assert len(home.stream.handover({}).marks) == SOURCES_MAX


def test_a_source_whose_batch_waits_is_remembered_however_long_that_takes() -> None:
    """As for a query that is paused for hours."""
    home = Home()
    home.send("patient", 1, route=False)
    for n in range(SOURCES_MAX - 1):
        home.send(f"s{n}", 1, route=False)
    home.now_s += 10 * RESEND_S_MAX
    with pytest.raises(Refusal, match="sources that may send"):
        home.send("one-more", 1)
    home.route()
    home.send("patient", 1)
    assert home.stream.rows == SOURCES_MAX


def test_a_gap_is_refused_and_what_waits_is_sent_elsewhere_when_the_stream_goes() -> None:
    """A batch that was not taken in is never acknowledged."""
    home = Home()
    home.send("a", 1)
    with pytest.raises(InputError, match="sent batch 3 after 1"):
        home.send("a", 3)
    home.send("a", 2, route=False)
    home.send("a", 2, route=False)
    home.stream.drop()
    assert home.routed == [("a", 1)]
    assert [e.details["reason"] for e in home.refused] == ["home", "home"]
