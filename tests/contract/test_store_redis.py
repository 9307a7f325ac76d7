"""What is Redis's own: settings that are refused, lost answers, a server that is killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from dovetail_manager.journal import Write
from dovetail_manager.store import Leadership, Store, open_store
from dovetail_manager.store.errors import Fenced, StaleWrite, StoreDamaged, StoreUnavailable
from dovetail_manager.store.redis_settings import check_settings
from dovetail_proto.errors import ConfigError
from kit.redis_server import BreakingProxy, RedisServer

GOOD_INFO = {"redis_version": "7.2.4", "role": "master", "cluster_enabled": 0}
GOOD = {
    "appendonly": "yes",
    "appendfsync": "always",
    "no-appendfsync-on-rewrite": "no",
    "maxmemory-policy": "noeviction",
}


# Settings ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "value", "remedy"),
    [
        ("appendonly", "no", "CONFIG SET appendonly yes"),
        ("appendfsync", "everysec", "CONFIG SET appendfsync always"),
        ("appendfsync", "no", "CONFIG SET appendfsync always"),
        ("no-appendfsync-on-rewrite", "yes", "CONFIG SET no-appendfsync-on-rewrite no"),
        ("maxmemory-policy", "allkeys-lru", "CONFIG SET maxmemory-policy noeviction"),
    ],
)
def test_a_server_that_may_forget_is_refused_with_its_remedy(
    redis_server: RedisServer, setting: str, value: str, remedy: str
) -> None:
    """And taken as soon as the remedy was applied."""
    with redis.Redis(port=redis_server.port) as admin:
        before = admin.config_get(setting)[setting]
        admin.config_set(setting, value)
        try:
            with pytest.raises(ConfigError, match=f"{setting} is '{value}'.*run {remedy}; CONFIG"):
                open_store(redis_server.fresh_url())
            admin.execute_command(remedy)
            open_store(redis_server.fresh_url()).close()
        finally:
            admin.config_set(setting, before)


@pytest.mark.parametrize(
    ("info", "problem"),
    [
        ({"redis_version": "6.0.16"}, "is version 6.0.16; use Redis 6.2 or newer"),
        ({"redis_version": "5.0"}, "is version 5.0"),
        ({"redis_version": ""}, "is version"),
        ({"role": "slave"}, "is a slave; use its master"),
        ({"cluster_enabled": 1}, "is a Redis Cluster"),
    ],
)
def test_servers_of_the_wrong_kind_are_refused(info: dict[str, object], problem: str) -> None:
    """Old versions, replicas and sharded clusters."""
    check_settings("it", GOOD_INFO, GOOD)
    check_settings("it", GOOD_INFO | {"redis_version": "6.2"}, GOOD)
    check_settings("it", GOOD_INFO | {"redis_version": "10.0.0-rc1"}, GOOD)
    with pytest.raises(ConfigError, match=problem):
        check_settings("it", GOOD_INFO | info, GOOD)


def test_all_settings_are_told_at_once() -> None:
    """So that one visit to the server is enough."""
    with pytest.raises(ConfigError) as caught:
        check_settings("it", GOOD_INFO, {})
    assert caught.value.remedy == (
        "run CONFIG SET appendonly yes; CONFIG SET appendfsync always; "
        "CONFIG SET no-appendfsync-on-rewrite no; CONFIG SET maxmemory-policy noeviction; "
        "CONFIG REWRITE"
    )


def test_users_that_may_not_do_what_is_needed_are_told(redis_server: RedisServer) -> None:
    """A wrong password, and a user who may not see the settings; no password is shown."""
    with redis.Redis(port=redis_server.port) as admin:
        admin.execute_command("ACL SETUSER blind on >secret ~* +@all -config")
        for user, problem in [
            ("blind:wrong", "refuses the user: .*; put the right user"),
            ("blind:secret", "does not show its settings: .*; allow its user the commands INFO"),
        ]:
            with pytest.raises(ConfigError, match=problem) as caught:
                open_store(f"redis://{user}@127.0.0.1:{redis_server.port}/0")
            assert user.split(":")[1] not in str(caught.value)


def test_a_store_of_another_version_or_kind_is_refused(redis_server: RedisServer) -> None:
    """Nothing of it is read."""
    for field, problem in [
        ({"schema": "1"}, "is of version 1, this Dovetail reads version 2"),
        ({"schema": "x"}, "is not the head of a store"),
        ({"name": "x"}, "is not the head of a store"),
        ({"schema": "1", "epoch": "1", "revision": b"\xff"}, "is not text"),
    ]:
        url = redis_server.fresh_url()
        with redis.Redis.from_url(url) as client:
            client.hset("dovetail:head", mapping=field)
        with pytest.raises(StoreDamaged, match=problem):
            open_store(url)


# Lost connections -------------------------------------------------------------------------------


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[BreakingProxy]:
    """A way to the server that breaks on demand."""
    made = BreakingProxy(redis_server.port)
    yield made
    made.close()


Held = tuple[Store, Leadership, str]


@pytest.fixture
def held(redis_server: RedisServer, proxy: BreakingProxy) -> Iterator[Held]:
    """A manager that leads, behind the proxy, and the address that does not break."""
    url = redis_server.fresh_url()
    store = open_store(url.replace(f":{redis_server.port}/", f":{proxy.port}/"))
    yield store, store.claim("m"), url
    store.close()


def test_a_write_whose_answer_is_lost_is_done_once(proxy: BreakingProxy, held: Held) -> None:
    """The repetition finds its id in the head, and does not write again."""
    store, lead, url = held
    proxy.lose_answers = 1
    store.write(Write(lead.epoch, 1, {"a": "1"}))
    assert proxy.broken == 1
    assert open_store(url).claim("other")[1:] == (1, {"a": "1"})


def test_a_write_that_is_lost_is_done_by_its_repetition(proxy: BreakingProxy, held: Held) -> None:
    """However often it is lost, within the patience; here both ways in turn."""
    store, lead, _ = held
    proxy.lose_requests, proxy.lose_answers = 3, 2
    store.write(Write(lead.epoch, 1, {"a": "1"}))
    store.write(Write(lead.epoch, 2, {"a": "2"}))
    assert proxy.broken == 5
    assert store.entries() == {"a": "2"}


def test_a_claim_whose_answer_is_lost_takes_one_epoch(proxy: BreakingProxy, held: Held) -> None:
    """It is told by its random id."""
    store, _, _ = held
    proxy.lose_answers = 1
    lead = store.claim("m")
    assert (lead.epoch, proxy.broken) == (2, 1)
    store.write(Write(lead.epoch, 1, {"a": "1"}))


def test_a_record_whose_answer_is_lost_is_one_record(proxy: BreakingProxy, held: Held) -> None:
    """It is put by its number."""
    store, lead, _ = held
    proxy.lose_answers = 1
    store.record(lead.epoch, "h", {1: "a"}, keep=5)
    assert proxy.broken == 1
    assert store.records("h", newest=5) == [(1, "a")]


def test_an_error_after_lost_answers_says_that_the_outcome_is_unknown(
    redis_server: RedisServer, proxy: BreakingProxy
) -> None:
    """The same write may be repeated later, and is done once."""
    url = redis_server.fresh_url().replace(f":{redis_server.port}/", f":{proxy.port}/")
    store = open_store(url, patience_s=3.0)
    lead = store.claim("m")
    write = Write(lead.epoch, 1, {"a": "1"})
    proxy.lose_requests = 1000
    with pytest.raises(StoreUnavailable, match="whether revision 1 was written is unknown") as e:
        store.write(write)
    assert e.value.unknown
    assert e.value.retry
    proxy.lose_requests = 0
    store.write(write)
    store.write(write)
    with pytest.raises(StaleWrite):
        store.write(Write(lead.epoch, 1, {"a": "other"}))
    store.close()


def test_a_manager_fenced_while_its_answer_was_lost_hears_both(
    redis_server: RedisServer, proxy: BreakingProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its write may have been done before the successor's claim; the successor has read it."""
    url = redis_server.fresh_url()
    store = open_store(url.replace(f":{redis_server.port}/", f":{proxy.port}/"))
    successor = open_store(url)
    lead = store.claim("m")
    found: list[Leadership] = []
    # The pause between the two attempts is when the other manager comes.
    monkeypatch.setattr(
        "dovetail_manager.store.redis_store.time.sleep",
        lambda _: found.append(successor.claim("n")),
    )
    proxy.lose_answers = 1
    with pytest.raises(Fenced, match=r"replaced by 'n'.*whether revision 1 was written is unknown"):
        store.write(Write(lead.epoch, 1, {"a": "1"}))
    assert found == [(2, 1, {"a": "1"})]
    store.close()
    successor.close()


