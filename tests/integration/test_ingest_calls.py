"""Calls of REST that bring batches to homes: kept, given up, and never mixed up."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from dovetail_manager.admin.rest import ingest_calls
from dovetail_manager.admin.rest.ingest_calls import IngestCalls
from dovetail_proto.errors import InputError
from dovetail_proto.feeds import IngestAck, IngestBatch
from dovetail_proto.ids import StreamName
from dovetail_proto.transport import Security, Unreachable, abort, start_server
from dovetail_proto.wire.data import decode, encode

TOKEN = Security("secret")


class Home:
    """Answers every batch with its sequence, while the gate is open."""

    def __init__(self) -> None:
        self.calls = 0
        self.heard = threading.Semaphore(0)  # batches that came
        self.gate = threading.Event()
        self.gate.set()
        handler = grpc.stream_stream_rpc_method_handler(self._ingest)
        self._server = start_server(
            "127.0.0.1:0", TOKEN, {"dovetail.v1.DataPlane": {"Ingest": handler}}
        )
        self.address = f"127.0.0.1:{self._server.port}"

    def stop(self) -> None:
        """End every call."""
        self.gate.set()
        self._server.stop(0)

    def _ingest(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        self.calls += 1
        for data in requests:
            sent = decode(IngestBatch, data)
            self.heard.release()
            if sent.source == "bad":
                abort(context, InputError("not this one"))
            self.gate.wait()
            yield encode(IngestAck(sent.sequence, 0, 1))


@pytest.fixture
def home() -> Iterator[Home]:
    """Gone at the end."""
    made = Home()
    yield made
    made.stop()


def message(sequence: int, source: str = "good") -> bytes:
    """A batch that is told from others by its sequence."""
    return encode(IngestBatch(StreamName("s"), source, sequence, b"rows"))


def calls_to(home: Home) -> IngestCalls:
    """Of the event loop that runs now."""
    return IngestCalls(TOKEN, lambda: {home.address})


async def turns(number: int) -> None:
    """Of the event loop, in which others get on."""
    for _ in range(number):
        await asyncio.get_running_loop().run_in_executor(None, bool)


def test_batches_one_after_the_other_share_a_call(home: Home) -> None:
    """Until one fails: what ended its call concerns nobody else."""

    async def run() -> None:
        calls = calls_to(home)
        for sequence in (1, 2, 3):
            assert (await calls.ask(home.address, message(sequence))).sequence == sequence
        assert home.calls == 1
        with pytest.raises(InputError, match="not this one"):
            await calls.ask(home.address, message(4, "bad"))
        assert (await calls.ask(home.address, message(5))).sequence == 5
        assert home.calls == 2

    asyncio.run(run())


def test_whoever_is_given_up_takes_nobody_elses_answer(home: Home) -> None:
    """Cancelled at any moment: before its call is made, under way, answered or about to be."""
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)

    async def run() -> None:
        calls = calls_to(home)

        async def ask(sequence: int) -> None:
            assert (await calls.ask(home.address, message(sequence))).sequence == sequence

        for start in range(0, 400, 8):
            tasks = [asyncio.create_task(ask(start + i + 1)) for i in range(8)]
            for task in tasks:
                await turns(chance.randrange(6))
                if chance.random() < 0.5:
                    task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(e is None or isinstance(e, asyncio.CancelledError) for e in ended), seed
        await ask(1000)

    asyncio.run(run())


def test_a_home_that_does_not_answer_is_given_up(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The late answer goes nowhere; the next batch has a call of its own."""
    monkeypatch.setattr(ingest_calls, "ANSWER_S_MAX", 0.2)

    async def run() -> None:
        calls = calls_to(home)
        home.gate.clear()
        with pytest.raises(Unreachable, match=r"may or may not .*: the home gave no"):
            await calls.ask(home.address, message(1))
        home.gate.set()
        monkeypatch.setattr(ingest_calls, "ANSWER_S_MAX", 30.0)
        assert (await calls.ask(home.address, message(2))).sequence == 2

    asyncio.run(run())


def test_a_call_that_is_not_used_ends(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that ended with its home is not used again."""
    monkeypatch.setattr(ingest_calls, "IDLE_S", 0.0)
    other = Home()

    async def run() -> None:
        calls = calls_to(home)
        await calls.ask(home.address, message(1))
        await turns(3)  # it was idle for long enough
        assert (await calls.ask(home.address, message(2))).sequence == 2
        assert home.calls == 2
        monkeypatch.setattr(ingest_calls, "IDLE_S", 30.0)
        await calls.ask(other.address, message(1))
        other.stop()
        with pytest.raises(Unreachable):
            await calls.ask(other.address, message(2))
        assert (await calls.ask(home.address, message(3))).sequence == 3

    asyncio.run(run())
