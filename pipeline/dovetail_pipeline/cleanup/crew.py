"""A few processes that work through jobs, this one among them.

Other processes take about a second to start; this one does not wait for them but starts on the
jobs, and hands one to each as it reports ready, in between its own steps. Jobs and answers are
plain JSON values. If this process dies, so do the others, at once.

    this process   │ job 1 ─ tick ─ tick ─ … job 2 ─ tick ─ …        each tick looks at the pipes
    process 1      │ imports … ready ─ job 3 ─ done ─ job 4 …
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from dovetail_pipeline.cleanup.conducting import Json, Work, rebuilt_error
from dovetail_proto.errors import DovetailError, SpillError

SHOW_S = 0.1
"""Time between two looks at progress: often enough for the eye, too rare to cost anything."""

Setup = Callable[[Json], Work]
"""Makes the `Work` of another process; a function of a module, so that it can be imported."""


class Crew:
    """`workers` processes; use as a context manager, which ends them.

    This process works by `work`, each of the others by what `setup(settings)` makes there.
    """

    def __init__(self, workers: int, work: Work, setup: Setup, settings: Json) -> None:
        self._work = work
        self._setup = setup
        self._settings = settings
        self.count = workers
        self._others = workers - 1
        self._pipes: dict[Connection, multiprocessing.process.BaseProcess] = {}
        self._idle: list[Connection] = []
        self._jobs: deque[Json] = deque()
        self._busy: dict[Connection, Json] = {}
        self._mine = [0, 0]  # results and bytes of this process
        self._theirs: Any = (0, 0)  # of the others, who share it
        self._shown_at = 0.0

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *exc: object) -> None:
        for pipe, process in self._pipes.items():
            process.terminate()
            pipe.close()
        for process in self._pipes.values():
            process.join()
        self._pipes.clear()

    def run(
        self,
        jobs: Sequence[Json],
        done: Callable[[Json, Json], None],
        progress: Callable[[int, int], None],
    ) -> None:
        """Do all jobs, calling `done(job, answer)` here for each, in any order.

        `progress(results, bytes_read)` tells what the crew has done since it was made, about ten
        times a second. The first error of any process ends the run and is raised here.
        """
        self._jobs = deque(jobs)
        if self._others and len(jobs) > 1 and not self._pipes:
            self._start()

        def show(now: bool) -> None:
            if now or time.monotonic() - self._shown_at > SHOW_S:
                self._shown_at = time.monotonic()
                theirs = list(self._theirs)
                progress(self._mine[0] + theirs[0], self._mine[1] + theirs[1])

        def tick(results: int, bytes_read: int) -> None:
            self._mine[0] += results
            self._mine[1] += bytes_read
            self._look(0, done)
            show(now=False)

        while self._jobs or self._busy:
            self._look(0 if self._jobs else SHOW_S, done)
            if self._jobs:
                job = self._jobs.popleft()
                done(job, self._work(job, tick))
            show(now=not self._jobs)

    def _start(self) -> None:
        # Read once, when Arrow is loaded: parts of it use this allocator whatever is set later.
        os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "jemalloc")
        context = multiprocessing.get_context("spawn")
        self._theirs = context.Array("q", [0, 0])
        for _ in range(self._others):
            here, there = context.Pipe()
            process = context.Process(
                target=_serve,
                args=(there, self._setup, self._settings, self._theirs),
                daemon=True,
            )
            process.start()
            there.close()
            self._pipes[here] = process

    def _look(self, timeout_s: float, done: Callable[[Json, Json], None]) -> None:
        """Take answers and hand out jobs."""
        if not self._pipes:
            return
        for pipe in wait(list(self._pipes), timeout_s):
            assert isinstance(pipe, Connection)
            try:
                answer = pipe.recv()
            except (EOFError, OSError):
                self._lost(pipe)
            if "error" in answer:
                raise rebuilt_error(answer["error"])
            job = self._busy.pop(pipe, None)
            if job is not None:
                done(job, answer)
            self._idle.append(pipe)
        while self._idle and self._jobs:
            pipe = self._idle.pop()
            self._busy[pipe] = self._jobs.popleft()
            try:
                pipe.send(self._busy[pipe])
            except OSError:
                self._lost(pipe)

    def _lost(self, pipe: Connection) -> None:
        process = self._pipes[pipe]
        process.join()
        raise SpillError(
            f"a clean-up process ended by itself (exit code {process.exitcode})",
            remedy="the system may have killed it for lack of memory: clean up again with fewer "
            "workers or less memory; what is finished is kept",
        )


def _serve(pipe: Connection, setup: Setup, settings: Json, counters: Any) -> None:
    """What the other processes run."""
    # The terminal sends Ctrl-C to all; who answers it is the process that started us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()

    def tick(results: int, bytes_read: int) -> None:
        with counters.get_lock():
            counters[0] += results
            counters[1] += bytes_read

    try:
        work = setup(settings)
        pipe.send({"ready": True})
        while True:
            pipe.send(work(pipe.recv(), tick))
    except (EOFError, BrokenPipeError):
        return
    except DovetailError as e:
        pipe.send({"error": [type(e).__name__, e.message, e.remedy]})


def _end_with(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)