# A server that dies -----------------------------------------------------------------------------


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[RedisServer]:
    """A server for one test, to be killed."""
    server = RedisServer(tmp_path / "redis")
    server.start()
    yield server
    server.stop()


def test_a_killed_server_has_all_that_it_confirmed_when_it_is_back(mortal: RedisServer) -> None:
    """Entries, histories and the lead: the same manager goes on by the same handle."""
    store = open_store(mortal.url, patience_s=3.0)
    lead = store.claim("m")
    for revision in range(1, 21):
        store.write(Write(lead.epoch, revision, {"a": str(revision), f"k/{revision}": "x"}))
    store.record(lead.epoch, "h", {1: "r"}, keep=5)
    mortal.kill()
    with pytest.raises(StoreUnavailable, match=r"did not answer.*nothing was changed") as caught:
        store.write(Write(lead.epoch, 21, {"a": "21"}))
    assert not caught.value.unknown
    with pytest.raises(StoreUnavailable, match=rf"Redis at 127.0.0.1:{mortal.port} did not"):
        open_store(mortal.url, patience_s=0.1)
    mortal.start()
    assert store.get("a") == "20"
    store.write(Write(lead.epoch, 21, {"a": "21"}))
    assert len(store.entries("k/")) == 20
    assert store.records("h", newest=5) == [(1, "r")]
    store.close()


