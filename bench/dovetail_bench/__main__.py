"""Runs every benchmark, one after the other: `python -m dovetail_bench [--full] [--json]`."""

from __future__ import annotations

import subprocess
import sys

BENCHMARKS = (
    "kernel",
    "bytes_per_tuple",
    "startup",
    "growth",
    "growth_curves",
    "whole_run",
    "beyond_memory",
    "hot_key",
    "spill_curves",
    "cleanup_bench",
    "cluster_bench",
    "latency",
)


def main() -> int:
    """Run them in this order and with these flags; go on when one fails, and say so."""
    failed = [
        name
        for name in BENCHMARKS
        if subprocess.run(
            [sys.executable, "-m", f"dovetail_bench.{name}", *sys.argv[1:]], check=False
        ).returncode
    ]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
