"""The clean-up on a standalone Spark: executors are processes of their own, on two hosts.

They are started for real, on loopback, and have none of our packages but what the driver ships.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyspark
import pytest

from dovetail_pipeline.cleanup import conduct
from dovetail_pipeline.spark.hands import SparkHands
from dovetail_pipeline.spark.java import find_java
from dovetail_pipeline.spark.on_executor import JobRefused, do_job
from dovetail_pipeline.spark.session import SparkSettings
from dovetail_pipeline.spark.submit import entry_point
from dovetail_proto.errors import ConfigError
from kit.spark_cluster import standalone_cluster
from kit.spills import Spilled, make_plan, owed_results, read_bag, spill

MEMORY_BYTES = 64 << 20

SPECULATIVE = {
    "spark.speculation": "true",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.multiplier": "1.01",
    "spark.speculation.interval": "50ms",
    "spark.speculation.minTaskRuntime": "50ms",
    "spark.executor.memory": "512m",
}
"""Spark gives a twin to every task that is slower than the fastest."""


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One cluster for all tests."""
    with standalone_cluster(tmp_path_factory.mktemp("spark")) as url:
        yield url


@pytest.fixture
def spilled(tmp_path: Path) -> Spilled:
    """A store that owes something."""
    rng = np.random.default_rng(3)
    tables = [pa.table({"k": rng.integers(0, 900, 2000), "n": np.arange(2000)}) for _ in range(3)]
    plan = make_plan([t.schema for t in tables])
    epochs = [np.sort(rng.integers(0, 4, 2000)) for _ in tables]
    return spill(tmp_path / "spill", plan, tables, epochs, rng=rng)


def test_executors_get_the_package_and_twins_leave_each_result_once(
    master: str, spilled: Spilled, tmp_path: Path
) -> None:
    """The first attempt of bin 2 waits for its twin; then both write the same files at once."""
    flag = str(tmp_path / "twin")
    real = do_job

    def with_a_twin(settings: str, job: str) -> str:
        import threading

        from pyspark import TaskContext

        if json.loads(job).get("bin", {}).get("index") == 2:
            if TaskContext.get().attemptNumber() > 0:
                open(flag, "w").close()
            for _ in range(2400):
                if os.path.exists(flag):
                    break
                threading.Event().wait(0.05)
        return real(settings, job)

    settings = SparkSettings(master, SPECULATIVE)
    with (
        patch.multiple("dovetail_pipeline.cleanup.bins", BIN_COST_MIN=200, FILE_COST=0),
        patch("dovetail_pipeline.spark.hands.do_job", with_a_twin),
        SparkHands(settings, memory_bytes=MEMORY_BYTES) as hands,
    ):
        result = conduct([spilled.store], tmp_path / "out", hands)
    assert os.path.exists(flag), "no twin was started"
    assert result.bins == 8
    assert read_bag(tmp_path / "out") == owed_results(spilled)
    assert len(result.files) == len(list((tmp_path / "out").glob("part-*.parquet")))


def test_executors_without_a_library_are_refused_before_any_work(
    master: str, spilled: Spilled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interpreter there that has nothing but itself."""
    venv.create(tmp_path / "bare", with_pip=False)
    monkeypatch.setenv("PYSPARK_PYTHON", str(tmp_path / "bare" / "bin" / "python"))
    settings = SparkSettings(master, {"spark.executor.memory": "512m"})
    with (
        SparkHands(settings, memory_bytes=MEMORY_BYTES) as hands,
        pytest.raises(ConfigError, match=r"executors lack a package: .*bare/bin/python") as e,
    ):
        conduct([spilled.store], tmp_path / "out", hands)
    assert "PYSPARK_PYTHON" in e.value.remedy
    assert not (tmp_path / "out").exists()


def test_an_executor_that_does_not_see_the_spill_says_so(tmp_path: Path) -> None:
    """The driver does, or there would be no job: the remedy is to share the folder."""
    settings = {"roots": [str(tmp_path)], "output": None, "memory_bytes": MEMORY_BYTES}
    with pytest.raises(JobRefused, match=r"no query.json \(on .*an executor does not: mount it"):
        do_job(json.dumps(settings), "{}")


def test_spark_submit_runs_the_entry_point(master: str, spilled: Spilled, tmp_path: Path) -> None:
    """With a Python of its own choice, which has none of our packages."""
    home = Path(pyspark.__file__).parent
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYSPARK", "SPARK"))}
    environment |= {"JAVA_HOME": find_java().home, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [
            home / "bin" / "spark-submit",
            *("--master", master, "--executor-memory", "512m"),
            *("--conf", "spark.driver.host=127.0.0.1"),
            *("--conf", f"spark.pyspark.driver.python={sys._base_executable}"),
            *("--conf", "spark.log.level=ERROR"),
            entry_point(),
            *("--spill", spilled.store.root, "--query", "test", "--output", tmp_path / "out"),
        ],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["output"] == f"{tmp_path}/out/phase=cleanup"
    assert read_bag(tmp_path / "out" / "phase=cleanup") == owed_results(spilled)
