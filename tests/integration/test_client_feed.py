"""A feed over calls that break: every batch is taken in once, in order."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pyarrow as pa
import pytest

from dovetail.feeding import WINDOW_BATCHES, Feed
from dovetail.rows import CUT_ROWS
from dovetail_proto.channels import Channels
from dovetail_proto.errors import Domain, InputError, Refusal
from dovetail_proto.feeds import IngestAck, IngestBatch
from dovetail_proto.transport import Security, Unreachable, abort, start_server
from dovetail_proto.wire.data import decode, encode
from kit.client_calls import none_left
from kit.cluster_faults import until

TOKEN = Security("secret")


class Home:
    """A stream's home that breaks a call after so many batches, before or after it took one in."""

    def __init__(self, break_after: list[int], *, forget_ack: bool = False) -> None:
        self.taken: list[int] = []  # values, each once
        self.batches = 0  # that came, however often
        self.over: list[int] = []  # last sequences of sources that said that they are over
        self.calls = 0
        self.busy = 0  # calls that are refused first
        self.gate = threading.Event()  # while it is not set, nothing is taken
        self.gate.set()
        self._break_after = break_after
        self._forget_ack = forget_ack
        self.last: dict[str, int] = {}  # sequence by source
        handler = grpc.stream_stream_rpc_method_handler(self._ingest)
        self._server = start_server(
            "127.0.0.1:0", TOKEN, {"dovetail.v1.DataPlane": {"Ingest": handler}}
        )
        self.address = f"127.0.0.1:{self._server.port}"

    def stop(self) -> None:
        """End every call."""
        self._server.stop(0)

    def _ingest(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        self.calls += 1
        if self.busy:
            self.busy -= 1
            abort(context, Refusal(Domain.BUSY, "it has 256 feeds already", reason="busy"))
        left = self._break_after.pop(0) if self._break_after else None
        for data in requests:
            sent = decode(IngestBatch, data)
            if sent.over:
                self.over.append(sent.sequence)
                continue
            self.batches += 1
            self.gate.wait()
            with pa.ipc.open_stream(sent.payload) as reader:
                values = reader.read_next_batch().column(0).unique().to_pylist()
            if -1 in values:
                abort(context, InputError("not this one", remedy="send another"))
            last = self.last.get(sent.source, 0)
            if sent.sequence > last:
                assert sent.sequence == last + 1
                self.last[sent.source] = sent.sequence
                self.taken += values
            if left is not None:
                left -= 1
                if left == 0 and self._forget_ack:
                    context.abort(grpc.StatusCode.UNAVAILABLE, "broken")
            yield encode(IngestAck(sent.sequence, len(self.taken), 1))
            if left == 0:
                context.abort(grpc.StatusCode.UNAVAILABLE, "broken")


@pytest.fixture
def channels() -> Iterator[Channels]:
    """The client's side."""
    made = Channels(TOKEN)
    yield made
    made.close()


def batches(*values: int, rows: int = 2) -> list[pa.RecordBatch]:
    """One batch per value."""
    return [pa.record_batch({"v": np.full(rows, value)}) for value in values]


@pytest.mark.parametrize("forget_ack", [False, True], ids=["after the answer", "before it"])
def test_a_broken_call_neither_loses_nor_repeats_a_batch(
    forget_ack: bool, channels: Channels
) -> None:
    """Breaking at the first batch, soon after and at the end of the window."""
    home = Home([1, 3, WINDOW_BATCHES, 2, 2], forget_ack=forget_ack)
    told: list[int] = []
    try:
        feed = Feed("trades", lambda: home.address, channels)
        large = batches(*range(40), rows=CUT_ROWS)  # so that none are merged
        assert feed.send(iter(large), told.append) == 40 * CUT_ROWS
        assert feed.send(batches(40)) == 2
    finally:
        home.stop()
    assert home.taken == list(range(41))
    assert home.calls > 5
    assert told == sorted(told)
    assert told[-1] == 40 * CUT_ROWS


def test_a_feed_follows_its_stream_to_another_home(channels: Channels) -> None:
    """The home is looked up again when a call breaks, and until somebody answers."""
    homes = [Home([2]), Home([])]
    asked = threading.Event()

    def where() -> str:
        if not asked.is_set():
            asked.set()
            return homes[0].address
        homes[1].last.update(homes[0].last)
        return homes[1].address

    try:
        assert Feed("trades", where, channels).send(batches(*range(10))) == 20
    finally:
        for home in homes:
            home.stop()
    assert sorted({*homes[0].taken, *homes[1].taken}) == list(range(10))
    assert homes[0].taken + homes[1].taken == list(range(10))


def test_a_call_stays_open_until_it_is_idle(channels: Channels) -> None:
    """Sendings that follow each other share a call and a source; then the home hears a goodbye."""
    home = Home([])
    try:
        feed = Feed("trades", lambda: home.address, channels, idle_s=0.2)
        for number in range(5):
            assert feed.send(batches(number)) == 2
        assert home.calls == 1
        until(lambda: bool(home.over), "the home hears that the source is over")
        assert home.over == [5]
        assert feed.send(batches(5)) == 2
        feed.close()
        assert home.over == [5, 1], "a feed that is closed is over at once"
        feed.close()
    finally:
        home.stop()
    assert home.taken == list(range(6))
    assert home.over == [5, 1]
    assert home.calls == 2


def test_a_feed_that_is_not_answered_says_no_goodbye(channels: Channels) -> None:
    """The home may have taken its last batch in: who sends it again must be known."""
    home = Home([])

    def rows() -> Iterator[pa.RecordBatch]:
        yield from batches(0)
        until(lambda: home.taken == [0], "the home had it")
        home.gate.clear()
        yield from batches(1)
        until(lambda: home.batches == 2, "the home has it")
        raise Refusal(Domain.MESSAGE, "the file ends here")

    try:
        with pytest.raises(Refusal, match="the file ends here"):
            Feed("trades", lambda: home.address, channels).send(rows())
    finally:
        home.gate.set()
        home.stop()
    assert home.over == []


def test_a_home_without_room_is_asked_again_for_a_while(channels: Channels) -> None:
    """It has too many calls, or sources: soon it may have room."""
    home = Home([])
    home.busy = 2
    try:
        assert Feed("trades", lambda: home.address, channels).send(batches(0, 1)) == 4
        assert home.taken == [0, 1]
        assert home.calls == 3
        home.busy = 1000
        with pytest.raises(Refusal, match="256 feeds already"):
            Feed("trades", lambda: home.address, channels, patience_s=0.5).send(batches(2))
    finally:
        home.stop()
    assert home.taken == [0, 1]


def test_a_call_that_broke_while_nothing_was_sent_is_made_anew(channels: Channels) -> None:
    """Nothing of it is unanswered, so the next sending does not fail."""
    homes = [Home([]), Home([])]
    homes[1].last = homes[0].last  # a new home knows what the former one has
    now = 0
    feed = Feed("trades", lambda: homes[now].address, channels)
    try:
        assert feed.send(batches(0)) == 2
        homes[0].stop()
        now = 1
        assert feed.send(batches(1)) == 2
    finally:
        feed.close()
        homes[1].stop()
    assert [home.taken for home in homes] == [[0], [1]]


def test_small_batches_that_wait_are_merged(channels: Channels) -> None:
    """In order, none lost, each counted: what waits for room travels together."""
    home = Home([])
    home.gate.clear()

    def rows() -> Iterator[pa.RecordBatch]:
        yield from batches(*range(1000))
        home.gate.set()

    feed = Feed("trades", lambda: home.address, channels)
    try:
        assert feed.send(rows()) == 2000
    finally:
        feed.close()
        home.stop()
    assert home.taken == list(range(1000))
    assert home.batches <= 2 * WINDOW_BATCHES


def test_a_refusal_ends_the_sending_and_tells_how_far_it_came(channels: Channels) -> None:
    """What the home refuses is raised here; what was routed before is counted."""
    home = Home([])
    try:
        with pytest.raises(InputError, match="not this one") as refused:
            Feed("trades", lambda: home.address, channels).send(batches(0, 1, 2, -1, 4))
    finally:
        home.stop()
    assert refused.value.details["rows_routed"] == 6
    assert home.taken[:3] == [0, 1, 2]


def test_a_home_that_stays_away_is_named_after_a_while(channels: Channels) -> None:
    """Whether its address is known or not."""
    with pytest.raises(Unreachable, match="sending rows"):
        Feed("trades", lambda: "127.0.0.1:9", channels, patience_s=0.5).send(batches(0))

    def away() -> str:
        raise Unreachable("p1 is away")

    with pytest.raises(Unreachable, match="p1 is away"):
        Feed("trades", away, channels, patience_s=0.5).send(batches(0))


def test_a_home_that_has_not_heard_of_the_stream_yet_is_asked_again(channels: Channels) -> None:
    """As when the stream was declared a moment ago."""
    home = Home([])
    tries = 0

    def where() -> str:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise Unreachable("not yet")
        return home.address

    try:
        assert Feed("trades", where, channels).send(batches(7)) == 2
    finally:
        home.stop()
    assert tries == 3


def test_a_batch_does_not_wait_for_the_one_after_it(channels: Channels) -> None:
    """A reader may be a live source: what it has given is sent before it gives more."""
    home = Home([])
    taken_before: list[int] = []

    def rows() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches(0, 1, 2)):
            yield batch
            until(lambda number=number: len(home.taken) > number, "the home had it")
            taken_before.append(number)

    try:
        assert Feed("trades", lambda: home.address, channels).send(rows()) == 6
    finally:
        home.stop()
    assert taken_before == [0, 1, 2]


def test_an_error_in_the_rows_is_raised_as_it_is(channels: Channels) -> None:
    """The call is ended, nothing hangs."""
    home = Home([])

    def rows() -> Iterator[pa.RecordBatch]:
        yield from batches(0, 1)
        raise Refusal(Domain.MESSAGE, "the file ends here")

    try:
        with pytest.raises(Refusal, match="the file ends here"):
            Feed("trades", lambda: home.address, channels).send(rows())
    finally:
        home.stop()


@pytest.mark.parametrize("last", [4, -1], ids=["sent", "refused"])
def test_a_feed_leaves_no_call_behind(last: int, channels: Channels) -> None:
    """A call that is collected at the interpreter's end may keep the program from ending."""
    home = Home([2])
    try:
        with none_left(), contextlib.suppress(InputError):
            feed = Feed("trades", lambda: home.address, channels)
            feed.send(batches(0, 1, 2, 3, last))
            feed.close()
    finally:
        home.stop()
