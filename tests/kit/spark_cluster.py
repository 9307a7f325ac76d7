"""A standalone Spark cluster on loopback: a master and two workers, each a process of its own.

The workers have addresses of their own, because Spark gives a task no twin on the same host.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from dovetail_pipeline.spark.java import find_java

HOSTS = ("127.0.0.1", "127.0.0.2")

START_S_MAX = 120.0
"""Java processes start in seconds, on a machine that is busy with other tests in many."""


@contextmanager
def standalone_cluster(folder: Path) -> Iterator[str]:
    """The URL of a master that has two workers with a core each."""
    flags = ["--port", "0", "--webui-port", "0"]
    with ExitStack() as daemons:
        start = _daemon(folder / "master", "master.Master", HOSTS[0], *flags)
        url = _told(daemons.enter_context(start), r"Starting Spark master at (spark://\S+)")
        workers = [
            daemons.enter_context(
                _daemon(
                    folder / f"worker-{host}",
                    "worker.Worker",
                    host,
                    *flags,
                    *("--cores", "1", "--memory", "1g"),
                    *("--work-dir", str(folder / f"work-{host}")),
                    url,
                )
            )
            for host in HOSTS
        ]
        for worker in workers:
            _told(worker, r"(Successfully registered with master)")
        yield url


@contextmanager
def _daemon(
    log: Path, kind: str, host: str, *flags: str
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    home = Path(pyspark.__file__).parent
    log.parent.mkdir(parents=True, exist_ok=True)
    # The configuration that the library ships logs warnings only; what we wait for is more.
    settings = log.with_suffix(".properties")
    settings.write_text(
        "rootLogger.level = info\n"
        "rootLogger.appenderRef.stderr.ref = console\n"
        "appender.console.type = Console\n"
        "appender.console.name = console\n"
        "appender.console.target = SYSTEM_ERR\n"
        "appender.console.layout.type = PatternLayout\n"
        "appender.console.layout.pattern = %m%n\n"
    )
    environment = {
        **os.environ,
        "JAVA_HOME": find_java().home,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": host,
        "SPARK_DAEMON_JAVA_OPTS": f"-Dlog4j2.configurationFile=file:{settings}",
        "SPARK_DAEMON_MEMORY": "256m",
    }
    with open(log, "wb") as out:
        process = subprocess.Popen(
            [
                str(home / "bin" / "spark-class"),
                f"org.apache.spark.deploy.{kind}",
                "--host",
                host,
                *flags,
            ],
            env=environment,
            stdout=out,
            stderr=out,
        )
    try:
        yield process, log
    finally:
        process.terminate()
        process.wait()


def _told(daemon: tuple[subprocess.Popen[bytes], Path], pattern: str) -> str:
    """Wait until the daemon's log says something."""
    process, log = daemon
    until = time.monotonic() + START_S_MAX
    while time.monotonic() < until:
        found = re.search(pattern, log.read_text(errors="replace"))
        if found:
            return found.group(1)
        try:
            process.wait(0.1)
            break
        except subprocess.TimeoutExpired:
            continue
    raise AssertionError(f"a Spark daemon does not start: {log.read_text(errors='replace')}")
