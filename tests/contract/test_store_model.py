"""Both stores against a dict: random managers, writes and records, and the same answers."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_manager.journal import Write
from dovetail_manager.store import Store, open_store
from dovetail_manager.store.errors import Fenced, StaleWrite
from dovetail_proto.ids import Epoch
from kit.redis_server import RedisServer

MANAGERS = 3


@dataclass
class Model:
    """What a store is, without durability: an epoch, the writes so far, entries, histories."""

    epochs: list[int] = field(default_factory=lambda: [0] * MANAGERS)  # epoch by manager
    writes: list[Write] = field(default_factory=list)
    entries: dict[str, str] = field(default_factory=dict)
    histories: dict[str, dict[int, str]] = field(default_factory=dict)

    def leads(self, manager: int) -> bool:
        """Whether it holds the greatest epoch."""
        return 0 < self.epochs[manager] == max(self.epochs)

    def write(self, manager: int, w: Write) -> str:
        """What the store has to say to a write."""
        if not self.leads(manager) or w.epoch != self.epochs[manager]:
            return "fenced"
        if self.writes and w == self.writes[-1]:
            return "ok"
        if w.revision != len(self.writes) + 1:
            return "stale"
        self.writes.append(w)
        self.entries.update({k: v for k, v in w.puts.items() if v is not None})
        for gone in [k for k, v in w.puts.items() if v is None]:
            self.entries.pop(gone, None)
        return "ok"

    def record(self, manager: int, name: str, records: dict[int, str], keep: int) -> str:
        """What the store has to say to records."""
        if not self.leads(manager):
            return "fenced"
        both = {**self.histories.get(name, {}), **records}
        self.histories[name] = {
            n: both[n] for n in sorted(both)[len(both) - min(keep, len(both)) :]
        }
        return "ok"

    def records(self, name: str, newest: int, before: int | None) -> list[tuple[int, str]]:
        """The newest records."""
        known = self.histories.get(name, {})
        below = [n for n in known if before is None or n < before]
        return [(n, known[n]) for n in sorted(below, reverse=True)[:newest]]


keys = st.sampled_from(["a", "a/b", "ab", "map/q", "move/0000000001-00000001"])
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
managers = st.integers(0, MANAGERS - 1)
histories = st.sampled_from(["h", "h/i"])
numbers = st.integers(0, 12)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("claim"), managers),
        st.tuples(
            st.just("write"),
            managers,
            st.sampled_from([1, 1, 1, 1, 0, -1, 2]),  # the next revision, mostly
            st.dictionaries(keys, st.none() | texts, max_size=4),
        ),
        st.tuples(st.just("repeat"), managers),
        st.tuples(
            st.just("record"),
            managers,
            histories,
            st.dictionaries(numbers, texts, max_size=4),
            st.integers(0, 5),
        ),
        st.tuples(st.just("read"), managers, histories, numbers, st.none() | numbers),
        st.tuples(st.just("list"), managers, st.sampled_from(["", "a", "a/", "m", "z"])),
    ),
    max_size=25,
)


@pytest.fixture(scope="session", params=["sqlite", "redis"])
def place(request: pytest.FixtureRequest) -> str:
    """The kind of store, or where its server is."""
    if request.param == "sqlite":
        return "sqlite"
    server: RedisServer = request.getfixturevalue("redis_server")
    return server.fresh_url()


def emptied(place: str) -> Iterator[str]:
    """The address of an empty store; a generator, so that its folder goes afterwards."""
    if place == "sqlite":
        with tempfile.TemporaryDirectory() as folder:
            yield os.path.join(folder, "manager.db")
    else:
        with redis.Redis.from_url(place) as client:
            client.flushdb()
        yield place


@settings(max_examples=30)
@given(operations=operations)
def test_a_store_answers_as_a_dict_would(place: str, operations: list[tuple[object, ...]]) -> None:
    """Whatever three managers try, in whatever order."""
    for address in emptied(place):
        handles = [open_store(address) for _ in range(MANAGERS)]
        try:
            compare(handles, operations)
        finally:
            for handle in handles:
                handle.close()


def compare(handles: list[Store], operations: list[tuple[object, ...]]) -> None:
    """Do each operation on the store and on the model."""
    model = Model()
    for operation in operations:
        match operation:
            case ("claim", int(who)):
                claim = handles[who].claim(f"m{who}")
                model.epochs[who] = max(model.epochs) + 1
                assert claim == (model.epochs[who], len(model.writes), model.entries)
            case ("write", int(who), int(ahead), dict(puts)):
                w = Write(Epoch(model.epochs[who]), len(model.writes) + ahead, puts)
                assert said(handles[who], w) == model.write(who, w)
            case ("repeat", int(who)) if model.writes:
                assert said(handles[who], model.writes[-1]) == model.write(who, model.writes[-1])
            case ("record", int(who), str(name), dict(records), int(keep)):
                try:
                    handles[who].record(Epoch(model.epochs[who]), name, records, keep=keep)
                    verdict = "ok"
                except Fenced:
                    verdict = "fenced"
                assert verdict == model.record(who, name, records, keep)
            case ("read", int(who), str(name), int(newest), before):
                assert before is None or isinstance(before, int)
                read = handles[who].records(name, newest=newest, before=before)
                assert read == model.records(name, newest, before)
            case ("list", int(who), str(prefix)):
                expected = {k: v for k, v in model.entries.items() if k.startswith(prefix)}
                assert handles[who].entries(prefix) == expected
                assert {k: handles[who].get(k) for k in expected} == expected


def said(store: Store, w: Write) -> str:
    """The store's answer in a word."""
    try:
        store.write(w)
    except Fenced:
        return "fenced"
    except StaleWrite:
        return "stale"
    return "ok"
