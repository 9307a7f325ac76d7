"""Runs the `dovetail` program as a user does: in a process of its own."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dovetail.cli import run_command

TIMEOUT_S_MAX = 120
"""A command in a test takes seconds; a stuck one must not hold up the others for long."""

POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class Finished:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON object on standard output; fails if anything else is there."""
        lines = self.out.splitlines()
        assert len(lines) == 1, f"standard output is not one line: {self.out!r}\n{self.err}"
        return json.loads(lines[0])


def dovetail(
    *arguments: str | Path,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    stdin: str = "",
    before: Callable[[], None] | None = None,
) -> Finished:
    """Run `dovetail arguments…` to its end; `before` runs in the new process first."""
    done = subprocess.run(
        [sys.executable, "-m", "dovetail", *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, **(environment or {})},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S_MAX,
        check=False,
        preexec_fn=before,
    )
    return Finished(done.returncode, done.stdout, done.stderr)


def dovetail_signalled(
    *arguments: str | Path, when: Callable[[], bool], numbers: Sequence[signal.Signals]
) -> Finished:
    """Start `dovetail arguments…` and send it `numbers` once `when()` is true."""
    process = subprocess.Popen(
        [sys.executable, "-m", "dovetail", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        for _ in range(int(TIMEOUT_S_MAX / POLL_S)):
            if when():
                for number in numbers:
                    process.send_signal(number)
                break
            try:
                process.wait(POLL_S)
                break
            except subprocess.TimeoutExpired:
                continue
        out, err = process.communicate(timeout=TIMEOUT_S_MAX)
    finally:
        process.kill()
    return Finished(process.returncode, out, err)


class Folder:
    """A working folder, with a cluster of its own perhaps; commands are run in it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, *words: str, stdin: str = "") -> Finished:
        """Run a command in it."""
        return dovetail(*words, cwd=self.path, stdin=stdin)

    def json(self, *words: str) -> Any:
        """What a command that succeeds says with --json."""
        done = self(*words, "--json")
        assert done.code == 0, (words, done.err)
        return done.json

    def inside(self, *words: str) -> Finished:
        """A command in this process: the same, without the second that a start takes."""
        out, err = io.StringIO(), io.StringIO()
        with chdir(self.path), redirect_stdout(out), redirect_stderr(err):
            code = run_command(words)
        return Finished(code, out.getvalue(), err.getvalue())

    def quick_json(self, *words: str) -> Any:
        """As `json`, inside."""
        done = self.inside(*words, "--json")
        assert done.code == 0, (words, done.err)
        return done.json
