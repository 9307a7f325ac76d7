"""Managers as real processes on one store: two at once, one killed while it writes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from dovetail_manager.store import Store, open_store
from kit import store_writer
from kit.redis_server import RedisServer

Opened = Callable[[], Store]


@contextmanager
def writer(address: str, name: str, writes: int = 0) -> Iterator[subprocess.Popen[str]]:
    """A process that writes; killed at the end, if it still runs."""
    command = [sys.executable, str(Path(store_writer.__file__)), address, name, str(writes)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def said(process: subprocess.Popen[str]) -> list[str]:
    """All that it has to say from here on."""
    assert process.stdout is not None
    return process.stdout.read().split("\n")[:-1]


def heard(process: subprocess.Popen[str], lines: int) -> list[str]:
    """The next lines that it says."""
    assert process.stdout is not None
    return [process.stdout.readline().strip() for _ in range(lines)]


def whole_batch(entries: Mapping[str, str]) -> tuple[int, int]:
    """Epoch and revision that all entries agree on."""
    [value] = {v for k, v in entries.items() if k.startswith("batch/")}
    epoch, revision, _ = value.split(" ")
    assert entries.keys() == {
        *(f"batch/{i}" for i in range(store_writer.KEYS)),
        f"last/{revision}",
    }
    return int(epoch), int(revision)


def test_of_two_manager_processes_the_older_one_is_fenced(address: str, opened: Opened) -> None:
    """In the middle of its writes; every confirmed write has its own revision, none is lost."""
    with writer(address, "old") as old:
        before = heard(old, 4)
        with writer(address, "new", 10) as new:
            after = said(new)
        before += said(old)
    assert before[0] == "epoch 1"
    assert before[-1] == "fenced"
    assert after[0] == "epoch 2"
    assert after[-1] == "stays"
    done = [int(line.split()[1]) for line in (*before[1:-1], *after[1:-1])]
    assert done == list(range(1, len(done) + 1))
    assert whole_batch(opened().entries()) == (2, len(done))


def test_a_writer_killed_while_it_writes_leaves_whole_batches(address: str, opened: Opened) -> None:
    """The last one that it heard of, or the one that it was at; its successor goes on from it."""
    for epoch, batches in ((1, 2), (3, 9)):
        with writer(address, f"epoch {epoch}") as process:
            [first, *done] = heard(process, batches)
            process.kill()
            done += [line for line in said(process) if line.startswith("done")]
        assert first == f"epoch {epoch}"
        confirmed = int(done[-1].split()[1])
        # The claim ends any doubt: a batch that was still on its way is refused from here on.
        lead = opened().claim("successor")
        assert whole_batch(lead.entries) == (epoch, lead.revision)
        assert lead.revision in (confirmed, confirmed + 1)


def test_a_writer_outlives_the_death_of_its_server(tmp_path: Path) -> None:
    """It waits, goes on where it was, and no confirmed write is lost or done twice."""
    server = RedisServer(tmp_path / "redis")
    server.start()
    try:
        with writer(server.url, "patient", 40) as process:
            lines = heard(process, 8)
            server.kill()
            server.start()
            lines += said(process)
        assert lines == ["epoch 1", *(f"done {r}" for r in range(1, 41)), "stays"]
        store = open_store(server.url)
        lead = store.claim("successor")
        store.close()
        assert whole_batch(lead.entries) == (1, 40)
    finally:
        server.stop()
