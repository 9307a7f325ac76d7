"""What both stores promise: whole writes, once and in order, by the manager that leads only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from threading import Barrier, Thread

import pytest

from dovetail_manager.journal import Write
from dovetail_manager.store import Leadership, Store, open_store
from dovetail_manager.store.errors import BadWrite, Fenced, StaleWrite
from dovetail_manager.store.fencing import (
    KEEP_MAX,
    NUMBER_MAX,
    RECORD_BYTES_MAX,
    VALUE_BYTES_MAX,
    WRITE_BYTES_MAX,
)
from dovetail_proto.errors import ConfigError
from dovetail_proto.ids import Epoch

Opened = Callable[[], Store]


def after(lead: Leadership, puts: Mapping[str, str | None], *, ahead: int = 1) -> Write:
    """The write that comes `ahead` writes after what the claim found."""
    return Write(lead.epoch, lead.revision + ahead, puts)


def test_an_empty_store_gives_epoch_one_and_nothing_else(opened: Opened) -> None:
    """Nothing is there before somebody writes."""
    store = opened()
    assert store.entries() == {}
    assert store.get("map/q") is None
    assert store.records("adaptation/q", newest=10) == []
    assert store.claim("first") == (Epoch(1), 0, {})


def test_what_was_written_is_there_for_the_next_manager(opened: Opened) -> None:
    """Under the next epoch, at the same revision, in the order of keys."""
    first = opened()
    lead = first.claim("first")
    first.write(after(lead, {"move/b": "2", "map/q": '{"é": "\\u0000"}', "move/a": "1"}))
    first.write(after(lead, {"move/b": None, "move/c": "", "gone": None}, ahead=2))
    first.close()
    second = opened()
    epoch, revision, entries = second.claim("second")
    assert (epoch, revision) == (2, 2)
    assert list(entries.items()) == [("map/q", '{"é": "\\u0000"}'), ("move/a", "1"), ("move/c", "")]
    assert second.entries("move/") == {"move/a": "1", "move/c": ""}
    assert second.entries("nothing/") == {}
    assert second.get("move/c") == ""
    assert second.get("move/b") is None


def test_a_write_repeated_is_done_once(opened: Opened) -> None:
    """By its contents: it needs not be the same object, nor the same order of puts."""
    store = opened()
    lead = store.claim("m")
    store.write(after(lead, {"a": "1", "b": "2"}))
    store.write(after(lead, {"b": "2", "a": "1"}))
    assert opened().claim("n").revision == 1


def test_only_the_next_revision_is_taken(opened: Opened) -> None:
    """Not a late one, not one too far, not another one in a place that is taken."""
    store = opened()
    lead = store.claim("m")
    store.write(after(lead, {"a": "1"}))
    store.write(after(lead, {"a": "2"}, ahead=2))
    with pytest.raises(StaleWrite, match=r"revision 1 cannot follow revision 2.*late"):
        store.write(after(lead, {"a": "1"}))
    with pytest.raises(StaleWrite, match="revision 2 cannot follow revision 2"):
        store.write(after(lead, {"a": "other"}, ahead=2))
    with pytest.raises(StaleWrite, match=r"revision 4 cannot follow revision 2.*lost"):
        store.write(after(lead, {"a": "4"}, ahead=4))
    assert store.entries() == {"a": "2"}


def test_a_new_epoch_fences_the_older_manager(opened: Opened) -> None:
    """Whatever it writes from then on is refused by the name of who replaced it."""
    old, new = opened(), opened()
    was = old.claim("old:1")
    old.write(after(was, {"a": "1"}))
    old.record(was.epoch, "adaptation/q", {1: "x"}, keep=5)
    now = new.claim("new:2")
    for write in (after(was, {"a": "2"}, ahead=2), after(was, {"a": "1"})):
        with pytest.raises(Fenced, match=r"epoch 1 was replaced by 'new:2' \(epoch 2\)"):
            old.write(write)
    with pytest.raises(Fenced):
        old.record(was.epoch, "adaptation/q", {2: "y"}, keep=5)
    new.write(after(now, {"b": "2"}))
    assert new.entries() == {"a": "1", "b": "2"}
    assert new.records("adaptation/q", newest=5) == [(1, "x")]


def test_an_epoch_alone_does_not_let_a_stranger_write(opened: Opened) -> None:
    """It must have been claimed through the same handle."""
    lead = opened().claim("m")
    with pytest.raises(Fenced, match="does not lead"):
        opened().write(after(lead, {"a": "1"}))


def test_a_manager_may_take_over_from_itself(opened: Opened) -> None:
    """Its machine of the former epoch is fenced like any other."""
    store = opened()
    was, now = store.claim("m"), store.claim("m")
    with pytest.raises(Fenced, match="epoch 1 was replaced by 'm'"):
        store.write(after(was, {"a": "1"}))
    store.write(after(now, {"a": "2"}))


def test_many_managers_may_open_a_new_store_at_once(new_address: Callable[[], str]) -> None:
    """One of them makes it; the others wait for that and find it made, never half of it."""
    for _ in range(12):
        epochs: list[Epoch] = []
        start = partial(_open_and_claim, new_address(), Barrier(6, timeout=60), epochs)
        run_all([Thread(target=start) for _ in range(6)])
        assert sorted(epochs) == [1, 2, 3, 4, 5, 6]


def _open_and_claim(address: str, barrier: Barrier, epochs: list[Epoch]) -> None:
    barrier.wait()
    with closing(open_store(address, patience_s=60)) as store:
        epochs.append(store.claim("m").epoch)


def test_of_many_managers_at_once_exactly_one_stays(opened: Opened) -> None:
    """Epochs are given once each, and only the last one's write is done."""
    handles = [opened() for _ in range(6)]
    barrier = Barrier(len(handles), timeout=60)
    claims: list[Leadership] = []
    fenced: list[Epoch] = []

    def manage(store: Store) -> None:
        barrier.wait()
        lead = store.claim("m")
        claims.append(lead)
        barrier.wait()
        try:
            store.write(after(lead, {"winner": str(lead.epoch)}))
        except Fenced:
            fenced.append(lead.epoch)

    run_all([Thread(target=manage, args=(h,)) for h in handles])
    assert sorted(o.epoch for o in claims) == [1, 2, 3, 4, 5, 6]
    assert sorted(fenced) == [1, 2, 3, 4, 5]
    assert handles[0].entries() == {"winner": "6"}


