"""Allocators that give memory back, so that a process's resident memory follows its limit.

A join in pages needs little else, but what it needs comes and goes in megabytes: batches, output,
columns of a push. Arrow's default allocator kept 40 MB of that after use, malloc's arenas (one per
thread) another 15 MB, measured at a limit of 100 MB; so configured, both together keep 15 MB.
"""

from __future__ import annotations

import ctypes
import sys

import pyarrow as pa

DECAY_MS = 50
"""How long freed memory is kept for the next batch. At once (0) it costs a page fault per page and
batch, 1 s of system time on 9 M rows; at this value, measured at a limit of 100 MB, 0.1 × the limit
more is resident than at 0."""

_M_ARENA_MAX = -8  # glibc's malloc.h
_MALLOC_ARENAS = 2


def keep_lean() -> None:
    """Set the allocators of this process, where they exist; harmless where they do not."""
    try:
        pool = pa.jemalloc_memory_pool()
        pa.jemalloc_set_decay_ms(DECAY_MS)
    except NotImplementedError:
        pool = pa.system_memory_pool()
    pa.set_memory_pool(pool)
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(_M_ARENA_MAX, _MALLOC_ARENAS)
