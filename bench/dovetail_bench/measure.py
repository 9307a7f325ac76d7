"""Runs a contestant in a process of its own and watches it from outside.

A fresh process per measurement keeps one contestant's caches, threads and memory from another's.
Peak memory is read by the parent, from the kernel's high-water mark, so that a contestant cannot
forget to count something.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

SAMPLE_S = 0.01
"""How often memory is read from outside: the high-water mark misses only the last interval."""

TIMEOUT_S_MAX = 1800
"""A benchmark that takes longer than half an hour is stuck."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What a process answered (its last line of standard output, as JSON) and what it used."""

    answer: dict[str, Any]
    wall_seconds: float  # from start to end, the interpreter's start included
    cpu_seconds: float  # of it and its children, user and system
    peak_rss_bytes: int  # of the process itself
    peak_tree_rss_bytes: int  # of it and its children at one moment, shared pages counted twice
    exit_code: int
    errors: str  # what it wrote to standard error


def run_module(
    module: str, arguments: Sequence[str], *, environment: Mapping[str, str] | None = None
) -> Measured:
    """Run `python -m module arguments…` and watch it; its output must end in a JSON line."""
    return run_command([sys.executable, "-m", module, *arguments], environment=environment)


def run_command(
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    one_core: bool = False,
) -> Measured:
    """Run a command whose output ends in a JSON line, and watch its memory.

    `one_core` keeps it and its children on a single core.
    """
    started = time.perf_counter()
    used_before = _children_seconds()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(
            command,
            stdout=out,
            stderr=err,
            env={**os.environ, **(environment or {})},
            preexec_fn=_keep_to_one_core if one_core else None,  # noqa: PLW1509 - no threads here
        )
        peak, peak_tree = _watch(process)
        out.seek(0)
        err.seek(0)
        lines = out.read().strip().splitlines()
        errors = err.read()
    try:
        answer = json.loads(lines[-1])
    except (IndexError, json.JSONDecodeError) as e:
        raise RuntimeError(f"{' '.join(command)} gave no JSON: {errors[-2000:]}") from e
    return Measured(
        answer=answer,
        wall_seconds=time.perf_counter() - started,
        cpu_seconds=_children_seconds() - used_before,
        peak_rss_bytes=peak,
        peak_tree_rss_bytes=peak_tree,
        exit_code=process.returncode,
        errors=errors,
    )


def _keep_to_one_core() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _watch(process: subprocess.Popen[bytes]) -> tuple[int, int]:
    """Peak memory of the process, and of it with its children, until it ends."""
    peak = peak_tree = waited = 0.0
    while True:
        try:
            process.wait(SAMPLE_S)
            return int(peak), int(peak_tree)
        except subprocess.TimeoutExpired:
            waited += SAMPLE_S
            if waited > TIMEOUT_S_MAX:
                process.kill()
                raise
        with contextlib.suppress(psutil.Error, OSError, ValueError):
            peak = max(peak, high_water_bytes(process.pid))
            watched = psutil.Process(process.pid)
            family = [watched, *watched.children(recursive=True)]
            peak_tree = max(peak_tree, sum(p.memory_info().rss for p in family))


def high_water_bytes(pid: int) -> int:
    """The largest resident size a process has had; on systems without /proc, its present one."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except FileNotFoundError:
        pass
    return int(psutil.Process(pid).memory_info().rss)


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "processor": _processor_name(),
        "cores": len(psutil.Process().cpu_affinity())
        if hasattr(psutil.Process, "cpu_affinity")
        else os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": {
            name: _version(name) for name in ("dovetail", "duckdb", "numba", "polars", "pyarrow")
        },
    }


def _processor_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"
