"""Where compiled kernels are kept: one folder per version of their sources, in the user's cache.

Numba checks only the file a kernel is defined in, not those its helpers come from: after an
upgrade it could load a stale kernel. A folder named after a digest of all sources cannot be stale.

It is part of the contract because the one hash is (`partitioning`): its kernels are the first ones
that are kept here, in every process.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

TOLD_ABOVE_BYTES = 30_000
"""Sources that are shorter are compiled within a second or two, which is not worth a word."""

_before_compiling: Callable[[], None] = lambda: None  # noqa: E731  # see `tell_before_compiling`


def tell_before_compiling(tell: Callable[[], None]) -> None:
    """Have `tell` called when kernels are about to be compiled for the first time."""
    global _before_compiling  # noqa: PLW0603  # kernels are compiled when they are imported
    _before_compiling = tell


def keep_kernels_of(sources: Iterable[Path]) -> None:
    """Cache kernels defined from now on under a digest of `sources`.

    NUMBA_CACHE_DIR in the environment names another parent folder.
    """
    from numba import config

    digest, size_bytes = hashlib.sha256(), 0
    for source in sorted(sources):
        text = source.read_bytes()
        digest.update(text)
        size_bytes += len(text)
    folder = cache_folder() / digest.hexdigest()[:16]
    config.CACHE_DIR = str(folder)
    if size_bytes > TOLD_ABOVE_BYTES and not folder.exists():
        _before_compiling()
    with contextlib.suppress(OSError):  # not there yet, or not ours
        os.utime(folder)  # in use: folders that nobody used for long may be removed


def cache_folder() -> Path:
    """The folder that all versions are kept below; it may not exist yet."""
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    if chosen:
        return Path(chosen)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    try:
        (cache / "dovetail").mkdir(parents=True, exist_ok=True)
    except OSError:
        return Path(tempfile.gettempdir()) / f"dovetail-{os.getuid()}"
    return cache / "dovetail"
