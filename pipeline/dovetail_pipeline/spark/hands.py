"""Spark as the hands of a clean-up: every job is one task, and no data moves between tasks.

    driver      manifests ─▶ bins ─▶ ┌ task: bin 0 ─▶ Parquet files, then a marker ┐ ─▶ counts
                                     └ task: bin 1 ─▶ …                            ┘

Tasks read the spill store and write results by themselves, under names that depend on the bin
and the attempt alone; only JSON passes through Spark. So a task that is tried again, or that has a
speculative twin, leaves what one task leaves, and a driver that dies loses no finished bin.

Spark starts when the first job is there: a clean-up that owes nothing never starts it.
"""

from __future__ import annotations

import json
import platform
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Self

from dovetail_pipeline.cleanup.catalog import Catalog
from dovetail_pipeline.cleanup.conducting import Workers, rebuilt_error, worker_settings
from dovetail_pipeline.cleanup.estimating import Estimate
from dovetail_pipeline.cleanup.task import MEMORY_BYTES_MIN
from dovetail_pipeline.spark.on_executor import ERROR_MARK, do_job, look_around
from dovetail_pipeline.spark.session import SparkError, SparkSettings, start_spark
from dovetail_pipeline.spark.shipping import packages_zip
from dovetail_proto.errors import ConfigError, DovetailError

if TYPE_CHECKING:
    from pyspark import SparkContext

POLL_S = 0.1
"""Between two looks at what Spark has done: often enough for the eye."""

EXECUTORS_WAIT_S_MAX = 60.0
"""For the first executor of a cluster to come: a worker starts one in some seconds."""

Json = dict[str, Any]
Tell = Callable[[str], None]


class SparkHands:
    """Does the jobs of clean-ups on Spark; a context manager that stops Spark.

    `memory_bytes` is for all tasks on one machine together. `tell` gets a line about what Spark is
    busy with before the first job.
    """

    def __init__(
        self, settings: SparkSettings, *, memory_bytes: int, tell: Tell = lambda line: None
    ) -> None:
        self._settings = settings
        self._memory_bytes = memory_bytes
        self._tell = tell
        self._undo = ExitStack()
        self._context: SparkContext | None = None
        self.start_seconds = 0.0  # spent on starting Spark; 0 if it was not needed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: Any) -> None:
        self._context = None
        self._undo.__exit__(*exc)

    @contextmanager
    def __call__(
        self, catalog: Catalog, expected: Estimate, place: str | None
    ) -> Iterator[Workers]:
        """The hands for one clean-up; starts Spark if it does not run yet."""
        context = self._started()
        share = self._memory_bytes // _cores_per_machine(context)
        settings = worker_settings(catalog, place, max(share, MEMORY_BYTES_MIN))
        yield _Tasks(context, settings, f"Dovetail clean-up of {catalog.plan.name}")

    def _started(self) -> SparkContext:
        if self._context is None:
            started = time.monotonic()
            self._tell(f"starting Spark on {self._settings.master}")
            context = self._undo.enter_context(start_spark(self._settings, "dovetail clean-up"))
            if not context.master.startswith("local"):
                self._tell("checking Spark's executors")
                _wait_for_executors(context)
                context.addPyFile(str(packages_zip()))
                _check_executors(context)
            self._context = context
            self.start_seconds = time.monotonic() - started
        return self._context


class _Tasks:
    """One clean-up's jobs as Spark tasks."""

    def __init__(self, context: SparkContext, settings: Json, title: str) -> None:
        self._context = context
        self._settings = json.dumps(settings)
        self._title = title
        self._bytes_read = 0
        self._results = 0
        self.count = max(1, context.defaultParallelism)

    def run(
        self,
        jobs: Sequence[Json],
        done: Callable[[Json, Json], None],
        progress: Callable[[int, int], None],
    ) -> None:
        """Do all jobs as the tasks of one Spark job; see `Workers`."""
        if not jobs:
            return
        settings = self._settings  # tasks must not drag this object along

        answers = self._context.accumulator([], _answers_param())

        def do(numbered: tuple[int, str]) -> tuple[int, str]:
            answer = (numbered[0], do_job(settings, numbered[1]))
            answers.add([answer])
            return answer

        texts = [(i, json.dumps(job)) for i, job in enumerate(jobs)]
        tasks = self._context.parallelize(texts, len(texts)).map(do)
        verb = "joining" if "bin" in jobs[0] else "counting"
        call = _Call(self._context, f"{self._title}: {verb}", tasks.collect)
        taken: set[int] = set()

        def take(found: Sequence[tuple[int, str]]) -> None:
            for i, text in found:
                if i not in taken:
                    taken.add(i)
                    answer = json.loads(text)
                    self._results += answer.get("combinations", 0)
                    self._bytes_read += answer["bytes_read"]
                    done(jobs[i], answer)
            progress(self._results, self._bytes_read)

        try:
            while not call.ended(POLL_S):
                take(list(answers.value))
        except BaseException:
            call.cancel()
            raise
        take(list(answers.value))  # what a Ctrl-C ended is stopped, not failed
        take(call.result())


