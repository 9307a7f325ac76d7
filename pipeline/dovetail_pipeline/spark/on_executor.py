"""What runs on an executor: one job of a clean-up, as JSON in and JSON out.

An executor gets our packages as one zip file and imports this module from it first. Kernels are
cached by the path and the bytes of their sources, which a zip has not; so `settle` unpacks it into
a folder named after its content, once per machine and version, and what is imported from then on
comes from there. Until that has happened nothing else of ours may be imported.
"""

from __future__ import annotations

import fcntl
import gc
import json
import os
import platform
import socket
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ERROR_MARK = "dovetail-error:"
"""Precedes a refusal, as JSON on the same line, in the text that Spark makes of an exception."""

NOT_SHARED = (
    "the driver reaches this place and an executor does not: mount it there under the same path, "
    "or use a URI that all reach"
)

PACKAGES = ("dovetail_proto", "dovetail_processor", "dovetail_pipeline")
"""What is shipped."""

Json = dict[str, Any]
Work = Callable[[Json, Callable[[int, int], None]], Json]

_workers: dict[str, Work] = {}
"""By settings: Spark uses a Python process for many tasks, and opening stores costs."""


class JobRefused(Exception):  # noqa: N818 - it carries a refusal of ours through Spark
    """A DovetailError on its way to the driver, which finds it by ERROR_MARK."""


def do_job(settings: str, job: str) -> str:
    """Do one job of a clean-up; the arguments and the answer are JSON."""
    settle()
    from dovetail_proto.errors import DovetailError

    remedy = None
    try:
        if settings not in _workers:
            from dovetail_pipeline.cleanup.conducting import worker

            remedy = NOT_SHARED  # for the driver could open it
            _workers.clear()  # only one clean-up runs at a time
            _workers[settings] = worker(json.loads(settings))
            remedy = None
        return json.dumps(_workers[settings](json.loads(job), lambda results, bytes_read: None))
    except DovetailError as e:
        text = f"{e.message} (on {socket.gethostname()})"
        told = json.dumps([type(e).__name__, text, remedy or e.remedy])
    raise JobRefused(f"{ERROR_MARK}{told}")


def look_around() -> str:
    """What this executor is, as JSON; `missing` names a package that cannot be imported."""
    found: Json = {
        "host": socket.gethostname(),
        "python": platform.python_version(),
        "executable": sys.executable,
        "missing": None,
    }
    try:
        settle()
        import duckdb

        import dovetail_pipeline.cleanup.task  # what a job will import, kernels and all

        found["duckdb"] = duckdb.__version__
        found["package"] = str(Path(dovetail_pipeline.cleanup.task.__file__).parents[2])
    except ImportError as e:
        found["missing"] = str(e)
    return json.dumps(found)


def settle() -> None:
    """Import from an unpacked copy from now on, if this module came out of a zip."""
    here, mark, _ = __file__.partition(".zip" + os.sep)
    if not mark:
        return
    folder = _unpacked(Path(here + ".zip"))
    if str(folder) in sys.path:
        return
    sys.path.insert(0, str(folder))
    import dovetail_pipeline

    dovetail_pipeline.__path__.insert(0, str(folder / "dovetail_pipeline"))
    with open(folder / "lock", "ab") as lock:
        # The first process compiles the kernels, the others wait and load them.
        fcntl.flock(lock, fcntl.LOCK_EX)
        load()
        from dovetail_pipeline.spark.pruning import mark_used, prune_cache

        mark_used(folder)
        if folder.parent.name == "packages":
            prune_cache(folder.parent.parent)


def load() -> None:
    """Import what jobs need, and keep the garbage collector from looking at it.

    Spark collects garbage after every task; with Numba's objects that took a third of a second.
    """
    import dovetail_pipeline.cleanup.conducting  # noqa: F401 - for what it brings along

    gc.collect()
    gc.freeze()


def _unpacked(archive: Path) -> Path:
    """The folder with what `archive` holds. Its name has a digest of the content in it."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    parent = cache / "dovetail" / "packages"
    try:
        parent.mkdir(parents=True, exist_ok=True)
        fresh = tempfile.mkdtemp(dir=parent)
    except OSError:
        parent, fresh = archive.parent, tempfile.mkdtemp(dir=archive.parent)
    final = parent / archive.stem
    if final.exists():
        os.rmdir(fresh)
        return final
    with zipfile.ZipFile(archive) as z:
        z.extractall(fresh)
    try:
        os.rename(fresh, final)  # fails if another process was faster; its copy is as good
    except OSError:
        if not final.exists():
            raise
    return final
