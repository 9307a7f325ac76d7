"""Real stores for the contract tests: a SQLite file and a Redis database, new for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from dovetail_manager.store import Store, open_store
from kit.redis_server import RedisServer

PATIENCE_S = 120.0
"""For stores that must answer: a busy machine is no failure."""


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A server that all tests share; whoever kills one starts another."""
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(params=["sqlite", "redis"])
def new_address(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], str]:
    """Where the next new store is, of both kinds in turn."""
    if request.param == "sqlite":
        numbers = count()
        return lambda: f"sqlite:{tmp_path / f'manager-{next(numbers)}.db'}"
    server: RedisServer = request.getfixturevalue("redis_server")
    return server.fresh_url


@pytest.fixture
def address(new_address: Callable[[], str]) -> str:
    """Where the test's store is."""
    return new_address()


@pytest.fixture
def opened(address: str) -> Iterator[Callable[[], Store]]:
    """Opens handles on the store, one for each manager; they are closed after the test."""
    handles: list[Store] = []

    def open_one() -> Store:
        handles.append(open_store(address, patience_s=PATIENCE_S))
        return handles[-1]

    yield open_one
    for handle in handles:
        handle.close()