class _Call:
    """An action of Spark in a thread of its own, so that it can be watched and cancelled."""

    def __init__(self, context: SparkContext, title: str, action: Callable[[], Any]) -> None:
        self._context = context
        self._group = f"dovetail-{id(self)}"
        self._title = title
        self._action = action
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="spark-action", daemon=True)
        self._thread.start()

    def ended(self, timeout_s: float) -> bool:
        """Whether it has ended, waiting so long at most."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def result(self) -> Any:
        """What the action returned; what a task refused is raised as the error that it was."""
        self._thread.join()
        if self._error is not None:
            raise _understood(self._error) from self._error
        return self._result

    def cancel(self) -> None:
        """End the tasks."""
        self._context.cancelJobGroup(self._group)

    def _run(self) -> None:
        try:
            # Both names show in Spark's UI; they belong to the thread that starts the job.
            self._context.setJobGroup(self._group, self._title, interruptOnCancel=True)
            self._result = self._action()
        except BaseException as e:
            self._error = e


def _answers_param() -> Any:
    from pyspark.accumulators import AccumulatorParam

    class Answers(AccumulatorParam[list[tuple[int, str]]]):  # type: ignore[misc]
        """Gathers what tasks answered as each of them ends, each successful task once."""

        def zero(self, value: list[tuple[int, str]]) -> list[tuple[int, str]]:
            return []

        def addInPlace(  # noqa: N802 - Spark's name
            self, value1: list[tuple[int, str]], value2: list[tuple[int, str]]
        ) -> list[tuple[int, str]]:
            return [*value1, *value2]

    return Answers()


def _understood(error: BaseException) -> DovetailError:
    """The refusal that travelled in the text of Spark's error, or what else went wrong."""
    text = str(error)
    at = text.rfind(ERROR_MARK)
    if at >= 0:
        raw, _ = json.JSONDecoder().raw_decode(text[at + len(ERROR_MARK) :])
        return rebuilt_error(raw)
    if "PYTHON_VERSION_MISMATCH" in text:
        return _wrong_python("another version")
    if "ModuleNotFoundError" in text or "ImportError" in text:
        lines = [x for x in text.splitlines() if "ModuleNotFoundError" in x or "ImportError" in x]
        return _not_installed(lines[-1].strip())
    lines = [x.strip() for x in text.splitlines() if x.strip()]
    told = next((x for x in lines if "aborted" in x or "Exception" in x), text[:200])
    return SparkError(
        f"Spark lost the job: {told}",
        remedy="see the executors' logs, then clean up again; what is finished is kept",
    )


def _wait_for_executors(context: SparkContext) -> None:
    began = time.monotonic()
    while context._jsc.sc().getExecutorMemoryStatus().size() < 2:  # the driver is one of them
        if time.monotonic() - began > EXECUTORS_WAIT_S_MAX:
            raise SparkError(
                f"Spark master {context.master!r} gave no executor within "
                f"{EXECUTORS_WAIT_S_MAX:.0f} s",
                remedy="check in the master's UI that workers are alive and have cores and memory",
            )
        time.sleep(POLL_S)


def _check_executors(context: SparkContext) -> None:
    """Let every core say what it is; ConfigError if a clean-up cannot work there."""
    cores = max(1, context.defaultParallelism)
    tasks = context.parallelize(range(cores), cores).map(lambda i: look_around())
    import duckdb

    for text in _Call(context, "Dovetail: check of the executors", tasks.collect).result():
        found = json.loads(text)
        where = f"{found['host']} ({found['executable']})"
        if found["missing"]:
            raise _not_installed(f"{found['missing']} on {where}")
        if found["python"].split(".")[:2] != platform.python_version().split(".")[:2]:
            raise _wrong_python(f"Python {found['python']} on {where}")
        if found["duckdb"] != duckdb.__version__:
            raise ConfigError(
                f"executors evaluate SQL with DuckDB {found['duckdb']} on {where}, "
                f"the driver with {duckdb.__version__}",
                remedy="install the same version there",
            )


def _not_installed(what: str) -> ConfigError:
    return ConfigError(
        f"Spark's executors lack a package: {what}",
        remedy="install dovetail's dependencies there, or name an interpreter that has them with "
        "PYSPARK_PYTHON",
    )


def _wrong_python(what: str) -> ConfigError:
    return ConfigError(
        f"Spark's executors run {what}, the driver Python {platform.python_version()}",
        remedy="name an interpreter of the same minor version there with PYSPARK_PYTHON",
    )


def _cores_per_machine(context: SparkContext) -> int:
    cores = max(1, int(context.defaultParallelism))
    if context.master.startswith("local"):
        return cores
    machines = max(1, int(context._jsc.sc().getExecutorMemoryStatus().size()) - 1)
    return -(-cores // machines)
