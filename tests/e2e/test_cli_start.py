"""The program around the commands: help, versions, the generator, the doctor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kit.cli import dovetail

HEAVY = ("numba", "pyarrow", "duckdb", "numpy", "sqlglot", "psutil")


def test_help_names_every_command() -> None:
    """With and without the flag."""
    for words in (["--help"], []):
        done = dovetail(*words)
        assert done.code == 0
        for command in ("run", "cleanup", "owed", "generate", "doctor"):
            assert command in done.out


def test_help_loads_none_of_the_heavy_packages() -> None:
    """Which is what keeps its start under half a second."""
    program = (
        "import sys; from dovetail.cli import run_command; "
        "run_command(['run', '--help']); "
        f"print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stderr.strip() == "[]"


def loaded(*words: str | Path, cwd: Path) -> set[str]:
    """The modules that a command loads, from its start to its end."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "dovetail", *map(str, words)],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}


def test_a_command_loads_what_it_needs_and_no_more(tmp_path: Path) -> None:
    """Numba where rows are joined, neither gRPC nor Spark nor pandas for files on this machine."""
    pq.write_table(pa.table({"k": [1, 2]}), tmp_path / "t.parquet")
    sql = "SELECT a.k FROM t a JOIN t b ON a.k = b.k"
    files = ("--input", "t=t.parquet", "--output", "none")
    run = loaded("run", sql, *files, cwd=tmp_path)
    assert {"numba", "pyarrow", "duckdb"} <= run
    for words in (
        ("run", sql, *files, "--explain"),
        ("run", sql.replace("b.k", "b.gone"), *files),
        ("status", "--manager", "http://127.0.0.1:9"),
    ):
        assert "numba" not in loaded(*words, cwd=tmp_path)
    assert not {"pandas._libs", "grpc", "pyspark", "dovetail_pipeline.cleanup"} & run


def test_the_exit_code_and_all_output_survive_a_quick_end(tmp_path: Path) -> None:
    """The interpreter is not taken down piece by piece: what was printed must be out by then."""
    pq.write_table(pa.table({"k": [1, 2]}), tmp_path / "t.parquet")
    flags = ("--input", "t=t.parquet", "--output", "none", "--json")
    done = dovetail("run", "SELECT a.k FROM t a JOIN t b ON a.k = b.k", *flags, cwd=tmp_path)
    assert (done.code, done.json["results_run"], done.err) == (0, 2, "")
    refused = dovetail("run", "SELECT a.k FROM t a", *flags, cwd=tmp_path)
    assert refused.code == refused.json["error"]["exit_code"] != 0


def test_version_is_the_package_version() -> None:
    """So that a report of a defect can name it."""
    assert dovetail("--version").out.strip() == "0.1.0"


def test_a_slip_in_a_command_is_guessed() -> None:
    """And ends as every other refusal does."""
    done = dovetail("rum")
    assert done.code == 2
    assert done.err.startswith("error: No such command 'rum'. Did you mean 'run'")
    assert "Traceback" not in done.err


def test_doctor_finds_what_it_needs() -> None:
    """On the machine that runs the tests."""
    done = dovetail("doctor", "--json")
    assert done.code == 0, done.err
    assert done.json["problems"] == []
    assert done.json["packages"]["pyarrow"]
    assert "python" in dovetail("doctor").out


def test_doctor_names_a_kernel_cache_that_cannot_be_written(tmp_path: Path) -> None:
    """A folder below a file can never be made, whoever asks."""
    (tmp_path / "file").write_text("")
    done = dovetail("doctor", environment={"NUMBA_CACHE_DIR": str(tmp_path / "file" / "cache")})
    assert done.code == 1
    assert "NUMBA_CACHE_DIR" in done.out