def test_a_server_that_lost_its_data_is_found_out(mortal: RedisServer) -> None:
    """A manager does not go on as if nothing was: neither its writes nor its epoch are there."""
    store = open_store(mortal.url)
    lead = store.claim("m")
    store.write(Write(lead.epoch, 1, {"a": "1"}))
    with redis.Redis(port=mortal.port) as admin:
        admin.flushall()
    with pytest.raises(StoreDamaged, match="gone back to epoch 0, this manager holds epoch 1"):
        store.write(Write(lead.epoch, 2, {"a": "2"}))
    other = open_store(mortal.url)
    assert other.claim("other") == (1, 0, {})
    with pytest.raises(Fenced, match="replaced by 'other'"):  # although it has the same epoch
        store.write(Write(lead.epoch, 1, {"a": "2"}))
    store.close()
    other.close()


def test_a_full_server_refuses_and_changes_nothing(mortal: RedisServer) -> None:
    """What it says is told; when there is room again, the same write is done."""
    store = open_store(mortal.url)
    lead = store.claim("m")
    write = Write(lead.epoch, 1, {"a": "1", "b": "2"})
    with redis.Redis(port=mortal.port) as admin:
        admin.config_set("maxmemory", "1")
        with pytest.raises(StoreUnavailable, match=r"says: .*maxmemory.*nothing was changed"):
            store.write(write)
        admin.config_set("maxmemory", "0")
    assert store.entries() == {}
    store.write(write)
    assert store.entries() == {"a": "1", "b": "2"}
    store.close()
