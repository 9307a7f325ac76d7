"""Runs the `dovetail` program as a user does: in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
