"""How many cores this process may use: what affinity and a container's quota leave of them."""

from __future__ import annotations

import os
from pathlib import Path

_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # "<microseconds> <of a period>", or "max <of a period>"


def usable_cores(quota: Path = _QUOTA) -> int:
    """At least one."""
    affine = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if affine else os.cpu_count() or 1
    try:
        allowed, period = quota.read_text(encoding="ascii").split()
        if allowed != "max":
            cores = min(cores, -(-int(allowed) // int(period)))
    except (OSError, ValueError):
        pass  # no such quota here
    return max(1, cores)
