"""The threads of a server's calls."""

from __future__ import annotations

import threading

import pytest

from dovetail_proto.call_pool import CallPool

WAIT_S = 60.0


def test_calls_have_a_thread_each_up_to_a_number_and_then_wait() -> None:
    """What is given comes back; threads that are free are used again."""
    pool, gate = CallPool(2, "calls"), threading.Event()
    names: list[str] = []

    def call(number: int) -> int:
        names.append(threading.current_thread().name)
        assert threading.current_thread().daemon
        gate.wait(WAIT_S)
        return 2 * number

    before = threading.active_count()
    futures = [pool.submit(call, number) for number in range(5)]
    assert threading.active_count() == before + 2
    gate.set()
    assert [f.result(WAIT_S) for f in futures] == [0, 2, 4, 6, 8]
    assert names == ["calls"] * 5


def test_an_error_is_its_callers_and_the_thread_goes_on() -> None:
    """Also one that is no Exception; a call that was given up is not made."""
    pool, gate = CallPool(1, "calls"), threading.Event()

    def fail() -> None:
        gate.wait(WAIT_S)
        raise SystemExit(3)

    failed, given_up = pool.submit(fail), pool.submit(pytest.fail, "it was given up")
    assert given_up.cancel()
    gate.set()
    assert isinstance(failed.exception(WAIT_S), SystemExit)
    assert pool.submit(lambda: 1).result(WAIT_S) == 1


def test_threads_end_with_the_pool_after_what_they_do() -> None:
    """Nobody waits for them."""
    pool, gate = CallPool(3, "calls"), threading.Event()
    ours: list[threading.Thread] = []

    def call() -> None:
        ours.append(threading.current_thread())
        gate.wait(WAIT_S)

    futures = [pool.submit(call) for _ in range(3)]
    pool.shutdown()
    gate.set()
    for future in futures:
        future.result(WAIT_S)
    for thread in ours:
        thread.join(WAIT_S)
        assert not thread.is_alive()
