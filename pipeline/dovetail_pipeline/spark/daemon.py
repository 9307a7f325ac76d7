"""Spark's Python daemon with our kernels loaded, so that the processes it forks start ready.

Loading them takes more than a second of processor time; Spark starts a process per core, and a new
one for every task that failed.
"""

from pyspark.daemon import manager

import dovetail_pipeline.cleanup.conducting  # noqa: F401 - loaded once, for all that are forked

if __name__ == "__main__":
    manager()
