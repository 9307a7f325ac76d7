"""The cluster's events as they happen (Server-Sent Events), for any number of listeners.

One thread waits at the service and wakes the listeners; each then reads from where it stands. A
listener that comes back with `Last-Event-ID` goes on there; numbers start anew with each manager,
so an id is `<epoch>-<number>`, and one of another epoch begins at the start.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import asdict

from starlette.concurrency import run_in_threadpool

from dovetail_manager.admin.service import AdminService
from dovetail_proto import admin as a
from dovetail_proto.errors import DovetailError

WAIT_S = 0.5
"""How long the thread waits at a time; the longest that stopping takes."""

KEEPALIVE_S = 15.0
"""A comment so often keeps proxies from closing a quiet stream."""

_ID = re.compile(r"([0-9]{1,18})-([0-9]{1,18})")


class EventHub:
    """Wakes listeners when something happened. The thread runs from the first listener on."""

    def __init__(self, service: AdminService) -> None:
        self._service = service
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._signal = asyncio.Event()  # set once, then replaced: each wait sees the next change

    def stop(self) -> None:
        """End the thread and, when they next look, all listeners."""
        self._stopping.set()

    async def listen(self, last_id: str) -> AsyncGenerator[bytes]:
        """Every event after `last_id` in the form of SSE, until the hub stops."""
        self._start()
        epoch = (await run_in_threadpool(self._service.get_cluster)).epoch
        match = _ID.fullmatch(last_id)
        since = int(match[2]) if match and int(match[1]) == epoch else 0
        yield b": dovetail\n\n"
        while not self._stopping.is_set():
            signal = self._signal
            got = await run_in_threadpool(self._service.events, since)
            if got.missed:
                yield _framed("", "missed", {"missed": got.missed})
            for event in got.events:
                yield _framed(f"{epoch}-{event.number}", event.kind, asdict(event))
            since = got.last
            if not got.events:
                try:
                    await asyncio.wait_for(signal.wait(), KEEPALIVE_S)
                except TimeoutError:
                    yield b": still here\n\n"

    def _start(self) -> None:
        if self._thread is None:
            loop = asyncio.get_running_loop()
            self._thread = threading.Thread(
                target=self._watch, args=(loop,), name="rest-events", daemon=True
            )
            self._thread.start()

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        since = 0
        with suppress(RuntimeError):  # the loop has ended
            while not self._stopping.is_set():
                got = self._wait(since)
                if got.last != since:
                    since = got.last
                    loop.call_soon_threadsafe(self._wake)
            loop.call_soon_threadsafe(self._wake)

    def _wait(self, since: int) -> a.Events:
        try:
            return self._service.events(since, WAIT_S)
        except DovetailError:
            self._stopping.wait(WAIT_S)  # the store is away: ask again
            return a.Events((), since, 0)

    def _wake(self) -> None:
        self._signal.set()
        self._signal = asyncio.Event()


def _framed(identity: str, kind: str, data: dict[str, object]) -> bytes:
    head = f"id: {identity}\n" if identity else ""
    return f"{head}event: {kind}\ndata: {json.dumps(data)}\n\n".encode()
