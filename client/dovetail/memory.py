"""The peak resident memory of this process while something runs."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

SAMPLE_S = 0.02
"""Fifty looks a second cost nothing and miss only what is freed within 20 ms."""


class PeakMemory:
    """Context manager that watches this process; `peak_bytes` is right from its end on.

    On Linux the kernel's own high-water mark is used as well: it is reset at the start where that
    is allowed, and misses nothing. Elsewhere, and where it cannot be reset, samples alone count.
    """

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._process = psutil.Process()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="peak-memory", daemon=True)
        self._kernel_counts = False

    def __enter__(self) -> Self:
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # 5: reset the high-water mark
            self._kernel_counts = True
        self._look()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()
        self._thread.join()
        self._look()
        if self._kernel_counts:
            with contextlib.suppress(OSError, ValueError, StopIteration):
                status = Path("/proc/self/status").read_text().splitlines()
                mark = next(line for line in status if line.startswith("VmHWM:"))
                self.peak_bytes = max(self.peak_bytes, int(mark.split()[1]) * 1024)

    def _sample(self) -> None:
        while not self._done.wait(SAMPLE_S):
            self._look()

    def _look(self) -> None:
        self.peak_bytes = max(self.peak_bytes, int(self._process.memory_info().rss))
