"""The store in a Redis (or Valkey) server, for a cluster whose manager may start anywhere.

    dovetail:head            hash    the head (see `fencing`) and the schema's version
    dovetail:entries         hash    key → value
    dovetail:history:<name>  sorted  `<number>:<text>` by number

The database number of the address tells clusters apart. Every change watches the head, reads it,
and sets it in the same MULTI/EXEC as whatever else changes, so EXEC is the compare-and-set:

    WATCH head · HGETALL head · (may we? is it next?) · MULTI · HSET head … · HSET entries … · EXEC

When the answer to EXEC is lost, the same is done again from the WATCH on: the head says by the
write's id whether it was done. A late EXEC of the lost connection cannot do it twice, because the
repetition has changed the head which that connection watches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any, TypeVar, cast

import redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthorizationError
from redis.retry import Retry

from dovetail_manager.journal import Write
from dovetail_manager.store.errors import Fenced, StoreDamaged, StoreError, StoreUnavailable
from dovetail_manager.store.fencing import (
    SCHEMA_VERSION,
    Head,
    check_key,
    check_leader,
    claimed,
    to_be_done,
    written,
)
from dovetail_manager.store.interface import PATIENCE_S, Leadership, Store
from dovetail_manager.store.redis_settings import NEEDED, check_settings
from dovetail_proto.errors import ConfigError
from dovetail_proto.ids import Epoch

HEAD, ENTRIES, HISTORY = "dovetail:head", "dovetail:entries", "dovetail:history:"

ANSWER_S_MAX = 5.0
"""For one command: a slow disk's sync, several times over."""

PAUSE_S = (0.02, 1.0)
"""Between two attempts: the first pause, doubled each time up to the second."""

LOST = (redis.ConnectionError, redis.TimeoutError)
"""No answer came: whatever was sent may have been done."""

Pipeline = Any  # redis.client.Pipeline; its commands' types speak of awaitables too
T = TypeVar("T")


