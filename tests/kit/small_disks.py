"""A disk of its own, which a test can fill."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

SIZE_BYTES = 64 << 20
"""More than any test spills; memory is used for what is written only."""

_libc = ctypes.CDLL(None, use_errno=True)
_MNT_DETACH = 2  # whoever still has a file open keeps it


@contextlib.contextmanager
def small_disk(place: Path, size_bytes: int = SIZE_BYTES) -> Iterator[Path]:
    """Mount a disk at `place`; the test is skipped, and says so, where nobody may."""
    place.mkdir()
    at, size = str(place).encode(), f"size={size_bytes}".encode()
    if _libc.mount(b"tmpfs", at, b"tmpfs", 0, size):
        pytest.skip(f"mount of a tmpfs: {os.strerror(ctypes.get_errno())}; needs root")
    try:
        yield place
    finally:
        _libc.umount2(at, _MNT_DETACH)


@contextlib.contextmanager
def full(disk: Path, left_bytes: int = 0) -> Iterator[None]:
    """Not more than `left_bytes` go onto the disk, or until its file `ballast` is removed."""
    ballast = disk / "ballast"
    free = os.statvfs(disk)
    with ballast.open("wb") as f:
        os.posix_fallocate(f.fileno(), 0, free.f_bavail * free.f_frsize - left_bytes)
    try:
        yield
    finally:
        ballast.unlink(missing_ok=True)