def test_kernels_are_compiled_after_the_input_was_looked_at_and_with_a_word(tmp_path: Path) -> None:
    """On a new installation the first command compiles them, for half a minute."""
    cold = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    pq.write_table(pa.table({"k": [1, 2]}), tmp_path / "there.parquet")
    sql = "SELECT a.k FROM a JOIN b ON a.k = b.k"
    flags = ["--input", "a=there.parquet", "--output", "none", "--cleanup", "none"]
    for path, problem in (("gone.parquet", "no such file"), ("there.parquet --partitions=0", "")):
        words = ["run", sql, *flags, "--input", *f"b={path}".split()]
        done = dovetail(*words, cwd=tmp_path, environment=cold)
        assert done.code != 0
        assert problem in done.err
        assert "compiling" not in done.err
    process = subprocess.Popen(
        [sys.executable, "-m", "dovetail", "run", sql, *flags, "--input", "b=there.parquet"],
        cwd=tmp_path,
        env={**os.environ, **cold},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("compiling the join's kernels")
    finally:
        process.kill()
        process.communicate()


def test_a_query_may_be_typed_where_its_file_would_be_named(tmp_path: Path) -> None:
    """A file that exists is a file; what does not begin as SQL does was meant for one."""
    pq.write_table(pa.table({"k": [1, 2, 2]}), tmp_path / "t.parquet")
    sql = "select a.k from t a join t b on a.k = b.k"
    (tmp_path / "good.sql").write_text(sql)
    (tmp_path / "select one").write_text(sql)
    flags = ["--input", "t=t.parquet", "--output", "none", "--cleanup", "none", "--json"]
    for query, name in ((sql, "query"), ("good.sql", "good"), ("select one", "select_one")):
        done = dovetail("run", query, *flags, cwd=tmp_path)
        assert done.code == 0, done.err
        assert (done.json["query"], done.json["results_run"]) == (name, 5)
    slip = dovetail("run", "god.sql", *flags, cwd=tmp_path).json["error"]
    assert slip["message"] == "query file 'god.sql' does not exist"
    assert "did you mean 'good.sql'?" in slip["remedy"]
    assert "the SQL itself" in slip["remedy"]


def test_generated_streams_join_as_the_generator_says(tmp_path: Path) -> None:
    """The command that it prints works, and finds as many results as S4 3.4 predicts."""
    folder = tmp_path / "streams"
    flags = ["--rows", "6000", "--tuple-range", "3000", "--join-ratio", "2", "--seed", "5"]
    made = dovetail("generate", folder, *flags)
    assert made.code == 0, made.err
    words = made.out.splitlines()[-1].split()
    assert words[:2] == ["dovetail", "run"]
    done = dovetail(*words[1:], "--json")
    assert done.code == 0, done.err
    assert done.json["results_run"] + done.json["results_cleanup"] == 6000 * 4**2


def test_the_generator_is_deterministic_and_refuses_a_folder_in_use(tmp_path: Path) -> None:
    """The same flags, the same rows; a folder with files in it stays as it is."""
    a, b = tmp_path / "a", tmp_path / "b"
    for folder in (a, b):
        assert dovetail("generate", folder, "--rows", "5000", "--kind", "hot-key").code == 0
    assert pq.read_table(a / "s1.parquet").equals(pq.read_table(b / "s1.parquet"))
    before = {p.name: p.stat().st_mtime_ns for p in a.iterdir()}
    again = dovetail("generate", a)
    assert again.code == 4
    assert "not empty" in again.err
    assert {p.name: p.stat().st_mtime_ns for p in a.iterdir()} == before


@pytest.mark.parametrize("ratio", ["", "2,", "two", "-1", "1.5"])
def test_a_join_ratio_that_is_no_list_of_numbers_is_refused(ratio: str, tmp_path: Path) -> None:
    """Before anything is made."""
    done = dovetail("generate", tmp_path / "new", f"--join-ratio={ratio}")
    assert done.code == 2
    assert done.err.startswith("error: --join-ratio")
    assert not (tmp_path / "new").exists()


def test_a_traceback_is_shown_only_when_asked_for(tmp_path: Path) -> None:
    """`DOVETAIL_DEBUG=1` asks."""
    words = ["owed", str(tmp_path / "nowhere")]
    plain, debug = dovetail(*words), dovetail(*words, environment={"DOVETAIL_DEBUG": "1"})
    assert plain.code == debug.code == 6
    assert "Traceback" not in plain.err
    assert "Traceback" in debug.err
    assert plain.err.splitlines()[0] in debug.err


def test_a_reader_that_goes_away_is_no_defect(tmp_path: Path) -> None:
    """As in `dovetail doctor --json | head -0`."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "dovetail", "doctor", "--json"],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(write)
    assert "Traceback" not in done.stderr


def test_json_errors_can_be_matched_by_code() -> None:
    """The object names code, remedy and exit code."""
    done = dovetail("run", "x.sql", "--json")
    error = json.loads(done.out)["error"]
    assert error["code"] == "config"
    assert error["exit_code"] == done.code == 2
    assert error["remedy"] == "see `dovetail run --help`"