class RedisStore(Store):
    """A store in the database that `url` names (`redis://user:password@host:port/number`)."""

    def __init__(self, url: str, *, patience_s: float = PATIENCE_S) -> None:
        super().__init__()
        self._patience_s = patience_s
        answer_s = min(ANSWER_S_MAX, patience_s)
        try:
            self._redis = redis.Redis.from_url(
                url,
                socket_timeout=answer_s,
                socket_connect_timeout=answer_s,
                retry=Retry(NoBackoff(), 0),  # we repeat ourselves: we know what is unknown
                protocol=2,
            )
        except ValueError as e:
            raise ConfigError(
                f"not the address of a Redis: {e}", remedy="use redis://host:port/database"
            ) from None  # the cause may show the password
        at = self._redis.connection_pool.connection_kwargs
        self.where = f"Redis at {at.get('host', 'localhost')}:{at.get('port', 6379)}"
        try:
            check_settings(self.where, *self._settings())
            self._reading(lambda r: _head(r.hgetall(HEAD)))
        except BaseException:
            self.close()
            raise

    def get(self, key: str) -> str | None:
        """See Store."""
        check_key(key)
        value = self._reading(lambda r: r.hget(ENTRIES, key))
        return None if value is None else _text(value)

    def entries(self, prefix: str = "") -> dict[str, str]:
        """See Store. Reads all entries: one command sees one moment, a scan would not."""
        return _entries(self._reading(lambda r: r.hgetall(ENTRIES)), prefix)

    def close(self) -> None:
        """See Store."""
        self._redis.close()

    def _take_lead(self, claim: str, holder: str) -> Leadership:
        def act(head: Head, p: Pipeline) -> Head:
            mine = claimed(head, claim, holder)
            p.hgetall(ENTRIES)
            p.hset(HEAD, mapping=_fields(mine))
            return mine

        mine, replies = self._changing("the claim", act)
        return Leadership(Epoch(mine.epoch), mine.revision, _entries(replies[0], ""))

    def _write(self, claim: str, w: Write) -> None:
        def act(head: Head, p: Pipeline) -> None:
            if not to_be_done(head, claim, w):
                return
            puts = {key: value for key, value in w.puts.items() if value is not None}
            gone = [key for key, value in w.puts.items() if value is None]
            p.hset(HEAD, mapping=_fields(written(head, w)))
            if puts:
                p.hset(ENTRIES, mapping=puts)
            if gone:
                p.hdel(ENTRIES, *gone)

        self._changing(f"revision {w.revision}", act)

    def _record(
        self, claim: str, epoch: Epoch, history: str, records: Mapping[int, str], keep: int
    ) -> None:
        name = HISTORY + history

        def act(head: Head, p: Pipeline) -> None:
            check_leader(head, claim, epoch)
            for number in records:
                p.zremrangebyscore(name, number, number)
            if records:
                p.zadd(name, {f"{number}:{text}": number for number, text in records.items()})
            p.zremrangebyrank(name, 0, -(keep + 1))

        self._changing(f"a record of history {history!r}", act)

    def _records(self, history: str, newest: int, before: int | None) -> list[tuple[int, str]]:
        top = "+inf" if before is None else f"({before}"
        members = self._reading(
            lambda r: r.zrange(
                HISTORY + history, top, "-inf", desc=True, byscore=True, offset=0, num=newest
            )
        )
        parts = [_text(member).partition(":") for member in members]
        return [(int(number), text) for number, _, text in parts]

    def _settings(self) -> tuple[Mapping[str, Any], Mapping[str, str]]:
        try:
            info = self._reading(lambda r: r.info())
            settings: dict[str, str] = {}
            for name in NEEDED:  # one by one: before version 7, CONFIG GET takes a single name
                settings |= self._reading(partial(redis.Redis.config_get, pattern=name))
            return info, settings
        except StoreUnavailable as e:
            if isinstance(e.__cause__, redis.ResponseError):
                raise ConfigError(
                    f"{self.where} does not show its settings: {e.__cause__}",
                    remedy="allow its user the commands INFO and CONFIG GET",
                ) from e
            raise

    def _changing(self, what: str, act: Callable[[Head, Pipeline], T]) -> tuple[T, list[Any]]:
        """Run `act` on the head it finds; it queues the commands of one transaction, or none."""
        unknown = False  # whether an EXEC was sent whose answer is lost

        def attempt() -> tuple[T, list[Any]]:
            nonlocal unknown
            with cast(Pipeline, self._redis.pipeline()) as p:
                p.watch(HEAD)
                head = _head(p.hgetall(HEAD))
                p.multi()
                result = act(head, p)
                if not len(p):
                    return result, []
                try:
                    return result, p.execute()
                except Exception as e:
                    unknown = unknown or _is_lost(e)
                    raise

        doubt = f"whether {what} was written is unknown"
        try:
            return self._trying(attempt, lambda: doubt if unknown else "")
        except Fenced as e:
            if unknown:
                raise Fenced(f"{e.message}; {doubt}: its answer was lost", remedy=e.remedy) from e
            raise

    def _reading(self, read: Callable[[Any], Any]) -> Any:
        return self._trying(lambda: read(self._redis), lambda: "")

    def _trying(self, attempt: Callable[[], T], doubt: Callable[[], str]) -> T:
        """Attempt until it is answered, for `patience_s` and one answer's time at the most.

        `doubt` says afterwards what is unknown; it is empty if nothing is.
        """
        until_s = time.monotonic() + self._patience_s
        pause_s, pause_s_max = PAUSE_S
        while True:
            try:
                return attempt()
            except StoreError:
                raise
            except (redis.AuthenticationError, AuthorizationError) as e:
                raise ConfigError(
                    f"{self.where} refuses the user: {e}",
                    remedy="put the right user and password into the address",
                ) from e
            except (*LOST, redis.WatchError) as e:
                if time.monotonic() + pause_s > until_s:
                    raise self._unavailable(f"did not answer: {e}", doubt()) from e
            except redis.RedisError as e:
                raise self._unavailable(f"says: {e}", doubt()) from e
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, pause_s_max)

    def _unavailable(self, problem: str, doubt: str) -> StoreUnavailable:
        return StoreUnavailable(
            f"{self.where} {problem}; {doubt or 'nothing was changed'}",
            unknown=bool(doubt),
            remedy="see to the server, then repeat the call: it is done once",
        )


def _is_lost(error: Exception) -> bool:
    """Whether no answer came. The client tells of a connection lost while it watched by a
    WatchError, raised while it handles the loss."""
    if isinstance(error, redis.WatchError):
        return isinstance(error.__context__, LOST)
    return isinstance(error, LOST)


def _head(fields: Mapping[bytes, bytes]) -> Head:
    if not fields:
        return Head()
    try:
        raw = {_text(name): _text(value) for name, value in fields.items()}
        schema = int(raw.pop("schema"))
        if schema == SCHEMA_VERSION:
            numbers = {name: int(raw.pop(name)) for name in ("epoch", "revision")}
            return Head(**cast(Any, raw | numbers))
    except (KeyError, TypeError, ValueError) as e:
        raise StoreDamaged(f"{HEAD!r} is not the head of a store: {e}", remedy="restore it") from e
    raise StoreDamaged(
        f"the store is of version {schema}, this Dovetail reads version {SCHEMA_VERSION}",
        remedy="run the Dovetail that made it, or name another database",
    )


def _fields(head: Head) -> dict[str, str | int]:
    return {**asdict(head), "schema": SCHEMA_VERSION}


def _entries(fields: Mapping[bytes, bytes], prefix: str) -> dict[str, str]:
    texts = {_text(key): _text(value) for key, value in fields.items()}
    return {key: texts[key] for key in sorted(texts) if key.startswith(prefix)}


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as e:
        raise StoreDamaged(f"{value[:50]!r} in the store is not text", remedy="restore it") from e
