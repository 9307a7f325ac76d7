"""A folder in which no file can be opened for a while: whoever tries waits."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

_libc = ctypes.CDLL(None, use_errno=True)
_FAN_CLOEXEC, _FAN_CLASS_CONTENT = 0x1, 0x4
_FAN_MARK_ADD = 0x1
_FAN_OPEN_PERM, _FAN_EVENT_ON_CHILD = 0x10000, 0x8000000
_AT_FDCWD = -100


@contextlib.contextmanager
def blocked(folder: Path) -> Iterator[None]:
    """Have every opening of a file in `folder` wait, also one in this process.

    The kernel asks whoever watches the folder for permission (fanotify), and gets no answer until
    the watch ends, with the block or with this process. The test is skipped, and says so, where
    nobody may watch.
    """
    watch = _libc.fanotify_init(_FAN_CLASS_CONTENT | _FAN_CLOEXEC, os.O_RDONLY)
    if watch < 0:
        pytest.skip(f"fanotify_init: {os.strerror(ctypes.get_errno())}; needs root")
    try:
        events = ctypes.c_uint64(_FAN_OPEN_PERM | _FAN_EVENT_ON_CHILD)
        at = str(folder).encode()
        if _libc.fanotify_mark(watch, _FAN_MARK_ADD, events, _AT_FDCWD, at):
            pytest.skip(f"fanotify_mark: {os.strerror(ctypes.get_errno())}; needs root")
        yield
    finally:
        os.close(watch)