def test_of_many_writes_of_one_revision_exactly_one_is_done(opened: Opened) -> None:
    """The compare and the set cannot be torn apart, not even by the same manager's threads."""
    store = opened()
    lead = store.claim("m")
    barrier = Barrier(6, timeout=60)
    done: list[str] = []

    def write(value: str) -> None:
        barrier.wait()
        try:
            store.write(after(lead, {"a": value}))
            done.append(value)
        except StaleWrite:
            pass

    run_all([Thread(target=write, args=(str(i),)) for i in range(6)])
    assert [store.get("a")] == done


def run_all(threads: list[Thread]) -> None:
    """Start them and wait for them."""
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# Histories --------------------------------------------------------------------------------------


def test_a_history_keeps_its_newest_records(opened: Opened) -> None:
    """In the order of numbers, whatever the order of writing."""
    store = opened()
    epoch = store.claim("m").epoch
    store.record(epoch, "adaptation/q", {n: f"r{n}" for n in (10, 9, 2, 1)}, keep=3)
    assert store.records("adaptation/q", newest=9) == [(10, "r10"), (9, "r9"), (2, "r2")]
    store.record(epoch, "adaptation/q", {11: "r11"}, keep=3)
    assert store.records("adaptation/q", newest=2) == [(11, "r11"), (10, "r10")]
    assert store.records("adaptation/q", newest=9, before=11) == [(10, "r10"), (9, "r9")]
    assert store.records("adaptation/q", newest=0) == []
    assert store.records("adaptation/other", newest=9) == []


