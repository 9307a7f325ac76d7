"""Commands that use Spark, as a user types them."""

from __future__ import annotations

import re
from pathlib import Path

from dovetail_bench.oracle import compare
from kit.cli import dovetail
from kit.trades import SQL, streams, write_all

LARGE = streams(rows=60_000, symbols=9_000)
SMALL = ("--memory", "4MB", "--partitions", "40")


def test_a_run_cleans_up_on_spark_by_default_and_quietly(tmp_path: Path) -> None:
    """The exact join; standard error is ours alone; the working folder stays clean."""
    (tmp_path / "prices.sql").write_text(SQL)
    (tmp_path / "cwd").mkdir()
    inputs = write_all(LARGE, tmp_path, "parquet")
    out = tmp_path / "out"
    done = dovetail(
        "run", tmp_path / "prices.sql", *inputs, "--output", out, *SMALL, "--json",
        cwd=tmp_path / "cwd",
    )  # fmt: skip
    assert done.code == 0, done.err
    report = done.json
    assert report["cleanup"] == "spark"
    assert report["results_cleanup"] > 0
    assert 0 < report["seconds_spark_start"] < report["seconds_cleanup"]
    assert compare(out, SQL, LARGE).equal
    assert all(re.match(r"(run|clean-up): ", line) for line in done.err.splitlines()), done.err
    assert not list((tmp_path / "cwd").iterdir())


def test_a_run_that_fits_in_memory_starts_no_spark(tmp_path: Path) -> None:
    """A master that is not there is never called, and no Java is needed."""
    (tmp_path / "prices.sql").write_text(SQL)
    inputs = write_all(streams(), tmp_path, "parquet")
    done = dovetail("run", tmp_path / "prices.sql", *inputs, "--output=none", "--json")
    assert done.code == 0, done.err
    assert done.json["cleanup"] == "spark"
    assert done.json["seconds_spark_start"] == 0


def test_flags_of_the_clean_up_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    """Each names what to do instead."""
    done = dovetail("cleanup")
    assert (done.code, "no spill store given" in done.err) == (2, True)
    done = dovetail("cleanup", tmp_path, "--on", "local", "--master", "local[2]")
    assert (done.code, "--master is for Spark" in done.err) == (2, True)
    done = dovetail("cleanup", tmp_path, "--on", "flink")
    assert (done.code, "--on" in done.err) == (2, True)
    done = dovetail("cleanup", tmp_path, "--json")
    assert (done.code, done.json["error"]["code"]) == (6, "spill")
