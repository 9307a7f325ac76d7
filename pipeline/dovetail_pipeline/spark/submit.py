"""The clean-up as a program for spark-submit.

    spark-submit --master … $(dovetail cleanup --entry-point) --spill URI --query NAME --output URI

spark-submit runs a file, with whatever Python its settings name. `entry_point` writes that file:
it finds its way to the interpreter that has this package, then calls `main`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from dovetail_pipeline.cleanup import CleanupResult, conduct
from dovetail_pipeline.cleanup.stores import RunCleanup, find_cleanups
from dovetail_pipeline.spark.hands import SparkHands
from dovetail_pipeline.spark.session import SparkSettings
from dovetail_proto.errors import ConfigError, DovetailError
from dovetail_proto.kernel_cache import cache_folder

MEMORY_BYTES_DEFAULT = 1 << 30
"""For the tasks of one machine together: as much as a run takes by default."""

_SCRIPT = '''\
"""Dovetail's clean-up, for spark-submit; written by `dovetail cleanup --entry-point`."""

import os
import sys

PYTHON = {python!r}  # the interpreter that has Dovetail

try:
    from dovetail_pipeline.spark.submit import main
except ImportError as e:
    # Not by what links lead to: a virtual environment's Python is a link to one without packages.
    if sys.executable == PYTHON or not os.path.exists(PYTHON):
        sys.exit(f"error: {{e}}; set PYSPARK_PYTHON to an interpreter that has dovetail")
    os.environ.pop("PYTHONHOME", None)
    os.environ.setdefault("PYSPARK_PYTHON", PYTHON)
    os.execv(PYTHON, [PYTHON, *sys.argv])
sys.exit(main(sys.argv[1:]))
'''


def entry_point() -> Path:
    """The file for spark-submit, in the user's cache folder."""
    script = _SCRIPT.format(python=sys.executable)
    digest = hashlib.sha256(script.encode()).hexdigest()[:16]
    path = cache_folder() / "submit" / f"dovetail_cleanup_{digest}.py"
    if not path.exists():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(dir=path.parent)
            with open(descriptor, "w", encoding="utf-8") as f:
                f.write(script)
            os.replace(temporary, path)
        except OSError as e:
            raise ConfigError(
                f"the entry point cannot be written to {path}: {e.strerror}",
                remedy="set XDG_CACHE_HOME to a folder that you may write to",
            ) from e
    return path


def main(arguments: Sequence[str]) -> int:
    """Clean up as the arguments say; a JSON line per store on standard output."""
    parser = argparse.ArgumentParser(description="Dovetail's clean-up on Spark.")
    parser.add_argument("--spill", action="append", required=True, help="store, or folder of them")
    parser.add_argument("--query", help="only stores of the query with this name")
    parser.add_argument("--output", help="folder or URI; none only counts; default: the run's")
    parser.add_argument("--memory-bytes", type=int, default=MEMORY_BYTES_DEFAULT)
    flags = parser.parse_args(arguments)
    try:
        cleanups = find_cleanups(flags.spill, query=flags.query, output=flags.output)
        with SparkHands(SparkSettings(), memory_bytes=flags.memory_bytes, tell=_say) as hands:
            for c in cleanups:
                _write(c, conduct(c.stores, c.output, hands))
    except DovetailError as e:
        _say(f"error: {e}")
        return e.exit_code
    return 0


def _write(cleanup: RunCleanup, result: CleanupResult) -> None:
    line = {
        "query": cleanup.query,
        "spill": cleanup.place,
        "output": cleanup.output,
        "results_cleanup": result.rows,
        "checksum": result.checksum,
        "owed": result.owed,
        "bins": result.bins,
        "bins_resumed": result.bins_resumed,
        "seconds_cleanup": result.seconds,
    }
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
