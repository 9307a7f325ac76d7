"""What Ctrl-C and SIGTERM do to a run: the first asks it to close its state, the second ends it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
from types import FrameType, TracebackType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopOnSignal:
    """Context manager; `asked()` is true once one of the signals has come.

    Works in the main thread only, as signal handlers do.
    """

    def __init__(self) -> None:
        self._count = 0
        self._before: dict[int, Any] = {}

    def asked(self) -> bool:
        """Whether the user wants the run to end."""
        return self._count > 0

    def __enter__(self) -> Self:
        for number in SIGNALS:
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        self._count += 1
        if self._count == 1:
            _say("stopping: closing the state; once more to quit at once")
            return
        for child in multiprocessing.active_children():
            with contextlib.suppress(OSError):
                child.kill()
        os._exit(128 + number)


def _say(text: str) -> None:
    # A handler may interrupt a write to the same stream, which then must not be re-entered.
    with contextlib.suppress(OSError):
        os.write(sys.stderr.fileno(), f"\n{text}\n".encode())
