"""Starting Spark so that it stays out of the way: on loopback, quiet, on a Java that works.

Spark's own log goes to a file that is removed when all went well and named when not.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail_pipeline.spark.java import Java, find_java
from dovetail_pipeline.spark.pruning import prune_cache
from dovetail_proto.errors import ConfigError, DovetailError
from dovetail_proto.kernel_cache import cache_folder

if TYPE_CHECKING:
    from pyspark import SparkContext

MASTER_DEFAULT = "local[*]"
LOOPBACK = "127.0.0.1"

MASTER_TIMEOUT_S_MAX = 10.0
"""To connect to a master; Spark by itself would try for a minute before it says so."""

JVM_END_S_MAX = 10.0
"""For the Java process to end by itself after it was told to."""

_LOG_SETTINGS = """\
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {log}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd HH:mm:ss}} %p %c{{1}}: %m%n%ex
"""

_STANDALONE = re.compile(r"spark://([^,:]+|\[[^\]]+\]):(\d+)(?:,.*)?")


class SparkError(DovetailError):
    """Spark cannot be started, does not answer or lost the job."""

    code = "spark"
    fault = ConfigError.fault
    exit_code = 7


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """Which Spark to use."""

    master: str = MASTER_DEFAULT
    conf: Mapping[str, str] = field(default_factory=dict)  # more of Spark's own settings

    @property
    def is_local(self) -> bool:
        """Whether tasks run on this machine, in processes that Spark starts for us."""
        return self.master.startswith("local") and "local-cluster" not in self.master


def why_unavailable() -> ConfigError | None:
    """Why Spark cannot be used on this machine; None if it can."""
    if find_spec("pyspark") is None:
        return ConfigError(
            "the clean-up on Spark needs the package pyspark, which is not installed",
            remedy="run `pip install 'dovetail[spark]'`, or clean up without Spark (local)",
        )
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return None  # spark-submit has started Java already
    try:
        find_java()
    except ConfigError as e:
        return e
    return None


@contextmanager
def start_spark(settings: SparkSettings, name: str) -> Iterator[SparkContext]:
    """A Spark context for as long as the block lasts.

    Under spark-submit it is the context that was submitted to, and `settings` do not matter; where
    the program has a context already, it is that one, and it is not stopped. ConfigError if Spark
    is not there, SparkError if it does not start.
    """
    missing = why_unavailable()
    if missing is not None:
        raise missing
    from pyspark import SparkConf, SparkContext

    active = SparkContext._active_spark_context
    if active is not None:
        if settings.master not in (MASTER_DEFAULT, active.master):
            raise ConfigError(
                f"this program has a Spark context on master {active.master!r} already",
                remedy=f"stop it before you use {settings.master!r}",
            )
        yield active
        return
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        # Where the submitter named no interpreter, executors on this machine get this one.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        conf = SparkConf().setIfMissing("spark.app.name", name)
        context = SparkContext(conf=conf)
        try:
            yield context
        finally:
            context.stop()
        return
    address = _address_for(settings.master)
    java = find_java()
    with _log_file() as log, _environment(_variables(java, settings, address)):
        conf = SparkConf(loadDefaults=False)
        for key, value in {**_conf(settings, name, address, log), **settings.conf}.items():
            conf.set(key, value)
        with _java_process(conf, log) as gateway:
            try:
                with _own_interrupt(), warnings.catch_warnings():
                    # About the version of pandas, if it is installed; a clean-up does not use it.
                    warnings.simplefilter("ignore", FutureWarning)
                    context = SparkContext(conf=conf, gateway=gateway)
            except Exception as e:  # py4j's errors have no common base
                raise SparkError(
                    f"Spark does not start on master {settings.master!r}: {_first_line(e)}",
                    remedy=f"check the master; Spark's log is {log}",
                ) from e
            try:
                yield context
            finally:
                with contextlib.suppress(Exception):  # a Spark that has died cannot be stopped
                    context.stop()


def _address_for(master: str) -> str | None:
    """The address of this machine to listen on; None leaves it to Spark.

    A standalone master is called first: whether it answers is known at once, and which of our
    addresses it can reach.
    """
    if master.startswith("local"):
        return LOOPBACK
    found = _STANDALONE.fullmatch(master)
    if found is None:
        if master.startswith("spark:"):
            raise ConfigError(
                f"Spark master {master!r} is not an address", remedy="write spark://HOST:PORT"
            )
        return None
    host, port = found.group(1).strip("[]"), int(found.group(2))
    try:
        with socket.create_connection((host, port), MASTER_TIMEOUT_S_MAX) as s:
            ours = str(s.getsockname()[0])
    except (OSError, OverflowError) as e:
        raise SparkError(
            f"Spark master {master!r} does not answer: {e}",
            remedy="check that it runs and that its address is right; nothing was changed",
        ) from e
    return LOOPBACK if ip_address(ours).is_loopback else ours


def _variables(java: Java, settings: SparkSettings, address: str | None) -> dict[str, str]:
    found = {"JAVA_HOME": java.home, "PYSPARK_DRIVER_PYTHON": sys.executable}
    # Executors elsewhere may have their interpreter in another place, which only the user knows.
    if settings.is_local or "PYSPARK_PYTHON" not in os.environ:
        found["PYSPARK_PYTHON"] = sys.executable
    if address is not None:
        found["SPARK_LOCAL_IP"] = address
    return found


def _conf(settings: SparkSettings, name: str, address: str | None, log: Path) -> dict[str, str]:
    quiet = f'"-Dlog4j2.configurationFile=file:{log}.properties"'
    if settings.is_local:
        # The work is done in Python; Java only hands it out, and need not compile for long.
        quiet += " -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    found = {
        "spark.master": settings.master,
        "spark.app.name": name,
        "spark.driver.extraJavaOptions": quiet,
        "spark.ui.showConsoleProgress": "false",
        # Java and Python of one machine talk over a socket file: over TCP every task waits 40 ms
        # for an acknowledgement that the system delays.
        "spark.python.unix.domain.socket.enabled": "true",
    }
    if settings.is_local:
        found["spark.python.daemon.module"] = "dovetail_pipeline.spark.daemon"
    if address is not None:
        found |= {"spark.driver.host": address, "spark.driver.bindAddress": address}
    return found


@contextmanager
def _log_file() -> Iterator[Path]:
    """Where Spark's log goes, with the settings beside it that say so."""
    folder = cache_folder() / "spark"
    log = folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
    settings = Path(f"{log}.properties")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        settings.write_text(_LOG_SETTINGS.format(log=log), encoding="utf-8")
        log.touch()
    except OSError as e:
        raise ConfigError(
            f"Spark's log cannot be written to {folder}: {e.strerror}",
            remedy="set XDG_CACHE_HOME to a folder that you may write to",
        ) from e
    try:
        yield log
        log.unlink(missing_ok=True)
        prune_cache(cache_folder())
    finally:
        settings.unlink(missing_ok=True)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables for what is started within the block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _java_process(conf: Any, log: Path) -> Iterator[Any]:
    """Spark's Java process, which ends with the block, or with this process if that is killed."""
    from pyspark import SparkContext
    from pyspark.java_gateway import launch_gateway

    with open(log, "ab") as out:
        try:
            gateway = launch_gateway(conf, {"stdout": out, "stderr": out})
        except Exception as e:  # pyspark raises its own kinds
            tail = log.read_text(errors="replace").strip().splitlines()[-1:]
            raise SparkError(
                f"Spark's Java process does not start: {_first_line(e)} {' '.join(tail)}".strip(),
                remedy=f"Spark's log is {log}; `dovetail doctor` shows the Java that was found",
            ) from e
    try:
        yield gateway
    finally:
        gateway.shutdown()
        gateway.proc.stdin.close()  # Spark's Java ends when its input does
        try:
            gateway.proc.wait(JVM_END_S_MAX)
        except Exception:  # whatever the reason, it must not stay
            gateway.proc.kill()
            gateway.proc.wait()
        SparkContext._gateway = SparkContext._jvm = None  # so that another can be started


@contextmanager
def _own_interrupt() -> Iterator[None]:
    """Keep our answer to Ctrl-C: pyspark installs its own when it makes a context."""
    ours = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, ours)


def _first_line(error: BaseException) -> str:
    lines = [x.strip() for x in str(error).splitlines() if x.strip()]
    told = [x for x in lines if "Exception" in x or "Error" in x]
    return (told or lines or [type(error).__name__])[0]
