"""Spark's Python daemon with our kernels loaded, so that the processes it forks start ready.

Loading them takes more than a second of processor time; Spark starts a process per core, and a new
one for every task that failed.
"""

from pyspark.daemon import manager

from dovetail_pipeline.spark.on_executor import load

if __name__ == "__main__":
    load()
    manager()
