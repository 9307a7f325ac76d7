"""The link from a split to an instance: in order and once, within credit, markers without it."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from dovetail_processor.moves.link import Inbox, Outbox

SIZES = st.lists(st.integers(1, 5), max_size=40)


@given(SIZES, st.integers(0, 1 << 32), st.integers(5, 20))
def test_items_arrive_once_and_in_order_over_any_network(
    sizes: list[int], seed: int, window: int
) -> None:
    """Frames and answers are lost, repeated and reordered; credit is never exceeded."""
    chance = Random(seed)
    outbox: Outbox[int] = Outbox(resend_s=1.0)
    inbox = Inbox()
    for item, size in enumerate(sizes):
        outbox.offer(item, size)
    wire: list[tuple[int, int | None]] = []
    arrived: list[int] = []
    now_s = 0.0
    for _ in range(2000):
        if len(arrived) == len(sizes):
            break
        now_s += 0.6
        wire += outbox.flush(now_s)
        wire += outbox.resend(now_s)
        chance.shuffle(wire)
        while wire and chance.random() < 0.7:
            number, item = wire.pop()
            if chance.random() < 0.2:
                continue
            if chance.random() < 0.2:
                wire.append((number, item))
            if item is not None and inbox.take(number, sizes[item]):
                arrived.append(item)
            inbox.grant(max(0, window - inbox.outstanding_bytes))
            if chance.random() < 0.8:
                outbox.acknowledged(inbox.number, inbox.allowed_bytes, now_s)
            assert 0 <= inbox.outstanding_bytes <= window
            assert outbox.sent_bytes <= inbox.allowed_bytes
            assert inbox.taken_bytes <= inbox.allowed_bytes
    assert arrived == list(range(len(sizes)))


def test_a_marker_needs_no_credit_and_follows_what_was_sent() -> None:
    """It overtakes what waits, which was never sent and is withdrawn when its group is held."""
    outbox: Outbox[str] = Outbox(resend_s=1.0)
    outbox.acknowledged(0, 2, 0.0)
    for item in ("a1", "b1", "a2", "b2"):
        outbox.offer(item, 1)
    assert outbox.flush(0.0) == [(1, "a1"), (2, "b1")]
    assert outbox.withdraw(lambda item: item.startswith("a")) == [("a2", 1)]
    assert outbox.mark("end of a", 0.0) == [(3, "end of a")]
    assert outbox.flush(0.0) == []
    outbox.acknowledged(3, 3, 0.1)
    assert outbox.flush(0.1) == [(4, "b2")]


def test_a_link_that_lacks_only_credit_asks_for_it() -> None:
    """The answer that granted it may have been lost: a probe, frame 0, brings another."""
    outbox: Outbox[str] = Outbox(resend_s=1.0)
    outbox.offer("a", 1)
    assert outbox.flush(5.0) == []
    assert outbox.resend(5.0) == [(0, None)]
    assert outbox.resend(5.5) == []
    assert not Inbox().take(0, 0)


def test_impossible_answers_are_ignored() -> None:
    """An acknowledgement of what was never sent, or an older one, changes nothing."""
    outbox: Outbox[str] = Outbox(resend_s=1.0)
    outbox.acknowledged(0, 10, 0.0)
    outbox.offer("a", 1)
    outbox.flush(0.0)
    outbox.acknowledged(9, 1000, 0.0)
    assert (len(outbox.unacked), outbox.allowed_bytes) == (1, 10)
    outbox.acknowledged(1, 12, 0.0)
    outbox.acknowledged(0, 11, 0.0)
    assert (len(outbox.unacked), outbox.allowed_bytes) == (0, 12)
