"""What the user's cache folder need not keep: things of earlier versions, and old logs.

    <16 digits>/     compiled kernels, one folder per version of their sources
    packages/…       our packages, unpacked on this machine for Spark's executors
    shipped/….zip    our packages, as they were sent to executors
    spark/….log      Spark's log where something failed

Whoever uses one of them marks it with `mark_used`. An entry goes when it has not been used for a
week and several others of its kind were used later; so what a running process may still look for
stays. Scripts are never removed: a user's own programs may name them.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

KEPT_S_MIN = 7 * 24 * 3600.0
"""Nothing that was used within a week is removed: no run or clean-up takes longer."""

KEPT_NEWEST = 6
"""Of each kind: two versions beside this one, each with two folders of kernels."""

_KERNELS = re.compile(r"[0-9a-f]{16}")
_DROPPED = "dropped-"


def mark_used(path: Path) -> None:
    """Note, in its time, that an entry is in use; without an error if it cannot be marked."""
    with contextlib.suppress(OSError):
        os.utime(path)


def prune_cache(folder: Path, now_s: float | None = None) -> list[str]:
    """Remove what is old; return its names. What cannot be removed stays, without an error."""
    now_s = time.time() if now_s is None else now_s
    removed = []
    for entries in _kinds(folder):
        by_use = sorted(entries, key=_used_s, reverse=True)
        for path in by_use[KEPT_NEWEST:]:
            if now_s - _used_s(path) > KEPT_S_MIN and _remove(path):
                removed.append(path.relative_to(folder).as_posix())
    return removed


def _kinds(folder: Path) -> Iterator[list[Path]]:
    yield [p for p in _listed(folder) if _KERNELS.fullmatch(p.name)]
    for name in ("packages", "shipped", "spark"):
        yield _listed(folder / name)


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _used_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0  # gone already


def _remove(path: Path) -> bool:
    """Take the name away first, in one step: nobody may find half of a folder under it."""
    dropped = path.with_name(f"{_DROPPED}{uuid.uuid4().hex}")
    try:
        os.rename(path, dropped)
    except OSError:
        return False
    if dropped.is_dir():
        shutil.rmtree(dropped, ignore_errors=True)
    else:
        dropped.unlink(missing_ok=True)
    return True