def test_a_record_repeated_or_amended_stays_one_record(opened: Opened) -> None:
    """So a record whose answer was lost may be written again, and a count may grow."""
    store = opened()
    epoch = store.claim("m").epoch
    for text in ("nothing ×1", "nothing ×1", "nothing ×2"):
        store.record(epoch, "h", {7: text, 6: "same"}, keep=10)
    assert store.records("h", newest=9) == [(7, "nothing ×2"), (6, "same")]


def test_a_history_may_be_emptied(opened: Opened) -> None:
    """When its query is gone; other histories stay."""
    store = opened()
    epoch = store.claim("m").epoch
    store.record(epoch, "h", {1: "a", 2: "b"}, keep=10)
    store.record(epoch, "i", {1: "a"}, keep=10)
    store.record(epoch, "h", {}, keep=0)
    assert store.records("h", newest=9) == []
    assert store.records("i", newest=9) == [(1, "a")]


# Refusals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["", "A", "a b", "a//b", "/a", "a/", "a/b/c/d/e", "é", "a" * 65])
def test_keys_that_are_no_names_are_refused(opened: Opened, key: str) -> None:
    """Before anything is sent."""
    store = opened()
    lead = store.claim("m")
    with pytest.raises(BadWrite, match="is not allowed"):
        store.write(after(lead, {"good": "1", key: "1"}))
    with pytest.raises(BadWrite, match="is not allowed"):
        store.record(lead.epoch, key, {1: "a"}, keep=1)
    with pytest.raises(BadWrite):
        store.get(key)
    assert store.entries() == {}


def test_sizes_are_bounded(opened: Opened) -> None:
    """A value of the greatest size is taken; a byte more is not, nor are too many of them."""
    store = opened()
    lead = store.claim("m")
    largest = "x" * VALUE_BYTES_MAX
    store.write(after(lead, {"map/q": largest}))
    assert store.get("map/q") == largest
    with pytest.raises(BadWrite, match=f"'map/q' takes {VALUE_BYTES_MAX + 1} bytes"):
        store.write(after(lead, {"map/q": largest + "x"}, ahead=2))
    with pytest.raises(BadWrite, match=f"more than {WRITE_BYTES_MAX}"):
        store.write(after(lead, {"a": largest, "b": largest, "c": largest}, ahead=2))
    with pytest.raises(BadWrite, match="'h 1' takes"):
        store.record(lead.epoch, "h", {1: "x" * (RECORD_BYTES_MAX + 1)}, keep=1)
    for number in (-1, NUMBER_MAX):
        with pytest.raises(BadWrite, match=f"record {number} of history 'h'"):
            store.record(lead.epoch, "h", {number: "a"}, keep=1)
    for keep in (-1, KEEP_MAX + 1):
        with pytest.raises(BadWrite, match=f"cannot keep {keep} records"):
            store.record(lead.epoch, "h", {1: "a"}, keep=keep)


def test_values_that_are_no_text_are_refused(opened: Opened) -> None:
    """A lone surrogate has no bytes."""
    store = opened()
    with pytest.raises(BadWrite, match="'a' is not text"):
        store.write(after(store.claim("m"), {"a": "\ud800"}))
    with pytest.raises(BadWrite, match="cannot be called"):
        store.claim("two\nlines")


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        ("http://localhost/", "cannot be of the kind 'http'"),
        ("sqlite:", "is not the path of a store"),
        ("", "is not the path of a store"),
        ("sqlite:/nowhere/at/all.db", "cannot be opened: No such file"),
        ("redis://user:secret@localhost:port/", "not the address of a Redis"),
    ],
)
def test_addresses_of_no_store_are_refused(bad: str, problem: str) -> None:
    """With what is wrong, and without the password."""
    with pytest.raises(ConfigError, match=problem) as caught:
        open_store(bad)
    assert "secret" not in str(caught.value)
