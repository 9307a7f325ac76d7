"""What a processor takes at once: calls by number, waiting batches by bytes."""

from __future__ import annotations

import threading

import pytest

from dovetail_processor.shell.data_plane import ByteRoom, CallRoom
from dovetail_proto.errors import Domain, Refusal

WAIT_S = 60.0
OPEN = threading.Event()  # a call that is not over


def test_one_call_too_many_is_refused_by_name_until_another_ends() -> None:
    """So that whoever calls knows why, and calls of other kinds are not kept out."""
    room = CallRoom("feeds", 2)
    with room.take():
        with room.take(), pytest.raises(Refusal, match="has 2 feeds already") as full, room.take():
            pass
        assert full.value.domain is Domain.BUSY
        with room.take():
            pass


def test_a_feed_that_finds_no_room_waits_for_it() -> None:
    """What waits is bounded in bytes, however many feeds there are; nothing is refused."""
    room, taken = ByteRoom(100), threading.Event()
    room.take(60, OPEN)

    def feed() -> None:
        room.take(60, OPEN)
        taken.set()

    waiting = threading.Thread(target=feed)
    waiting.start()
    assert not taken.is_set()
    room.give_back(60)
    assert taken.wait(WAIT_S)
    waiting.join()


def test_a_batch_larger_than_the_room_passes_alone() -> None:
    """Else it would wait for ever."""
    room = ByteRoom(100)
    room.take(500, OPEN)
    room.give_back(500)
    room.take(100, OPEN)


def test_a_call_that_is_over_waits_no_longer() -> None:
    """Its thread and its batch would stay for as long as the query is paused."""
    room, over = ByteRoom(100), threading.Event()
    assert room.take(60, over)
    over.set()
    assert not room.take(60, over)
    room.give_back(60)
    assert room.take(60, OPEN)
